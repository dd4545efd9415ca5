//! Section 8: products with packed weights.

use flashcube::{Scaling, TierName, WeightCodes};

use super::{Arithmetic, TINY, U, roundoff, rows};
use crate::oracle::Expected;
use crate::problem::{LinearSizes, Problem};

/// The bounds of y: codes are exact but for NF4's, every group's sum is one of a dot product, is scaled with one
/// rounding and added with another, or its weights are scaled and rounded; parts are added up, scaled once more,
/// and then the bias. `magnitudes` are the sums of |x w|, and of the bias.
pub(crate) fn linear(
    problem: &Problem,
    sizes: &LinearSizes,
    exact: Vec<f64>,
    magnitudes: &[f64],
) -> Expected {
    let groups = sizes.k.div_ceil(sizes.group).max(sizes.k.div_ceil(64)) as f64;
    // Planes along k and cubes of a block, at most.
    let parts = match problem.tier() {
        TierName::Unit => 1.0,
        TierName::Plane | TierName::Hopper | TierName::Blackwell => 8.0 + 32.0,
    };
    // Sums of weights that have minima go on from group to group.
    let terms = match sizes.minima() {
        true => sizes.k,
        false => sizes.group.min(sizes.k),
    } as f64;
    // Matrix units take the table's numbers in 16 bits, others in f32 as they are.
    let table = match (sizes.codes, problem.tier()) {
        (WeightCodes::Nf4, TierName::Plane | TierName::Hopper) => roundoff(problem.dtype),
        _ => 0.0,
    };
    // Scales in weights round each of them once, in bf16 with a second scale for what the first lacks.
    // Minima are added in that rounding; the unit tier's is one of f32.
    let scaled = match (problem.tier(), sizes.policy.scaling) {
        (TierName::Hopper, None | Some(Scaling::Weights)) => 1.01 * roundoff(problem.dtype),
        (TierName::Plane, _) if sizes.minima() => 1.01 * roundoff(problem.dtype),
        (TierName::Unit, _) if sizes.minima() => U,
        _ => 0.0,
    };
    let relative =
        Arithmetic::of(problem).dot(terms) + (2.0 * groups + parts + 3.0) * U + table + scaled;
    let delta: Vec<f64> = magnitudes
        .iter()
        .map(|magnitude| relative * magnitude + (sizes.k as f64 + 1.0) * TINY)
        .collect();
    let bound = rows(problem, sizes.n, &exact, &delta);
    Expected {
        name: "out",
        shape: vec![sizes.m, sizes.n],
        exact,
        bound,
    }
}
