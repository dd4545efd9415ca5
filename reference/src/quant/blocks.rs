//! Rows of small floats in blocks that share a scale: MXFP8, MXFP4 and NVFP4.

use super::e8m0::{self, ScaleRule};
use super::float::{E2M1, E4M3, E5M2, FloatFormat, Overflow, Round};
use crate::error::{Error, check_length};

/// Elements that share a scale in the MX formats.
pub const MX_BLOCK: usize = 32;

/// Elements that share a scale in NVFP4.
pub const NVFP4_BLOCK: usize = 16;

/// The element type of an MX row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MxElement {
    /// MXFP8 with E4M3 elements.
    E4M3,
    /// MXFP8 with E5M2 elements.
    E5M2,
    /// MXFP4 (E2M1 elements).
    E2M1,
}

impl MxElement {
    /// The format of an element.
    pub fn format(self) -> FloatFormat {
        match self {
            MxElement::E4M3 => E4M3,
            MxElement::E5M2 => E5M2,
            MxElement::E2M1 => E2M1,
        }
    }
}

/// A row in an MX format: value = element * 2^(scale - 127) of its block of 32 (OCP MX 1.0).
///
/// ```
/// use flashcube_reference::quant::blocks::{MxElement, MxRow};
/// use flashcube_reference::quant::e8m0::ScaleRule;
///
/// let row = MxRow::quantize(&[957.0], MxElement::E4M3, ScaleRule::Floor);
/// assert_eq!(row.dequantize()?, [896.0]); // scale 2 saturates
/// let row = MxRow::quantize(&[957.0], MxElement::E4M3, ScaleRule::Ceil);
/// assert_eq!(row.dequantize()?, [960.0]); // scale 4
/// # Ok::<(), flashcube_reference::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MxRow {
    /// Type of the elements.
    pub element: MxElement,
    /// `[len]` element codes, one a byte; see [`pack_nibbles`] for E2M1.
    pub codes: Vec<u8>,
    /// [ceil(len / 32)] E8M0 codes.
    pub scales: Vec<u8>,
}

impl MxRow {
    /// Quantizes a row, elements to nearest even and saturating; the last block may be short.
    ///
    /// Finite values never give a NaN code. A block that holds NaN or an infinity gets the NaN
    /// scale, hence decodes to NaN throughout.
    pub fn quantize(row: &[f64], element: MxElement, rule: ScaleRule) -> Self {
        let format = element.format();
        let mut codes = Vec::with_capacity(row.len());
        let mut scales = Vec::with_capacity(row.len().div_ceil(MX_BLOCK));
        for block in row.chunks(MX_BLOCK) {
            let scale = e8m0::block_scale(max_magnitude(block), &format, rule);
            codes.extend(block.iter().map(|x| match scale {
                e8m0::NAN => 0,
                _ => encode(&format, x / e8m0::decode(scale)),
            }));
            scales.push(scale);
        }
        Self {
            element,
            codes,
            scales,
        }
    }

    /// The values `[len]`.
    ///
    /// # Errors
    /// [`Error::Length`] if the number of scales is not that of the blocks.
    pub fn dequantize(&self) -> Result<Vec<f64>, Error> {
        let format = self.element.format();
        dequantize(&format, &self.codes, &self.scales, MX_BLOCK, e8m0::decode)
    }
}

/// A row in NVFP4: value = element * scale / encode_factor, with an E4M3 scale per block of 16 and
/// one factor per tensor.
///
/// ```
/// use flashcube_reference::quant::blocks::{Nvfp4Row, nvfp4_encode_factor};
/// use flashcube_reference::quant::float::Round;
///
/// let x = [6.0, 3.0, -1.5, 0.0];
/// let row = Nvfp4Row::quantize(&x, nvfp4_encode_factor(6.0), Round::NearestEven)?;
/// assert_eq!(row.dequantize()?, x);
/// # Ok::<(), flashcube_reference::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Nvfp4Row {
    /// What values are multiplied by before their scales are encoded, 448 * 6 / amax. Some
    /// checkpoints store this, some its reciprocal.
    pub encode_factor: f32,
    /// `[len]` E2M1 codes, one a byte; see [`pack_nibbles`].
    pub codes: Vec<u8>,
    /// [ceil(len / 16)] E4M3 codes.
    pub scales: Vec<u8>,
}

/// The factor 448 * 6 / amax of a tensor whose largest magnitude is `amax`, clamped to positive
/// finite f32; 1 for a tensor of zeros (or without a finite maximum).
pub fn nvfp4_encode_factor(amax: f64) -> f32 {
    if amax == 0.0 || !amax.is_finite() {
        return 1.0;
    }
    let factor = (E4M3.max() * E2M1.max() / amax) as f32;
    factor.clamp(f32::MIN_POSITIVE, f32::MAX)
}

