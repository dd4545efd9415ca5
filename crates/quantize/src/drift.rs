//! What the layers before a linear got wrong, taken over by its weight.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use crate::error::{QuantizeError, check_len};
use crate::factor::damped_factor;
use crate::hessian::Hessian;
use crate::weight::Weight;

/// Rows of one f32 product; the products are summed in f64.
const CHUNK: usize = 1024;

/// Sums over pairs of inputs of one linear for the same tokens: x in the model as far as it is
/// quantized, x0 in the original.
#[derive(Debug, Clone)]
pub struct DriftSums {
    k: usize,
    tokens: usize,
    /// [k, k], X^T (X0 - X).
    cross: Vec<f64>,
    /// `[k]`, sums of x0 - x.
    sums: Vec<f64>,
}

impl DriftSums {
    /// Nothing seen yet.
    pub fn new(k: usize) -> Self {
        Self {
            k,
            tokens: 0,
            cross: vec![0.0; k * k],
            sums: vec![0.0; k],
        }
    }

    /// Adds the inputs `x` and `original`, both [tokens, k], of some tokens.
    ///
    /// # Errors
    /// [`QuantizeError::WrongLength`] when k does not divide them or they differ,
    /// [`QuantizeError::NotFinite`]; the sums are then as before.
    pub fn add(&mut self, x: &[f32], original: &[f32]) -> Result<(), QuantizeError> {
        let tokens = x.len().checked_div(self.k).unwrap_or(0);
        check_len("activations", x.len(), &[tokens, self.k])?;
        check_len("original activations", original.len(), &[tokens, self.k])?;
        crate::error::check_finite("activations", x)?;
        crate::error::check_finite("original activations", original)?;
        let mut product = vec![0.0f32; self.k * self.k];
        let rows = CHUNK * self.k.max(1);
        for (x, original) in x.chunks(rows).zip(original.chunks(rows)) {
            let off: Vec<f32> = original.iter().zip(x).map(|(o, x)| o - x).collect();
            self.add_chunk(x, &off, &mut product);
        }
        self.tokens += tokens;
        Ok(())
    }

    fn add_chunk(&mut self, x: &[f32], off: &[f32], product: &mut [f32]) {
        let (k, rows) = (self.k, x.len() / self.k);
        matmul(
            MatMut::from_row_major_slice_mut(product, k, k),
            Accum::Replace,
            MatRef::from_row_major_slice(x, rows, k).transpose(),
            MatRef::from_row_major_slice(off, rows, k),
            1.0,
            Par::rayon(0),
        );
        for (sum, &part) in self.cross.iter_mut().zip(&*product) {
            *sum += f64::from(part);
        }
        for row in off.chunks_exact(k) {
            for (sum, &value) in self.sums.iter_mut().zip(row) {
                *sum += f64::from(value);
            }
        }
    }

    /// The moments of what was added.
    pub fn finish(&self) -> Drift {
        let per_token = 1.0 / self.tokens.max(1) as f64;
        let mean = |sums: &[f64]| sums.iter().map(|sum| sum * per_token).collect();
        Drift {
            cross: mean(&self.cross),
            mean: mean(&self.sums),
        }
    }
}

/// How a linear's input moved: moments of x and x0 - x.
#[derive(Debug, Clone)]
pub struct Drift {
    /// [k, k], mean of x^T (x0 - x).
    cross: Vec<f64>,
    /// `[k]`, mean of x0 - x.
    mean: Vec<f64>,
}

impl Drift {
    /// Mean of x0 - x, `[k]`.
    pub(crate) fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// The moments about the means: for a linear whose bias takes these in. `hessian` is that of x,
    /// not centered.
    pub fn centered(&self, hessian: &Hessian) -> Self {
        let k = self.mean.len();
        let mut centered = self.clone();
        for (row, cross) in centered.cross.chunks_exact_mut(k.max(1)).enumerate() {
            for (cross, mean) in cross.iter_mut().zip(&self.mean) {
                *cross -= hessian.mean()[row] * mean;
            }
        }
        centered
    }

    /// The weight that gives on x what `weight` gives on x0, as nearly as a linear can:
    ///
    /// ```text
    /// W* = argmin E |x W* - x0 W|^2 + l |W* - W|^2 = W + (H + l I)^-1 E[x^T (x0 - x)] W
    /// ```
    ///
    /// with l = `damping` times the mean of H's diagonal (Li et al. 2025 call the aim asymmetric
    /// calibration). Without drift it is `weight` itself.
    ///
    /// # Errors
    /// [`QuantizeError::WrongLength`] for a Hessian of another k, and
    /// [`QuantizeError::NotPositiveDefinite`] for one with NaN.
    pub fn target(
        &self,
        weight: Weight<'_>,
        hessian: &Hessian,
        damping: f64,
    ) -> Result<Vec<f32>, QuantizeError> {
        let (k, n) = weight.sizes();
        check_len("hessian", hessian.k() * hessian.k(), &[k, k])?;
        check_len("drift", self.cross.len(), &[k, k])?;
        if n == 0 || hessian.diagonal().iter().all(|&value| value == 0.0) {
            return Ok(weight.values().to_vec());
        }
        // A dead channel has no drift to take over: any diagonal serves it.
        let factor = damped_factor(&hessian.matrix, k, damping.max(1e-6))?;
        let cross: Vec<f32> = self.cross.iter().map(|&value| value as f32).collect();
        let mut target = weight.values().to_vec();
        let upper = MatRef::from_row_major_slice(&factor.upper, k, k);
        let product = |lhs: MatRef<'_, f32>, rhs: &[f32], out: &mut [f32], accum: Accum| {
            let rhs = MatRef::from_row_major_slice(rhs, k, n);
            let out = MatMut::from_row_major_slice_mut(out, k, n);
            matmul(out, accum, lhs, rhs, 1.0, Par::rayon(0));
        };
        let (mut a, mut b) = (vec![0.0f32; k * n], vec![0.0f32; k * n]);
        let cross = MatRef::from_row_major_slice(&cross, k, k);
        product(cross, weight.values(), &mut a, Accum::Replace);
        product(upper, &a, &mut b, Accum::Replace);
        product(upper.transpose(), &b, &mut target, Accum::Add);
        Ok(target)
    }
}
