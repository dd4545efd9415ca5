use flashcube_formats::{Format, Packing, QuantConfig, QuantMethod, V1Zeros};
use serde::Serialize;

use crate::awq::AwqOptions;
use crate::error::QuantizeError;
use crate::gptq::GptqOptions;
use crate::grid::GridOptions;

/// How linears are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Method {
    /// [`quantize_gptq`](crate::quantize_gptq).
    Gptq(GptqOptions),
    /// [`search_scales`](crate::search_scales), folded, then
    /// [`round_clipped`](crate::round_clipped).
    Awq(AwqOptions),
    /// [`round_to_nearest`](crate::round_to_nearest).
    Rtn(GridOptions),
    /// [`round_nvfp4`](crate::round_nvfp4), block scales to nearest even.
    Nvfp4,
    /// [`round_nf4`](crate::round_nf4) in blocks of so many input channels.
    Nf4(usize),
    /// [`round_mxfp4`](crate::round_mxfp4), scales by [`ScaleRule::Floor`](crate::ScaleRule::Floor).
    Mxfp4,
}

impl Method {
    /// Its name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Gptq(_) => "gptq",
            Self::Awq(_) => "awq",
            Self::Rtn(_) => "rtn",
            Self::Nvfp4 => "nvfp4",
            Self::Nf4(_) => "nf4",
            Self::Mxfp4 => "mxfp4",
        }
    }

    /// The integer grid, where there is one.
    pub fn grid(&self) -> Option<GridOptions> {
        match self {
            Self::Gptq(options) => Some(options.grid),
            Self::Awq(options) => Some(options.grid),
            Self::Rtn(grid) => Some(*grid),
            Self::Nvfp4 | Self::Nf4(_) | Self::Mxfp4 => None,
        }
    }
}

/// What becomes of AWQ's scales where nothing before the linear can take them in and the format
/// has no place for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum Unfoldable {
    /// An error.
    #[default]
    Refuse,
    /// Such linears are rounded without scales.
    Skip,
}

/// The kind of checkpoint to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Who reads it.
    pub method: QuantMethod,
    /// How weights are packed.
    pub packing: Packing,
}

impl Target {
    /// The names that [`Target::parse`] takes.
    pub const NAMES: [&str; 8] = [
        "gptq",
        "gptq_v2",
        "awq",
        "awq_gemv",
        "marlin",
        "compressed-tensors",
        "nvfp4",
        "flashcube",
    ];

    /// A target by name: one of [`Target::NAMES`].
    pub fn parse(name: &str, bits: u32) -> Option<Self> {
        let int = |method, format| Self {
            method,
            packing: Packing::Int(format),
        };
        Some(match name {
            "gptq" => int(
                QuantMethod::Gptq,
                Format::GptqV1(V1Zeros::of_gptqmodel(bits)),
            ),
            "gptq_v2" => int(QuantMethod::Gptq, Format::GptqV2),
            "awq" => int(QuantMethod::Awq, Format::AwqGemm),
            "awq_gemv" => int(QuantMethod::Awq, Format::AwqGemv),
            "marlin" => int(QuantMethod::Gptq, Format::Marlin),
            "compressed-tensors" => int(QuantMethod::CompressedTensors, Format::CompressedTensors),
            "nvfp4" => Self {
                method: QuantMethod::CompressedTensors,
                packing: Packing::Nvfp4,
            },
            "flashcube" => int(QuantMethod::Flashcube, Format::GptqV2),
            _ => return None,
        })
    }