impl Nvfp4Row {
    /// Quantizes a row: scale = E4M3(amax of the block / 6 * encode_factor), rounded by
    /// `scale_rounding` (to nearest even in most code, toward +infinity in CubeCL) and saturating,
    /// elements to nearest even and saturating; the last block may be short.
    ///
    /// Finite values never give a NaN code. A block too small for any scale becomes 0; one that
    /// holds NaN or an infinity gets the NaN scale.
    ///
    /// # Errors
    /// [`Error::Parameter`] if `encode_factor` is not finite and positive.
    pub fn quantize(row: &[f64], encode_factor: f32, scale_rounding: Round) -> Result<Self, Error> {
        check_encode_factor(encode_factor)?;
        let factor = f64::from(encode_factor);
        let mut codes = Vec::with_capacity(row.len());
        let mut scales = Vec::with_capacity(row.len().div_ceil(NVFP4_BLOCK));
        for block in row.chunks(NVFP4_BLOCK) {
            let amax = max_magnitude(block);
            let wanted = if amax.is_finite() {
                // Not amax * factor / 6, which may overflow.
                amax / E2M1.max() * factor
            } else {
                f64::NAN
            };
            let scale = E4M3.encode(wanted, scale_rounding, Overflow::Saturate) as u8;
            let decoded = E4M3.decode(u16::from(scale));
            codes.extend(block.iter().map(|x| {
                if decoded > 0.0 {
                    encode(&E2M1, x * factor / decoded)
                } else {
                    0
                }
            }));
            scales.push(scale);
        }
        Ok(Self {
            encode_factor,
            codes,
            scales,
        })
    }

    /// The values `[len]`.
    ///
    /// # Errors
    /// [`Error::Length`] if the number of scales is not that of the blocks, [`Error::Parameter`] if
    /// `encode_factor` is not finite and positive.
    pub fn dequantize(&self) -> Result<Vec<f64>, Error> {
        check_encode_factor(self.encode_factor)?;
        let factor = f64::from(self.encode_factor);
        let scale = |code| E4M3.decode(u16::from(code)) / factor;
        dequantize(&E2M1, &self.codes, &self.scales, NVFP4_BLOCK, scale)
    }
}

/// Packs 4-bit codes two a byte, the even index in the low nibble; an odd last byte is padded with
/// 0. High nibbles of the codes are dropped.
pub fn pack_nibbles(codes: &[u8]) -> Vec<u8> {
    let byte = |pair: &[u8]| pair[0] & 0xf | pair.get(1).map_or(0, |high| high << 4);
    codes.chunks(2).map(byte).collect()
}

/// The first `len` of the 4-bit codes packed by [`pack_nibbles`].
///
/// # Errors
/// [`Error::Length`] if there are not ceil(len / 2) bytes.
pub fn unpack_nibbles(bytes: &[u8], len: usize) -> Result<Vec<u8>, Error> {
    check_length("packed nibbles", bytes.len(), len.div_ceil(2))?;
    let nibbles = bytes.iter().flat_map(|byte| [byte & 0xf, byte >> 4]);
    Ok(nibbles.take(len).collect())
}

fn dequantize(
    element: &FloatFormat,
    codes: &[u8],
    scales: &[u8],
    block: usize,
    scale: impl Fn(u8) -> f64,
) -> Result<Vec<f64>, Error> {
    check_length("block scales", scales.len(), codes.len().div_ceil(block))?;
    let blocks = codes.chunks(block).zip(scales);
    let value = |code: &u8, by: f64| element.decode(u16::from(*code)) * by;
    Ok(blocks
        .flat_map(|(codes, &by)| codes.iter().map(move |code| (code, by)))
        .map(|(code, by)| value(code, scale(by)))
        .collect())
}

fn check_encode_factor(factor: f32) -> Result<(), Error> {
    if factor.is_finite() && factor > 0.0 {
        return Ok(());
    }
    Err(Error::Parameter {
        name: "encode_factor",
        value: f64::from(factor),
        requirement: "finite and positive",
    })
}

fn encode(format: &FloatFormat, x: f64) -> u8 {
    format.encode(x, Round::NearestEven, Overflow::Saturate) as u8
}

/// max |x|, NaN if any is NaN (which `f64::max` would drop).
fn max_magnitude(block: &[f64]) -> f64 {
    if block.iter().any(|x| x.is_nan()) {
        return f64::NAN;
    }
    block.iter().fold(0.0, |max, x| x.abs().max(max))
}
