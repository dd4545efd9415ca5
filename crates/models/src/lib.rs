//! Small real models on the host, with their attention left to the caller.
//!
//! [`Bert`] runs everything but the attention itself; each layer hands an [`AttentionCall`] to a
//! closure, which may be a kernel, the reference, or both. The linear parts are generic over
//! [`Real`], so the f32 run and its f64 reference are the same code.

use std::path::PathBuf;

mod architecture;
mod attention;
mod bert;
mod config;
mod error;
mod generate;
mod gguf;
mod layers;
mod llama;
mod llama_config;
mod open;
mod perplexity;
mod real;
mod tokenizer;
mod weights;

#[cfg(feature = "demo")]
pub mod demo;

pub use architecture::{Architecture, Attend, Block, Fold, LinearShape, Observe, Stage};
pub use attention::AttentionCall;
pub use bert::Bert;
pub use config::BertConfig;
pub use error::ModelError;
pub use generate::{Generator, Sampler};
pub use gguf::GgufModel;
pub use layers::{Dense, LayerNorm, Linear, RmsNorm, gelu, silu_multiply};
pub use llama::{Llama, MakeLinear, dense};
pub use llama_config::LlamaConfig;
pub use open::{Family, Model, Source};
pub use perplexity::{Perplexity, perplexity};
pub use real::Real;
pub use tokenizer::{TokenBatch, Tokenizer, Truncation};
pub use weights::{Overlay, QuantizedCheckpoint, Weights};

/// Where models and tools lie: `$XDG_DATA_HOME/flashcube`, else `~/.local/share/flashcube`.
pub fn data_dir() -> PathBuf {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    absolute("XDG_DATA_HOME")
        .or_else(|| std::env::home_dir().map(|home| home.join(".local/share")))
        .unwrap_or_default()
        .join("flashcube")
}

/// Folder of the MiniLM sentence model: `model.safetensors`, `tokenizer.json`, `config.json`.
pub fn minilm_dir() -> PathBuf {
    data_dir().join("minilm")
}

/// The SmolLM2 text model, one GGUF file.
pub fn smollm2_file() -> PathBuf {
    data_dir().join("smollm2").join("model.gguf")
}

/// Folder of the calibration texts: `wiki.txt`, `web.txt`, `stories.txt`, `code.txt`.
pub fn texts_dir() -> PathBuf {
    data_dir().join("texts")
}
