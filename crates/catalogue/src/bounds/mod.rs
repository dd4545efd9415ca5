//! How far a result may be off: the table and the derivations of docs/numerics.md, as code.
//!
//! A result passes when every element satisfies
//!
//! ```text
//! |got - exact| <= 2 * max over the row |ideal - exact| + 2 * delta
//! ```
//!
//! `ideal` is the f64 result rounded to the kernel's types, `delta` the largest error that f32
//! arithmetic within the limits of [`TABLE`] can make before the final rounding. Section numbers
//! below are those of docs/numerics.md.

mod arithmetic;
mod backward;
mod forward;
mod instruction;
mod linear;
mod mixture;
mod operands;

pub(crate) use arithmetic::Arithmetic;
pub(crate) use backward::backward;
pub(crate) use forward::forward;
pub(crate) use instruction::{
    PROBES, TRIALS, encoded, instruction, instruction_eps, instruction_outputs, number,
    operand_format,
};
pub(crate) use linear::linear;
pub(crate) use mixture::merge;
pub(crate) use operands::operands;

use flashcube::DType;

use crate::array::round_to;
use crate::oracle::Expected;
use crate::problem::{HadamardSizes, Problem};

/// Unit roundoff of binary32: a correctly rounded operation is off by at most U relatively, and
/// one unit in the last place (ULP) is at most 2 U.
pub const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Smallest normal binary32: what a device that flushes subnormals may lose per operation.
pub const TINY: f64 = f32::MIN_POSITIVE as f64;

/// What a device may get wrong: the laxest of WGSL, Vulkan, CUDA and the host's libm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Table {
    /// exp(x) is off by `exp_ulps + exp_ulps_per_argument * |x|` ULP.
    pub exp_ulps: f64,
    /// See `exp_ulps`.
    pub exp_ulps_per_argument: f64,
    /// ln(x) is off by so many ULP outside [0.5, 2].
    pub log_ulps: f64,
    /// ln(x) is off by so much within [0.5, 2].
    pub log_absolute: f64,
    /// x / y is off by so many ULP.
    pub division_ulps: f64,
    /// tanh(x) is off by so much.
    pub tanh_absolute: f64,
    /// 2^x, x exact, is off by so many ULP on matrix tiers.
    pub exp2_ulps: f64,
    /// An addition within a matrix unit is off by so many ULP of the sum of magnitudes.
    pub matrix_ulps: f64,
    /// The same of products of 8-bit elements, which some units sum in 14 bits: in units of 2^-13 of that sum.
    pub matrix_fp8: f64,
    /// How far rounded weights add up, in root sums of squares of their largest errors.
    pub weight_deviations: f64,
    /// Weight of the ideal's error in the bound.
    pub ideal: f64,
    /// Weight of delta in the bound.
    pub delta: f64,
}

/// The one table; docs/numerics.md, section 2, prints it.
pub const TABLE: Table = Table {
    exp_ulps: 3.0,
    exp_ulps_per_argument: 2.0,
    log_ulps: 3.0,
    log_absolute: 1.0 / (1u64 << 21) as f64,
    division_ulps: 2.5,
    tanh_absolute: 1e-5,
    exp2_ulps: 2.0,
    matrix_ulps: 1.0,
    matrix_fp8: 1.0,
    weight_deviations: 4.0,
    ideal: 2.0,
    delta: 2.0,
};

/// Unit roundoff of a dtype: half the gap above 1.
pub(crate) fn roundoff(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => U,
        DType::F16 => 1.0 / (1 << 11) as f64,
        DType::BF16 => 1.0 / (1 << 8) as f64,
        DType::E4M3 => 1.0 / (1 << 4) as f64,
    }
}

/// Relative error of exp(x) with an exact argument (section 3.2).
pub(crate) fn exp_error(x: f64) -> f64 {
    2.0 * U * (TABLE.exp_ulps + TABLE.exp_ulps_per_argument * x.abs())
}

/// Absolute error of ln(x) with an exact argument (section 3.4).
pub(crate) fn log_error(x: f64) -> f64 {
    let outside = 2.0 * U * TABLE.log_ulps * x.ln().abs();
    match (0.5..=2.0).contains(&x) {
        true => TABLE.log_absolute.max(outside),
        false => outside,
    }
}

/// The bound of an element that is exact up to one rounding (section 6): what that rounding
/// costs, and nothing more.
pub(crate) fn rounded(problem: &Problem, exact: f64) -> f64 {
    (round_to(problem.dtype, exact) - exact).abs()
}

/// The bounds of a row of `width` elements each, from the exact values and their deltas, when the
/// only rounding of the ideal is that of the output.
pub(crate) fn rows(problem: &Problem, width: usize, exact: &[f64], delta: &[f64]) -> Vec<f64> {
    let ideal: Vec<f64> = exact.iter().map(|&x| round_to(problem.dtype, x)).collect();
    rows_of(width, exact, &ideal, delta)
}

/// As [`rows`], for any ideal.
pub(crate) fn rows_of(width: usize, exact: &[f64], ideal: &[f64], delta: &[f64]) -> Vec<f64> {
    let width = width.max(1);
    let rows = exact
        .chunks(width)
        .zip(ideal.chunks(width))
        .zip(delta.chunks(width));
    rows.flat_map(|((exact, ideal), delta)| {
        let errors = exact.iter().zip(ideal).map(|(x, y)| (x - y).abs());
        let worst = errors.fold(0.0, f64::max);
        delta
            .iter()
            .map(move |d| TABLE.ideal * worst + TABLE.delta * d)
    })
    .collect()
}

/// Section 7: log2(n) rounded butterflies, the rounded factor 1 / sqrt(n) and its product.
pub(crate) fn hadamard(
    problem: &Problem,
    h: &HadamardSizes,
    x: &[f64],
    exact: Vec<f64>,
) -> Expected {
    let n = h.n.max(1);
    let steps = f64::from(n.trailing_zeros()) + 2.0;
    let delta: Vec<f64> = x
        .chunks(n)
        .flat_map(|row| {
            let magnitude: f64 = row.iter().map(|x| x.abs()).sum();
            vec![steps * U * magnitude / (n as f64).sqrt() + TINY; row.len()]
        })
        .collect();
    let bound = rows(problem, n, &exact, &delta);
    Expected {
        name: "out",
        shape: vec![h.rows, h.n],
        exact,
        bound,
    }
}
