//! `dequantize_int4`: check, bind, launch.

use core::fmt;

use cubecl::prelude::{BufferArg, Client, CubeDim};
use cubecl::server::Handle;

use super::{
    Caps, DType, Tensor, address, buffer, check_dtype, check_launch, check_reach, cube_units,
    expect_axes, expect_dtype, out_of_range, spread,
};
use crate::error::{Error, InvalidProblem, NotAvailable};
use crate::quant::{PackFormat, PackSizes, PackSizesLaunch, Packing, dequantize_int4_fma};

/// A packed weight matrix W [k, n] on the device; layouts in [`PackFormat`].
///
/// The tables are trusted: group indices and zero points are checked where a checkpoint is
/// loaded (flashcube-formats), sizes are checked here.
#[derive(Debug, Clone)]
pub struct PackedWeights {
    /// Layout.
    pub format: PackFormat,
    /// Bits of a code: 2, 3, 4 or 8 for GPTQ, 4 for AWQ and GGUF.
    pub bits: u32,
    /// Input features.
    pub k: usize,
    /// Output features.
    pub n: usize,
    /// Rows of k that share scale and zero point; the last group may be short. 32 for GGUF.
    pub group: usize,
    /// Packed codes, u32 words; GGUF's blocks.
    pub qweight: Handle,
    /// Packed zero points, u32 words; none for GGUF.
    pub qzeros: Handle,
    /// Scales, f16; none for GGUF.
    pub scales: Handle,
    /// Group of every row of k, u32 `[k]`; `None` for k / group.
    pub g_idx: Option<Handle>,
}

/// Options of [`dequantize_int4`].
#[derive(Debug, Clone, Default)]
pub struct DequantizeOptions {
    /// Dtype of the weights; f32 when absent.
    pub dtype: Option<DType>,
    /// Where to write W [k, n]; allocated dense when absent.
    pub out: Option<Tensor<2>>,
}

/// Comptime choices of the dequantize kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DequantizeBlueprint {
    /// Layout and bits.
    pub packing: Packing,
    /// Dtype written.
    pub dtype: DType,
    /// Units of a cube.
    pub units: usize,
    /// 64-bit addressing.
    pub wide: bool,
}

impl fmt::Display for DequantizeBlueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = match self.packing.format {
            PackFormat::GptqV1 => "gptq_v1",
            PackFormat::GptqV2 => "gptq_v2",
            PackFormat::AwqGemm => "awq_gemm",
            PackFormat::AwqGemv => "awq_gemv",
            PackFormat::GgufQ4_1 => "gguf_q4_1",
        };
        write!(
            f,
            "dequantize/unit/{format}/b{}/{}/u{}",
            self.packing.bits, self.dtype, self.units
        )?;
        for (on, tag) in [(self.packing.indexed, "/g_idx"), (self.wide, "/wide")] {
            if on {
                write!(f, "{tag}")?;
            }
        }
        Ok(())
    }
}

/// Result of [`dequantize_int4`].
#[derive(Debug, Clone)]
pub struct Dequantized {
    /// W [k, n].
    pub out: Tensor<2>,
    /// What ran; `None` when the result is empty.
    pub blueprint: Option<DequantizeBlueprint>,
}

