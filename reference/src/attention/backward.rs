//! Gradients from the formula.

use rayon::prelude::*;

use super::Options;
use super::scores::{Problem, Score, coordinates};
use super::softmax_max;
use crate::error::{Error, check_length};
use crate::tensor::{Tensor4, add_scaled, dot};

/// Gradients of a scalar loss by the inputs, in the inputs' shapes.
#[derive(Debug, Clone, PartialEq)]
pub struct Grads {
    /// [b, h_q, s_q, d]
    pub dq: Tensor4,
    /// [b, h_kv, s_kv, d], summed over the query heads that share the key head.
    pub dk: Tensor4,
    /// [b, h_kv, s_kv, d_v], summed likewise.
    pub dv: Tensor4,
}

/// What the key side needs to know of a query row.
#[derive(Clone, Copy)]
struct RowState {
    /// -inf if the row sees no key.
    lse: f64,
    /// sum_j P_ij dP_ij - dlse_i
    delta: f64,
}

/// The backward pass, given the loss's gradients by `out` [b, h_q, s_q, d_v] and, if the loss
/// reads it, by `lse` [b, h_q, s_q].
///
/// ```text
/// P_ij   = exp(x_ij - lse_i)                 dV_j = sum_i P_ij dO_i
/// dP_ij  = dO_i . v_j                        delta_i = sum_j P_ij dP_ij
/// dx_ij  = P_ij (dP_ij - delta_i + dlse_i)   times 1 - tanh^2 under softcap
/// dQ_i   = scale sum_j dx_ij k_j             dK_j = scale sum_i dx_ij q_i
/// ```
///
/// Hidden pairs contribute nothing, whatever q, k, v and d_out hold there.
///
/// # Errors
/// As [`forward`](super::forward), and [`Error::Axis`] or [`Error::Length`] if `d_out` or `d_lse`
/// have another shape than the results.
pub fn backward(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    d_out: &Tensor4,
    options: &Options<'_>,
    d_lse: Option<&[f64]>,
) -> Result<Grads, Error> {
    let problem = Problem::new(q, k, v, options)?;
    check_output_grads(&problem, d_out, d_lse)?;

    let rows = problem.rows();
    let query_side: Vec<(Vec<f64>, RowState)> = rows
        .par_iter()
        .enumerate()
        .map(|(n, &at)| query_row(&problem, d_out, d_lse.map_or(0.0, |d_lse| d_lse[n]), at))
        .collect();
    let (dq, states): (Vec<Vec<f64>>, Vec<RowState>) = query_side.into_iter().unzip();

    let key_side: Vec<(Vec<f64>, Vec<f64>)> = coordinates(k.shape)
        .par_iter()
        .map(|&at| key_row(&problem, d_out, &states, at))
        .collect();
    let (dk, dv): (Vec<Vec<f64>>, Vec<Vec<f64>>) = key_side.into_iter().unzip();

    let tensor = |shape, rows: Vec<Vec<f64>>| Tensor4 {
        shape,
        data: rows.concat(),
    };
    Ok(Grads {
        dq: tensor(q.shape, dq),
        dk: tensor(k.shape, dk),
        dv: tensor(v.shape, dv),
    })
}

fn check_output_grads(
    problem: &Problem<'_>,
    d_out: &Tensor4,
    d_lse: Option<&[f64]>,
) -> Result<(), Error> {
    d_out.check("d_out")?;
    let [b, h_q, s_q, _] = problem.q.shape;
    let expected = [b, h_q, s_q, problem.d_v()];
    let axes = ["b", "h_q", "s_q", "d_v"];
    for ((axis, size), expected) in axes.into_iter().zip(d_out.shape).zip(expected) {
        if size != expected {
            return Err(Error::Axis {
                tensor: "d_out",
                axis,
                size,
                expected,
            });
        }
    }
    if let Some(d_lse) = d_lse {
        check_length("d_lse", d_lse.len(), b * h_q * s_q)?;
    }
    Ok(())
}

/// dQ_i [d] and the state of row (b, h, i).
fn query_row(
    problem: &Problem<'_>,
    d_out: &Tensor4,
    d_lse: f64,
    (b, h, i): (usize, usize, usize),
) -> (Vec<f64>, RowState) {
    let mut dq = vec![0.0; problem.q.shape[3]];
    let scores: Vec<Score> = (0..problem.s_kv())
        .map(|j| problem.score(b, h, i, j))
        .collect();
    let x: Vec<f64> = scores.iter().map(|score| score.value).collect();
    let Some(max) = softmax_max(&x) else {
        let unseen = RowState {
            lse: f64::NEG_INFINITY,
            delta: 0.0,
        };
        return (dq, unseen);
    };
    let sink = problem.sink((b, h, i));
    let max = max.max(sink);
    let sum = (sink - max).exp() + x.iter().map(|x| (x - max).exp()).sum::<f64>();
    let lse = max + sum.ln();

    let visible = || {
        let pairs = scores.iter().enumerate();
        pairs.filter(|(_, score)| !score.is_hidden())
    };
    let d_out_row = d_out.row(b, h, i);
    let kv = problem.kv_head(h);
    let dp: Vec<f64> = visible()
        .map(|(j, _)| dot(d_out_row, problem.v.row(b, kv, j)))
        .collect();
    let mut delta = -d_lse;
    for ((_, score), dp) in visible().zip(&dp) {
        delta += (score.value - lse).exp() * dp;
    }
    for ((j, score), dp) in visible().zip(&dp) {
        let dx = (score.value - lse).exp() * (dp - delta) * score.derivative;
        add_scaled(&mut dq, problem.options.scale * dx, problem.k.row(b, kv, j));
    }
    (dq, RowState { lse, delta })
}

/// dK_j [d] and dV_j `[d_v]` of key (b, h_kv, j): a sum over the queries of its head group.
fn key_row(
    problem: &Problem<'_>,
    d_out: &Tensor4,
    states: &[RowState],
    (b, kv, j): (usize, usize, usize),
) -> (Vec<f64>, Vec<f64>) {
    let [_, h_q, s_q, d] = problem.q.shape;
    let mut dk = vec![0.0; d];
    let mut dv = vec![0.0; problem.d_v()];
    let v_row = problem.v.row(b, kv, j);
    let group = problem.group();
    for h in kv * group..(kv + 1) * group {
        for i in 0..s_q {
            let score = problem.score(b, h, i, j);
            if score.is_hidden() {
                continue;
            }
            let RowState { lse, delta } = states[(b * h_q + h) * s_q + i];
            let d_out_row = d_out.row(b, h, i);
            let p = (score.value - lse).exp();
            let dx = p * (dot(d_out_row, v_row) - delta) * score.derivative;
            add_scaled(&mut dv, p, d_out_row);
            add_scaled(&mut dk, problem.options.scale * dx, problem.q.row(b, h, i));
        }
    }
    (dk, dv)
}
