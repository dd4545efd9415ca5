//! Parts of a checkpoint, put together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flashcube_formats::{
    Checkpoint, Packing, QuantConfig, QuantMethod, TensorData, save, save_json, save_sharded_views,
    save_views,
};
use flashcube_models::{Model, Source, Weights};

use crate::error::QuantizeError;

/// A checkpoint in the making.
pub(super) struct Assembly<'a> {
    pub(super) model: &'a Model,
    pub(super) out: &'a Path,
    pub(super) shard_bytes: usize,
}

impl Assembly<'_> {
    /// Writes the tensors of `parts` and those that the model has outside its blocks, which go
    /// through the file `outer`; then tokenizer and configurations, `config.json` last, which makes
    /// the folder a model. `config` is told the linears that stay in floats, and gives None for a
    /// model that is floats throughout. The bytes of all tensors.
    pub(super) fn write(
        &self,
        mut parts: Vec<PathBuf>,
        outer: &Path,
        config: impl FnOnce(Vec<String>) -> Option<QuantConfig>,
    ) -> Result<u64, QuantizeError> {
        let ignored = self.write_outer(outer)?;
        parts.insert(0, outer.to_owned());
        let parts: Vec<Checkpoint> = parts
            .iter()
            .map(Checkpoint::open)
            .collect::<Result<_, _>>()?;
        let mut views = Vec::new();
        for part in &parts {
            for name in part.names() {
                views.push(part.tensor(name)?);
            }
        }
        let bytes = views.iter().map(|view| view.bytes.len()).sum::<usize>();
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        if bytes <= self.shard_bytes {
            save_views(self.out.join("model.safetensors"), views, &metadata)?;
        } else {
            save_sharded_views(self.out, views, &metadata, self.shard_bytes)?;
        }
        self.describe(config(ignored))?;
        Ok(bytes as u64)
    }

    /// The tensors outside the blocks, and which of them are linears.
    fn write_outer(&self, file: &Path) -> Result<Vec<String>, QuantizeError> {
        let architecture = self.model.architecture();
        let prefix = |block| architecture.prefix(block);
        let prefixes: Vec<String> = (0..architecture.blocks()).map(prefix).collect();
        let mut tensors = BTreeMap::new();
        let mut linears = Vec::new();
        for name in self.model.weights().names() {
            if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            if let Some(module @ ("lm_head" | "pooler.dense")) = name.strip_suffix(".weight") {
                linears.push(module.to_owned());
            }
            let tensor = unchanged(self.model, &name)?;
            tensors.insert(name, tensor);
        }
        save(file, &tensors, &BTreeMap::new())?;
        Ok(linears)
    }

    fn describe(&self, config: Option<QuantConfig>) -> Result<(), QuantizeError> {
        self.model.tokenizer.save(self.out.join("tokenizer.json"))?;
        let mut whole = self.model.config.clone();
        if let Some(config) = config {
            let quantization = config.to_json();
            if config.method == QuantMethod::Gptq && config.packing != Packing::Nvfp4 {
                save_json(self.out.join("quantize_config.json"), &quantization)?;
            }
            whole["quantization_config"] = quantization;
        }
        Ok(save_json(self.out.join("config.json"), &whole)?)
    }
}

/// A tensor as the model has it, in its own type.
pub(super) fn unchanged(model: &Model, name: &str) -> Result<TensorData, QuantizeError> {
    let checkpoint = match &model.source {
        Source::Floats(checkpoint) => checkpoint,
        Source::Quantized(quantized) => quantized.checkpoint(),
        Source::Gguf(_) => return float_tensor(model.weights(), name),
    };
    match checkpoint.optional(name)? {
        Some(view) => Ok(TensorData::from_bytes(
            view.dtype,
            view.shape,
            view.bytes.to_vec(),
        )?),
        None => float_tensor(model.weights(), name),
    }
}

/// A tensor in f32.
pub(super) fn float_tensor(weights: &dyn Weights, name: &str) -> Result<TensorData, QuantizeError> {
    let shape = weights.shape(name).unwrap_or_default();
    let values = weights.tensor(name, &shape)?;
    Ok(TensorData::new(&shape, &values)?)
}
