//! Packed linears: the words of a checkpoint, as kernels load them.

use std::fmt;

use half::f16;

use crate::error::{FormatError, check_len};
use crate::int_weights::{IntWeights, QuantShape, check_finite, check_groups};
use crate::{awq, compressed_tensors, gptq, marlin};

pub use crate::gptq::V1Zeros;

/// How an integer weight lies in memory. Shapes below are row-major; i32 words hold fields low bits
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// AutoGPTQ: weights [ceil(k*bits/32), n], zeros [groups, ceil(n*bits/32)] holding z - 1,
    /// scales [groups, n].
    GptqV1(V1Zeros),
    /// GPTQModel's `gptq_v2`: as v1, the zeros hold z.
    GptqV2,
    /// AutoAWQ GEMM: weights [k, n/8], zeros [groups, n/8], columns 0 2 4 6 1 3 5 7 in fields 0..7.
    AwqGemm,
    /// AutoAWQ GEMV: weights [n, k/8], zeros [n, w], scales [n, 8 w], w = padded words per row of
    /// groups.
    AwqGemv,
    /// Marlin, 4-bit symmetric: weights [k/16, 2 n] in the kernel's fragment order, scales [groups,
    /// n] permuted.
    Marlin,
    /// compressed-tensors `pack-quantized`: weights [n, ceil(k*bits/32)], zeros [ceil(n*bits/32),
    /// groups], scales [n, groups].
    CompressedTensors,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GptqV1(_) => "gptq",
            Self::GptqV2 => "gptq_v2",
            Self::AwqGemm => "awq gemm",
            Self::AwqGemv => "awq gemv",
            Self::Marlin => "marlin",
            Self::CompressedTensors => "compressed-tensors pack-quantized",
        })
    }
}

/// Shapes of the packed tensors of one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Of the weight words.
    pub weights: [usize; 2],
    /// Of the zero-point words, where the format has them.
    pub zeros: Option<[usize; 2]>,
    /// Of the scales.
    pub scales: [usize; 2],
}

impl Format {
    /// Shapes of the packed tensors, or [`FormatError::Unsupported`] naming the size that the
    /// format cannot hold.
    pub fn layout(self, shape: &QuantShape) -> Result<Layout, FormatError> {
        shape.check()?;
        match self {
            Self::GptqV1(zeros) => gptq::layout(shape, Some(zeros)),
            Self::GptqV2 => gptq::layout(shape, None),
            Self::AwqGemm => awq::gemm_layout(shape),
            Self::AwqGemv => awq::gemv_layout(shape),
            Self::Marlin => marlin::layout(shape),
            Self::CompressedTensors => compressed_tensors::layout(shape),
        }
    }

    fn holds_g_idx(self) -> bool {
        matches!(
            self,
            Self::GptqV1(_) | Self::GptqV2 | Self::CompressedTensors
        )
    }
}

/// A packed integer weight: the buffers have the shapes of [`Format::layout`].
#[derive(Debug, Clone, PartialEq)]
pub struct PackedLinear {
    /// How the buffers are to be read.
    pub format: Format,
    /// The sizes.
    pub shape: QuantShape,
    /// Weight codes.
    pub weights: Vec<u32>,
    /// Zero points; None where the format keeps none for symmetric weights.
    pub zeros: Option<Vec<u32>>,
    /// Scales.
    pub scales: Vec<f16>,
    /// `[k]`: the group of each row, for act-order.
    pub g_idx: Option<Vec<u32>>,
}

impl PackedLinear {
    /// Packs weights: [`PackedLinear::unpack`] gives back the same.
    ///
    /// # Errors
    /// Those of [`IntWeights::validate`] and [`Format::layout`]; [`FormatError::Unsupported`] for
    /// act-order in AWQ, Marlin or compressed-tensors, for asymmetric zero points in Marlin and for minima;
    /// [`FormatError::AmbiguousZero`] for a zero point of 0 in GPTQ v1 under [`V1Zeros::Strict`].
    pub fn pack(weights: &IntWeights, format: Format) -> Result<Self, FormatError> {
        weights.validate()?;
        format.layout(&weights.shape)?;
        if weights.minima.is_some() {
            let limit = "a float minimum is no zero point; GGUF's Q4_1 holds one";
            return Err(FormatError::unsupported(format, "minima", "f16", limit));
        }
        if weights.g_idx.is_some() && !matches!(format, Format::GptqV1(_) | Format::GptqV2) {
            return Err(act_order(format));
        }
        match format {
            Format::GptqV1(zeros) => gptq::pack(weights, Some(zeros)),
            Format::GptqV2 => gptq::pack(weights, None),
            Format::AwqGemm => Ok(awq::pack_gemm(weights)),
            Format::AwqGemv => awq::pack_gemv(weights),
            Format::Marlin => marlin::pack(weights),
            Format::CompressedTensors => Ok(compressed_tensors::pack(weights)),
        }
    }

    /// Unpacks to the logical form.
    ///
    /// # Errors
    /// Those of [`PackedLinear::validate`]; [`FormatError::AmbiguousZero`] as for packing.
    pub fn unpack(&self) -> Result<IntWeights, FormatError> {
        self.validate()?;
        let weights = match self.format {
            Format::GptqV1(zeros) => gptq::unpack(self, Some(zeros))?,
            Format::GptqV2 => gptq::unpack(self, None)?,
            Format::AwqGemm => awq::unpack_gemm(self),
            Format::AwqGemv => awq::unpack_gemv(self)?,
            Format::Marlin => marlin::unpack(self),
            Format::CompressedTensors => compressed_tensors::unpack(self),
        };
        Ok(weights)
    }

    /// Checks the buffers against the sizes: what [`PackedLinear::unpack`] and a kernel rely on.
    ///
    /// # Errors
    /// [`FormatError::WrongShape`] for a truncated or overlong buffer, [`FormatError::OutOfRange`]
    /// for g_idx, [`FormatError::NotFinite`] for a scale, [`FormatError::Unsupported`] for sizes or
    /// parts that the format lacks.
    pub fn validate(&self) -> Result<(), FormatError> {
        let layout = self.format.layout(&self.shape)?;
        check_len("weights", self.weights.len(), &layout.weights)?;
        check_len("scales", self.scales.len(), &layout.scales)?;
        check_finite("scales", &self.scales)?;
        match (&self.zeros, layout.zeros) {
            (Some(zeros), Some(shape)) => check_len("zeros", zeros.len(), &shape)?,
            (None, Some(shape)) if self.format != Format::CompressedTensors => {
                check_len("zeros", 0, &shape)?;
            }
            (None, _) => {}
            (Some(zeros), None) => {
                let words = format!("{} words", zeros.len());
                return Err(FormatError::unsupported(
                    self.format,
                    "zero points",
                    words,
                    "symmetric weights only",
                ));
            }
        }
        if self.g_idx.is_some() && !self.format.holds_g_idx() {
            return Err(act_order(self.format));
        }
        check_groups(&self.shape, self.g_idx.as_deref())
    }

    /// The zero-point words; empty where there are none.
    pub(crate) fn zero_words(&self) -> &[u32] {
        self.zeros.as_deref().unwrap_or_default()
    }
}

fn act_order(format: Format) -> FormatError {
    FormatError::unsupported(format, "g_idx", "act-order", "rows in group order")
}

/// [rows, columns] -> [columns, rows].
pub(crate) fn transpose<T: Copy>(values: &[T], rows: usize, columns: usize) -> Vec<T> {
    (0..columns)
        .flat_map(|column| (0..rows).map(move |row| values[row * columns + column]))
        .collect()
}
