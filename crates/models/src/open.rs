use std::path::{Path, PathBuf};

use flashcube_formats::{Checkpoint, QuantConfig};
use serde_json::Value;

use crate::weights::{QuantizedCheckpoint, Weights};
use crate::{
    Architecture, BertConfig, GgufModel, Llama, LlamaConfig, MakeLinear, ModelError, Tokenizer,
    dense,
};

/// A model on disk: a folder with `config.json`, `tokenizer.json` and safetensors, float or
/// quantized, or a GGUF file.
pub struct Model {
    /// Where it was opened.
    pub path: PathBuf,
    /// What kind of model it is.
    pub family: Family,
    /// Its `config.json`, without a quantization.
    pub config: Value,
    /// Its words.
    pub tokenizer: Tokenizer,
    /// Its tensors.
    pub source: Source,
}

/// The kinds of models that run here.
#[derive(Debug, Clone)]
pub enum Family {
    /// An encoder.
    Bert(BertConfig),
    /// A decoder.
    Llama(LlamaConfig),
}

/// Where the tensors lie.
#[derive(Debug)]
pub enum Source {
    /// Floats in safetensors.
    Floats(Checkpoint),
    /// Quantized linears in safetensors.
    Quantized(QuantizedCheckpoint),
    /// A GGUF file.
    Gguf(GgufModel),
}

impl Model {
    /// Opens a folder or a `.gguf` file.
    ///
    /// # Errors
    /// [`ModelError::Io`] and [`ModelError::Parse`] for its files, [`ModelError::Format`] for its
    /// tensors, [`ModelError::Config`] for a `model_type` other than `bert` and `llama` and for
    /// fields that these cannot run with.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        if path
            .extension()
            .is_some_and(|extension| extension == "gguf")
        {
            let gguf = GgufModel::open(path)?;
            return Ok(Self {
                path: path.to_owned(),
                family: Family::Llama(gguf.config().clone()),
                config: gguf.config().to_json(),
                tokenizer: Tokenizer::from_gguf(&gguf)?,
                source: Source::Gguf(gguf),
            });
        }
        let file = path.join("config.json");
        let text = std::fs::read(&file).map_err(ModelError::io(&file))?;
        let mut config: Value = serde_json::from_slice(&text).map_err(ModelError::parse(&file))?;
        let family = match config["model_type"].as_str() {
            Some("bert") => Family::Bert(BertConfig::open(&file)?),
            Some("llama") => Family::Llama(LlamaConfig::open(&file)?),
            _ => {
                return Err(ModelError::Config {
                    field: "model_type",
                    value: config["model_type"].to_string(),
                    expected: "bert or llama".to_owned(),
                });
            }
        };
        let checkpoint = Checkpoint::open(path)?;
        let quantization = config
            .as_object_mut()
            .and_then(|c| c.remove("quantization_config"));
        let source = match quantization {
            Some(json) => {
                let config = QuantConfig::from_json(&json)?;
                Source::Quantized(QuantizedCheckpoint::new(checkpoint, config))
            }
            None => Source::Floats(checkpoint),
        };
        Ok(Self {
            path: path.to_owned(),
            family,
            config,
            tokenizer: Tokenizer::open(path.join("tokenizer.json"))?,
            source,
        })
    }

    /// Its tensors in f32, linears dequantized.
    pub fn weights(&self) -> &dyn Weights {
        match &self.source {
            Source::Floats(checkpoint) => checkpoint,
            Source::Quantized(checkpoint) => checkpoint,
            Source::Gguf(gguf) => gguf,
        }
    }

    /// The quantized checkpoint, if it is one.
    pub fn quantized(&self) -> Option<&QuantizedCheckpoint> {
        match &self.source {
            Source::Quantized(checkpoint) => Some(checkpoint),
            _ => None,
        }
    }

    /// Its blocks.
    pub fn architecture(&self) -> &dyn Architecture {
        match &self.family {
            Family::Bert(config) => config,
            Family::Llama(config) => config,
        }
    }

    /// The decoder, its linears made by `linear`, or in floats.
    ///
    /// # Errors
    /// [`ModelError::Config`] for an encoder, those of [`Llama::load`].
    pub fn decoder(&self, linear: Option<&MakeLinear<'_>>) -> Result<Llama, ModelError> {
        let Family::Llama(config) = &self.family else {
            return Err(ModelError::Config {
                field: "model_type",
                value: "bert".to_owned(),
                expected: "a decoder: llama".to_owned(),
            });
        };
        let weights = self.weights();
        let floats = |prefix: &str, inputs, outputs| dense(weights, prefix, inputs, outputs);
        Llama::load(config.clone(), weights, linear.unwrap_or(&floats))
    }
}
