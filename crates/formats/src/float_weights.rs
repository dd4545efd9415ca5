//! The logical form of weights whose codes are small floats: NVFP4, MXFP4, FP8 and NF4.

use half::f16;

use crate::error::{FormatError, check_len};
use crate::int_weights::{QuantShape, check_finite, check_range};
use crate::nvfp4::{Nvfp4Weights, decode_e2m1, decode_e4m3};

/// What a code of a weight stands for before its group's scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CodeType {
    /// An unsigned integer, less the zero point.
    Int,
    /// A 4-bit float: sign, 2 bits of exponent, 1 of mantissa (OCP MX 1.0).
    E2M1,
    /// An 8-bit float: sign, 4 bits of exponent, 3 of mantissa, no infinity (OCP OFP8).
    E4M3,
    /// An entry of the table of 4-bit NormalFloat (Dettmers et al. 2023, QLoRA).
    Nf4,
}

impl CodeType {
    /// In the order in which files number them.
    pub(crate) const ALL: [CodeType; 4] =
        [CodeType::Int, CodeType::E2M1, CodeType::E4M3, CodeType::Nf4];
}

/// The scales of groups, in their own type.
#[derive(Debug, Clone, PartialEq)]
pub enum GroupScales {
    /// binary16.
    F16(Vec<f16>),
    /// Codes of E4M3, none of them negative.
    E4M3(Vec<u8>),
    /// 2^(code - 127).
    E8M0(Vec<u8>),
}

impl GroupScales {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            GroupScales::F16(scales) => scales.len(),
            GroupScales::E4M3(scales) | GroupScales::E8M0(scales) => scales.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number `at` in f32, exact.
    pub fn value(&self, at: usize) -> f32 {
        match self {
            GroupScales::F16(scales) => scales[at].to_f32(),
            GroupScales::E4M3(scales) => decode_e4m3(scales[at]),
            GroupScales::E8M0(scales) => 2f32.powi(i32::from(scales[at]) - 127),
        }
    }

    /// As a device holds them, little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            GroupScales::F16(scales) => scales.iter().flat_map(|x| x.to_le_bytes()).collect(),
            GroupScales::E4M3(scales) | GroupScales::E8M0(scales) => scales.clone(),
        }
    }

    /// Every one is a finite number, and not negative where the type has no business with signs.
    pub(crate) fn check(&self) -> Result<(), FormatError> {
        let bad = match self {
            GroupScales::F16(scales) => return check_finite("scales", scales),
            GroupScales::E4M3(scales) => scales.iter().position(|&code| code >= 0x7f),
            GroupScales::E8M0(scales) => scales.iter().position(|&code| code == 255),
        };
        match bad {
            None => Ok(()),
            Some(index) => Err(FormatError::NotFinite {
                tensor: "scales".to_owned(),
                index,
                value: self.value(index),
            }),
        }
    }
}

/// A weight of small floats in groups along k:
///
/// ```text
/// W[row, column] = number(codes[row, column]) * scales[row / group, column] / divisor
/// ```
///
/// ```
/// use flashcube_formats::{FloatWeights, QuantizedLinear};
///
/// // One group of MXFP4: 1.5 and -6, scale 2^-1.
/// let weights = FloatWeights::mxfp4(2, 1, vec![3, 15], vec![126])?;
/// assert_eq!(weights.dequantize(), [0.75, -3.0]);
/// let linear = QuantizedLinear::from_floats(&weights)?;
/// assert_eq!(linear.unpack_floats()?, weights);
/// # Ok::<(), flashcube_formats::FormatError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct FloatWeights {
    /// Sizes; bits are 4 or 8.
    pub shape: QuantShape,
    /// E2M1, E4M3 or NF4.
    pub code_type: CodeType,
    /// [k, n].
    pub codes: Vec<u8>,
    /// [groups, n].
    pub scales: GroupScales,
    /// What every weight is divided by: positive and finite.
    pub divisor: f32,
}

