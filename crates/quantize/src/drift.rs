//! What the layers before a linear got wrong, taken over by its weight.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use crate::error::{QuantizeError, check_len};
use crate::factor::damped_factor;
use crate::hessian::Hessian;
use crate::weight::Weight;

/// Rows of one f32 product; the products are summed in f64.
const CHUNK: usize = 1024;

/// Inputs of one linear for the same tokens.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// x [tokens, k], in the model as far as it is quantized.
    pub x: &'a [f32],
    /// x0 [tokens, k], in the original.
    pub original: &'a [f32],
    /// r0 - r [tokens, n]: how far what is added to the output moved; empty where that is not to be
    /// made up for.
    pub residual: &'a [f32],
}

/// Sums over [`Pair`]s.
#[derive(Debug, Clone)]
pub struct DriftSums {
    tokens: usize,
    /// x^T (x0 - x) [k, k] and the sums of x0 - x.
    input: Products,
    /// x^T (r0 - r) [k, n] and the sums of r0 - r.
    residual: Products,
}

/// Sums of x^T y [k, n] and of y `[n]`.
#[derive(Debug, Clone)]
struct Products {
    k: usize,
    n: usize,
    cross: Vec<f64>,
    sums: Vec<f64>,
}

impl Products {
    fn new(k: usize, n: usize) -> Self {
        Self {
            k,
            n,
            cross: vec![0.0; k * n],
            sums: vec![0.0; n],
        }
    }

    /// Adds `x` [tokens, k] and `y` [tokens, n].
    fn add(&mut self, x: &[f32], y: &[f32]) {
        let Self { k, n, .. } = *self;
        let mut product = vec![0.0f32; k * n];
        for (x, y) in x.chunks(CHUNK * k.max(1)).zip(y.chunks(CHUNK * n.max(1))) {
            let rows = x.len() / k;
            matmul(
                MatMut::from_row_major_slice_mut(&mut product, k, n),
                Accum::Replace,
                MatRef::from_row_major_slice(x, rows, k).transpose(),
                MatRef::from_row_major_slice(y, rows, n),
                1.0,
                Par::rayon(0),
            );
            for (sum, &part) in self.cross.iter_mut().zip(&product) {
                *sum += f64::from(part);
            }
            for row in y.chunks_exact(n) {
                for (sum, &value) in self.sums.iter_mut().zip(row) {
                    *sum += f64::from(value);
                }
            }
        }
    }

    /// The sums as means over `tokens`.
    fn mean(&self, tokens: usize) -> Self {
        let per_token = 1.0 / tokens.max(1) as f64;
        let mean = |sums: &[f64]| sums.iter().map(|sum| sum * per_token).collect();
        Self {
            cross: mean(&self.cross),
            sums: mean(&self.sums),
            ..*self
        }
    }

    /// Means about the means, where x has the mean `x`.
    fn centered(&self, x: &[f64]) -> Self {
        let mut centered = self.clone();
        for (row, x) in centered.cross.chunks_exact_mut(self.n.max(1)).zip(x) {
            for (cross, mean) in row.iter_mut().zip(&self.sums) {
                *cross -= x * mean;
            }
        }
        centered
    }

    fn single(&self) -> Vec<f32> {
        self.cross.iter().map(|&value| value as f32).collect()
    }
}

impl DriftSums {
    /// Nothing seen yet of inputs of k features and residuals of n, 0 where there are none.
    pub fn new(k: usize, n: usize) -> Self {
        Self {
            tokens: 0,
            input: Products::new(k, k),
            residual: Products::new(k, n),
        }
    }

    /// Adds some tokens.
    ///
    /// # Errors
    /// [`QuantizeError::WrongLength`] when k does not divide them or they differ,
    /// [`QuantizeError::NotFinite`]; the sums are then as before.
    pub fn add(&mut self, pair: Pair<'_>) -> Result<(), QuantizeError> {
        let k = self.input.k;
        let tokens = pair.x.len().checked_div(k).unwrap_or(0);
        for (name, values, width) in [
            ("activations", pair.x, k),
            ("original activations", pair.original, k),
            ("residuals", pair.residual, self.residual.n),
        ] {
            check_len(name, values.len(), &[tokens, width])?;
            crate::error::check_finite(name, values)?;
        }
        let off = pair.original.iter().zip(pair.x).map(|(o, x)| o - x);
        self.input.add(pair.x, &off.collect::<Vec<_>>());
        self.residual.add(pair.x, pair.residual);
        self.tokens += tokens;
        Ok(())
    }

    /// The moments of what was added.
    pub fn finish(&self) -> Drift {
        Drift {
            input: self.input.mean(self.tokens),
            residual: self.residual.mean(self.tokens),
        }
    }
}

/// How a linear's input, and what is added to its output, moved: their moments with x.
#[derive(Debug, Clone)]
pub struct Drift {
    input: Products,
    residual: Products,
}

impl Drift {
    /// Mean of x0 - x, `[k]`.
    pub(crate) fn mean(&self) -> &[f64] {
        &self.input.sums
    }

    /// Mean of r0 - r, `[n]`, or nothing.
    pub(crate) fn residual_mean(&self) -> &[f64] {
        &self.residual.sums
    }

    /// The moments about the means: for a linear whose bias takes these in. `hessian` is that of x,
    /// not centered.
    pub fn centered(&self, hessian: &Hessian) -> Self {
        Self {
            input: self.input.centered(hessian.mean()),
            residual: self.residual.centered(hessian.mean()),
        }
    }

    /// The weight that gives on x what `weight` gives on x0, as nearly as a linear can, and what the
    /// residual r lacks of r0:
    ///
    /// ```text
    /// W* = argmin E |r + x W* - r0 - x0 W|^2 + l |W* - W|^2
    ///    = W + (H + l I)^-1 (E[x^T (x0 - x)] W + E[x^T (r0 - r)])
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
        check_len("drift", self.input.cross.len(), &[k, k])?;
        if self.residual.n > 0 {
            check_len("residual drift", self.residual.cross.len(), &[k, n])?;
        }
        if n == 0 || hessian.diagonal().iter().all(|&value| value == 0.0) {
            return Ok(weight.values().to_vec());
        }
        // A dead channel has no drift to take over: any diagonal serves it.
        let factor = damped_factor(&hessian.matrix, k, damping.max(1e-6))?;
        let upper = MatRef::from_row_major_slice(&factor.upper, k, k);
        let product = |lhs: MatRef<'_, f32>, rhs: &[f32], out: &mut [f32], accum: Accum| {
            let rhs = MatRef::from_row_major_slice(rhs, k, n);
            let out = MatMut::from_row_major_slice_mut(out, k, n);
            matmul(out, accum, lhs, rhs, 1.0, Par::rayon(0));
        };
        let mut lacking = match self.residual.n {
            0 => vec![0.0f32; k * n],
            _ => self.residual.single(),
        };
        let cross = self.input.single();
        let cross = MatRef::from_row_major_slice(&cross, k, k);
        product(cross, weight.values(), &mut lacking, Accum::Add);
        let mut half = vec![0.0f32; k * n];
        product(upper, &lacking, &mut half, Accum::Replace);
        let mut target = weight.values().to_vec();
        product(upper.transpose(), &half, &mut target, Accum::Add);
        Ok(target)
    }
}
