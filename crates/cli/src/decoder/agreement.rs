use cubecl::prelude::Client;
use flashcube::DType;
use flashcube_models::{
    AttentionCall, Generator, Linear, Llama, Model, ModelError, Sampler, dense,
};
use serde::Serialize;

use super::linear::Rounded;
use super::{CachedAttention, packed_decoder};
use crate::elements::rounded;
use crate::failure::Result;

/// How a decoder on a device and the same in dequantized f32 judged the same text, step by step.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Agreement {
    /// Tokens chosen, by the f32 run.
    pub(crate) ids: Vec<u32>,
    /// Steps at which both chose the same token.
    pub(crate) agreeing: usize,
    /// The first step at which they did not.
    pub(crate) difference: Option<Difference>,
    /// Largest difference of a logit at any step.
    pub(crate) largest: f64,
    /// Largest of (largest difference of a step / its bound); at most 1 passes.
    pub(crate) share: f64,
    /// Every step within its bound, and the gap of the first difference below twice the step's
    /// largest difference.
    pub(crate) passed: bool,
}

/// Two tokens chosen at one step.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Difference {
    pub(crate) step: usize,
    pub(crate) chosen: u32,
    pub(crate) expected: u32,
    /// By how much the f32 run prefers its own.
    pub(crate) gap: f64,
    /// Largest difference of a logit at this step.
    pub(crate) largest: f64,
}

/// A decoder and where it is in a text.
struct Reader<'a> {
    generator: Generator<'a>,
    attention: CachedAttention<'a>,
    /// Holds queries, keys, values and results as this type does.
    holds: Option<DType>,
}

impl<'a> Reader<'a> {
    fn new(model: &'a Llama, attention: CachedAttention<'a>, holds: Option<DType>) -> Self {
        Self {
            generator: Generator::new(model),
            attention,
            holds,
        }
    }

    fn read(&mut self, ids: &[u32]) -> Result<Vec<f32>, ModelError> {
        let (attention, holds) = (&mut self.attention, self.holds);
        self.generator
            .read(ids, &mut |call: AttentionCall<'_, f32>| {
                let Some(dtype) = holds else {
                    return attention.attend(call);
                };
                let [q, k, v] = [call.q, call.k, call.v].map(|values| rounded(dtype, values));
                let out = attention.attend(AttentionCall {
                    q: &q,
                    k: &k,
                    v: &v,
                    ..call
                })?;
                Ok(rounded(dtype, &out))
            })
    }
}

/// Reads `prompt` and `tokens` greedy tokens of the dequantized f32 run with both decoders.
///
/// A step's bound is that of docs/numerics.md: twice the largest difference that the types alone make
/// at any step (f32 arithmetic, the input and output of every linear and attention held as `dtype`),
/// and a floor for f32 sums in another order.
///
/// # Errors
/// Those of [`packed_decoder`] and of the runs.
pub(crate) fn agreement(
    model: &Model,
    client: &Client,
    dtype: DType,
    prompt: &[u32],
    tokens: usize,
) -> Result<Agreement> {
    let capacity = prompt.len() + tokens;
    let attention = |dtype| CachedAttention::new(client, dtype, capacity);
    let packed = packed_decoder(model, client, dtype)?;
    let floats = model.decoder(None)?;
    let held = match dtype {
        DType::F32 => None,
        _ => Some(
            model.decoder(Some(&|prefix, k, n| -> Result<Box<dyn Linear>, _> {
                let linear = dense(model.weights(), prefix, k, n)?;
                Ok(Box::new(Rounded { linear, dtype }))
            }))?,
        ),
    };
    let mut ours = Reader::new(&packed, attention(dtype), None);
    let mut theirs = Reader::new(&floats, attention(DType::F32), None);
    let mut ideal = held
        .as_ref()
        .map(|held| Reader::new(held, attention(DType::F32), Some(dtype)));
    let floor = floor(&floats);
    let (mut found, mut steps, mut types) = (Agreement::default(), Vec::new(), 0f64);
    let mut next = prompt.to_vec();
    while found.ids.len() < tokens {
        let (got, expected) = (ours.read(&next)?, theirs.read(&next)?);
        if let Some(ideal) = &mut ideal {
            types = types.max(largest(&ideal.read(&next)?, &expected));
        }
        let scale = |max: f64, x: &f32| max.max(f64::from(x.abs()));
        let sums = floor * expected.iter().fold(0.0, scale);
        steps.push((largest(&got, &expected), sums));
        next = vec![found.step(&got, &expected)];
    }
    found.judge(&steps, types);
    Ok(found)
}

