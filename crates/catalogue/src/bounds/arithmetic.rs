//! What a tier's arithmetic costs: FMA in f32 with exponentials in base e, or matrix units with
//! 16-bit weights and exponentials in base 2 (section 3.6).

use flashcube::{DType, TierName};

use super::mixture::Term;
use super::{TABLE, U, exp_error, roundoff};
use crate::problem::Problem;

/// Terms that a matrix unit sums per instruction.
const GROUP: f64 = 16.0;

/// How a tier computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    /// Fused multiply-adds; P in f32.
    Fma,
    /// Matrix units that multiply P in this dtype.
    Matrix(DType),
}

impl Arithmetic {
    pub(crate) fn of(problem: &Problem) -> Self {
        match problem.tier() {
            TierName::Unit => Arithmetic::Fma,
            TierName::Plane | TierName::Hopper | TierName::Blackwell => {
                Arithmetic::Matrix(problem.dtype)
            }
        }
    }

    /// Error of a dot product of `n` adjacent terms, relative to the sum of their magnitudes.
    pub(super) fn dot(self, n: f64) -> f64 {
        match self {
            Arithmetic::Fma => n * U,
            Arithmetic::Matrix(_) => matrix_additions(n + 2.0 * (n / GROUP).ceil()),
        }
    }

    /// Error of sum P v over `n` visible keys with `records` rescalings, relative to the sum of
    /// magnitudes. Visible keys may be scattered over as many instructions.
    pub(super) fn values(self, n: f64, records: f64) -> f64 {
        match self {
            Arithmetic::Fma => (n + records) * U,
            Arithmetic::Matrix(_) => matrix_additions(3.0 * n) + records * U,
        }
    }

    /// Relative error of an exponential whose result is e^-z, its argument being exact.
    pub(super) fn exp(self, z: f64) -> f64 {
        match self {
            Arithmetic::Fma => exp_error(z),
            Arithmetic::Matrix(_) => 2.0 * U * TABLE.exp2_ulps,
        }
    }

    /// Error of bringing a logit made of terms of this magnitude into the base of exponentials.
    pub(super) fn logit_to_base(self, magnitude: f64) -> f64 {
        match self {
            Arithmetic::Fma => 0.0,
            Arithmetic::Matrix(_) => 3.0 * U * magnitude,
        }
    }

    /// Error of bringing a log-sum-exp back into base e; `magnitude` is that of its two terms.
    pub(super) fn lse_from_base(self, magnitude: f64) -> f64 {
        match self {
            Arithmetic::Fma => 0.0,
            Arithmetic::Matrix(_) => 5.0 * U * magnitude,
        }
    }

    /// Error in column `x` of the mean from rounding weights, of which `relative` are the errors
    /// they have anyway; the sum that divides them is not rounded.
    pub(super) fn rounded_weights(self, terms: &[Term<'_>], relative: &[f64], x: usize) -> f64 {
        let Arithmetic::Matrix(dtype) = self else {
            return 0.0;
        };
        // Half the smallest subnormal, by which a weight is off at the least.
        let least = match dtype {
            DType::F16 => 1.0 / (1u64 << 25) as f64,
            DType::BF16 | DType::F32 | DType::E4M3 => 0.0,
        };
        let heaviest = terms.iter().map(|t| t.weight).fold(0.0, f64::max);
        let (mut sum, mut squares, mut flushed, mut widest) = (0.0, 0.0, 0.0, 0.0f64);
        for (term, e) in terms.iter().zip(relative) {
            let value = term.values[x].abs();
            let off = roundoff(dtype) * term.weight * (1.0 + e) * value;
            sum += off;
            squares += off * off;
            flushed += least * heaviest * value;
            widest = widest.max(roundoff(dtype) * value);
        }
        let total: f64 = terms.iter().zip(relative).map(|(t, e)| t.weight * e).sum();
        let likely = (TABLE.weight_deviations * squares.sqrt()).min(sum);
        let normalised = match total < 1.0 {
            true => (likely / (1.0 - total)).min(widest),
            false => widest,
        };
        normalised + flushed
    }
}

/// A matrix unit aligns the addends of a sum to the largest and may cut off what does not fit.
fn matrix_additions(n: f64) -> f64 {
    2.0 * U * TABLE.matrix_ulps * n
}
