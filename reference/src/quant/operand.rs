//! Operands of block-scaled matrix products: rows of small floats, groups of which share a scale.
//!
//! Q and K have groups along d. V is stored with a row for each column of the tensor and groups along
//! its keys, since it is the keys that P V contracts; every sequence starts a group of its own.
//! Groups come in fours, which fill a word of scales: what a row or a sequence lacks is zeros.

use std::ops::Range;

use super::blocks::{MX_BLOCK, MxElement, MxRow, NVFP4_BLOCK, Nvfp4Row};
use super::e8m0::{self, ScaleRule};
use super::float::{E2M1, E4M3, Overflow, Round, power_of_two};
use crate::error::{Error, check_length};
use crate::tensor::Tensor4;

/// Groups whose scales share a word.
pub const QUAD: usize = 4;

/// Rows of a tile of scales.
pub const TILE_ROWS: usize = 128;

/// Element and scale of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperandFormat {
    /// E2M1 in groups of 16 with an E4M3 scale, rounded to nearest even from amax / 6; values are
    /// multiplied by 2^exponent before.
    Nvfp4 {
        /// The exponent of the tensor's own factor.
        exponent: i32,
    },
    /// E2M1 in groups of 32 with a power of two.
    Mxfp4(ScaleRule),
    /// E4M3 in groups of 32 with a power of two.
    Mxfp8(ScaleRule),
    /// E4M3 of values times 2^exponent, with scales of 1.
    Fp8 {
        /// The exponent of the tensor's own factor.
        exponent: i32,
    },
}

/// The E8M0 code of 1.
const ONE: u8 = 127;

impl OperandFormat {
    /// Elements that share a scale.
    pub fn group(self) -> usize {
        match self {
            OperandFormat::Nvfp4 { .. } => NVFP4_BLOCK,
            OperandFormat::Mxfp4(_) | OperandFormat::Mxfp8(_) | OperandFormat::Fp8 { .. } => {
                MX_BLOCK
            }
        }
    }

    /// Bits of an element.
    pub fn bits(self) -> usize {
        match self {
            OperandFormat::Nvfp4 { .. } | OperandFormat::Mxfp4(_) => 4,
            OperandFormat::Mxfp8(_) | OperandFormat::Fp8 { .. } => 8,
        }
    }

    /// Codes, one a byte, and scales of a row.
    fn quantize(self, row: &[f64]) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let (element, rule) = match self {
            OperandFormat::Nvfp4 { exponent } => {
                let factor = power_of_two(exponent) as f32;
                let row = Nvfp4Row::quantize(row, factor, Round::NearestEven)?;
                return Ok((row.codes, row.scales));
            }
            OperandFormat::Mxfp4(rule) => (MxElement::E2M1, rule),
            OperandFormat::Mxfp8(rule) => (MxElement::E4M3, rule),
            OperandFormat::Fp8 { exponent } => {
                let code = |x: &f64| {
                    let x = x * power_of_two(exponent);
                    E4M3.encode(x, Round::NearestEven, Overflow::Saturate) as u8
                };
                let scales = vec![ONE; row.len().div_ceil(MX_BLOCK)];
                return Ok((row.iter().map(code).collect(), scales));
            }
        };
        let row = MxRow::quantize(row, element, rule);
        Ok((row.codes, row.scales))
    }

    fn value(self, code: u8, scale: u8) -> f64 {
        let (code, wide) = (u16::from(code), u16::from(scale));
        match self {
            OperandFormat::Nvfp4 { exponent } => {
                E2M1.decode(code) * E4M3.decode(wide) / power_of_two(exponent)
            }
            OperandFormat::Mxfp4(_) => E2M1.decode(code) * e8m0::decode(scale),
            OperandFormat::Mxfp8(_) => E4M3.decode(code) * e8m0::decode(scale),
            OperandFormat::Fp8 { exponent } => E4M3.decode(code) / power_of_two(exponent),
        }
    }
}

