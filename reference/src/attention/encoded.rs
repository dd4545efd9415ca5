//! Attention whose weights are small floats before they multiply V.

use super::scores::Problem;
use super::{Options, Output, attend_rows, softmax_max};
use crate::error::Error;
use crate::quant::direct::WeightFormat;
use crate::tensor::{Tensor4, add_scaled};

/// How weights are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Encoding {
    /// What they become.
    pub format: WeightFormat,
    /// E4M3 weights and scales are raised by 2^8; see [`RAISED`](crate::quant::direct::RAISED).
    pub raised: bool,
    /// The row sum is taken over what is multiplied, not over exact weights.
    pub sum_of_encoded: bool,
}

impl Encoding {
    /// As kernels do it: raised, and the sum of what is multiplied.
    pub fn new(format: WeightFormat) -> Self {
        Self {
            format,
            raised: true,
            sum_of_encoded: true,
        }
    }
}

/// [`forward`](super::forward) with the weights of every row encoded, groups counted from the first key of
/// the row's sequence. A row's weights are relative to its largest logit in base 2, rounded up to an integer.
///
/// lse is that of the sum that divides.
///
/// # Errors
/// As [`forward`](super::forward); [`Error::Conflict`] with sinks, whose weight no group holds.
pub fn forward_encoded(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    options: &Options<'_>,
    encoding: Encoding,
) -> Result<Output, Error> {
    if options.sinks.is_some() {
        return Err(Error::Conflict {
            option: "sinks",
            with: "encoded weights",
        });
    }
    let problem = Problem::new(q, k, v, options)?;
    let rows = attend_rows(&problem, &problem.rows(), |at| {
        attend_row(&problem, at, encoding)
    });
    Ok(problem.output(rows))
}

fn attend_row(
    problem: &Problem<'_>,
    (b, h, i): (usize, usize, usize),
    encoding: Encoding,
) -> (Vec<f64>, f64) {
    let mut out = vec![0.0; problem.d_v()];
    let x: Vec<f64> = problem
        .score_row((b, h, i))
        .iter()
        .map(|x| x * std::f64::consts::LOG2_E)
        .collect();
    let Some(max) = softmax_max(&x) else {
        return (out, f64::NEG_INFINITY);
    };
    let max = max.ceil();
    let keys = problem.sequence(b, i).1;
    let group = encoding.format.group();
    let factor = match encoding.raised {
        true => encoding.format.factor(),
        false => 1.0,
    };
    let mut sum = 0.0;
    for first in keys.clone().step_by(group) {
        let places = first..keys.end.min(first + group);
        let weights = encoding
            .format
            .encode(&x[places.clone()], max, encoding.raised);
        for (j, p) in places.zip(weights) {
            sum += match encoding.sum_of_encoded {
                true => p,
                false => factor * (x[j] - max).exp2(),
            };
            // Not merely weight 0: 0 * NaN in v would still be NaN.
            if x[j] != f64::NEG_INFINITY {
                add_scaled(&mut out, p, problem.v.row(b, problem.kv_head(h), j));
            }
        }
    }
    out.iter_mut().for_each(|o| *o /= sum);
    (out, (max + (sum / factor).log2()) * std::f64::consts::LN_2)
}
