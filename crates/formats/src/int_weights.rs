//! The logical form that every integer format packs from and unpacks to.

use half::f16;

use crate::error::{FormatError, check_len, product};

/// Sizes of a group-quantized weight W [k in, n out].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuantShape {
    /// Input features: rows of W.
    pub k: usize,
    /// Output features: columns of W.
    pub n: usize,
    /// Bits of a code: 2, 3, 4 or 8.
    pub bits: u32,
    /// Rows that share a scale; at least 1. One group covers all rows when it is k or more.
    pub group: usize,
    /// Rows of `scales` and `zeros`: ceil(k / group), or any number that g_idx points into.
    pub groups: usize,
}

impl QuantShape {
    /// Groups of `group` consecutive rows, the last one shorter where `group` does not divide k;
    /// None means one group for all rows (per channel).
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] for other bits than 2, 3, 4, 8 or a group of 0,
    /// [`FormatError::TooLarge`] when k * n overflows.
    pub fn new(k: usize, n: usize, bits: u32, group: Option<usize>) -> Result<Self, FormatError> {
        let group = group.unwrap_or(k.max(1));
        if group == 0 {
            return Err(FormatError::unsupported(
                "int weights",
                "group",
                0,
                "a group has at least 1 row",
            ));
        }
        let shape = Self {
            k,
            n,
            bits,
            group,
            groups: k.div_ceil(group),
        };
        shape.check()?;
        Ok(shape)
    }

    /// Whether one group covers every row.
    pub fn is_per_channel(&self) -> bool {
        self.group >= self.k
    }

    /// 2^bits - 1.
    pub fn max_code(&self) -> u8 {
        ((1u32 << self.bits) - 1) as u8
    }

    /// 2^(bits-1): the zero point of symmetric weights.
    pub fn mid_code(&self) -> u8 {
        1 << (self.bits - 1)
    }

    pub(crate) fn check(&self) -> Result<(), FormatError> {
        if !matches!(self.bits, 2 | 3 | 4 | 8) {
            return Err(FormatError::unsupported(
                "int weights",
                "bits",
                self.bits,
                "2, 3, 4 or 8 bits",
            ));
        }
        if self.group == 0 {
            return Err(FormatError::unsupported(
                "int weights",
                "group",
                0,
                "a group has at least 1 row",
            ));
        }
        // Codes [k, n] and scales [groups, n]; 8 bits a field also bounds every packed form.
        product("codes", &[self.k, self.n, 8])?;
        product("scales", &[self.groups, self.n, 8])?;
        Ok(())
    }
}

/// A group-quantized weight, unpacked, with g = g_idx of the row, or row / group without g_idx:
///
/// ```text
/// W[row, column] = scales[g, column] * (codes[row, column] - zeros[g, column]) + minima[g, column]
/// ```
///
/// ```
/// use flashcube_formats::{Format, IntWeights, PackedLinear, QuantShape};
/// use half::f16;
///
/// let shape = QuantShape::new(8, 8, 4, None)?;
/// let scales = vec![f16::from_f32(0.5); 8];
/// let weights = IntWeights::new(shape, vec![11; 64], vec![8; 8], scales, None)?;
/// let packed = PackedLinear::pack(&weights, Format::AwqGemm)?;
/// assert_eq!(packed.weights, [0xbbbb_bbbb; 8]);
/// assert_eq!(packed.unpack()?, weights);
/// assert_eq!(weights.dequantize()[0], 1.5);
/// # Ok::<(), flashcube_formats::FormatError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct IntWeights {
    /// The sizes.
    pub shape: QuantShape,
    /// [k, n], each below 2^bits.
    pub codes: Vec<u8>,
    /// [groups, n], each below 2^bits.
    pub zeros: Vec<u8>,
    /// [groups, n], finite.
    pub scales: Vec<f16>,
    /// `[k]`: the group of each row (act-order), each below groups.
    pub g_idx: Option<Vec<u32>>,
    /// [groups, n], finite, with every zero point 0 (GGUF's Q4_1); None for 0.
    pub minima: Option<Vec<f16>>,
}

impl IntWeights {
    /// Checked weights; the errors are those of [`IntWeights::validate`].
    pub fn new(
        shape: QuantShape,
        codes: Vec<u8>,
        zeros: Vec<u8>,
        scales: Vec<f16>,
        g_idx: Option<Vec<u32>>,
    ) -> Result<Self, FormatError> {
        let weights = Self {
            shape,
            codes,
            zeros,
            scales,
            g_idx,
            minima: None,
        };
        weights.validate()?;
        Ok(weights)
    }

    /// The same weights with `minima` [groups, n] added; the errors are those of [`IntWeights::validate`].
    pub fn with_minima(self, minima: Vec<f16>) -> Result<Self, FormatError> {
        let weights = Self {
            minima: Some(minima),
            ..self
        };
        weights.validate()?;
        Ok(weights)
    }

