//! Logits, and the forward pass as a mixture over them.

use flashcube_reference as reference;
use flashcube_reference::Tensor4;
use rayon::prelude::*;

use super::mixture::{MixtureError, Term, mixture, split};
use super::{Arithmetic, TABLE, U, rows_of};
use crate::inputs::Inputs;
use crate::oracle::{self, Expected, Hooks};
use crate::problem::{Attend, Problem};

/// A problem in f64, ready to be asked about single scores.
pub(super) struct Scores<'a> {
    pub(super) attend: &'a Attend,
    pub(super) arithmetic: Arithmetic,
    pub(super) hooks: Hooks,
    pub(super) q: Tensor4,
    pub(super) k: Tensor4,
    pub(super) v: Tensor4,
}

/// A logit's absolute error, and its derivative by the scaled score with the error of that.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogitError {
    pub(super) error: f64,
    pub(super) derivative: f64,
    pub(super) derivative_error: f64,
}

impl<'a> Scores<'a> {
    pub(super) fn new(problem: &Problem, attend: &'a Attend, inputs: &Inputs) -> Self {
        Self {
            attend,
            arithmetic: Arithmetic::of(problem),
            hooks: Hooks::of(&inputs.arrays),
            q: oracle::tensor(&inputs.arrays, "q"),
            k: oracle::tensor(&inputs.arrays, "k"),
            v: oracle::tensor(&inputs.arrays, "v"),
        }
    }

    pub(super) fn rows(&self) -> Vec<[usize; 3]> {
        let Attend { b, h_q, s_q, .. } = *self.attend;
        (0..b * h_q * s_q)
            .map(|row| [row / s_q / h_q, row / s_q % h_q, row % s_q])
            .collect()
    }

    pub(super) fn kv_head(&self, h: usize) -> usize {
        h / (self.attend.h_q / self.attend.h_kv)
    }

    /// Exact weights `[s_kv]` of a row; hidden keys weigh 0.
    pub(super) fn weights(&self, [b, h, i]: [usize; 3]) -> Result<Vec<f64>, reference::Error> {
        let options = self.hooks.options(self.attend);
        reference::attention::weights(&self.q, &self.k, &self.v, &options, (b, h, i))
    }

    /// Section 3.1: from the rounded dot product through every hook.
    pub(super) fn logit(&self, [b, h, i]: [usize; 3], j: usize) -> LogitError {
        let a = self.attend;
        let scale = f64::from(a.scale());
        let q = self.q.row(b, h, i);
        let k = self.k.row(b, self.kv_head(h), j);
        let (mut x, mut magnitude) = (0.0, 0.0);
        for (q, k) in q.iter().zip(k) {
            x += scale * q * k;
            magnitude += (scale * q * k).abs();
        }
        // d rounded products and sums, the scale, and its quotient with the cap.
        let mut error = (self.arithmetic.dot(a.d as f64) + 2.0 * U) * magnitude;
        let (mut derivative, mut derivative_error) = (1.0, 0.0);
        if let Some(cap) = a.softcap.map(f64::from) {
            let t = (x / cap).tanh();
            let t_error = TABLE.tanh_absolute + (error / cap).min(2.0);
            x = cap * t;
            error = cap * t_error + U * cap;
            derivative = 1.0 - t * t;
            derivative_error = 2.0 * t_error + 2.0 * U;
        }
        let mut parts = x.abs();
        if let Some(slopes) = &self.hooks.alibi {
            let penalty = slopes[h] * (a.diagonal(b, i) - j as i64).abs() as f64;
            x -= penalty;
            parts += penalty.abs();
            error += U * (penalty.abs() + x.abs());
        }
        if let Some((data, shape)) = &self.hooks.bias {
            let bias = reference::Broadcast {
                data,
                shape: *shape,
            };
            let bias = bias.get(b, h, i, j);
            x += bias;
            parts += bias.abs();
            error += U * x.abs();
        }
        error += self.arithmetic.logit_to_base(parts);
        LogitError {
            error,
            derivative,
            derivative_error,
        }
    }

    fn row_error(
        &self,
        at: [usize; 3],
        out: &[f64],
        lse: f64,
        merges: &[usize],
    ) -> Result<MixtureError, reference::Error> {
        if lse == f64::NEG_INFINITY {
            return Ok(MixtureError {
                out: vec![0.0; out.len()],
                lse: 0.0,
            });
        }
        let weights = self.weights(at)?;
        let sink = self.hooks.sinks.as_ref().map(|sinks| sinks[at[1]]);
        let sink_weight = sink.map_or(0.0, |sink| (sink - lse).exp());
        let largest = weights.iter().copied().fold(sink_weight, f64::max);
        let visible = weights.iter().enumerate().filter(|(_, w)| **w > 0.0);
        let mut terms: Vec<Term<'_>> = visible
            .map(|(j, &weight)| Term {
                weight,
                distance: (weight / largest).ln(),
                logit_error: self.logit(at, j).error,
                values: self.v.row(at[0], self.kv_head(at[1]), j),
            })
            .collect();
        // A sink is one more key, of an exact logit and the value 0.
        let zeros = vec![0.0; out.len()];
        if let Some(sink) = sink {
            terms.push(Term {
                weight: sink_weight,
                distance: (sink_weight / largest).ln(),
                logit_error: self.arithmetic.logit_to_base(sink.abs()),
                values: &zeros,
            });
        }
        let records = records(terms.iter().map(|t| t.weight))
            .max(records(terms.iter().rev().map(|t| t.weight)));
        let whole = mixture(&terms, out, lse, records, self.arithmetic);
        let merged = |error, &parts: &usize| split(error, &terms, out, lse, parts, self.arithmetic);
        Ok(merges.iter().fold(whole, merged))
    }
}

/// How often the maximum of a sequence moves after its first value.
pub(super) fn records(values: impl Iterator<Item = f64>) -> usize {
    let mut largest = 0.0;
    let moved = values.filter(|&x| {
        let higher = x > largest;
        largest = if higher { x } else { largest };
        higher
    });
    moved.count().saturating_sub(1)
}

/// Bounds of out and lse, of a result merged from at most `merges[0]` parts of the keys, that again
/// with others, ...
pub(crate) fn forward(
    problem: &Problem,
    attend: &Attend,
    merges: &[usize],
    inputs: &Inputs,
) -> Result<Vec<Expected>, reference::Error> {
    let scores = Scores::new(problem, attend, inputs);
    let options = scores.hooks.options(attend);
    let exact = reference::forward(&scores.q, &scores.k, &scores.v, &options)?;
    let ideal = oracle::forward_rounded(problem, attend, &inputs.arrays);
    let d_v = attend.d_v;
    let errors: Vec<MixtureError> = scores
        .rows()
        .par_iter()
        .enumerate()
        .map(|(row, &at)| {
            let out = &exact.out.data[row * d_v..(row + 1) * d_v];
            scores.row_error(at, out, exact.lse[row], merges)
        })
        .collect::<Result<_, _>>()?;
    let delta: Vec<f64> = errors.iter().flat_map(|e| e.out.iter().copied()).collect();
    let lse_bound = errors.iter().map(|e| TABLE.delta * e.lse).collect();
    let out_bound = rows_of(d_v, &exact.out.data, &ideal.out.data, &delta);
    Ok(vec![
        Expected {
            name: "out",
            shape: exact.out.shape.to_vec(),
            exact: exact.out.data,
            bound: out_bound,
        },
        Expected {
            name: "lse",
            shape: exact.out.shape[..3].to_vec(),
            exact: exact.lse,
            bound: lse_bound,
        },
    ])
}
