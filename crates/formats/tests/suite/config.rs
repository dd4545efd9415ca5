//! Quantization configs as the tools of the field write them.

use flashcube_formats::*;
use serde_json::json;

#[test]
fn configs_of_the_field_are_understood() {
    let gptq =
        json!({"bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": true, "sym": true});
    let read = QuantConfig::from_json(&gptq).unwrap();
    assert_eq!(read.method, QuantMethod::Gptq);
    assert_eq!(read.packing, Packing::Int(Format::GptqV1(V1Zeros::Word)));
    assert_eq!(
        (read.bits, read.group_size, read.desc_act, read.sym),
        (4, Some(128), true, Some(true))
    );

    let inside = json!({"model_type": "llama", "quantization_config":
        {"quant_method": "gptq", "bits": 3, "group_size": -1, "checkpoint_format": "gptq_v2", "sym": false}});
    let read = QuantConfig::from_json(&inside).unwrap();
    assert_eq!(
        (read.packing, read.group_size),
        (Packing::Int(Format::GptqV2), None)
    );

    let three =
        json!({"quant_method": "gptq", "bits": 3, "group_size": 32, "checkpoint_format": "gptq"});
    let read = QuantConfig::from_json(&three).unwrap();
    assert_eq!(read.packing, Packing::Int(Format::GptqV1(V1Zeros::Field)));

    for marlin in [
        json!({"checkpoint_format": "marlin"}),
        json!({"is_marlin_format": true}),
        json!({"quant_method": "marlin"}),
    ] {
        let mut config = json!({"bits": 4, "group_size": 128});
        config
            .as_object_mut()
            .unwrap()
            .extend(marlin.as_object().unwrap().clone());
        assert_eq!(
            QuantConfig::from_json(&config).unwrap().packing,
            Packing::Int(Format::Marlin)
        );
    }

    let own_file = json!({"zero_point": true, "q_group_size": 64, "w_bit": 4, "version": "GEMV"});
    let read = QuantConfig::from_json(&own_file).unwrap();
    assert_eq!(
        (read.method, read.packing),
        (QuantMethod::Awq, Packing::Int(Format::AwqGemv))
    );
    assert_eq!((read.group_size, read.sym), (Some(64), Some(false)));

    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "modules_to_not_convert": ["lm_head"]});
    let read = QuantConfig::from_json(&awq).unwrap();
    assert_eq!(read.packing, Packing::Int(Format::AwqGemm));
    assert_eq!(read.ignore, ["lm_head"]);
}

#[test]
fn config_errors_name_field_and_value() {
    let message = |config| QuantConfig::from_json(&config).unwrap_err().to_string();
    let start = |config| {
        message(config)
            .split(", expected")
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        start(json!({})),
        "quantization config field `quant_method` is missing"
    );
    assert_eq!(
        start(json!({"quant_method": "hqq"})),
        "quantization config field `quant_method` is \"hqq\""
    );
    assert_eq!(
        start(json!({"bits": 5, "group_size": 32})),
        "quantization config field `bits` is 5"
    );
    assert_eq!(
        start(json!({"bits": 4})),
        "quantization config field `group_size` is missing"
    );
    assert_eq!(
        start(json!({"bits": 4, "group_size": 0})),
        "quantization config field `group_size` is 0"
    );
    assert_eq!(
        start(json!({"bits": 4, "group_size": 8, "sym": 1})),
        "quantization config field `sym` is 1"
    );
    let unknown = json!({"bits": 4, "group_size": 8, "checkpoint_format": "gptq_p"});
    assert_eq!(
        start(unknown),
        "quantization config field `checkpoint_format` is \"gptq_p\""
    );
    let fast = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv_fast"});
    assert_eq!(
        start(fast),
        "quantization config field `version` is \"gemv_fast\""
    );
    let empty = json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}});
    assert_eq!(
        start(empty),
        "quantization config field `config_groups` is {}"
    );
    let group =
        |bits: u32| json!({"weights": {"num_bits": bits, "group_size": 32, "strategy": "group"}});
    let mixed = json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": group(4), "group_1": group(8)}});
    assert!(message(mixed).contains("groups that quantize weights alike"));
}

#[test]
fn config_file_is_read_and_a_broken_one_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quantize_config.json");
    assert!(matches!(
        QuantConfig::open(&path),
        Err(FormatError::Io { .. })
    ));
    std::fs::write(&path, r#"{"bits": 8, "group_size": 64}"#).unwrap();
    assert_eq!(QuantConfig::open(&path).unwrap().bits, 8);
    std::fs::write(&path, r#"{"bits": 8, "#).unwrap();
    assert!(matches!(
        QuantConfig::open(&path),
        Err(FormatError::Corrupt { .. })
    ));
}

#[test]
fn written_configs_read_back_the_same() {
    let packings = [
        (
            QuantMethod::Gptq,
            Packing::Int(Format::GptqV1(V1Zeros::Word)),
        ),
        (QuantMethod::Gptq, Packing::Int(Format::GptqV2)),
        (QuantMethod::Gptq, Packing::Int(Format::Marlin)),
        (QuantMethod::Flashcube, Packing::Int(Format::GptqV2)),
        (QuantMethod::Awq, Packing::Int(Format::AwqGemm)),
        (QuantMethod::Awq, Packing::Int(Format::AwqGemv)),
        (
            QuantMethod::CompressedTensors,
            Packing::Int(Format::CompressedTensors),
        ),
        (QuantMethod::CompressedTensors, Packing::Nvfp4),
        (QuantMethod::Flashcube, Packing::Tiles),
    ];
    for (method, packing) in packings {
        for group_size in [None, Some(64)] {
            if packing == Packing::Nvfp4 && group_size.is_none() {
                continue;
            }
            for sym in [true, false] {
                let config = QuantConfig {
                    method,
                    bits: 4,
                    group_size,
                    desc_act: method == QuantMethod::Gptq && sym,
                    sym: Some(sym),
                    packing,
                    ignore: vec!["lm_head".to_owned()],
                };
                let json = config.to_json();
                assert_eq!(QuantConfig::from_json(&json).unwrap(), config, "{json}");
                let whole = serde_json::json!({ "quantization_config": json });
                assert_eq!(QuantConfig::from_json(&whole).unwrap(), config);
            }
        }
    }
}
