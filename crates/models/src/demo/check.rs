//! One layer's attention against the reference.

use flashcube_reference::{Options, Output, Tensor4, forward, max_abs_score};
use num_traits::AsPrimitive;
use serde::Serialize;

use super::{Attended, DemoError};
use crate::AttentionCall;

/// The largest errors allowed in one attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// Of an output element.
    pub out: f64,
    /// Of a log-sum-exp.
    pub lse: f64,
}

/// Errors of one tensor over the valid query rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ErrorStats {
    /// Largest absolute error; infinite if a value is not a number.
    pub max: f64,
    /// Root of the mean squared error.
    pub rms: f64,
    /// The largest error allowed.
    pub bound: f64,
}

impl ErrorStats {
    /// Whether the largest error is within the bound.
    pub fn passed(&self) -> bool {
        self.max <= self.bound
    }

    /// Pairs of (computed, expected). No pairs give no error.
    fn of(pairs: impl Iterator<Item = (f64, f64)>, bound: f64) -> Self {
        let (mut max, mut squares, mut count) = (0.0f64, 0.0, 0usize);
        for (computed, expected) in pairs {
            // Equal infinities are no error; any other comparison with NaN or infinity is.
            let error = if computed == expected {
                0.0
            } else {
                (computed - expected).abs()
            };
            max = max.max(if error.is_nan() { f64::INFINITY } else { error });
            squares += error * error;
            count += 1;
        }
        let rms = if max.is_finite() {
            (squares / count.max(1) as f64).sqrt()
        } else {
            max
        };
        Self { max, rms, bound }
    }
}

/// One layer of one backend against the reference on the same q, k and v.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerCheck {
    /// Encoder layer, from 0.
    pub layer: usize,
    /// The kernel that ran.
    pub blueprint: String,
    /// Largest absolute score over visible keys.
    pub max_abs_score: f64,
    /// Largest absolute reference output.
    pub max_abs_out: f64,
    /// Errors of the attention output.
    pub out: ErrorStats,
    /// Errors of the log-sum-exp.
    pub lse: ErrorStats,
}

impl LayerCheck {
    /// Whether both tensors are within their bounds.
    pub fn passed(&self) -> bool {
        self.out.passed() && self.lse.passed()
    }
}

/// The call as a problem of the reference: `f` gets q, k, v and the options.
fn with_reference<T: AsPrimitive<f64>, R>(
    call: &AttentionCall<'_, T>,
    f: impl FnOnce(&[Tensor4; 3], &Options<'_>) -> Result<R, flashcube_reference::Error>,
) -> Result<R, DemoError> {
    let shape = [call.b, call.h_q, call.s, call.d];
    let options = Options {
        scale: call.scale,
        lengths_kv: Some(call.lengths),
        ..Options::default()
    };
    let tensor = |values: &[T]| Tensor4::from_slice(shape, values);
    let run = || {
        let tensors = [tensor(call.q)?, tensor(call.k)?, tensor(call.v)?];
        f(&tensors, &options)
    };
    run().map_err(|source| DemoError::Reference {
        layer: call.layer,
        source,
    })
}

/// The reference's output and log-sum-exp for a call.
pub(super) fn reference_forward<T: AsPrimitive<f64>>(
    call: &AttentionCall<'_, T>,
) -> Result<Output, DemoError> {
    with_reference(call, |[q, k, v], options| forward(q, k, v, options))
}

/// Compares the valid query rows: padded ones never reach the model.
pub(super) fn check_layer(
    call: &AttentionCall<'_, f32>,
    attended: &Attended,
    bound: &dyn Fn(&AttentionCall<'_, f32>, f64) -> Bound,
) -> Result<LayerCheck, DemoError> {
    let (expected, max_abs_score) = with_reference(call, |[q, k, v], options| {
        Ok((forward(q, k, v, options)?, max_abs_score(q, k, v, options)?))
    })?;
    let limit = bound(call, max_abs_score);
    // Rows of [b, h, s] whose query is valid.
    let rows = || {
        (0..call.b * call.h_q)
            .flat_map(|bh| (0..call.lengths[bh / call.h_q]).map(move |i| bh * call.s + i))
    };
    let values = || rows().flat_map(|row| row * call.d..(row + 1) * call.d);
    let expected_out = &expected.out.data;
    let out = values().map(|i| (attended.out[i].into(), expected_out[i]));
    let lse = rows().map(|i| (attended.lse[i].into(), expected.lse[i]));
    Ok(LayerCheck {
        layer: call.layer,
        blueprint: attended.blueprint.clone(),
        max_abs_score,
        max_abs_out: values().fold(0.0, |max: f64, i| max.max(expected_out[i].abs())),
        out: ErrorStats::of(out, limit.out),
        lse: ErrorStats::of(lse, limit.lse),
    })
}

/// Whether two results are equal bit for bit.
pub(super) fn same_bits(a: &Attended, b: &Attended) -> bool {
    let same = |a: &[f32], b: &[f32]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
    };
    same(&a.out, &b.out) && same(&a.lse, &b.lse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_stats_never_pass_on_nan_or_a_lost_infinity() {
        let stats = |pairs: &[(f64, f64)]| ErrorStats::of(pairs.iter().copied(), 1.0);
        assert!(stats(&[]).passed());
        assert!(stats(&[(f64::NEG_INFINITY, f64::NEG_INFINITY), (1.0, 1.5)]).passed());
        assert!(!stats(&[(f64::NAN, 0.0)]).passed());
        assert!(!stats(&[(0.0, f64::NEG_INFINITY)]).passed());
        assert!(!stats(&[(0.0, 1.5)]).passed());
        assert_eq!(stats(&[(0.0, 0.6), (0.0, 0.8)]).rms, 0.5f64.sqrt());
    }

    /// A kernel that ignores the lengths passes on full rows and fails on padded ones.
    #[test]
    fn check_layer_sees_a_key_that_should_be_hidden() {
        let (q, k, v) = ([1.0f32, 0.5], [1.0f32, 2.0], [1.0f32, 5.0]);
        let call = |lengths| AttentionCall {
            layer: 0,
            b: 1,
            h_q: 1,
            h_kv: 1,
            s: 2,
            d: 1,
            past: 0,
            q: &q,
            k: &k,
            v: &v,
            lengths,
            causal: false,
            scale: 1.0,
        };
        let full = reference_forward(&call(&[2])).unwrap();
        let attended = Attended {
            out: full.out.data.iter().map(|&x| x as f32).collect(),
            lse: full.lse.iter().map(|&x| x as f32).collect(),
            blueprint: "test".into(),
        };
        let bound = |_: &AttentionCall<'_, f32>, _| Bound {
            out: 1e-6,
            lse: 1e-6,
        };
        assert!(
            check_layer(&call(&[2]), &attended, &bound)
                .unwrap()
                .passed()
        );
        let padded = check_layer(&call(&[1]), &attended, &bound).unwrap();
        assert!(!padded.out.passed() && !padded.lse.passed());
    }
}