/// What sums in another order may change of a logit, as a part of the largest: the roundings of all
/// sums one after another, as a random walk, with a factor of 8 for how blocks amplify them.
fn floor(model: &Llama) -> f64 {
    const LINEARS_IN_A_ROW: usize = 4;
    let config = model.config();
    let sums = LINEARS_IN_A_ROW * config.num_hidden_layers + 1;
    8.0 * f64::from(f32::EPSILON) / 2.0 * ((sums * config.hidden_size) as f64).sqrt()
}

impl Agreement {
    /// Takes in the logits of one step; the token to go on with.
    fn step(&mut self, got: &[f32], expected: &[f32]) -> u32 {
        let [chosen, wanted] = [got, expected].map(|logits| Sampler::greedy().choose(logits));
        if chosen == wanted {
            self.agreeing += 1;
        } else if self.difference.is_none() {
            let logit = |id: u32| f64::from(expected[id as usize]);
            self.difference = Some(Difference {
                step: self.ids.len(),
                chosen,
                expected: wanted,
                gap: logit(wanted) - logit(chosen),
                largest: largest(got, expected),
            });
        }
        self.ids.push(wanted);
        wanted
    }

    /// Compares each step's (largest difference, floor) with the bound, `types` being what the types
    /// alone make at most.
    fn judge(&mut self, steps: &[(f64, f64)], types: f64) {
        for &(largest, floor) in steps {
            let bound = 2.0 * types + floor;
            let share = if largest > 0.0 { largest / bound } else { 0.0 };
            self.largest = self.largest.max(largest);
            self.share = self.share.max(share);
        }
        let close = |difference: &Difference| difference.gap < 2.0 * difference.largest;
        self.passed = self.share <= 1.0 && self.difference.as_ref().is_none_or(close);
    }
}

/// Largest |a - b|; infinite where one is NaN.
fn largest(a: &[f32], b: &[f32]) -> f64 {
    let off = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs()));
    off.fold(0.0, |max, x| match x.is_nan() {
        true => f64::INFINITY,
        false => max.max(x),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One step judged.
    fn judged(got: &[f32], expected: &[f32], types: f64) -> Agreement {
        let mut found = Agreement::default();
        found.step(got, expected);
        found.judge(&[(largest(got, expected), 0.001)], types);
        found
    }

    #[test]
    fn close_calls_may_differ_and_clear_ones_may_not() {
        let close = judged(&[1.0, 1.02], &[1.01, 1.0], 0.02);
        assert!(close.passed && close.agreeing == 0 && close.difference.is_some());
        let clear = judged(&[1.0, 3.0], &[2.0, 1.0], 0.5);
        assert!(!clear.passed);
        assert_eq!(clear.difference.map(|d| (d.step, d.chosen)), Some((0, 1)));
    }

    #[test]
    fn steps_past_the_bound_fail_even_where_the_tokens_agree() {
        let within = judged(&[3.0, 1.0], &[3.1, 1.0], 0.1);
        assert!(within.passed && within.agreeing == 1);
        let past = judged(&[3.0, 1.0], &[3.5, 1.0], 0.1);
        assert!(!past.passed && past.agreeing == 1 && past.share > 2.0);
        assert!(!judged(&[f32::NAN, 1.0], &[1.0, 0.0], 1e9).passed);
    }
}
