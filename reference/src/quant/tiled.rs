//! Packed weights in tiles of 64 x 64, as products read them, and the product itself.

use half::f16;
use rayon::prelude::*;

use crate::error::{Error, check_length};

/// Rows and columns of a tile.
const TILE: usize = 64;
/// A stored row that stands for none of W.
const NO_ROW: u32 = u32::MAX;

/// A weight W [k, n] in tiles: stored rows and columns are rounded up to multiples of 64, and tile
/// (row block tk, column block tn) is number tn * (rows / 64) + tk. Code i = 8 s + f of the `bits`
/// words of lane 4 r + c of strip t of a tile stands for row 64 tk + 16 s + 8 (f / 2 mod 2) + 2 c +
/// f / 4 and column 64 tn + 16 t + 2 r + f mod 2. Scales and zero points of column 64 tn + 16 t +
/// 2 r + h lie at 64 tn + 8 r + 2 t + h.
///
/// ```text
/// W[gather[row], column] = scales[row / group, column] * (code[row, column] - zeros[row / group, column])
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Tiled<'a> {
    /// Bits of a code.
    pub bits: u32,
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
    /// Scales [ceil(rows / group), n rounded up to 64].
    pub scales: &'a [f16],
    /// Zero points like the scales; 2^(bits - 1) when absent.
    pub zeros: Option<&'a [u8]>,
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
    /// use flashcube_reference::quant::tiled::Tiled;
    /// use half::f16;
    ///
    /// // Every code 9, zero point 8, scale 1/2.
    /// let tiled = Tiled {
    ///     bits: 4,
    ///     k: 3,
    ///     n: 2,
    ///     rows: 64,
    ///     group: 64,
    ///     words: &[0x9999_9999; 512],
    ///     scales: &[f16::from_f32(0.5); 64],
    ///     zeros: None,
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
        if let Some(zeros) = self.zeros {
            check_length("zeros", zeros.len(), places)?;
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
        let zero = match self.zeros {
            Some(zeros) => f64::from(zeros[place]),
            None => f64::from(1u32 << (bits - 1)),
        };
        self.scales[place].to_f64() * (f64::from(code) - zero)
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
