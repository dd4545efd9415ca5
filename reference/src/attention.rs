//! Attention in f64.
//!
//! ```text
//! x_ij   = scale * q_i . k_j                    then softcap, ALiBi, bias; hidden keys -inf
//! lse_i  = ln sum_j exp(x_ij)
//! out_i  = sum_j exp(x_ij - lse_i) v_j
//! ```
//!
//! q [b, h_q, s_q, d], k [b, h_kv, s_kv, d], v [b, h_kv, s_kv, d_v]; query head h reads key head
//! h / (h_q / h_kv). A hidden key is not read at all, so NaN and infinities in it cannot spread.
//! A row that sees no key gives out 0, lse -inf and gradients 0.

mod backward;
mod encoded;
mod online;
mod options;
mod scores;

use rayon::prelude::*;

pub use backward::{Grads, backward};
pub use encoded::{Encoding, forward_encoded};
pub use online::forward_online;
pub use options::Options;

use crate::error::{Error, check_entries};
use crate::tensor::{Tensor4, add_scaled};
use scores::Problem;

/// Result of a forward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// [b, h_q, s_q, d_v]
    pub out: Tensor4,
    /// [b, h_q, s_q] natural logarithm of the sum of exponentials.
    pub lse: Vec<f64>,
}

/// Result of a forward pass over chosen rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// [rows, d_v]
    pub out: Vec<f64>,
    /// `[rows]`
    pub lse: Vec<f64>,
}

/// Where a kernel of limited precision must round, everything else staying f64.
///
/// P = exp(x - max x) is rounded before it multiplies V, the output after it is normalised.
#[derive(Debug, Clone, Copy)]
pub struct Rounding {
    /// Rounds the unnormalised P, whose largest entry is 1; `None` keeps it.
    pub p: Option<fn(f64) -> f64>,
    /// Take the row sum (for `out` and `lse`) over the rounded P, which is what multiplies V,
    /// instead of over the exact one.
    pub sum_of_rounded: bool,
    /// Rounds each element of the output.
    pub out: fn(f64) -> f64,
}

impl Default for Rounding {
    /// Rounds nothing.
    fn default() -> Self {
        Self {
            p: None,
            sum_of_rounded: true,
            out: std::convert::identity,
        }
    }
}

/// softmax(x) v and its log-sum-exp, for every row.
///
/// # Errors
/// [`Error`] if shapes, heads, lengths, masks or scalars do not fit together; see [`Options`].
pub fn forward(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    options: &Options<'_>,
) -> Result<Output, Error> {
    forward_rounded(q, k, v, options, &Rounding::default())
}

/// The ideal kernel of limited precision: [`forward`] with P and the output rounded.
///
/// # Errors
/// As [`forward`].
pub fn forward_rounded(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    options: &Options<'_>,
    rounding: &Rounding,
) -> Result<Output, Error> {
    let problem = Problem::new(q, k, v, options)?;
    let rows = attend_rows(&problem, &problem.rows(), |at| {
        attend_row(&problem, at, rounding)
    });
    Ok(problem.output(rows))
}

/// [`forward`] for the chosen rows (b, h, i) only: samples of problems too large to compute whole.
///
/// # Errors
/// As [`forward`]; [`Error::Index`] if a row does not exist.
pub fn forward_rows(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    options: &Options<'_>,
    rows: &[(usize, usize, usize)],
) -> Result<Rows, Error> {
    forward_rows_rounded(q, k, v, options, &Rounding::default(), rows)
}

/// [`forward_rounded`] for the chosen rows (b, h, i) only.
///
/// # Errors
/// As [`forward_rows`].
pub fn forward_rows_rounded(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    options: &Options<'_>,
    rounding: &Rounding,
    rows: &[(usize, usize, usize)],
) -> Result<Rows, Error> {
    let problem = Problem::new(q, k, v, options)?;
    check_rows(&problem, rows)?;
    Ok(attend_rows(&problem, rows, |at| {
        attend_row(&problem, at, rounding)
    }))
}

