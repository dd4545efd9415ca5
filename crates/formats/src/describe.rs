//! What a checkpoint says about itself, written: the opposite of [`QuantConfig::from_json`].

use serde_json::{Value, json};

use crate::config::{Packing, QuantConfig, QuantMethod};
use crate::packed::Format;

impl QuantConfig {
    /// The `quantization_config` of a `config.json`, with the fields that the format's own readers
    /// ask for.
    pub fn to_json(&self) -> Value {
        match self.method {
            QuantMethod::Gptq | QuantMethod::Flashcube => self.gptq_json(),
            QuantMethod::Awq => self.awq_json(),
            QuantMethod::CompressedTensors => self.compressed_tensors_json(),
        }
    }

    /// -1 for one group over all rows.
    fn group_json(&self) -> Value {
        self.group_size.map_or(json!(-1), |group| json!(group))
    }

    fn gptq_json(&self) -> Value {
        let (format, marlin) = match self.packing {
            Packing::Int(Format::GptqV2) => ("gptq_v2", false),
            Packing::Tiles => ("tiles", false),
            Packing::Int(Format::Marlin) => ("marlin", true),
            _ => ("gptq", false),
        };
        let method = match self.method {
            QuantMethod::Flashcube => "flashcube",
            _ => "gptq",
        };
        json!({
            "quant_method": method,
            "bits": self.bits,
            "group_size": self.group_json(),
            "desc_act": self.desc_act,
            "sym": self.sym.unwrap_or(true),
            "lm_head": false,
            "checkpoint_format": format,
            "is_marlin_format": marlin,
            "modules_to_not_convert": self.ignore,
        })
    }

    fn awq_json(&self) -> Value {
        let version = match self.packing {
            Packing::Int(Format::AwqGemv) => "gemv",
            _ => "gemm",
        };
        json!({
            "quant_method": "awq",
            "bits": self.bits,
            "group_size": self.group_json(),
            "zero_point": !self.sym.unwrap_or(false),
            "version": version,
            "modules_to_not_convert": self.ignore,
        })
    }

    fn compressed_tensors_json(&self) -> Value {
        let float = self.packing == Packing::Nvfp4;
        let strategy = match (float, self.group_size) {
            (true, _) => "tensor_group",
            (false, Some(_)) => "group",
            (false, None) => "channel",
        };
        let weights = json!({
            "num_bits": self.bits,
            "type": if float { "float" } else { "int" },
            "symmetric": self.sym.unwrap_or(true),
            "strategy": strategy,
            "group_size": self.group_size,
            "actorder": if self.desc_act { json!("group") } else { Value::Null },
            "dynamic": false,
            "observer": "minmax",
        });
        json!({
            "quant_method": "compressed-tensors",
            "format": if float { "nvfp4-pack-quantized" } else { "pack-quantized" },
            "quantization_status": "compressed",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": weights,
                    "input_activations": null,
                    "output_activations": null,
                },
            },
            "ignore": self.ignore,
        })
    }
}
