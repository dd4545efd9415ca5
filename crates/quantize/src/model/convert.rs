use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use flashcube_formats::{
    Format, IntWeights, PackedLinear, Packing, QuantConfig, QuantMethod, input_divisor,
    input_divisor_tensor, save,
};
use flashcube_models::{Model, Source};

use super::assembly::{Assembly, float_tensor, unchanged};
use super::options::Target;
use crate::error::QuantizeError;

/// Writes a quantized checkpoint, or a GGUF file of Q4_0 or Q8_0 blocks, in another format: codes,
/// scales and zero points stay what they are, bit for bit. The bytes of the tensors written.
///
/// # Errors
/// [`QuantizeError::Unsupported`] for a model that is not quantized or an NVFP4 one, and for a GGUF
/// file whose linears are not all of one type; [`QuantizeError::Model`] for GGUF types that are no
/// integers; [`QuantizeError::CannotFold`] for divisors of inputs that the new format has no place for;
/// [`QuantizeError::Format`] for what it cannot hold otherwise: minima (Q4_1), which no format but GGUF has.
pub fn convert_model(
    model: &Model,
    out: &Path,
    target: Target,
    shard_bytes: usize,
) -> Result<u64, QuantizeError> {
    let Packing::Int(format) = target.packing else {
        return Err(refuse("to nvfp4"));
    };
    let described = described(model)?;
    std::fs::create_dir_all(out).map_err(QuantizeError::io(out))?;
    let work = out.join("unfinished");
    std::fs::create_dir_all(&work).map_err(QuantizeError::io(&work))?;
    let architecture = model.architecture();
    let mut parts = Vec::new();
    for block in 0..architecture.blocks() {
        let mut tensors = BTreeMap::new();
        let mut weights_of = HashSet::new();
        for linear in linears(model, block) {
            let (weights, divisor) = int_linear(model, &linear)?;
            if let Some(divisor) = divisor {
                if !target.holds_divisors() {
                    return Err(QuantizeError::CannotFold {
                        linear,
                        format: target.name().to_owned(),
                    });
                }
                tensors.extend([input_divisor_tensor(&linear, &divisor)?]);
            }
            tensors.extend(PackedLinear::pack(&weights, format)?.tensors(&linear)?);
            weights_of.insert(format!("{linear}.weight"));
        }
        let prefix = architecture.prefix(block);
        for name in model.weights().names() {
            if name.starts_with(&prefix) && !weights_of.contains(&name) {
                let tensor = unchanged(model, &name)?;
                tensors.insert(name, tensor);
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
            ..described
        })
    };
    let bytes = assembly.write(parts, &work.join("outer.safetensors"), config)?;
    std::fs::remove_dir_all(&work).map_err(QuantizeError::io(&work))?;
    Ok(bytes)
}

fn refuse(value: &str) -> QuantizeError {
    let limit = "integer-quantized checkpoints and formats, GGUF files of Q4_0 or of Q8_0";
    QuantizeError::unsupported("conversion", value, limit)
}

/// What the source says of its integers, or those of a GGUF file: all of one type.
fn described(model: &Model) -> Result<QuantConfig, QuantizeError> {
    let gguf = match &model.source {
        Source::Floats(_) => return Err(refuse("of a model that is not quantized")),
        Source::Quantized(source) if source.config().packing == Packing::Nvfp4 => {
            return Err(refuse("of nvfp4"));
        }
        Source::Quantized(source) if source.config().packing == Packing::Tiles => {
            return Err(refuse("of small floats"));
        }
        Source::Quantized(source) => return Ok(source.config().clone()),
        Source::Gguf(gguf) => gguf,
    };
    let mut bits = None;
    for linear in (0..model.architecture().blocks()).flat_map(|block| linears(model, block)) {
        let shape = gguf.int_weights(&linear)?.shape;
        if bits.is_some_and(|bits| bits != shape.bits) {
            return Err(refuse("of linears in both Q4_0 and Q8_0"));
        }
        bits = Some(shape.bits);
    }
    Ok(QuantConfig {
        method: QuantMethod::Gptq,
        bits: bits.unwrap_or(4),
        group_size: Some(32),
        desc_act: false,
        sym: Some(true),
        packing: Packing::Int(Format::GptqV2),
        ignore: Vec::new(),
    })
}

/// The linears of a block that are integers in the source.
fn linears(model: &Model, block: usize) -> Vec<String> {
    let architecture = model.architecture();
    match model.quantized() {
        Some(source) => {
            let prefix = architecture.prefix(block);
            let names = source.linears().into_iter();
            names.filter(|name| name.starts_with(&prefix)).collect()
        }
        None => {
            let stages = architecture.stages(block);
            let linears = stages.into_iter().flat_map(|stage| stage.linears);
            linears.map(|linear| linear.name).collect()
        }
    }
}

/// A linear's integers, and the divisor of its input where it has one.
fn int_linear(
    model: &Model,
    linear: &str,
) -> Result<(IntWeights, Option<Vec<f32>>), QuantizeError> {
    match &model.source {
        Source::Floats(_) => Err(refuse("of a model that is not quantized")),
        Source::Quantized(source) => {
            let weights = source.packed(linear)?.unpack()?;
            let divisor = input_divisor(source.checkpoint(), linear, weights.shape.k)?;
            Ok((weights, divisor))
        }
        Source::Gguf(gguf) => Ok((gguf.int_weights(linear)?, None)),
    }
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
