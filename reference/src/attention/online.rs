//! The same result by the online softmax, one pass over blocks of keys.

use super::scores::Problem;
use super::{Options, Output, attend_rows, softmax_max};
use crate::error::Error;
use crate::tensor::{Tensor4, add_scaled};

/// [`forward`](super::forward) as FlashAttention computes it: keys in blocks of `block`, with a
/// running maximum m, row sum l and output o that are rescaled when m grows.
///
/// ```text
/// m' = max(m, max_j x_j);  o = e^(m - m') o + sum_j e^(x_j - m') v_j;  l likewise
/// out = o / l;  lse = m + ln l
/// ```
///
/// Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135.
///
/// # Errors
/// As [`forward`](super::forward); [`Error::Parameter`] if `block` is 0.
pub fn forward_online(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    options: &Options<'_>,
    block: usize,
) -> Result<Output, Error> {
    if block == 0 {
        return Err(Error::Parameter {
            name: "block",
            value: 0.0,
            requirement: "at least 1",
        });
    }
    let problem = Problem::new(q, k, v, options)?;
    let rows = attend_rows(&problem, &problem.rows(), |at| {
        attend_row_online(&problem, at, block)
    });
    Ok(problem.output(rows))
}

fn attend_row_online(
    problem: &Problem<'_>,
    (b, h, i): (usize, usize, usize),
    block: usize,
) -> (Vec<f64>, f64) {
    let s_kv = problem.s_kv();
    let mut out = vec![0.0; problem.d_v()];
    // A sink is a key seen before the first one, with the value 0.
    let sink = problem.sink((b, h, i));
    let mut seen = sink != f64::NEG_INFINITY;
    let (mut max, mut sum) = (sink, if seen { 1.0 } else { 0.0 });
    for start in (0..s_kv).step_by(block) {
        let keys = start..s_kv.min(start.saturating_add(block));
        let x: Vec<f64> = keys
            .clone()
            .map(|j| problem.score(b, h, i, j).value)
            .collect();
        let Some(block_max) = softmax_max(&x) else {
            continue;
        };
        let new_max = max.max(block_max);
        // Before the first visible key there is nothing to rescale, and -inf - -inf is NaN.
        let rescale = if seen { (max - new_max).exp() } else { 0.0 };
        out.iter_mut().for_each(|o| *o *= rescale);
        sum *= rescale;
        for (j, x) in keys.zip(x).filter(|&(_, x)| x != f64::NEG_INFINITY) {
            let p = (x - new_max).exp();
            sum += p;
            add_scaled(&mut out, p, problem.v.row(b, problem.kv_head(h), j));
        }
        max = new_max;
        seen = true;
    }
    if !seen {
        return (out, f64::NEG_INFINITY);
    }
    out.iter_mut().for_each(|o| *o /= sum);
    (out, max + sum.ln())
}
