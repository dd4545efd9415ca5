use std::collections::BTreeMap;
use std::path::Path;

use flashcube_formats::{
    PackedLinear, Packing, QuantConfig, input_divisor, input_divisor_tensor, save,
};
use flashcube_models::{Model, QuantizedCheckpoint};

use super::assembly::{Assembly, float_tensor, unchanged};
use super::options::Target;
use crate::error::QuantizeError;

/// Writes a quantized checkpoint in another format: codes, scales and zero points stay what they
/// are, bit for bit. The bytes of the tensors written.
///
/// # Errors
/// [`QuantizeError::Unsupported`] for a model that is not quantized or an NVFP4 one,
/// [`QuantizeError::CannotFold`] for divisors of inputs that the new format has no place for,
/// [`QuantizeError::Format`] for what it cannot hold otherwise.
pub fn convert_model(
    model: &Model,
    out: &Path,
    target: Target,
    shard_bytes: usize,
) -> Result<u64, QuantizeError> {
    let refuse = |value: &str| {
        let limit = "integer-quantized checkpoints and formats";
        QuantizeError::unsupported("conversion", value, limit)
    };
    let Some(source) = model.quantized() else {
        return Err(refuse("of a model that is not quantized"));
    };
    let Packing::Int(format) = target.packing else {
        return Err(refuse("to nvfp4"));
    };
    if source.config().packing == Packing::Nvfp4 {
        return Err(refuse("of nvfp4"));
    }
    std::fs::create_dir_all(out).map_err(QuantizeError::io(out))?;
    let work = out.join("unfinished");
    std::fs::create_dir_all(&work).map_err(QuantizeError::io(&work))?;
    let architecture = model.architecture();
    let mut parts = Vec::new();
    for block in 0..architecture.blocks() {
        let mut tensors = BTreeMap::new();
        let prefix = architecture.prefix(block);
        let names = source.linears();
        for linear in names.iter().filter(|name| name.starts_with(&prefix)) {
            let weights = source.packed(linear)?.unpack()?;
            if let Some(divisor) = input_divisor(source.checkpoint(), linear, weights.shape.k)? {
                if !target.holds_divisors() {
                    return Err(QuantizeError::CannotFold {
                        linear: linear.clone(),
                        format: target.name().to_owned(),
                    });
                }
                tensors.extend([input_divisor_tensor(linear, &divisor)?]);
            }
            tensors.extend(PackedLinear::pack(&weights, format)?.tensors(linear)?);
        }
        for name in source
            .checkpoint()
            .names()
            .filter(|name| name.starts_with(&prefix))
        {
            if !is_part_of_a_linear(source, name) {
                tensors.insert(name.to_owned(), unchanged(model, name)?);
            }
        }
        let part = work.join(format!("block-{block:04}.safetensors"));
        save(&part, &tensors, &BTreeMap::new())?;
        parts.push(part);
    }
    let assembly = Assembly {
        model,
        out,
        shard_bytes,
    };
    let config = |ignored: Vec<String>| {
        Some(QuantConfig {
            method: target.method,
            packing: target.packing,
            ignore: ignored,
            ..source.config().clone()
        })
    };
    let bytes = assembly.write(parts, &work.join("outer.safetensors"), config)?;
    std::fs::remove_dir_all(&work).map_err(QuantizeError::io(&work))?;
    Ok(bytes)
}

/// Writes a model, whatever form it has, as plain f32 safetensors. The bytes of the tensors.
///
/// # Errors
/// [`QuantizeError::Model`] for tensors that cannot be read, [`QuantizeError::Io`].
pub fn dequantize_model(
    model: &Model,
    out: &Path,
    shard_bytes: usize,
) -> Result<u64, QuantizeError> {
    std::fs::create_dir_all(out).map_err(QuantizeError::io(out))?;
    let work = out.join("unfinished");
    std::fs::create_dir_all(&work).map_err(QuantizeError::io(&work))?;
    let architecture = model.architecture();
    let names = model.weights().names();
    let mut parts = Vec::new();
    for block in 0..architecture.blocks() {
        let prefix = architecture.prefix(block);
        let mut tensors = BTreeMap::new();
        for name in names.iter().filter(|name| name.starts_with(&prefix)) {
            tensors.insert(name.clone(), float_tensor(model.weights(), name)?);
        }
        let part = work.join(format!("block-{block:04}.safetensors"));
        save(&part, &tensors, &BTreeMap::new())?;
        parts.push(part);
    }
    let assembly = Assembly {
        model,
        out,
        shard_bytes,
    };
    let bytes = assembly.write(parts, &work.join("outer.safetensors"), |_| None)?;
    std::fs::remove_dir_all(&work).map_err(QuantizeError::io(&work))?;
    Ok(bytes)
}

/// Whether a tensor is one of those that a packed linear consists of; its bias is not.
fn is_part_of_a_linear(source: &QuantizedCheckpoint, name: &str) -> bool {
    let prefix = name.rsplit_once('.').map(|(prefix, _)| prefix);
    prefix.is_some_and(|prefix| source.is_packed(prefix)) && !name.ends_with(".bias")
}
