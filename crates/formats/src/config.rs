//! What a checkpoint says about its quantization: `quantize_config.json`, `quant_config.json`, or
//! the `quantization_config` of `config.json`.

use std::path::Path;

use serde_json::Value;

use crate::error::FormatError;
use crate::gptq::V1Zeros;
use crate::packed::Format;

/// The tool family that wrote a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuantMethod {
    /// `gptq`, Marlin repacks included.
    Gptq,
    /// `awq`.
    Awq,
    /// `compressed-tensors`.
    CompressedTensors,
    /// `flashcube`: GPTQ v2 tensors, and divisors of the inputs ([`input_divisor`]) where linears
    /// have them. A method of its own, so that no reader without them takes it for GPTQ.
    ///
    /// [`input_divisor`]: crate::input_divisor
    Flashcube,
}

/// How weights are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Integers.
    Int(Format),
    /// compressed-tensors `nvfp4-pack-quantized`.
    Nvfp4,
    /// [`QuantizedLinear`](crate::QuantizedLinear)'s own tensors, of small floats: only with
    /// [`QuantMethod::Flashcube`], `checkpoint_format` is `tiles`.
    Tiles,
}

/// The quantization of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantConfig {
    /// `quant_method`.
    pub method: QuantMethod,
    /// Bits of a code.
    pub bits: u32,
    /// Rows per group; None for one group over all rows (-1, or the strategy `channel`).
    pub group_size: Option<usize>,
    /// GPTQ: rows were quantized in order of activation, so that g_idx is needed.
    pub desc_act: bool,
    /// Whether zero points are 2^(bits-1); None when the config is silent.
    pub sym: Option<bool>,
    /// How weights are packed, from `checkpoint_format`, `version` or `format`.
    pub packing: Packing,
    /// Modules left in float: `modules_to_not_convert` or `ignore`.
    pub ignore: Vec<String>,
}