impl FloatWeights {
    /// NVFP4 as it is: E4M3 scales of 16 rows.
    ///
    /// # Errors
    /// Those of [`Nvfp4Weights::validate`]; [`FormatError::NotFinite`] for a negative scale.
    pub fn nvfp4(weights: &Nvfp4Weights) -> Result<Self, FormatError> {
        weights.validate()?;
        Self {
            shape: QuantShape::new(weights.k, weights.n, 4, Some(16))?,
            code_type: CodeType::E2M1,
            codes: weights.codes.clone(),
            scales: GroupScales::E4M3(weights.scales.clone()),
            divisor: weights.encode_factor,
        }
        .checked()
    }

    /// MXFP4: E2M1 `codes` [k, n], E8M0 `scales` [ceil(k / 32), n].
    ///
    /// # Errors
    /// Those of [`FloatWeights::validate`].
    pub fn mxfp4(k: usize, n: usize, codes: Vec<u8>, scales: Vec<u8>) -> Result<Self, FormatError> {
        Self {
            shape: QuantShape::new(k, n, 4, Some(32))?,
            code_type: CodeType::E2M1,
            codes,
            scales: GroupScales::E8M0(scales),
            divisor: 1.0,
        }
        .checked()
    }

    /// FP8: E4M3 `codes` [k, n]; `scales` [groups, n] of `group` rows, or of all where None. Scales are
    /// kept as f16 over a power of two: relative error 2^-11.
    ///
    /// # Errors
    /// Those of [`FloatWeights::validate`]; [`FormatError::Inexact`] for a scale 2^29 below the largest.
    pub fn fp8(
        k: usize,
        n: usize,
        codes: Vec<u8>,
        group: Option<usize>,
        scales: &[f32],
    ) -> Result<Self, FormatError> {
        let shape = QuantShape::new(k, n, 8, group)?;
        Self::scaled_by_floats(shape, CodeType::E4M3, codes, scales)
    }

    /// NF4: `codes` [k, n] of the table, `absmax` [groups, n] of `group` rows, kept as for
    /// [`FloatWeights::fp8`].
    ///
    /// # Errors
    /// As for [`FloatWeights::fp8`].
    pub fn nf4(
        k: usize,
        n: usize,
        codes: Vec<u8>,
        group: usize,
        absmax: &[f32],
    ) -> Result<Self, FormatError> {
        let shape = QuantShape::new(k, n, 4, Some(group))?;
        Self::scaled_by_floats(shape, CodeType::Nf4, codes, absmax)
    }

    fn scaled_by_floats(
        shape: QuantShape,
        code_type: CodeType,
        codes: Vec<u8>,
        scales: &[f32],
    ) -> Result<Self, FormatError> {
        let not_finite = scales.iter().position(|scale| !scale.is_finite());
        if let Some(index) = not_finite {
            return Err(FormatError::NotFinite {
                tensor: "scales".to_owned(),
                index,
                value: scales[index],
            });
        }
        let divisor = half_divisor(scales);
        let narrow = |(index, &scale): (usize, &f32)| {
            let half = f16::from_f32(scale * divisor);
            let error = (half.to_f32() / divisor - scale).abs();
            if error > scale.abs() / 1024.0 {
                return Err(FormatError::Inexact {
                    tensor: "scales".to_owned(),
                    index,
                    value: scale,
                });
            }
            Ok(half)
        };
        let scales = scales
            .iter()
            .enumerate()
            .map(narrow)
            .collect::<Result<_, _>>()?;
        Self {
            shape,
            code_type,
            codes,
            scales: GroupScales::F16(scales),
            divisor,
        }
        .checked()
    }

    fn checked(self) -> Result<Self, FormatError> {
        self.validate()?;
        Ok(self)
    }

