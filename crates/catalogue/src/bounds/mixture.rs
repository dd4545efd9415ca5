//! Weighted means whose weights are exponentials: the heart of forward and merge.

use super::{Arithmetic, TABLE, TINY, U, exp_error, log_error, rows};
use crate::oracle::Expected;
use crate::problem::{MergeSizes, Problem};

/// One visible term of a softmax-weighted mean.
pub(crate) struct Term<'a> {
    /// Its exact normalised weight w.
    pub(crate) weight: f64,
    /// Its distance from the largest logit, z = ln(w / max w) <= 0.
    pub(crate) distance: f64,
    /// Absolute error of its logit.
    pub(crate) logit_error: f64,
    /// What it weighs `[d_v]`.
    pub(crate) values: &'a [f64],
}

/// delta of a mean `[d_v]` and of its log-sum-exp.
pub(crate) struct MixtureError {
    pub(crate) out: Vec<f64>,
    pub(crate) lse: f64,
}

/// Section 3: relative error E of every weight, its effect on the mean and on the log-sum-exp,
/// and the rounding of sums over the terms.
///
/// `out` `[d_v]` and `lse` are exact; `records` is how often the running maximum moved.
pub(crate) fn mixture(
    terms: &[Term<'_>],
    out: &[f64],
    lse: f64,
    records: usize,
    arithmetic: Arithmetic,
) -> MixtureError {
    let records = records as f64;
    // Subtraction, exponential, and for every record one more of both and a product.
    let per_record = arithmetic.exp(0.0) + 2.0 * U;
    let exponents: Vec<f64> = terms
        .iter()
        .map(|t| {
            let z = t.distance.abs();
            t.logit_error + U * z + arithmetic.exp(z) + records * per_record
        })
        .collect();
    let relative: Vec<f64> = exponents.iter().map(|e| e.exp_m1()).collect();
    let total: f64 = terms.iter().zip(&relative).map(|(t, e)| t.weight * e).sum();
    let keys = terms.len() as f64;
    let count = keys + records;

    let mut delta = vec![0.0; out.len()];
    for (x, delta) in delta.iter_mut().enumerate() {
        let (mut drift, mut magnitude, mut widest) = (0.0, 0.0, 0.0f64);
        for (term, e) in terms.iter().zip(&relative) {
            let away = (term.values[x] - out[x]).abs();
            drift += term.weight * e * away;
            magnitude += term.weight * term.values[x].abs();
            widest = widest.max(away);
        }
        // A mean never leaves the range of what it averages.
        let drift = match total < 1.0 {
            true => (drift / (1.0 - total)).min(widest),
            false => widest,
        };
        let sums = arithmetic.values(keys, records) * magnitude + count * U * out[x].abs();
        let division = (2.0 * TABLE.division_ulps + 1.0) * U * out[x].abs();
        let rounded = arithmetic.rounded_weights(terms, &relative, x);
        *delta = drift + sums + division + rounded + TINY * (1.0 + count * widest);
    }

    let sum: f64 = (lse - largest_logit(terms, lse)).exp();
    let weights = match total < 0.5 {
        true => -(-total).ln_1p(),
        false => exponents.iter().copied().fold(0.0, f64::max),
    };
    let magnitude = lse.abs() + largest_logit(terms, lse).abs();
    let rounding = U * magnitude + arithmetic.lse_from_base(magnitude);
    MixtureError {
        out: delta,
        lse: weights + count * U + log_error(sum) + rounding,
    }
}

/// Section 5.1: what it adds to `whole` that the terms were weighed in parts, wherever these are cut.
///
/// A term's weight in a part is its exponential over the part's sum, and the part's weight is that sum
/// again, by way of its logarithm and an exponential: whatever is wrong with the sum cancels, and what
/// is left are the roundings on the way. They are the same for all terms of a part, so that they shift
/// the mean by at most sum w |v - out| times that.
pub(crate) fn split(
    whole: MixtureError,
    terms: &[Term<'_>],
    out: &[f64],
    lse: f64,
    parts: usize,
    arithmetic: Arithmetic,
) -> MixtureError {
    let (keys, parts) = ((terms.len() as f64).max(1.0), parts as f64);
    let relative: Vec<f64> = terms
        .iter()
        .map(|t| {
            // lse_p lies at most so far below the largest, and its terms are no larger.
            let depth = t.distance.abs() + keys.ln();
            let magnitude = 2.0 * (lse.abs() + depth);
            let logarithm = log_error(keys) + U * magnitude + arithmetic.lse_from_base(magnitude);
            let division = (2.0 * TABLE.division_ulps + 1.0) * U;
            (logarithm + 2.0 * (U * depth + exp_error(depth)) + division + U).exp_m1()
        })
        .collect();
    let total: f64 = terms.iter().zip(&relative).map(|(t, e)| t.weight * e).sum();
    let mut delta = whole.out;
    for (x, delta) in delta.iter_mut().enumerate() {
        let (mut drift, mut magnitude, mut widest) = (0.0, 0.0, 0.0f64);
        for (term, e) in terms.iter().zip(&relative) {
            let away = (term.values[x] - out[x]).abs();
            drift += term.weight * e * away;
            magnitude += term.weight * term.values[x].abs();
            widest = widest.max(away);
        }
        let drift = match total < 1.0 {
            true => (drift / (1.0 - total)).min(widest),
            false => widest,
        };
        let division = (2.0 * TABLE.division_ulps + 1.0) * U * out[x].abs();
        *delta += drift + (2.0 * parts + 2.0) * U * magnitude + division + TINY * parts;
    }
    let largest = relative.iter().copied().fold(0.0, f64::max);
    MixtureError {
        out: delta,
        lse: whole.lse + total.min(largest) + parts * U + log_error(parts) + U * lse.abs(),
    }
}

/// max x = lse + ln(max w).
fn largest_logit(terms: &[Term<'_>], lse: f64) -> f64 {
    let weight = terms.iter().map(|t| t.weight).fold(0.0, f64::max);
    match weight > 0.0 {
        true => lse + weight.ln(),
        false => lse,
    }
}

/// Section 5: the mixture of the partial outs, with lses as exact logits.
pub(crate) fn merge(
    problem: &Problem,
    m: &MergeSizes,
    parts: &[(&[f64], &[f64])],
    out: Vec<f64>,
    lse: Vec<f64>,
) -> Vec<Expected> {
    let rows_total = m.b * m.h * m.s;
    let (mut out_delta, mut lse_delta) = (Vec::with_capacity(out.len()), Vec::new());
    for row in 0..rows_total {
        let columns = row * m.d_v..(row + 1) * m.d_v;
        let largest = parts
            .iter()
            .map(|p| p.1[row])
            .fold(f64::NEG_INFINITY, f64::max);
        if largest == f64::NEG_INFINITY {
            out_delta.extend(vec![0.0; m.d_v]);
            lse_delta.push(0.0);
            continue;
        }
        let visible = parts.iter().filter(|p| p.1[row] != f64::NEG_INFINITY);
        let terms: Vec<Term<'_>> = visible
            .map(|(outs, lses)| Term {
                weight: (lses[row] - lse[row]).exp(),
                distance: lses[row] - largest,
                logit_error: 0.0,
                values: &outs[columns.clone()],
            })
            .collect();
        // The maximum of a unit's partials is known before its first weight; units' shares are
        // rescaled once.
        let error = mixture(&terms, &out[columns], lse[row], 1, Arithmetic::Fma);
        out_delta.extend(error.out);
        lse_delta.push(error.lse);
    }
    let out_bound = rows(problem, m.d_v, &out, &out_delta);
    let lse_bound = lse_delta.iter().map(|d| TABLE.delta * d).collect();
    vec![
        Expected {
            name: "out",
            shape: vec![m.b, m.h, m.s, m.d_v],
            exact: out,
            bound: out_bound,
        },
        Expected {
            name: "lse",
            shape: vec![m.b, m.h, m.s],
            exact: lse,
            bound: lse_bound,
        },
    ]
}
