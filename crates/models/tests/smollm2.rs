//! The decoder's forward pass against an independent float64 implementation, piece by piece against
//! all at once, and what happens with damaged files. The tests that need the model say so when it
//! is not there.

use std::path::PathBuf;

use flashcube_models::{
    AttentionCall, Generator, Model, ModelError, Sampler, perplexity, smollm2_file,
};
use serde::Deserialize;

/// What make_smollm2_expected.py writes.
#[derive(Deserialize)]
struct Expected {
    text: String,
    ids: Vec<u32>,
    top: Vec<Vec<usize>>,
    logits: Vec<Vec<f64>>,
    nats: Vec<f64>,
}

fn expected() -> Expected {
    serde_json::from_str(include_str!("smollm2_expected.json")).expect("fixture parses")
}

/// The model, or None after saying that the test did not run.
fn model() -> Option<PathBuf> {
    let file = smollm2_file();
    if file.is_file() {
        return Some(file);
    }
    let required = std::env::var_os("FLASHCUBE_REQUIRE_TEXT_MODEL").is_some_and(|v| v == "1");
    assert!(
        !required,
        "model required, but not found: {}",
        file.display()
    );
    println!("not run: model not found: {}", file.display());
    None
}

/// Softmax attention by the formula, in f64, over the keys and values of all calls so far.
#[derive(Default)]
struct Kept {
    /// Keys and values of each layer, [tokens, h_kv, d].
    layers: Vec<[Vec<f32>; 2]>,
}

impl Kept {
    fn attend(&mut self, call: AttentionCall<'_, f32>) -> Result<Vec<f32>, ModelError> {
        let (h_q, h_kv, s, d) = (call.h_q, call.h_kv, call.s, call.d);
        assert!(call.b == 1 && call.causal && call.lengths == [s]);
        self.layers
            .resize_with(self.layers.len().max(call.layer + 1), Default::default);
        let [keys, values] = &mut self.layers[call.layer];
        assert_eq!(keys.len(), call.past * h_kv * d);
        for (kept, new) in [(&mut *keys, call.k), (&mut *values, call.v)] {
            for token in 0..s {
                let head = |h: usize| &new[(h * s + token) * d..][..d];
                kept.extend((0..h_kv).flat_map(head));
            }
        }
        let mut out = Vec::with_capacity(call.q.len());
        for row in 0..h_q * s {
            let (head, visible) = (row / s / (h_q / h_kv), call.past + row % s + 1);
            let at = |j: usize| (j * h_kv + head) * d;
            let dot = |j: usize| -> f64 {
                let pairs = call.q[row * d..][..d].iter().zip(&keys[at(j)..][..d]);
                pairs.map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
            };
            let scores: Vec<f64> = (0..visible).map(|j| call.scale * dot(j)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let p: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = p.iter().sum();
            for i in 0..d {
                let weighted = p
                    .iter()
                    .enumerate()
                    .map(|(j, p)| p * f64::from(values[at(j) + i]));
                out.push((weighted.sum::<f64>() / sum) as f32);
            }
        }
        Ok(out)
    }
}

#[test]
fn scores_match_the_independent_implementation() {
    let Some(file) = model() else { return };
    let expected = expected();
    let model = Model::open(&file).unwrap();
    assert_eq!(model.tokenizer.ids(&expected.text).unwrap(), expected.ids);
    assert_eq!(model.tokenizer.text(&expected.ids).unwrap(), expected.text);
    let llama = model.decoder(None).unwrap();
    let mut kept = Kept::default();
    let attend = &mut |call: AttentionCall<'_, f32>| kept.attend(call);
    let states = llama.hidden_states(&expected.ids, 1, 0, attend).unwrap();
    let logits = llama.logits(&states).unwrap();
    let vocab = llama.config().vocab_size;
    for (row, (top, scores)) in expected.top.iter().zip(&expected.logits).enumerate() {
        for (&id, score) in top.iter().zip(scores) {
            let error = (f64::from(logits[row * vocab + id]) - score).abs();
            assert!(error < 2e-3, "token {row}, word {id}: error {error:e}");
        }
    }

    let mut kept = Kept::default();
    let attend = &mut |call: AttentionCall<'_, f32>| kept.attend(call);
    let found = perplexity(&llama, &expected.ids, expected.ids.len(), attend, |_| ()).unwrap();
    let nats: f64 = expected.nats.iter().sum();
    assert_eq!(found.tokens, expected.nats.len());
    assert!((found.nats - nats).abs() < 1e-3, "{} {nats}", found.nats);
    let window = perplexity(&llama, &expected.ids, 1, attend, |_| ()).unwrap_err();
    assert_eq!(window.to_string(), "window, at least 2: 1, limit 19");
}

#[test]
fn tokens_one_by_one_score_as_all_at_once() {
    let Some(file) = model() else { return };
    let expected = expected();
    let llama = Model::open(&file).unwrap().decoder(None).unwrap();
    let mut kept = Kept::default();
    let attend = &mut |call: AttentionCall<'_, f32>| kept.attend(call);
    let mut generator = Generator::new(&llama);
    let (first, later) = expected.ids.split_at(5);
    generator.read(first, attend).unwrap();
    for (row, id) in (5..).zip(later) {
        let logits = generator.read(&[*id], attend).unwrap();
        assert_eq!(generator.past(), row + 1);
        for (&id, score) in expected.top[row].iter().zip(&expected.logits[row]) {
            let error = (f64::from(logits[id]) - score).abs();
            assert!(error < 2e-3, "token {row}, word {id}: error {error:e}");
        }
        assert_eq!(
            Sampler::greedy().choose(&logits) as usize,
            expected.top[row][0]
        );
    }
    assert!(generator.read(&[], attend).is_err());
    let error = generator.read(&[49_152], attend).unwrap_err();
    assert_eq!(error.to_string(), "token id: 49152, limit 49151");
}

#[test]
fn sampler_draws_by_weight_and_refuses_nonsense() {
    let logits = [0.0, (3.0f32).ln(), -40.0, f32::NEG_INFINITY];
    let mut sampler = Sampler::drawing(1.0, 1.0, 7).unwrap();
    let drawn: Vec<u32> = (0..4000).map(|_| sampler.choose(&logits)).collect();
    let part = drawn.iter().filter(|&&id| id == 1).count() as f64 / 4000.0;
    assert!((part - 0.75).abs() < 0.03, "{part}");
    assert!(drawn.iter().all(|&id| id < 2));
    let mut narrow = Sampler::drawing(1.0, 0.7, 7).unwrap();
    assert!((0..200).all(|_| narrow.choose(&logits) == 1));
    assert_eq!(Sampler::greedy().choose(&[1.0, 2.0, 2.0]), 1);
    assert!(Sampler::drawing(f32::NAN, 1.0, 0).is_err());
    assert!(Sampler::drawing(1.0, 0.0, 0).is_err());
}

#[test]
fn damaged_files_are_typed_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    assert!(matches!(Model::open(&file), Err(ModelError::Format(_))));
    std::fs::write(&file, b"GGUF\x03\0\0\0").unwrap();
    let error = Model::open(&file).err().unwrap().to_string();
    assert!(error.contains("it ends at byte 8"), "{error}");
    let config = folder.path().join("config.json");
    std::fs::write(&config, r#"{"model_type": "gpt2"}"#).unwrap();
    let error = Model::open(folder.path()).err().unwrap().to_string();
    assert_eq!(
        error,
        r#"config model_type: "gpt2", expected bert or llama"#
    );
}