    /// Checks lengths and ranges.
    ///
    /// # Errors
    /// [`FormatError::WrongShape`] for a wrong length, [`FormatError::OutOfRange`] for a code past the
    /// bits, [`FormatError::NotFinite`] for a NaN among codes or scales, [`FormatError::Unsupported`]
    /// for integers, other bits than the codes have, or a divisor that is not positive and finite.
    pub fn validate(&self) -> Result<(), FormatError> {
        let QuantShape { k, n, groups, .. } = self.shape;
        self.shape.check()?;
        check_bits(self.code_type, self.shape.bits)?;
        if self.code_type == CodeType::Int {
            let limit = "floats: integers are `IntWeights`";
            return Err(FormatError::unsupported(
                "float weights",
                "codes",
                "Int",
                limit,
            ));
        }
        check_len("codes", self.codes.len(), &[k, n])?;
        check_len("scales", self.scales.len(), &[groups, n])?;
        check_range("codes", &self.codes, u64::from(self.shape.max_code()) + 1)?;
        check_codes(self.code_type, self.codes.iter().copied())?;
        self.scales.check()?;
        check_divisor(self.divisor)
    }

    /// W [k, n] in f32: the scale over the divisor is rounded once, the product once.
    ///
    /// The weights must be valid ([`FloatWeights::validate`]); those from this crate's functions are.
    pub fn dequantize(&self) -> Vec<f32> {
        let QuantShape { n, group, .. } = self.shape;
        let value = |(at, &code): (usize, &u8)| {
            let scale = self.scales.value(at / n / group * n + at % n);
            number(self.code_type, code) * (scale / self.divisor)
        };
        self.codes.iter().enumerate().map(value).collect()
    }
}

/// The power of two that takes the largest magnitude to the top of f16's range, so that scales down to
/// 2^-29 of it keep all their bits.
fn half_divisor(scales: &[f32]) -> f32 {
    let largest = scales.iter().fold(0f32, |max, scale| max.max(scale.abs()));
    if largest == 0.0 {
        return 1.0;
    }
    // Up to 2^15 (2 - 2^-10), which no rounding takes past f16's largest.
    let exponent = 14 - largest.log2().floor() as i32;
    2f32.powi(exponent.clamp(-126, 126))
}

/// The number that a code stands for; integers as they are.
fn number(code_type: CodeType, code: u8) -> f32 {
    match code_type {
        CodeType::Int => f32::from(code),
        CodeType::E2M1 => decode_e2m1(code),
        CodeType::E4M3 => decode_e4m3(code),
        CodeType::Nf4 => NF4[usize::from(code & 15)],
    }
}

/// The numbers of 4-bit NormalFloat, as bitsandbytes has them in f32 (Dettmers et al. 2023, QLoRA): quantiles of a
/// normal distribution, scaled to [-1, 1].
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

pub(crate) fn check_bits(code_type: CodeType, bits: u32) -> Result<(), FormatError> {
    let (fits, limit) = match code_type {
        CodeType::Int => (matches!(bits, 2 | 3 | 4 | 8), "2, 3, 4 or 8 bits"),
        CodeType::E2M1 | CodeType::Nf4 => (bits == 4, "4 bits"),
        CodeType::E4M3 => (bits == 8, "8 bits"),
    };
    match fits {
        true => Ok(()),
        false => Err(FormatError::unsupported(
            "the code type",
            "bits",
            bits,
            limit,
        )),
    }
}

/// No code is a NaN.
pub(crate) fn check_codes(
    code_type: CodeType,
    mut codes: impl Iterator<Item = u8>,
) -> Result<(), FormatError> {
    if code_type != CodeType::E4M3 {
        return Ok(());
    }
    match codes.position(|code| code & 0x7f == 0x7f) {
        None => Ok(()),
        Some(index) => Err(FormatError::NotFinite {
            tensor: "codes".to_owned(),
            index,
            value: f32::NAN,
        }),
    }
}

pub(crate) fn check_divisor(divisor: f32) -> Result<(), FormatError> {
    if divisor.is_finite() && divisor > 0.0 {
        return Ok(());
    }
    let limit = "a positive finite number";
    Err(FormatError::unsupported(
        "float weights",
        "divisor",
        divisor,
        limit,
    ))
}
