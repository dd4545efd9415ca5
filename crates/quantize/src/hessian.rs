//! What calibration leaves of a layer's inputs: their second moments.

use std::ops::Range;

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use rayon::prelude::*;

use crate::error::{QuantizeError, check_len};
use crate::weight::Weight;

/// Rows of one f32 product: long enough for the matrix kernels, short enough that f32 sums stay
/// accurate; the products are summed in f64.
const CHUNK: usize = 1024;
/// Columns of X^T X that a task sums: few, so that little is computed beyond the diagonal.
const COLUMNS: usize = 64;

/// Sums over calibration inputs X [tokens, k], row by row or batch by batch.
#[derive(Debug, Clone)]
pub struct Calibration {
    k: usize,
    tokens: usize,
    /// The columns of X^T X, [`COLUMNS`] at a time, down to the last one's diagonal: each
    /// [columns before and in it, its columns].
    squares: Vec<Vec<f64>>,
    /// `[k]`, sums of |x|.
    magnitudes: Vec<f64>,
    /// `[k]`, sums of x.
    sums: Vec<f64>,
}

impl Calibration {
    /// Nothing seen yet.
    pub fn new(k: usize) -> Self {
        Self {
            k,
            tokens: 0,
            squares: (0..k)
                .step_by(COLUMNS)
                .map(|first| {
                    let end = (first + COLUMNS).min(k);
                    vec![0.0; end * (end - first)]
                })
                .collect(),
            magnitudes: vec![0.0; k],
            sums: vec![0.0; k],
        }
    }

    /// Adds the inputs `x` [tokens, k] of some tokens.
    ///
    /// # Errors
    /// [`QuantizeError::WrongLength`] when k does not divide it, [`QuantizeError::NotFinite`]; the
    /// sums are then as before.
    pub fn add(&mut self, x: &[f32]) -> Result<(), QuantizeError> {
        let tokens = x.len().checked_div(self.k).unwrap_or(0);
        check_len("activations", x.len(), &[tokens, self.k])?;
        crate::error::check_finite("activations", x)?;
        for rows in x.chunks(CHUNK * self.k.max(1)) {
            self.add_chunk(rows);
        }
        self.tokens += tokens;
        Ok(())
    }

    /// Every task sums some columns of X^T X, and the moments of their channels.
    fn add_chunk(&mut self, x: &[f32]) {
        let k = self.k;
        let moments = self.magnitudes.par_chunks_mut(COLUMNS);
        let moments = moments.zip(self.sums.par_chunks_mut(COLUMNS));
        let parts = self.squares.par_iter_mut().zip(moments).enumerate();
        // The longest first, so that no thread is left with one when the others are done.
        parts.rev().for_each_init(
            Vec::new,
            |product, (part, (squares, (magnitudes, sums)))| {
                let first = part * COLUMNS;
                let columns = first..first + sums.len();
                self::product(x, k, columns.clone(), product);
                // With the registers of this CPU.
                pulp::Arch::new().dispatch(|| {
                    let pairs = squares.iter_mut().zip(&*product);
                    pairs.for_each(|(sum, &part)| *sum += f64::from(part));
                    for x in x.chunks_exact(k) {
                        let totals = magnitudes.iter_mut().zip(&mut *sums);
                        for ((magnitude, sum), &value) in totals.zip(&x[columns.clone()]) {
                            *magnitude += f64::from(value.abs());
                            *sum += f64::from(value);
                        }
                    }
                });
            },
        );
    }

    /// Input channels.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Tokens added.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The moments of what was added.
    pub fn finish(&self) -> Hessian {
        let k = self.k;
        let per_token = 1.0 / self.tokens.max(1) as f64;
        let mut matrix = vec![0.0; k * k];
        for column in 0..k {
            let part = &self.squares[column / COLUMNS];
            let width = part.len() / (column / COLUMNS * COLUMNS + COLUMNS).min(k);
            for row in 0..=column {
                let value = part[row * width + column % COLUMNS] * per_token;
                matrix[row * k + column] = value;
                matrix[column * k + row] = value;
            }
        }
        let magnitudes = self.magnitudes.iter().map(|sum| (sum * per_token) as f32);
        Hessian {
            k,
            tokens: self.tokens,
            single: matrix.iter().map(|&value| value as f32).collect(),
            magnitudes: magnitudes.collect(),
            mean: self.sums.iter().map(|sum| sum * per_token).collect(),
            matrix,
        }
    }
}

/// X^T X of `x` [tokens, k]: the columns `columns`, down to the last one's diagonal.
fn product(x: &[f32], k: usize, columns: Range<usize>, product: &mut Vec<f32>) {
    let x = MatRef::from_row_major_slice(x, x.len() / k, k);
    product.resize(columns.end * columns.len(), 0.0);
    matmul(
        MatMut::from_row_major_slice_mut(product, columns.end, columns.len()),
        Accum::Replace,
        x.subcols(0, columns.end).transpose(),
        x.subcols(columns.start, columns.len()),
        1.0,
        Par::Seq,
    );
}

