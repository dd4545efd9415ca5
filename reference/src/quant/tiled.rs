//! Packed weights in tiles of 64 x 64, as products read them, and the product itself.

use half::f16;
use rayon::prelude::*;

use super::e8m0;
use super::float::{E2M1, E4M3};
use crate::error::{Error, check_length};

/// Rows and columns of a tile.
const TILE: usize = 64;
/// A stored row that stands for none of W.
const NO_ROW: u32 = u32::MAX;

/// What a code stands for before its scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Codes<'a> {
    /// The code less the zero point of its place; without zero points less 2^(bits - 1).
    Int(Option<&'a [u8]>),
    /// The code; the minimum of its place is added to it times its scale.
    Minima(&'a [f16]),
    /// A 4-bit float.
    E2M1,
    /// An 8-bit float.
    E4M3,
    /// An entry of [`NF4`].
    Nf4,
}

/// The scales of all places.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scales<'a> {
    /// binary16.
    F16(&'a [f16]),
    /// Codes of E4M3.
    E4M3(&'a [u8]),
    /// Codes of powers of two.
    E8M0(&'a [u8]),
}

impl Scales<'_> {
    fn len(&self) -> usize {
        match self {
            Scales::F16(scales) => scales.len(),
            Scales::E4M3(scales) | Scales::E8M0(scales) => scales.len(),
        }
    }
    fn at(&self, place: usize) -> f64 {
        match self {
            Scales::F16(scales) => scales[place].to_f64(),
            Scales::E4M3(scales) => E4M3.decode(scales[place].into()),
            Scales::E8M0(scales) => e8m0::decode(scales[place]),
        }
    }
}

/// The numbers of 4-bit NormalFloat, as bitsandbytes has them in f32 (Dettmers et al. 2023, QLoRA).
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

/// A weight W [k, n] in tiles: stored rows and columns are rounded up to multiples of 64, and tile
/// (row block tk, column block tn) is number tn * (rows / 64) + tk. Code i = 8 s + f of the `bits`
/// words of lane 4 r + c of strip t of a tile stands for row 64 tk + 16 s + 8 (f / 2 mod 2) + 2 c +
/// f / 4 and column 64 tn + 16 t + 2 r + f mod 2. Scales and zero points of column 64 tn + 16 t +
/// 2 r + h lie at 64 tn + 8 r + 2 t + h.
///
/// ```text
/// W[gather[row], column] = factor * (scales[row / group, column] * number(code[row, column])
///     + minima[row / group, column])
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Tiled<'a> {
    /// Bits of a code.
    pub bits: u32,
    /// What codes stand for.
    pub codes: Codes<'a>,
    /// Rows of W.
    pub k: usize,
    /// Columns of W.
    pub n: usize,
    /// Stored rows, a multiple of 64.
    pub rows: usize,
    /// Stored rows that share a scale.
    pub group: usize,
    /// Codes.
    pub words: &'a [u32],
    /// Scales [ceil(rows / group), n rounded up to 64]; zero points and minima lie likewise.
    pub scales: Scales<'a>,
    /// Scale of all.
    pub factor: f32,
    /// `[rows]`: row of W of every stored row, `u32::MAX` for none; its own number when absent.
    pub gather: Option<&'a [u32]>,
}

impl Tiled<'_> {
    /// W [k, n], exact.
    ///
    /// # Errors
    /// [`Error::Length`] for a buffer of another length, [`Error::Index`] for a row past k.
    ///
    /// ```
    /// use flashcube_reference::quant::tiled::{Codes, Scales, Tiled};
    /// use half::f16;
    ///
    /// // Every code 9, zero point 8, scale 1/2.
    /// let tiled = Tiled {
    ///     bits: 4,
    ///     codes: Codes::Int(None),
    ///     k: 3,
    ///     n: 2,
    ///     rows: 64,
    ///     group: 64,
    ///     words: &[0x9999_9999; 512],
    ///     scales: Scales::F16(&[f16::from_f32(0.5); 64]),
    ///     factor: 1.0,
    ///     gather: None,
    /// };
    /// assert_eq!(tiled.dequantize()?, [0.5; 6]);
    /// # Ok::<(), flashcube_reference::Error>(())
    /// ```
    pub fn dequantize(&self) -> Result<Vec<f64>, Error> {
        let columns = self.n.next_multiple_of(TILE);
        let places = self.rows.div_ceil(self.group.max(1)) * columns;
        let words = self.rows * columns / 32 * self.bits as usize;
        check_length("words", self.words.len(), words)?;
        check_length("scales", self.scales.len(), places)?;
        match self.codes {
            Codes::Int(Some(zeros)) => check_length("zeros", zeros.len(), places)?,
            Codes::Minima(minima) => check_length("minima", minima.len(), places)?,
            Codes::Int(None) | Codes::E2M1 | Codes::E4M3 | Codes::Nf4 => {}
        }
        if let Some(gather) = self.gather {
            check_length("gather", gather.len(), self.rows)?;
        }
        let mut weight = vec![0.0; self.k * self.n];
        for row in 0..self.rows {
            let target = match self.gather {
                None if row < self.k => row,
                None => continue,
                Some(gather) if gather[row] == NO_ROW => continue,
                Some(gather) => gather[row] as usize,
            };
            if target >= self.k {
                return Err(Error::Index {
                    tensor: "gather",
                    position: row,
                    value: target,
                    limit: self.k.saturating_sub(1),
                });
            }
            for column in 0..self.n {
                weight[target * self.n + column] = self.value(row, column, columns);
            }
        }
        Ok(weight)
    }

    fn value(&self, row: usize, column: usize, columns: usize) -> f64 {
        let bits = self.bits as usize;
        let tile = column / TILE * (self.rows / TILE) + row / TILE;
        let (y, x) = (row % TILE, column % TILE);
        let (strip, r, h) = (x / 16, x % 16 / 2, x % 2);
        let (s, j, c, e) = (y / 16, y % 16 / 8, y % 8 / 2, y % 2);
        let lane = (tile * 4 + strip) * 32 + 4 * r + c;
        let field = 8 * s + 4 * e + 2 * j + h;
        let code = (0..bits).fold(0u32, |code, bit| {
            let at = lane * bits * 32 + field * bits + bit;
            code | (self.words[at / 32] >> (at % 32) & 1) << bit
        });
        let place = row / self.group * columns + column / TILE * TILE + 8 * r + 2 * strip + h;
        let number = match self.codes {
            Codes::Int(Some(zeros)) => f64::from(code) - f64::from(zeros[place]),
            Codes::Int(None) => f64::from(code) - f64::from(1u32 << (bits - 1)),
            Codes::Minima(_) => f64::from(code),
            Codes::E2M1 => E2M1.decode(code as u16),
            Codes::E4M3 => E4M3.decode(code as u16),
            Codes::Nf4 => f64::from(NF4[code as usize & 15]),
        };
        let minimum = match self.codes {
            Codes::Minima(minima) => minima[place].to_f64(),
            // What added to a product keeps the sign of a zero.
            _ => -0.0,
        };
        f64::from(self.factor) * (self.scales.at(place) * number + minimum)
    }
}

/// y [m, n] = x [m, k] w [k, n] + bias `[n]` in f64.
///
/// # Errors
/// [`Error::Length`] for a buffer of another length.
pub fn linear(
    x: &[f64],
    w: &[f64],
    bias: Option<&[f64]>,
    [m, k, n]: [usize; 3],
) -> Result<Vec<f64>, Error> {
    check_length("x", x.len(), m * k)?;
    check_length("w", w.len(), k * n)?;
    if let Some(bias) = bias {
        check_length("bias", bias.len(), n)?;
    }
    let mut y = vec![0.0; m * n];
    y.par_chunks_mut(n.max(1)).enumerate().for_each(|(row, y)| {
        if let Some(bias) = bias {
            y.copy_from_slice(bias);
        }
        for (at, x) in x[row * k..(row + 1) * k].iter().enumerate() {
            for (y, w) in y.iter_mut().zip(&w[at * n..(at + 1) * n]) {
                *y += x * w;
            }
        }
    });
    Ok(y)
}