impl QuantConfig {
    /// Reads a config file: either the quantization object itself or a `config.json` that holds
    /// one.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        let path = path.as_ref();
        let text = std::fs::read(path).map_err(FormatError::io(path))?;
        let json = serde_json::from_slice(&text)
            .map_err(|error| FormatError::corrupt(path, "quantization config", error))?;
        Self::from_json(&json)
    }

    /// Reads a parsed config.
    ///
    /// # Errors
    /// [`FormatError::Config`] naming the field that is missing or not understood.
    pub fn from_json(json: &Value) -> Result<Self, FormatError> {
        let json = json.get("quantization_config").unwrap_or(json);
        // AutoAWQ's own file has neither quant_method nor bits, but w_bit and a version.
        let method = match json.get("quant_method").and_then(Value::as_str) {
            Some("gptq" | "marlin") => QuantMethod::Gptq,
            Some("awq") => QuantMethod::Awq,
            Some("compressed-tensors") => QuantMethod::CompressedTensors,
            Some("flashcube") => QuantMethod::Flashcube,
            None if json.get("w_bit").is_some() => QuantMethod::Awq,
            None if json.get("bits").is_some() => QuantMethod::Gptq,
            _ => {
                return Err(bad(
                    json,
                    "quant_method",
                    "gptq, awq, compressed-tensors or flashcube",
                ));
            }
        };
        match method {
            QuantMethod::Gptq => Self::gptq(json),
            QuantMethod::Awq => Self::awq(json),
            QuantMethod::CompressedTensors => Self::compressed_tensors(json),
            QuantMethod::Flashcube
                if json.get("checkpoint_format").and_then(Value::as_str) == Some("tiles") =>
            {
                Ok(Self {
                    method,
                    bits: bits(json, "bits")?,
                    group_size: group(json, "group_size")?,
                    desc_act: false,
                    sym: flag(json, "sym")?,
                    packing: Packing::Tiles,
                    ignore: names(json, "modules_to_not_convert")?,
                })
            }
            QuantMethod::Flashcube => Ok(Self {
                method,
                packing: Packing::Int(Format::GptqV2),
                ..Self::gptq(json)?
            }),
        }
    }

    fn gptq(json: &Value) -> Result<Self, FormatError> {
        let bits = bits(json, "bits")?;
        let marlin = flag(json, "is_marlin_format")? == Some(true)
            || json.get("quant_method").and_then(Value::as_str) == Some("marlin");
        let field = if json.get("checkpoint_format").is_some() {
            "checkpoint_format"
        } else {
            "format"
        };
        let format = match json.get(field).and_then(Value::as_str) {
            _ if marlin => Format::Marlin,
            Some("gptq_v2") => Format::GptqV2,
            Some("marlin") => Format::Marlin,
            Some("gptq") => Format::GptqV1(V1Zeros::of_gptqmodel(bits)),
            None if json.get(field).is_none_or(Value::is_null) => {
                Format::GptqV1(V1Zeros::of_gptqmodel(bits))
            }
            _ => return Err(bad(json, field, "gptq, gptq_v2 or marlin")),
        };
        Ok(Self {
            method: QuantMethod::Gptq,
            bits,
            group_size: group(json, "group_size")?,
            desc_act: flag(json, "desc_act")?.unwrap_or(false),
            sym: flag(json, "sym")?,
            packing: Packing::Int(format),
            ignore: names(json, "modules_to_not_convert")?,
        })
    }

    fn awq(json: &Value) -> Result<Self, FormatError> {
        let (bits_field, group_field) = match json.get("w_bit") {
            Some(_) => ("w_bit", "q_group_size"),
            None => ("bits", "group_size"),
        };
        let version = json
            .get("version")
            .and_then(Value::as_str)
            .map(str::to_ascii_lowercase);
        let format = match version.as_deref() {
            Some("gemm") => Format::AwqGemm,
            Some("gemv") => Format::AwqGemv,
            None if json.get("version").is_none_or(Value::is_null) => Format::AwqGemm,
            _ => return Err(bad(json, "version", "gemm or gemv")),
        };
        Ok(Self {
            method: QuantMethod::Awq,
            bits: bits(json, bits_field)?,
            group_size: group(json, group_field)?,
            desc_act: false,
            sym: flag(json, "zero_point")?.map(|zero_point| !zero_point),
            packing: Packing::Int(format),
            ignore: names(json, "modules_to_not_convert")?,
        })
    }

    /// Every group of layers must ask for the same weights: one config describes one packing.
    fn compressed_tensors(json: &Value) -> Result<Self, FormatError> {
        let groups = json.get("config_groups").and_then(Value::as_object);
        let weights: Vec<&Value> = groups
            .into_iter()
            .flatten()
            .filter_map(|(_, group)| group.get("weights"))
            .collect();
        let Some(&first) = weights.first() else {
            return Err(bad(
                json,
                "config_groups",
                "at least one group with weights",
            ));
        };
        if weights.iter().any(|other| {
            ["num_bits", "group_size", "strategy", "symmetric", "type"]
                .iter()
                .any(|key| other.get(key) != first.get(key))
        }) {
            return Err(bad(
                json,
                "config_groups",
                "groups that quantize weights alike",
            ));
        }
        let packing = match json.get("format").and_then(Value::as_str) {
            Some("pack-quantized") => Packing::Int(Format::CompressedTensors),
            Some("nvfp4-pack-quantized") => Packing::Nvfp4,
            _ => {
                return Err(bad(
                    json,
                    "format",
                    "pack-quantized or nvfp4-pack-quantized",
                ));
            }
        };
        let group_size = match first.get("strategy").and_then(Value::as_str) {
            Some("channel") => None,
            Some("group" | "tensor_group") | None => group(first, "group_size")?,
            _ => return Err(bad(first, "strategy", "group, channel or tensor_group")),
        };
        Ok(Self {
            method: QuantMethod::CompressedTensors,
            bits: bits(first, "num_bits")?,
            group_size,
            desc_act: first.get("actorder").and_then(Value::as_str) == Some("group"),
            sym: flag(first, "symmetric")?,
            packing,
            ignore: names(json, "ignore")?,
        })
    }
}

fn bad(json: &Value, field: &str, expected: &'static str) -> FormatError {
    let found = json
        .get(field)
        .map_or_else(|| "missing".to_owned(), Value::to_string);
    FormatError::Config {
        field: field.to_owned(),
        found,
        expected,
    }
}

fn bits(json: &Value, field: &str) -> Result<u32, FormatError> {
    match json.get(field).and_then(Value::as_u64) {
        Some(bits @ (2 | 3 | 4 | 8)) => Ok(bits as u32),
        _ => Err(bad(json, field, "2, 3, 4 or 8")),
    }
}

fn group(json: &Value, field: &str) -> Result<Option<usize>, FormatError> {
    let value = json.get(field).and_then(Value::as_i64);
    match value {
        Some(-1) => Ok(None),
        Some(size) if size > 0 => usize::try_from(size)
            .map(Some)
            .map_err(|_| bad(json, field, "a group size")),
        _ => Err(bad(json, field, "-1 or a positive number")),
    }
}

fn flag(json: &Value, field: &str) -> Result<Option<bool>, FormatError> {
    match json.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(_) => Err(bad(json, field, "true or false")),
    }
}

fn names(json: &Value, field: &str) -> Result<Vec<String>, FormatError> {
    let refuse = || bad(json, field, "a list of module names");
    match json.get(field) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list
            .iter()
            .map(|name| name.as_str().map(str::to_owned).ok_or_else(refuse))
            .collect(),
        Some(_) => Err(refuse()),
    }
}