/// The operand of one head: `rows` rows of whole quads of groups.
#[derive(Debug, Clone, PartialEq)]
pub struct Operand {
    /// Element and scale.
    pub format: OperandFormat,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row, a multiple of four groups.
    pub columns: usize,
    /// [rows, columns] element codes, one a byte.
    pub codes: Vec<u8>,
    /// [rows, columns / group] scale codes.
    pub scales: Vec<u8>,
}

impl Operand {
    /// Quantizes rows that `row` fills; `spans` are the pieces of a source row that start groups of
    /// their own.
    fn of(
        format: OperandFormat,
        rows: usize,
        spans: &[Range<usize>],
        value: impl Fn(usize, usize) -> f64,
    ) -> Result<Self, Error> {
        let quad = QUAD * format.group();
        let padded = |span: &Range<usize>| span.len().next_multiple_of(quad);
        let columns = spans.iter().map(padded).sum();
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for row in 0..rows {
            for span in spans {
                let mut piece: Vec<f64> = span.clone().map(|at| value(row, at)).collect();
                piece.resize(padded(span), 0.0);
                let (more_codes, more_scales) = format.quantize(&piece)?;
                codes.extend(more_codes);
                scales.extend(more_scales);
            }
        }
        Ok(Self {
            format,
            rows,
            columns,
            codes,
            scales,
        })
    }

    /// Q or K of one head: rows are those of the tensor.
    ///
    /// # Errors
    /// As [`Nvfp4Row::quantize`].
    pub fn of_rows(
        x: &Tensor4,
        (b, h): (usize, usize),
        format: OperandFormat,
    ) -> Result<Self, Error> {
        let [_, _, s, d] = x.shape;
        Self::of(format, s, std::slice::from_ref(&(0..d)), |row, column| {
            x.row(b, h, row)[column]
        })
    }

    /// V of one head: rows are the columns of the tensor, groups run along its keys, and every range of
    /// `sequences` starts a group.
    ///
    /// # Errors
    /// As [`Nvfp4Row::quantize`].
    pub fn of_columns(
        x: &Tensor4,
        (b, h): (usize, usize),
        sequences: &[Range<usize>],
        format: OperandFormat,
    ) -> Result<Self, Error> {
        let d = x.shape[3];
        Self::of(format, d, sequences, |row, key| x.row(b, h, key)[row])
    }

    /// The same with groups of zeros up to `columns`: batch entries of unequal lengths lie in rows of one
    /// length.
    pub fn widened(&self, columns: usize) -> Self {
        let group = self.format.group();
        // The scale of zeros.
        let scale = match self.format {
            OperandFormat::Fp8 { .. } => ONE,
            _ => 0,
        };
        let pad = |codes: &[u8], from: usize, to: usize, with: u8| -> Vec<u8> {
            let rows = (0..self.rows).map(|row| &codes[row * from..(row + 1) * from]);
            let filled = |row: &[u8]| {
                row.iter()
                    .copied()
                    .chain(std::iter::repeat(with))
                    .take(to)
                    .collect()
            };
            rows.flat_map(|row| -> Vec<u8> { filled(row) }).collect()
        };
        Self {
            columns,
            codes: pad(&self.codes, self.columns, columns, 0),
            scales: pad(&self.scales, self.columns / group, columns / group, scale),
            ..*self
        }
    }

    /// Rows that tiles of scales hold: those of `sequences` of rows, each an operand of its own, in which the rows of
    /// `heads`, all of a shape, alternate.
    pub fn alternating(heads: &[Self], sequences: &[Range<usize>]) -> Vec<Self> {
        let Some(first) = heads.first() else {
            return Vec::new();
        };
        let of = |rows: &Range<usize>| {
            let all = rows
                .clone()
                .flat_map(|row| heads.iter().map(move |head| (head, row)));
            let codes = all
                .clone()
                .flat_map(|(head, row)| head.row_of(&head.codes, row));
            let scales = all.flat_map(|(head, row)| head.row_of(&head.scales, row));
            Self {
                rows: rows.len() * heads.len(),
                codes: codes.copied().collect(),
                scales: scales.copied().collect(),
                ..*first
            }
        };
        sequences.iter().map(of).collect()
    }