/// `w[k, n] = scale[g, n] * (code[k, n] - zero[g, n]) + minimum[g, n]`, `g = g_idx[k]` or `k / group`.
///
/// Exact up to one rounding to the output dtype, and one to f32 where there are minima. Formats: GPTQ v1 and v2
/// with 2, 3, 4 and 8 bits (AutoGPTQ, GPTQModel), AWQ gemm and gemv with 4 (AutoAWQ), GGUF's Q4_1, which alone has
/// minima.
///
/// # Errors
/// [`InvalidProblem`] for impossible sizes or buffers shorter than the format needs; otherwise
/// as [`attend_forward`](super::attend_forward).
///
/// ```no_run
/// # use flashcube_kernels::{DequantizeOptions, DType, PackedWeights, dequantize_int4};
/// # fn demo(client: &cubecl::prelude::Client, weights: PackedWeights) -> Result<(), flashcube_kernels::Error> {
/// let options = DequantizeOptions { dtype: Some(DType::F16), ..Default::default() };
/// let w = dequantize_int4(client, &weights, &options)?;
/// assert_eq!(w.out.shape, [weights.k, weights.n]);
/// # Ok(())
/// # }
/// ```
pub fn dequantize_int4(
    client: &Client,
    weights: &PackedWeights,
    options: &DequantizeOptions,
) -> Result<Dequantized, Error> {
    let (sizes, packing) = weights.check()?;
    let dtype = options.dtype.unwrap_or(DType::F32);
    let shape = [weights.k, weights.n];
    let out = match &options.out {
        Some(out) => {
            expect_axes("out", ["k", "n"], out.shape, shape)?;
            expect_dtype("out", out.dtype, dtype)?;
            out.check_output("out")?;
            out.clone()
        }
        None => Tensor::empty(client, shape, dtype),
    };
    if out.elements() == 0 {
        return Ok(Dequantized {
            out,
            blueprint: None,
        });
    }
    let caps = Caps::of(client);
    let blueprint = select_dequantize(packing, dtype, out.reach(), &caps)?;
    launch(client, &caps, weights, &sizes, &out, blueprint)?;
    Ok(Dequantized {
        out,
        blueprint: Some(blueprint),
    })
}

/// Picks the blueprint of a dequantization, the largest element index being `reach`.
///
/// # Errors
/// [`NotAvailable`] naming the limit: dtype, address width.
pub fn select_dequantize(
    packing: Packing,
    dtype: DType,
    reach: usize,
    caps: &Caps,
) -> Result<DequantizeBlueprint, NotAvailable> {
    check_dtype("dequantize_int4", dtype, caps)?;
    Ok(DequantizeBlueprint {
        packing,
        dtype,
        units: cube_units(caps),
        wide: check_reach("dequantize_int4", reach, caps)?,
    })
}

impl PackedWeights {
    /// Sizes in words, with every buffer long enough for them.
    pub(super) fn check(&self) -> Result<(PackSizes, Packing), InvalidProblem> {
        let (k, n) = (self.k, self.n);
        for (name, value) in [("k", k), ("n", n)] {
            if value > 1 << 30 {
                return Err(out_of_range(name, value as i128, 1 << 30));
            }
        }
        let gptq = matches!(self.format, PackFormat::GptqV1 | PackFormat::GptqV2);
        if !(self.bits == 4 || (gptq && matches!(self.bits, 2 | 3 | 8))) {
            return Err(out_of_range("bits", self.bits as i128, 4));
        }
        if self.group == 0 {
            return Err(out_of_range("group", 0, 1));
        }
        let group = self.group.min(k.max(1));
        let groups = k.div_ceil(group);
        let bits = self.bits as usize;
        if self.format == PackFormat::AwqGemv && !matches!(self.group, 32 | 64 | 128..) {
            return Err(out_of_range("group of AWQ gemv", self.group as i128, 128));
        }
        let blocks = self.format == PackFormat::GgufQ4_1;
        if blocks && self.group != 32 {
            return Err(out_of_range("group of GGUF Q4_1", self.group as i128, 32));
        }
        if blocks && !k.is_multiple_of(32) {
            return Err(out_of_range("k modulo 32", (k % 32) as i128, 0));
        }
        if self.format == PackFormat::AwqGemm && !n.is_multiple_of(8) {
            return Err(out_of_range("n modulo 8", (n % 8) as i128, 0));
        }
        let (code_words, zero_words, codes, zeros, scales) = match self.format {
            PackFormat::GptqV1 | PackFormat::GptqV2 => {
                let (cw, zw) = ((k * bits).div_ceil(32), (n * bits).div_ceil(32));
                (cw, zw, cw * n, groups * zw, groups * n)
            }
            PackFormat::AwqGemm => (n / 8, n / 8, k * n / 8, groups * n / 8, groups * n),
            PackFormat::AwqGemv => {
                let (cw, zw) = (k.div_ceil(8), awq_gemv_zero_words(k, self.group));
                (cw, zw, n * cw, n * zw, n * zw * 8)
            }
            PackFormat::GgufQ4_1 => (k / 32 * 5, 0, n * (k / 32 * 5), 0, 0),
        };
        holds("qweight", &self.qweight, codes, 4)?;
        holds("qzeros", &self.qzeros, zeros, 4)?;
        holds("scales", &self.scales, scales, 2)?;
        if let Some(g_idx) = &self.g_idx {
            holds("g_idx", g_idx, k, 4)?;
        }
        let sizes = PackSizes {
            k: k as u32,
            n: n as u32,
            group: group as u32,
            code_words: code_words as u32,
            zero_words: zero_words as u32,
        };
        let packing = Packing {
            format: self.format,
            bits: self.bits,
            indexed: self.g_idx.is_some(),
        };
        Ok((sizes, packing))
    }
}

