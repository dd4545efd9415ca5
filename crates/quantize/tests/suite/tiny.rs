//! Models of a few thousand random weights, in folders, and the reference's attention for them.

use std::collections::BTreeMap;
use std::path::Path;

use flashcube_formats::{TensorData, save, save_json};
use flashcube_models::{AttentionCall, Model, ModelError, TokenBatch};
use flashcube_reference::Tensor4;
use flashcube_reference::attention::{Options, forward};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::StandardNormal;
use serde_json::json;

pub(crate) const VOCAB: usize = 40;

struct Draw {
    random: StdRng,
    tensors: BTreeMap<String, TensorData>,
}

impl Draw {
    fn tensor(&mut self, name: String, shape: &[usize], mean: f32, spread: f32) {
        let value = |_| mean + spread * self.random.sample::<f32, _>(StandardNormal);
        let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
        self.tensors
            .insert(name, TensorData::new(shape, &values).unwrap());
    }

    fn finish(self, folder: &Path, config: serde_json::Value) {
        std::fs::create_dir_all(folder).unwrap();
        save(
            folder.join("model.safetensors"),
            &self.tensors,
            &BTreeMap::new(),
        )
        .unwrap();
        save_json(folder.join("config.json"), &config).unwrap();
        let vocab: BTreeMap<String, usize> = (0..VOCAB).map(|i| (format!("w{i}"), i)).collect();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
            "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
        });
        save_json(folder.join("tokenizer.json"), &tokenizer).unwrap();
    }
}

fn draw(seed: u64) -> Draw {
    Draw {
        random: StdRng::seed_from_u64(seed),
        tensors: BTreeMap::new(),
    }
}

/// Hidden 32, 48 in the MLP.
pub(crate) fn llama(folder: &Path, blocks: usize) -> Model {
    sized_llama(folder, blocks, 32, 48)
}

/// 4 query heads on 2 of keys and values. The norms have loud channels, as AWQ wants them.
pub(crate) fn sized_llama(folder: &Path, blocks: usize, hidden: usize, wide: usize) -> Model {
    let mut d = draw(1);
    d.tensor(
        "model.embed_tokens.weight".into(),
        &[VOCAB, hidden],
        0.0,
        1.0,
    );
    d.tensor("model.norm.weight".into(), &[hidden], 1.0, 0.1);
    for i in 0..blocks {
        let name = |part: &str| format!("model.layers.{i}.{part}.weight");
        d.tensor(name("input_layernorm"), &[hidden], 1.0, 1.0);
        d.tensor(name("post_attention_layernorm"), &[hidden], 1.0, 1.0);
        for (part, n, k) in [
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", hidden / 2, hidden),
            ("self_attn.v_proj", hidden / 2, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", wide, hidden),
            ("mlp.up_proj", wide, hidden),
            ("mlp.down_proj", hidden, wide),
        ] {
            d.tensor(name(part), &[n, k], 0.0, 0.2);
        }
    }
    let config = json!({
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": wide,
        "num_hidden_layers": blocks, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 64, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true,
    });
    d.finish(folder, config);
    Model::open(folder).unwrap()
}

/// Two layers, hidden 32, 4 heads.
pub(crate) fn bert(folder: &Path) -> Model {
    let (hidden, wide) = (32, 64);
    let mut d = draw(2);
    for (table, rows) in [("word", VOCAB), ("position", 64), ("token_type", 2)] {
        d.tensor(
            format!("embeddings.{table}_embeddings.weight"),
            &[rows, hidden],
            0.0,
            1.0,
        );
    }
    let norm = |d: &mut Draw, name: String| {
        d.tensor(format!("{name}.weight"), &[hidden], 1.0, 0.5);
        d.tensor(format!("{name}.bias"), &[hidden], 0.0, 0.1);
    };
    norm(&mut d, "embeddings.LayerNorm".into());
    for i in 0..2 {
        let at = format!("encoder.layer.{i}");
        norm(&mut d, format!("{at}.attention.output.LayerNorm"));
        norm(&mut d, format!("{at}.output.LayerNorm"));
        for (part, n, k) in [
            ("attention.self.query", hidden, hidden),
            ("attention.self.key", hidden, hidden),
            ("attention.self.value", hidden, hidden),
            ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", wide, hidden),
            ("output.dense", hidden, wide),
        ] {
            d.tensor(format!("{at}.{part}.weight"), &[n, k], 0.0, 0.2);
            d.tensor(format!("{at}.{part}.bias"), &[n], 0.0, 0.1);
        }
    }
    let config = json!({
        "model_type": "bert", "hidden_size": hidden, "intermediate_size": wide,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
        "type_vocab_size": 2, "vocab_size": VOCAB, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
        "position_embedding_type": "absolute",
    });
    d.finish(folder, config);
    Model::open(folder).unwrap()
}

/// `count` batches of 4 texts of 12 random words.
pub(crate) fn texts(count: usize, seed: u64) -> Vec<TokenBatch> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut batch = || TokenBatch {
        ids: (0..48)
            .map(|_| random.random_range(0..VOCAB as u32))
            .collect(),
        lengths: vec![12; 4],
        s: 12,
        ..TokenBatch::default()
    };
    (0..count).map(|_| batch()).collect()
}

/// The reference's attention; a past is not kept.
pub(crate) fn attend(call: AttentionCall<'_, f32>) -> Result<Vec<f32>, ModelError> {
    assert_eq!(call.past, 0);
    let tensor = |values: &[f32], h| {
        let shape = [call.b, h, call.s, call.d];
        Tensor4::from_slice(shape, values).unwrap()
    };
    let options = Options {
        scale: call.scale,
        causal: call.causal,
        lengths_kv: Some(call.lengths),
        ..Options::default()
    };
    let [k, v] = [call.k, call.v].map(|part| tensor(part, call.h_kv));
    let output = forward(&tensor(call.q, call.h_q), &k, &v, &options);
    let output = output.map_err(|error| ModelError::Device {
        what: "reference attention",
        detail: error.to_string(),
    })?;
    Ok(output.out.data.iter().map(|&x| x as f32).collect())
}