    /// A row's part of codes or scales.
    fn row_of<'a>(&self, all: &'a [u8], row: usize) -> &'a [u8] {
        let length = all.len() / self.rows;
        &all[row * length..(row + 1) * length]
    }

    /// [rows, columns] values.
    ///
    /// # Errors
    /// [`Error::Length`] if codes and scales are not those of rows and columns.
    pub fn dequantize(&self) -> Result<Vec<f64>, Error> {
        let group = self.format.group();
        check_length("codes", self.codes.len(), self.rows * self.columns)?;
        check_length("scales", self.scales.len(), self.codes.len() / group)?;
        let groups = self.codes.chunks(group).zip(&self.scales);
        let values = |(codes, &scale): (&[u8], &u8)| -> Vec<f64> {
            let of = |&code: &u8| self.format.value(code, scale);
            codes.iter().map(of).collect()
        };
        Ok(groups.flat_map(values).collect())
    }

    /// Scales as matrix units read them: tiles of 128 rows by 4 groups, row after row of tiles, in which
    /// the 4 scales of row r lie from byte 16 (r mod 32) + 4 (r / 32) on (PTX ISA, tcgen05 scale factor
    /// layout). Rows that do not exist have scales 0.
    pub fn tiled_scales(&self) -> Vec<u8> {
        let groups = self.columns / self.format.group();
        let tiles = groups / QUAD;
        let mut bytes = vec![0; self.rows.next_multiple_of(TILE_ROWS) * groups];
        for (at, &scale) in self.scales.iter().enumerate() {
            let (row, group) = (at / groups, at % groups);
            let tile = row / TILE_ROWS * tiles + group / QUAD;
            let place = row % 32 * 16 + row % TILE_ROWS / 32 * QUAD + group % QUAD;
            bytes[tile * TILE_ROWS * QUAD + place] = scale;
        }
        bytes
    }
}

/// Every head of x as its rows in that format say: Q and K.
///
/// # Errors
/// As [`Operand::of_rows`].
pub fn round_rows(x: &Tensor4, format: OperandFormat) -> Result<Tensor4, Error> {
    let [b, h, s, d] = x.shape;
    let mut out = Tensor4::zeros(x.shape);
    for (b, h) in (0..b).flat_map(|b| (0..h).map(move |h| (b, h))) {
        let operand = Operand::of_rows(x, (b, h), format)?;
        let values = operand.dequantize()?;
        let first = (b * x.shape[1] + h) * s * d;
        for row in 0..s {
            let from = row * operand.columns;
            out.data[first + row * d..][..d].copy_from_slice(&values[from..from + d]);
        }
    }
    Ok(out)
}

/// Every head of x as its columns in that format say, each of the `sequences[b]` of batch entry b on its own: V. Rows of
/// no sequence become 0.
///
/// # Errors
/// As [`Operand::of_columns`]; [`Error::Length`] if there is not a list for every batch entry.
pub fn round_columns(
    x: &Tensor4,
    sequences: &[Vec<Range<usize>>],
    format: OperandFormat,
) -> Result<Tensor4, Error> {
    let [b, h, s, d] = x.shape;
    check_length("sequences", sequences.len(), b)?;
    let mut out = Tensor4::zeros(x.shape);
    for (b, h) in (0..b).flat_map(|b| (0..h).map(move |h| (b, h))) {
        let operand = Operand::of_columns(x, (b, h), &sequences[b], format)?;
        let values = operand.dequantize()?;
        let head = (b * x.shape[1] + h) * s * d;
        let mut first = 0;
        for keys in &sequences[b] {
            for (column, key) in keys.clone().enumerate() {
                for channel in 0..d {
                    out.data[head + key * d + channel] =
                        values[channel * operand.columns + first + column];
                }
            }
            first += keys.len().next_multiple_of(QUAD * format.group());
        }
    }
    Ok(out)
}