/// Second moments of a layer's inputs: H = X^T X / tokens. GPTQ's own has a factor of 2, which
/// cancels everywhere.
#[derive(Debug, Clone)]
pub struct Hessian {
    pub(crate) k: usize,
    tokens: usize,
    /// [k, k], symmetric.
    pub(crate) matrix: Vec<f64>,
    /// The same in f32.
    single: Vec<f32>,
    /// `[k]`, mean |x|.
    magnitudes: Vec<f32>,
    /// `[k]`, mean x.
    mean: Vec<f64>,
}

impl Hessian {
    /// Input channels.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Tokens that it was taken over.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Mean |x| of every input channel, `[k]`.
    pub fn magnitudes(&self) -> &[f32] {
        &self.magnitudes
    }

    /// Mean x^2 of every input channel, `[k]`.
    pub fn diagonal(&self) -> Vec<f64> {
        (0..self.k).map(|i| self.matrix[i * self.k + i]).collect()
    }

    /// The moments of the inputs divided by `scales` `[k]`: those of a linear whose scale was
    /// folded away.
    ///
    /// # Errors
    /// [`QuantizeError::WrongLength`].
    pub fn divided(&self, scales: &[f32]) -> Result<Self, QuantizeError> {
        check_len("scales", scales.len(), &[self.k])?;
        let mut divided = self.clone();
        for row in 0..self.k {
            for column in 0..self.k {
                let at = row * self.k + column;
                let by = f64::from(scales[row]) * f64::from(scales[column]);
                divided.matrix[at] /= by;
                divided.single[at] = divided.matrix[at] as f32;
            }
            divided.magnitudes[row] /= scales[row];
            divided.mean[row] /= f64::from(scales[row]);
        }
        Ok(divided)
    }

    /// Mean x of every input channel, `[k]`.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// The moments of the inputs less their mean: what a layer's error amounts to when its bias
    /// takes in the mean of it.
    pub fn centered(&self) -> Self {
        let mut centered = self.clone();
        for row in 0..self.k {
            for column in 0..self.k {
                let at = row * self.k + column;
                // A channel that never varies is left with a rounding error: it is dead.
                let left = self.matrix[at] - self.mean[row] * self.mean[column];
                let noise = 1e-12 * self.matrix[row * self.k + row];
                centered.matrix[at] = if row == column && left <= noise {
                    0.0
                } else {
                    left
                };
            }
        }
        for (single, &value) in centered.single.iter_mut().zip(&centered.matrix) {
            *single = value as f32;
        }
        centered
    }

    /// mean(x0) W - mean(x) restored, `[n]`: what a bias must gain for the mean output to stay.
    /// `moved` is the mean of x0 - x, where x0 is another model's input.
    pub(crate) fn mean_shift(
        &self,
        weight: Weight<'_>,
        restored: &[f32],
        moved: Option<&[f64]>,
    ) -> Vec<f32> {
        let mut shift = vec![0.0f64; weight.n];
        for (row, &mean) in self.mean.iter().enumerate() {
            let before = mean + moved.map_or(0.0, |moved| moved[row]);
            let restored = &restored[row * weight.n..(row + 1) * weight.n];
            for ((shift, w), q) in shift.iter_mut().zip(weight.row(row)).zip(restored) {
                *shift += before * f64::from(*w) - mean * f64::from(*q);
            }
        }
        shift.into_iter().map(|value| value as f32).collect()
    }

    /// Mean over the tokens of |x W|^2: the size of an output, or, for a difference of weights,
    /// of an output error.
    ///
    /// # Errors
    /// [`QuantizeError::WrongLength`] when the weight has another k.
    pub fn output_square(&self, weight: Weight<'_>) -> Result<f64, QuantizeError> {
        check_len("weight", weight.values.len(), &[self.k, weight.n])?;
        Ok(self.quadratic(weight.values, weight.n))
    }

    /// tr(E^T H E) of E [k, n]: NaN where E has one.
    pub(crate) fn quadratic(&self, e: &[f32], n: usize) -> f64 {
        let k = self.k;
        if n == 0 || k == 0 {
            return 0.0;
        }
        let mut product = vec![0.0f32; k * n];
        matmul(
            MatMut::from_row_major_slice_mut(&mut product, k, n),
            Accum::Replace,
            MatRef::from_row_major_slice(&self.single, k, k),
            MatRef::from_row_major_slice(e, k, n),
            1.0,
            Par::rayon(0),
        );
        let pairs = product.iter().zip(e);
        pairs.map(|(&h, &e)| f64::from(h) * f64::from(e)).sum()
    }

    /// The output error of restored weights in place of `weight`, mean over tokens.
    pub(crate) fn loss(&self, weight: Weight<'_>, restored: &[f32]) -> f64 {
        let off = weight.values.iter().zip(restored).map(|(w, q)| w - q);
        self.quadratic(&off.collect::<Vec<_>>(), weight.n)
    }
}