    /// The name that [`Target::parse`] takes.
    pub fn name(&self) -> &'static str {
        match (self.method, self.packing) {
            (QuantMethod::Flashcube, _) | (_, Packing::Tiles) => "flashcube",
            (_, Packing::Nvfp4) => "nvfp4",
            (_, Packing::Int(format)) => match format {
                Format::GptqV1(_) => "gptq",
                Format::GptqV2 => "gptq_v2",
                Format::AwqGemm => "awq",
                Format::AwqGemv => "awq_gemv",
                Format::Marlin => "marlin",
                _ => "compressed-tensors",
            },
        }
    }

    /// Whether it can hold the divisor of a linear's input.
    pub fn holds_divisors(&self) -> bool {
        self.method == QuantMethod::Flashcube
    }

    /// Small floats have a packing of their own in our format.
    fn suited(self, method: &Method) -> Self {
        match self.method == QuantMethod::Flashcube && method.grid().is_none() {
            true => Self {
                packing: Packing::Tiles,
                ..self
            },
            false => self,
        }
    }

    /// What the checkpoint says about itself.
    pub fn config(&self, method: &Method, ignore: Vec<String>) -> QuantConfig {
        let grid = method.grid();
        let moving = |gptq: &GptqOptions| gptq.act_order && !gptq.static_groups;
        QuantConfig {
            method: self.method,
            bits: grid.map_or(4, |grid| grid.bits),
            group_size: match method {
                Method::Nf4(block) => Some(*block),
                Method::Mxfp4 => Some(32),
                _ => grid.map_or(Some(16), |grid| grid.group),
            },
            desc_act: matches!(method, Method::Gptq(gptq) if moving(gptq)),
            sym: Some(grid.is_none_or(|grid| grid.symmetric)),
            packing: self.packing,
            ignore,
        }
    }

    /// Refuses what the format cannot hold, before any work is done.
    pub(super) fn check(&self, method: &Method) -> Result<(), QuantizeError> {
        let fits = match self.packing {
            Packing::Int(_) => method.grid().is_some(),
            Packing::Nvfp4 => *method == Method::Nvfp4,
            Packing::Tiles => method.grid().is_none(),
        };
        if fits {
            return Ok(());
        }
        let limit = "nvfp4 goes with the method nvfp4 alone, nf4 and mxfp4 with flashcube";
        Err(QuantizeError::unsupported("format", self.name(), limit))
    }
}

/// Options of [`quantize_model`](super::quantize_model).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelOptions {
    /// How linears are quantized.
    pub method: Method,
    /// What is written.
    pub target: Target,
    /// GPTQ: the linears of a block see what the earlier ones of it became, not what they were.
    pub true_sequential: bool,
    /// Biases, where linears have them, take in the mean of the output error (Nagel et al. 2019);
    /// weights are then judged by what remains.
    pub bias_correction: bool,
    /// Every linear aims at the output of the original model's, not of its own on the input that
    /// it gets: it takes over, as far as it can, what the linears before it got wrong
    /// ([`Drift::target`](crate::Drift::target)). The original model runs beside. Not for AWQ, which
    /// sees the inputs of a whole block before it changes any.
    pub follow_original: bool,
    /// AWQ: scales that cannot be folded.
    pub unfoldable: Unfoldable,
    /// Most bytes of tensors in a file.
    pub shard_bytes: usize,
}

impl ModelOptions {
    /// True-sequential, biases as they are, files of at most 2 GB, scales that cannot be folded refused.
    pub fn new(method: Method, target: Target) -> Self {
        Self {
            target: target.suited(&method),
            method,
            true_sequential: true,
            bias_correction: false,
            follow_original: false,
            unfoldable: Unfoldable::default(),
            shard_bytes: 2_000_000_000,
        }
    }

    /// Refuses what does not go together, before any work is done.
    pub(super) fn check(&self) -> Result<(), QuantizeError> {
        self.target.check(&self.method)?;
        if self.method == Method::Nf4(0) {
            return Err(QuantizeError::unsupported("group", 0, "at least 1"));
        }
        if let Method::Gptq(gptq) = &self.method {
            gptq.check()?;
        }
        if self.follow_original && matches!(self.method, Method::Awq(_)) {
            let limit = "any other method";
            return Err(QuantizeError::unsupported(
                "method that follows the original",
                "awq",
                limit,
            ));
        }
        Ok(())
    }
}
