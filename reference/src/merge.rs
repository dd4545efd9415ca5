//! The merge of attention results over disjoint sets of keys.

use rayon::prelude::*;

use crate::error::{Error, check_length};

/// Merges partial results of one row, out `[d_v]` and lse each:
///
/// ```text
/// m = max_p lse_p;  w_p = exp(lse_p - m);  out = sum_p w_p out_p / sum_p w_p;  lse = m + ln sum_p w_p
/// ```
///
/// A partial with lse -inf saw no key and is not read. No partials, or only such, give (0, -inf).
///
/// # Errors
/// [`Error::Length`] if a partial does not hold `d_v` values.
pub fn merge_row(partials: &[(&[f64], f64)], d_v: usize) -> Result<(Vec<f64>, f64), Error> {
    for (out, _) in partials {
        check_length("partial out", out.len(), d_v)?;
    }
    Ok(weighted_mean(partials, d_v))
}

/// Merges partial results of many rows, out [rows, d_v] and lse `[rows]` each, row by row as
/// [`merge_row`] does.
///
/// # Errors
/// [`Error::Length`] if a partial has another size.
///
/// ```
/// // Two halves of a sequence; the second half of row 1 is empty.
/// let (out, lse) = flashcube_reference::merge(
///     &[(&[1.0, 5.0], &[0.0, 2.0]), (&[3.0, 7.0], &[0.0, f64::NEG_INFINITY])],
///     2,
///     1,
/// )?;
/// assert_eq!(out, [2.0, 5.0]);
/// assert_eq!(lse, [2f64.ln(), 2.0]);
/// # Ok::<(), flashcube_reference::Error>(())
/// ```
pub fn merge(
    partials: &[(&[f64], &[f64])],
    rows: usize,
    d_v: usize,
) -> Result<(Vec<f64>, Vec<f64>), Error> {
    for (out, lse) in partials {
        check_length("partial out", out.len(), rows.saturating_mul(d_v))?;
        check_length("partial lse", lse.len(), rows)?;
    }
    let merged: Vec<(Vec<f64>, f64)> = (0..rows)
        .into_par_iter()
        .map(|row| {
            let partials: Vec<(&[f64], f64)> = partials
                .iter()
                .map(|(out, lse)| (&out[row * d_v..(row + 1) * d_v], lse[row]))
                .collect();
            weighted_mean(&partials, d_v)
        })
        .collect();
    let (out, lse): (Vec<Vec<f64>>, Vec<f64>) = merged.into_iter().unzip();
    Ok((out.concat(), lse))
}

fn weighted_mean(partials: &[(&[f64], f64)], d_v: usize) -> (Vec<f64>, f64) {
    let mut out = vec![0.0; d_v];
    let seen = || partials.iter().filter(|(_, lse)| *lse != f64::NEG_INFINITY);
    if seen().next().is_none() {
        return (out, f64::NEG_INFINITY);
    }
    let max = seen().fold(f64::NEG_INFINITY, |max, (_, lse)| max.max(*lse));
    let mut sum = 0.0;
    for (partial, lse) in seen() {
        let weight = (lse - max).exp();
        sum += weight;
        for (o, x) in out.iter_mut().zip(*partial) {
            *o += weight * x;
        }
    }
    out.iter_mut().for_each(|o| *o /= sum);
    (out, max + sum.ln())
}
