use std::collections::BTreeMap;
use std::path::Path;

use flashcube_formats::{FormatError, Gguf, GgufTensor, GgufValue, IntWeights};

use crate::weights::{Weights, check_shape};
use crate::{LlamaConfig, ModelError};

/// A Llama in a GGUF file, its tensors under the names and in the row order of safetensors
/// checkpoints.
#[derive(Debug)]
pub struct GgufModel {
    gguf: Gguf,
    config: LlamaConfig,
    /// Checkpoint name -> name in the file.
    names: BTreeMap<String, String>,
}

/// Parts of a block: name in the file, name in checkpoints.
const PARTS: [(&str, &str); 9] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

impl GgufModel {
    /// Opens a file whose architecture is `llama`.
    ///
    /// # Errors
    /// [`ModelError::Format`] for a damaged file, [`ModelError::Config`] for metadata that is
    /// missing or not understood, and for a tensor that such a model does not have.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let gguf = Gguf::open(path)?;
        let config = LlamaConfig::from_gguf(&gguf)?;
        let mut names = BTreeMap::new();
        for name in gguf.names() {
            let known = checkpoint_name(name).ok_or_else(|| ModelError::Config {
                field: "tensor",
                value: name.to_owned(),
                expected: "the tensors of a Llama".to_owned(),
            })?;
            names.insert(known, name.to_owned());
        }
        Ok(Self {
            gguf,
            config,
            names,
        })
    }

    /// The shape of the model.
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// The file.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    fn stored(&self, name: &str) -> Result<GgufTensor<'_>, ModelError> {
        let own = self
            .names
            .get(name)
            .ok_or_else(|| FormatError::MissingTensor {
                tensor: name.to_owned(),
                path: self.gguf.path().to_owned(),
            })?;
        Ok(self.gguf.tensor(own)?)
    }

    /// The heads whose rows the file keeps in another order than checkpoints do.
    fn rotated_heads(&self, name: &str) -> Option<usize> {
        let config = &self.config;
        match name {
            _ if name.contains("self_attn.q_proj") => Some(config.num_attention_heads),
            _ if name.contains("self_attn.k_proj") => Some(config.num_key_value_heads),
            _ => None,
        }
    }

    /// The linear `prefix` in codes and scales as the file has them: exact.
    ///
    /// # Errors
    /// [`ModelError::Format`] for a tensor that is missing or of floats.
    pub fn int_weights(&self, prefix: &str) -> Result<IntWeights, ModelError> {
        let name = format!("{prefix}.weight");
        let mut weights = self.stored(&name)?.blocks()?.to_int_weights()?;
        if let Some(heads) = self.rotated_heads(&name) {
            let n = weights.shape.n;
            let rows = unpaired_rows(heads, self.config.head_dim);
            let order: Vec<usize> = rows.collect();
            check_shape(&name, &[n], &[order.len()])?;
            fn sorted<T: Copy>(values: &[T], order: &[usize]) -> Vec<T> {
                let rows = values.chunks_exact(order.len().max(1));
                rows.flat_map(|row| order.iter().map(|&at| row[at]))
                    .collect()
            }
            weights.codes = sorted(&weights.codes, &order);
            weights.scales = sorted(&weights.scales, &order);
            weights.minima = weights.minima.map(|minima| sorted(&minima, &order));
        }
        Ok(weights)
    }

    /// A metadata value that is a list of texts.
    pub(crate) fn texts(&self, key: &'static str) -> Result<Vec<&str>, ModelError> {
        fn text(value: &GgufValue) -> Option<&str> {
            match value {
                GgufValue::Text(text) => Some(text),
                _ => None,
            }
        }
        let list = match self.gguf.metadata().get(key) {
            Some(GgufValue::Array(list)) => list.iter().map(text).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        list.ok_or_else(|| ModelError::Config {
            field: key,
            value: "missing or of another type".to_owned(),
            expected: "a list of texts".to_owned(),
        })
    }
}

fn checkpoint_name(name: &str) -> Option<String> {
    match name {
        "token_embd.weight" => return Some("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => return Some("model.norm.weight".to_owned()),
        "output.weight" => return Some("lm_head.weight".to_owned()),
        _ => {}
    }
    let (block, part) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, suffix) = part.split_once('.')?;
    let index: usize = block.parse().ok()?;
    let (_, part) = PARTS.iter().find(|(own, _)| *own == part)?;
    Some(format!("model.layers.{index}.{part}.{suffix}"))
}

impl Weights for GgufModel {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let tensor = self.stored(name)?;
        check_shape(name, tensor.shape, shape)?;
        let values = tensor.to_f32()?;
        match self.rotated_heads(name) {
            Some(heads) => Ok(unpaired(&values, heads, self.config.head_dim)),
            None => Ok(values),
        }
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let tensor = self.gguf.tensor(self.names.get(name)?).ok()?;
        Some(tensor.shape.to_vec())
    }

    fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }
}

/// GGUF keeps the two rows that a rotary angle turns side by side, checkpoints keep them half a
/// head apart: [heads, d/2, 2, k] -> [heads, 2, d/2, k].
fn unpaired(values: &[f32], heads: usize, d: usize) -> Vec<f32> {
    let k = values.len().checked_div(heads * d).unwrap_or(0);
    unpaired_rows(heads, d)
        .flat_map(|row| &values[row * k..(row + 1) * k])
        .copied()
        .collect()
}

/// Where the file keeps the rows of a checkpoint.
fn unpaired_rows(heads: usize, d: usize) -> impl Iterator<Item = usize> {
    (0..heads).flat_map(move |head| {
        (0..2).flat_map(move |part| (0..d / 2).map(move |i| head * d + 2 * i + part))
    })
}
