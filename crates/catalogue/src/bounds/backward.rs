//! Gradients: the rounding errors of P, dP, D and of the three sums over them.

use flashcube_reference as reference;
use rayon::prelude::*;

use super::forward::Scores;
use super::{TINY, U, exp_error, roundoff, rows};
use crate::inputs::Inputs;
use crate::oracle::{self, Expected};
use crate::problem::{Attend, Problem};

/// One (query, key) pair that contributes.
struct Pair {
    j: usize,
    /// P and dx (the gradient by the scaled score), magnitudes with their errors.
    p: f64,
    p_error: f64,
    dx: f64,
    dx_error: f64,
}

/// Bounds of dq, dk and dv (section 4).
pub(crate) fn backward(
    problem: &Problem,
    attend: &Attend,
    inputs: &Inputs,
) -> Result<Vec<Expected>, reference::Error> {
    let scores = Scores::new(problem, attend, inputs);
    let d_out = oracle::tensor(&inputs.arrays, "d_out");
    let options = scores.hooks.options(attend);
    let exact = reference::backward(&scores.q, &scores.k, &scores.v, &d_out, &options, None)?;
    let lse: Vec<f64> = inputs.values("lse").iter().map(|&x| f64::from(x)).collect();
    let out = oracle::tensor(&inputs.arrays, "out");

    let scale = f64::from(attend.scale()).abs();
    let positions = scores.rows();
    let pairs: Vec<Vec<Pair>> = positions
        .par_iter()
        .enumerate()
        .map(|(row, &at)| row_pairs(problem, &scores, &d_out, &out, at, lse[row]))
        .collect::<Result<_, _>>()?;

    let Attend { d, d_v, .. } = *attend;
    let mut dq = vec![0.0; exact.dq.data.len()];
    let mut dk = vec![0.0; exact.dk.data.len()];
    let mut dv = vec![0.0; exact.dv.data.len()];
    for ((row, &[b, h, i]), pairs) in positions.iter().enumerate().zip(&pairs) {
        let kv = scores.kv_head(h);
        let (q_row, d_out_row) = (scores.q.row(b, h, i), d_out.row(b, h, i));
        // A key's gradient sums over the queries of its whole group.
        let over_keys = pairs.len() as f64 + 2.0;
        let over_queries = (attend.s_q * (attend.h_q / attend.h_kv)) as f64 + 2.0;
        for pair in pairs {
            let key = (b * attend.h_kv + kv) * attend.s_kv + pair.j;
            let k_row = scores.k.row(b, kv, pair.j);
            let to_q = scale * (pair.dx_error + over_keys * U * pair.dx);
            let to_k = scale * (pair.dx_error + over_queries * U * pair.dx);
            let to_v = pair.p_error + over_queries * U * pair.p;
            add(&mut dq[row * d..(row + 1) * d], to_q, k_row);
            add(&mut dk[key * d..(key + 1) * d], to_k, q_row);
            add(&mut dv[key * d_v..(key + 1) * d_v], to_v, d_out_row);
        }
    }
    let expected = |name, tensor: reference::Tensor4, delta: &[f64]| Expected {
        name,
        shape: tensor.shape.to_vec(),
        bound: rows(problem, tensor.shape[3], &tensor.data, delta),
        exact: tensor.data,
    };
    Ok(vec![
        expected("dq", exact.dq, &dq),
        expected("dk", exact.dk, &dk),
        expected("dv", exact.dv, &dv),
    ])
}

/// acc += factor * |x| + TINY
fn add(acc: &mut [f64], factor: f64, x: &[f64]) {
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc += factor * x.abs() + TINY;
    }
}

fn row_pairs(
    problem: &Problem,
    scores: &Scores<'_>,
    d_out: &reference::Tensor4,
    out: &reference::Tensor4,
    at: [usize; 3],
    lse: f64,
) -> Result<Vec<Pair>, reference::Error> {
    if lse == f64::NEG_INFINITY {
        return Ok(Vec::new());
    }
    let [b, h, i] = at;
    let weights = scores.weights(at)?;
    let d_out_row = d_out.row(b, h, i);
    let kv = scores.kv_head(h);
    let d_v = d_out_row.len() as f64;
    let visible: Vec<usize> = (0..weights.len()).filter(|&j| weights[j] > 0.0).collect();
    let products = |x: &[f64]| {
        let pairs = || d_out_row.iter().zip(x).map(|(d, x)| d * x);
        (pairs().sum::<f64>(), pairs().map(f64::abs).sum::<f64>())
    };

    let dp: Vec<(f64, f64)> = visible
        .iter()
        .map(|&j| products(scores.v.row(b, kv, j)))
        .collect();
    // D = dO . O, from the stored O: its rounding to the dtype is an error of D.
    let delta: f64 = visible
        .iter()
        .zip(&dp)
        .map(|(&j, dp)| weights[j] * dp.0)
        .sum();
    let (_, magnitude) = products(out.row(b, h, i));
    let delta_error = (d_v * U + roundoff(problem.dtype)) * magnitude;

    let pairs = visible.iter().zip(&dp).map(|(&j, &(dp, dp_magnitude))| {
        let logit = scores.logit(at, j);
        let p = weights[j];
        let distance = p.ln();
        // x - lse: the logit, the stored lse, the subtraction; then the exponential.
        let exponent = logit.error + U * (lse.abs() + distance.abs()) + exp_error(distance);
        let p_error = p * exponent.exp_m1();
        let inner = (dp - delta).abs();
        let inner_error = d_v * U * dp_magnitude + delta_error + U * inner;
        let dx = p * inner * logit.derivative;
        let dx_error = (p_error * inner + (p + p_error) * inner_error)
            * (logit.derivative + logit.derivative_error)
            + p * inner * logit.derivative_error
            + 3.0 * U * dx;
        Pair {
            j,
            p,
            p_error,
            dx,
            dx_error,
        }
    });
    Ok(pairs.collect())
}