    /// Checks lengths and ranges.
    ///
    /// # Errors
    /// [`FormatError::WrongShape`] for a wrong length, [`FormatError::OutOfRange`] for a code, zero
    /// point or group index past its limit, also for a zero point beside minima, [`FormatError::NotFinite`]
    /// for a scale or a minimum, those of [`QuantShape::new`] for the sizes.
    pub fn validate(&self) -> Result<(), FormatError> {
        let QuantShape { k, n, groups, .. } = self.shape;
        self.shape.check()?;
        check_len("codes", self.codes.len(), &[k, n])?;
        check_len("zeros", self.zeros.len(), &[groups, n])?;
        check_len("scales", self.scales.len(), &[groups, n])?;
        let limit = u64::from(self.shape.max_code()) + 1;
        check_range("codes", &self.codes, limit)?;
        check_range("zeros", &self.zeros, limit)?;
        check_finite("scales", &self.scales)?;
        if let Some(minima) = &self.minima {
            check_len("minima", minima.len(), &[groups, n])?;
            check_finite("minima", minima)?;
            check_range("zeros", &self.zeros, 1)?;
        }
        check_groups(&self.shape, self.g_idx.as_deref())
    }

    /// The group of a row.
    pub fn group_of(&self, row: usize) -> usize {
        match &self.g_idx {
            Some(g_idx) => g_idx[row] as usize,
            None => row / self.shape.group,
        }
    }

    /// W [k, n] in f32: exact, since an f16 scale has 11 significant bits and a code difference 9
    /// with its sign; rounded once where a minimum is added.
    ///
    /// The weights must be valid ([`IntWeights::validate`]); those from this crate's functions are.
    pub fn dequantize(&self) -> Vec<f32> {
        let n = self.shape.n;
        let mut weight = Vec::with_capacity(self.codes.len());
        // Widened once: a conversion from f16 for every weight would be most of the time.
        let widened: Vec<f32> = self.scales.iter().map(|scale| scale.to_f32()).collect();
        for row in 0..self.shape.k {
            let group = self.group_of(row) * n..(self.group_of(row) + 1) * n;
            let (scales, zeros) = (&widened[group.clone()], &self.zeros[group]);
            let codes = &self.codes[row * n..(row + 1) * n];
            weight.extend(
                codes
                    .iter()
                    .zip(zeros)
                    .zip(scales)
                    .map(|((&code, &zero), &scale)| scale * (f32::from(code) - f32::from(zero))),
            );
            if let Some(minima) = &self.minima {
                let group = self.group_of(row) * n;
                let row = weight[row * n..].iter_mut();
                row.zip(&minima[group..group + n])
                    .for_each(|(w, minimum)| *w += minimum.to_f32());
            }
        }
        weight
    }

    /// Whether every zero point is 2^(bits-1), without minima.
    pub fn is_symmetric(&self) -> bool {
        let mid = self.shape.mid_code();
        self.minima.is_none() && self.zeros.iter().all(|&zero| zero == mid)
    }
}

pub(crate) fn check_range(tensor: &str, values: &[u8], limit: u64) -> Result<(), FormatError> {
    // Without a way out of the loop it runs on whole registers.
    let largest = values.iter().fold(0, |largest, &value| value.max(largest));
    if u64::from(largest) < limit {
        return Ok(());
    }
    match values.iter().position(|&value| u64::from(value) >= limit) {
        None => Ok(()),
        Some(index) => Err(FormatError::OutOfRange {
            tensor: tensor.to_owned(),
            index,
            value: values[index].into(),
            limit,
        }),
    }
}

pub(crate) fn check_finite(tensor: &str, values: &[f16]) -> Result<(), FormatError> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => {
            let value = values[index].to_f32();
            Err(FormatError::NotFinite {
                tensor: tensor.to_owned(),
                index,
                value,
            })
        }
    }
}

/// g_idx [k] points into the groups; without it the groups are ceil(k / group).
pub(crate) fn check_groups(shape: &QuantShape, g_idx: Option<&[u32]>) -> Result<(), FormatError> {
    let Some(g_idx) = g_idx else {
        let expected = vec![shape.k.div_ceil(shape.group), shape.n];
        if shape.groups == expected[0] {
            return Ok(());
        }
        let found = vec![shape.groups, shape.n];
        return Err(FormatError::WrongShape {
            tensor: "scales".to_owned(),
            found,
            expected,
        });
    };
    check_len("g_idx", g_idx.len(), &[shape.k])?;
    match g_idx
        .iter()
        .position(|&group| group as usize >= shape.groups)
    {
        None => Ok(()),
        Some(index) => Err(FormatError::OutOfRange {
            tensor: "g_idx".to_owned(),
            index,
            value: g_idx[index].into(),
            limit: shape.groups as u64,
        }),
    }
}
