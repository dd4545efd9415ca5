use std::path::Path;

use flashcube_formats::{Gguf, GgufValue};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ModelError;

/// The fields of a Llama's `config.json` that shape it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct LlamaConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated feed-forward.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Heads of keys and values; they divide the query heads.
    #[serde(default)]
    pub num_key_value_heads: usize,
    /// Width of a head, even.
    #[serde(default)]
    pub head_dim: usize,
    /// Longest text.
    pub max_position_embeddings: usize,
    /// Words.
    pub vocab_size: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Base of the rotary angles.
    #[serde(default = "default_theta")]
    pub rope_theta: f64,
    /// The head is the word table.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Must be `silu`.
    #[serde(default = "default_act")]
    pub hidden_act: String,
    /// Must be absent: stretched rotary angles are not computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<Value>,
}

fn default_theta() -> f64 {
    10_000.0
}

fn default_act() -> String {
    "silu".to_owned()
}

impl LlamaConfig {
    /// Reads and checks a `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Io`], [`ModelError::Parse`], or [`ModelError::Config`] naming the field.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(ModelError::io(path))?;
        let config = serde_json::from_str::<Self>(&text).map_err(ModelError::parse(path))?;
        config.completed()
    }

    /// Reads the metadata of a GGUF file of architecture `llama`.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming the key that is missing or out of range.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        let refuse = |field, value: String, expected: &str| ModelError::Config {
            field,
            value,
            expected: expected.to_owned(),
        };
        let value = |key| gguf.metadata().get(key);
        let size = |key| match value(key) {
            Some(&GgufValue::Unsigned(size)) if size <= u32::MAX.into() => Ok(size as usize),
            other => Err(refuse(key, format!("{other:?}"), "a size")),
        };
        let float = |key| match value(key) {
            Some(&GgufValue::Float(value)) => Ok(value),
            other => Err(refuse(key, format!("{other:?}"), "a float")),
        };
        match value("general.architecture") {
            Some(GgufValue::Text(name)) if name == "llama" => {}
            other => {
                return Err(refuse(
                    "general.architecture",
                    format!("{other:?}"),
                    "llama",
                ));
            }
        }
        let words = gguf.tensor("token_embd.weight")?.shape;
        Self {
            hidden_size: size("llama.embedding_length")?,
            intermediate_size: size("llama.feed_forward_length")?,
            num_hidden_layers: size("llama.block_count")?,
            num_attention_heads: size("llama.attention.head_count")?,
            num_key_value_heads: size("llama.attention.head_count_kv").unwrap_or(0),
            head_dim: size("llama.attention.key_length").unwrap_or(0),
            max_position_embeddings: size("llama.context_length")?,
            vocab_size: words.first().copied().unwrap_or(0),
            rms_norm_eps: float("llama.attention.layer_norm_rms_epsilon")?,
            rope_theta: float("llama.rope.freq_base").unwrap_or(default_theta()),
            tie_word_embeddings: !gguf.contains("output.weight"),
            hidden_act: default_act(),
            rope_scaling: None,
        }
        .completed()
    }

    /// Fills in what older files leave out, and checks.
    fn completed(mut self) -> Result<Self, ModelError> {
        let refuse = |field, value: String, expected: &str| {
            Err(ModelError::Config {
                field,
                value,
                expected: expected.into(),
            })
        };
        if self.num_attention_heads == 0 {
            return refuse("num_attention_heads", "0".into(), "at least 1");
        }
        if self.num_key_value_heads == 0 {
            self.num_key_value_heads = self.num_attention_heads;
        }
        if self.head_dim == 0 {
            self.head_dim = self.hidden_size / self.num_attention_heads;
        }
        let (own, shared) = (self.num_attention_heads, self.num_key_value_heads);
        if !own.is_multiple_of(shared) {
            return refuse(
                "num_key_value_heads",
                shared.to_string(),
                "a divisor of the heads",
            );
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return refuse("head_dim", self.head_dim.to_string(), "even, at least 2");
        }
        let finite = |x: f64| x.is_finite() && x >= 0.0;
        if !finite(self.rms_norm_eps) {
            let value = self.rms_norm_eps.to_string();
            return refuse("rms_norm_eps", value, "finite, at least 0");
        }
        if !(finite(self.rope_theta) && self.rope_theta > 0.0) {
            return refuse(
                "rope_theta",
                self.rope_theta.to_string(),
                "finite, positive",
            );
        }
        if self.hidden_act != "silu" {
            return refuse("hidden_act", self.hidden_act.clone(), "silu");
        }
        match &self.rope_scaling {
            Some(scaling) if !scaling.is_null() => {
                refuse("rope_scaling", scaling.to_string(), "absent")
            }
            _ => Ok(self),
        }
    }

    /// A `config.json` that other programs read as well.
    pub fn to_json(&self) -> Value {
        let mut json = serde_json::to_value(self).unwrap_or_default();
        json["architectures"] = json!(["LlamaForCausalLM"]);
        json["model_type"] = json!("llama");
        json
    }
}