/// The attention weights exp(x_ij - lse_i) `[s_kv]` of one row (b, h, i): hidden keys weigh 0, and a
/// sink leaves them a sum below 1.
///
/// # Errors
/// As [`forward_rows`].
pub fn weights(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    options: &Options<'_>,
    row: (usize, usize, usize),
) -> Result<Vec<f64>, Error> {
    let problem = Problem::new(q, k, v, options)?;
    check_rows(&problem, &[row])?;
    let x = problem.score_row(row);
    let Some(max) = softmax_max(&x) else {
        return Ok(vec![0.0; x.len()]);
    };
    let sink = problem.sink(row);
    let max = max.max(sink);
    let p: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = (sink - max).exp() + p.iter().sum::<f64>();
    Ok(p.iter().map(|p| p / sum).collect())
}

/// The logits `[s_kv]` of one row (b, h, i), -inf where a key is hidden.
///
/// # Errors
/// As [`forward_rows`].
pub fn logits(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    options: &Options<'_>,
    row: (usize, usize, usize),
) -> Result<Vec<f64>, Error> {
    let problem = Problem::new(q, k, v, options)?;
    check_rows(&problem, &[row])?;
    Ok(problem.score_row(row))
}

/// max |x_ij| over the visible scores (0 if there are none): what rounding bounds scale with.
///
/// # Errors
/// As [`forward`].
pub fn max_abs_score(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    options: &Options<'_>,
) -> Result<f64, Error> {
    let problem = Problem::new(q, k, v, options)?;
    let largest = |at| {
        let visible = problem.score_row(at).into_iter();
        visible
            .filter(|&x| x != f64::NEG_INFINITY)
            .fold(0.0, |m: f64, x| m.max(x.abs()))
    };
    let rows = problem.rows();
    Ok(rows
        .par_iter()
        .map(|&at| largest(at))
        .reduce(|| 0.0, f64::max))
}

fn check_rows(problem: &Problem<'_>, rows: &[(usize, usize, usize)]) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let [b, h_q, s_q, _] = problem.q.shape;
    if b * h_q * s_q == 0 {
        return Err(Error::Length {
            tensor: "rows",
            len: rows.len(),
            expected: 0,
        });
    }
    check_entries("rows: b", rows.iter().map(|row| row.0), b - 1)?;
    check_entries("rows: h", rows.iter().map(|row| row.1), h_q - 1)?;
    check_entries("rows: i", rows.iter().map(|row| row.2), s_q - 1)
}

/// Evaluates `row` -> (out `[d_v]`, lse) for every given row, in parallel.
fn attend_rows(
    problem: &Problem<'_>,
    rows: &[(usize, usize, usize)],
    row: impl Fn((usize, usize, usize)) -> (Vec<f64>, f64) + Sync,
) -> Rows {
    let parts: Vec<(Vec<f64>, f64)> = rows.par_iter().map(|&at| row(at)).collect();
    let mut out = Vec::with_capacity(rows.len() * problem.d_v());
    let mut lse = Vec::with_capacity(rows.len());
    for (out_row, lse_row) in parts {
        out.extend(out_row);
        lse.push(lse_row);
    }
    Rows { out, lse }
}

/// One row: all scores, their maximum, P, the row sum, P V.
fn attend_row(
    problem: &Problem<'_>,
    (b, h, i): (usize, usize, usize),
    rounding: &Rounding,
) -> (Vec<f64>, f64) {
    let mut out = vec![0.0; problem.d_v()];
    let x = problem.score_row((b, h, i));
    let sink = problem.sink((b, h, i));
    let Some(max) = softmax_max(&x) else {
        return (out, sink);
    };
    let max = max.max(sink);
    let mut sum = (sink - max).exp();
    for (j, &x) in x.iter().enumerate() {
        // Not merely weight 0: 0 * NaN in v would still be NaN.
        if x == f64::NEG_INFINITY {
            continue;
        }
        let exact = (x - max).exp();
        let p = rounding.p.map_or(exact, |round| round(exact));
        sum += if rounding.sum_of_rounded { p } else { exact };
        add_scaled(&mut out, p, problem.v.row(b, problem.kv_head(h), j));
    }
    for o in &mut out {
        *o = (rounding.out)(*o / sum);
    }
    (out, max + sum.ln())
}

/// The maximum of a row of scores, or `None` if every key is hidden.
fn softmax_max(x: &[f64]) -> Option<f64> {
    // `max` passes over NaN, so a row of NaN scores must not count as one without keys.
    let visible = x.iter().any(|&x| x != f64::NEG_INFINITY);
    visible.then(|| x.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}
