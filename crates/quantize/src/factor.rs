//! The triangular factor that GPTQ's update reads its coefficients from.

use faer::linalg::triangular_inverse::invert_lower_triangular;
use faer::{Mat, Par, Side};

use crate::error::QuantizeError;

/// Damping grows by this factor until the factorization succeeds.
const GROWTH: f64 = 10.0;
/// A mean diagonal added ten thousand times over makes any finite positive semi-definite matrix
/// definite; what fails there holds NaN.
const MOST: f64 = 1e4;

/// U [k, k], upper triangular, with U^T U = (H + damping * mean diag(H) * I)^-1.
#[derive(Debug)]
pub(crate) struct InverseFactor {
    /// Row-major; the lower triangle is 0.
    pub(crate) upper: Vec<f32>,
    /// The damping that was needed.
    pub(crate) damping: f64,
}

/// Factorizes with more and more damping, from `damping` on.
///
/// The diagonal must be positive: dead channels are the caller's.
pub(crate) fn damped_factor(
    hessian: &[f64],
    k: usize,
    damping: f64,
) -> Result<InverseFactor, QuantizeError> {
    let mut damping = damping;
    loop {
        match inverse_factor(hessian, k, damping) {
            Ok(upper) => return Ok(InverseFactor { upper, damping }),
            Err(error) if damping >= MOST => return Err(error),
            Err(_) => damping = (damping * GROWTH).max(1e-6),
        }
    }
}

/// U with U^T U = (H + damping * mean diag(H) * I)^-1, row-major.
///
/// With J the reversal of rows: J H J = L L^T gives H = R R^T for the upper triangular R = J L J,
/// hence H^-1 = (R^-1)^T R^-1 and U = R^-1 = J L^-1 J. One Cholesky and one triangular inverse;
/// the inverse of H itself, whose condition is the square of theirs, is never formed.
///
/// # Errors
/// [`QuantizeError::NotPositiveDefinite`].
pub(crate) fn inverse_factor(
    hessian: &[f64],
    k: usize,
    damping: f64,
) -> Result<Vec<f32>, QuantizeError> {
    let refuse = || QuantizeError::NotPositiveDefinite { size: k, damping };
    if k == 0 {
        return Ok(Vec::new());
    }
    let mean = (0..k).map(|i| hessian[i * k + i]).sum::<f64>() / k as f64;
    let reversed = Mat::from_fn(k, k, |i, j| {
        let (i, j) = (k - 1 - i, k - 1 - j);
        hessian[i * k + j] + if i == j { damping * mean } else { 0.0 }
    });
    let factor = reversed.llt(Side::Lower).map_err(|_| refuse())?;
    let mut inverse = Mat::<f64>::zeros(k, k);
    invert_lower_triangular(inverse.as_mut(), factor.L(), Par::rayon(0));
    let mut upper = vec![0.0f32; k * k];
    for i in 0..k {
        for j in i..k {
            upper[i * k + j] = inverse[(k - 1 - i, k - 1 - j)] as f32;
        }
    }
    // A matrix that is singular to rounding may pass with entries past f32, or with NaN.
    if upper.iter().all(|value| value.is_finite()) {
        Ok(upper)
    } else {
        Err(refuse())
    }
}