/// Words of a row of AWQ gemv's zero points: ceil(groups / 8), rounded up to 1, 2 or 4 words for
/// groups of at least 128, 64 and 32.
pub fn awq_gemv_zero_words(k: usize, group: usize) -> usize {
    let multiple = match group {
        128.. => 1,
        64.. => 2,
        _ => 4,
    };
    k.div_ceil(group).div_ceil(8).div_ceil(multiple) * multiple
}

pub(crate) fn holds(
    tensor: &'static str,
    handle: &Handle,
    needed: usize,
    size: usize,
) -> Result<(), InvalidProblem> {
    let available = handle.size_in_used() as usize / size;
    if needed <= available {
        return Ok(());
    }
    Err(InvalidProblem::OutOfBounds {
        tensor,
        needed,
        available,
    })
}

fn launch(
    client: &Client,
    caps: &Caps,
    weights: &PackedWeights,
    sizes: &PackSizes,
    out: &Tensor<2>,
    blueprint: DequantizeBlueprint,
) -> Result<(), Error> {
    let run = blueprint.packing.run() as usize;
    let total = if blueprint.packing.along_n() {
        weights.k * sizes.code_words as usize
    } else {
        weights.k.div_ceil(run) * weights.n
    };
    let cubes = spread("dequantize_int4", total.div_ceil(blueprint.units), caps)?;
    let words = |handle: &Handle| {
        let len = (handle.size_in_used() as usize).div_ceil(4);
        // Nothing can be bound of a buffer that the format has no use for.
        let (handle, len) = match len {
            0 => (client.empty(16), 4),
            _ => (handle.clone(), len),
        };
        // SAFETY: the length is the buffer's own in whole words; drivers align allocations to 4.
        unsafe { BufferArg::from_raw_parts(handle, len) }
    };
    // SAFETY: `PackedWeights::check` found every buffer long enough for the format, out was
    // checked against its buffer, and units past `total` do nothing.
    unsafe {
        dequantize_int4_fma::launch_unchecked(
            client,
            cubes,
            CubeDim::new_1d(blueprint.units as u32),
            address(blueprint.wide),
            words(&weights.qweight),
            words(&weights.qzeros),
            words(&weights.scales),
            weights.g_idx.as_ref().map(words).into(),
            buffer(out, 1),
            PackSizesLaunch::new(
                sizes.k,
                sizes.n,
                sizes.group,
                sizes.code_words,
                sizes.zero_words,
            ),
            out.offset,
            out.strides[0],
            total,
            blueprint.packing,
            blueprint.dtype.elem(),
        );
    }
    check_launch(client, caps, &blueprint, [&out.handle])
}
