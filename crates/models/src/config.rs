use std::path::Path;

use serde::Deserialize;

use crate::ModelError;

/// The fields of `config.json` that shape the encoder.
#[derive(Debug, Clone, Deserialize)]
pub struct BertConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width between the two feed-forward layers.
    pub intermediate_size: usize,
    /// Encoder layers.
    pub num_hidden_layers: usize,
    /// Heads h of each attention; hidden_size = h d.
    pub num_attention_heads: usize,
    /// Longest sequence with a position embedding.
    pub max_position_embeddings: usize,
    /// Rows of the token type table, of which row 0 is used.
    pub type_vocab_size: usize,
    /// Rows of the word table.
    pub vocab_size: usize,
    /// Added to the variance in every layer norm.
    pub layer_norm_eps: f64,
    /// Must be `gelu`, the exact form.
    pub hidden_act: String,
    /// Must be `absolute`.
    pub position_embedding_type: String,
}

impl BertConfig {
    /// Reads and checks a `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Io`], [`ModelError::Parse`], or [`ModelError::Config`] naming the field.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(ModelError::io(path))?;
        let config: Self = serde_json::from_str(&text).map_err(ModelError::parse(path))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ModelError> {
        let refuse = |field, value: String, expected: &str| {
            Err(ModelError::Config {
                field,
                value,
                expected: expected.into(),
            })
        };
        for (field, value) in [
            ("hidden_size", self.hidden_size),
            ("num_attention_heads", self.num_attention_heads),
            ("type_vocab_size", self.type_vocab_size),
        ] {
            if value == 0 {
                return refuse(field, "0".into(), "at least 1");
            }
        }
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            let expected = format!(
                "a multiple of num_attention_heads {}",
                self.num_attention_heads
            );
            return refuse("hidden_size", self.hidden_size.to_string(), &expected);
        }
        if !(self.layer_norm_eps.is_finite() && self.layer_norm_eps >= 0.0) {
            return refuse(
                "layer_norm_eps",
                self.layer_norm_eps.to_string(),
                "finite, at least 0",
            );
        }
        if self.hidden_act != "gelu" {
            return refuse("hidden_act", self.hidden_act.clone(), "gelu");
        }
        if self.position_embedding_type != "absolute" {
            let value = self.position_embedding_type.clone();
            return refuse("position_embedding_type", value, "absolute");
        }
        Ok(())
    }
}
