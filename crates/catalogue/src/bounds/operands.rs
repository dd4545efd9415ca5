//! Attention with encoded weights: section 10.
//!
//! What a kernel must compute is the reference's result with the same codes, and codes differ only where an error
//! of the logits carries one past a threshold: weights lie in intervals, most of them of no width.

use flashcube_reference as reference;
use flashcube_reference::Encoding;
use flashcube_reference::quant::direct::WeightFormat;
use flashcube_reference::quant::float::{E4M3, Overflow};
use flashcube_reference::quant::operand::{round_columns, round_rows};
use rayon::prelude::*;

use super::forward::{Scores, records};
use super::mixture::MixtureError;
use super::{Arithmetic, TABLE, TINY, U, log_error, rows};
use crate::inputs::Inputs;
use crate::oracle::Expected;
use crate::problem::{Operands, Problem};
use crate::sizes::operand_format;

/// Relative error of 2^x, x exact, by whatever way a backend takes: `exp2_ulps`, or e^(x ln 2) of a fraction.
const EXP2: f64 = 20.0 * U;

/// Bounds of out and lse.
pub(crate) fn operands(
    problem: &Problem,
    sizes: &Operands,
    inputs: &Inputs,
) -> Result<Vec<Expected>, reference::Error> {
    let attend = &sizes.attend;
    let mut scores = Scores::new(problem, attend, inputs);
    scores.q = round_rows(&scores.q, operand_format(sizes.scores))?;
    scores.k = round_rows(&scores.k, operand_format(sizes.scores))?;
    scores.v = round_columns(&scores.v, &sizes.sequences(), operand_format(sizes.values))?;
    let options = scores.hooks.options(attend);
    let encoding = Encoding::new(sizes.weights());
    let exact = reference::forward_encoded(&scores.q, &scores.k, &scores.v, &options, encoding)?;
    let d_v = attend.d_v;
    let errors: Vec<MixtureError> = scores
        .rows()
        .par_iter()
        .enumerate()
        .map(|(row, &at)| {
            let out = &exact.out.data[row * d_v..(row + 1) * d_v];
            row_error(sizes, &scores, at, out, exact.lse[row])
        })
        .collect::<Result<_, _>>()?;
    let delta: Vec<f64> = errors.iter().flat_map(|e| e.out.iter().copied()).collect();
    Ok(vec![
        Expected {
            name: "out",
            shape: exact.out.shape.to_vec(),
            bound: rows(problem, d_v, &exact.out.data, &delta),
            exact: exact.out.data,
        },
        Expected {
            name: "lse",
            shape: exact.out.shape[..3].to_vec(),
            bound: errors.iter().map(|e| TABLE.delta * e.lse).collect(),
            exact: exact.lse,
        },
    ])
}

/// A visible key: its place, its encoded weight and how far off that may be.
struct Weight {
    key: usize,
    value: f64,
    error: f64,
}

fn row_error(
    sizes: &Operands,
    scores: &Scores<'_>,
    at: [usize; 3],
    out: &[f64],
    lse: f64,
) -> Result<MixtureError, reference::Error> {
    if lse == f64::NEG_INFINITY {
        return Ok(MixtureError {
            out: vec![0.0; out.len()],
            lse: 0.0,
        });
    }
    let (format, arithmetic) = (sizes.weights(), scores.arithmetic);
    let [b, h, i] = at;
    let options = scores.hooks.options(scores.attend);
    let (q, k, v) = (&scores.q, &scores.k, &scores.v);
    let logits = reference::logits(q, k, v, &options, (b, h, i))?;
    let x: Vec<f64> = logits
        .iter()
        .map(|x| x * std::f64::consts::LOG2_E)
        .collect();
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max).ceil();
    let mut weights = Vec::new();
    for keys in &sizes.sequences()[b] {
        for first in keys.clone().step_by(format.group()) {
            let places = first..keys.end.min(first + format.group());
            let visible = places.filter(|&j| x[j] > f64::NEG_INFINITY);
            // Error of a logit in base 2: brought there by rounded factors, whatever the tier.
            let of = |j: usize| {
                let error = scores.logit(at, j).error * std::f64::consts::LOG2_E;
                (j, x[j], error + 4.0 * U * x[j].abs())
            };
            let group: Vec<(usize, f64, f64)> = visible.map(of).collect();
            weights.extend(intervals(format, &group, max));
        }
    }
    // Maxima that were encoded against are fewer, and factors powers of two but for their exponential.
    let magnitudes = || weights.iter().map(|w| (x[w.key] - max).exp2());
    let moved =
        records(magnitudes()).max(records(magnitudes().collect::<Vec<_>>().into_iter().rev()));
    let values = |w: &Weight| v.row(b, scores.kv_head(h), w.key);
    Ok(mean_error(
        &weights,
        values,
        moved as f64,
        (out, lse, max),
        format,
        arithmetic,
    ))
}

/// The weights of a group's visible keys (place, logit in base 2, its error) as intervals.
fn intervals(format: WeightFormat, group: &[(usize, f64, f64)], max: f64) -> Vec<Weight> {
    let top = group.iter().map(|g| g.1).fold(f64::NEG_INFINITY, f64::max);
    let worst = group.iter().map(|g| g.2).fold(0.0, f64::max);
    let at = |x: f64, top: f64| {
        // The group's largest logit is `top`, and one more asks for the code.
        format.encode(&[top, x.min(top)], max, true)[1]
    };
    let weight = |&(key, x, error): &(usize, f64, f64)| {
        let value = at(x, top);
        let off = error + worst + 4.0 * U * (x - max).abs() + EXP2;
        // Both may be off: x against top, top against the maximum.
        let ends = [-1.0, 0.0, 1.0].map(|top_off| {
            let top = top + top_off * (worst + 4.0 * U * (top - max).abs() + EXP2);
            [-1.0, 1.0].map(|x_off| at(x + x_off * off, top))
        });
        let ends = ends.as_flattened();
        let spread = ends
            .iter()
            .map(|end| (end - value).abs())
            .fold(0.0, f64::max);
        let flushed = match format {
            WeightFormat::E4m3 => subnormal(x - max),
            WeightFormat::Nvfp4 => 6.0 * subnormal(top - max),
            // A power of two by an exponential.
            WeightFormat::Mxfp4(_) => EXP2 * value,
        };
        Weight {
            key,
            value,
            error: spread + flushed,
        }
    };
    group.iter().map(weight).collect()
}

/// What an E4M3 code may differ by where the largest known maximum was smaller than the last one: nothing unless it is
/// subnormal, or the maximum an integer that an error doubles.
fn subnormal(x: f64) -> f64 {
    let raised = (x + 8.0).exp2();
    match raised < 1.0 / 32.0 {
        true => E4M3.round(1.0 / 512.0, Overflow::Saturate),
        false => 0.0,
    }
}

/// What intervals of weights, and f32 sums of their products, make of out and lse.
fn mean_error<'a>(
    weights: &'a [Weight],
    values: impl Fn(&'a Weight) -> &'a [f64],
    records: f64,
    (out, lse, max): (&[f64], f64, f64),
    format: WeightFormat,
    arithmetic: Arithmetic,
) -> MixtureError {
    let total: f64 = weights.iter().map(|w| w.value).sum();
    let per_record = records * EXP2;
    let off: f64 = weights.iter().map(|w| w.error + per_record * w.value).sum();
    let keys = weights.len() as f64;
    let count = keys + records;
    let delta = (0..out.len()).map(|x| {
        let (mut drift, mut magnitude, mut widest) = (0.0, 0.0, 0.0f64);
        for w in weights {
            let value = values(w)[x];
            let away = (value - out[x]).abs();
            drift += (w.error + per_record * w.value) * away;
            magnitude += w.value / total * value.abs();
            widest = widest.max(away);
        }
        let drift = match off < total {
            true => (drift / (total - off)).min(widest),
            false => widest,
        };
        let sums = arithmetic.values(keys, records) * magnitude + count * U * out[x].abs();
        let division = (2.0 * TABLE.division_ulps + 1.0) * U * out[x].abs();
        drift + sums + division + TINY * (1.0 + count * widest)
    });
    let relative = match off < 0.5 * total {
        true => -(-off / total).ln_1p(),
        false => 2.0 * off / total,
    };
    // ln(sum), its factor, the sum with the maximum, the factor back.
    let magnitude = lse.abs() + max.abs() + format.factor().log2() + total.log2().abs();
    MixtureError {
        out: delta.collect(),
        lse: relative + count * U + log_error(total) + 8.0 * U * magnitude,
    }
}
