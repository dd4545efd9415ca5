//! The readers and writers against files made by the packages that define the formats
//! (tests/fixtures): bit for bit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use flashcube_formats::*;
use flashcube_reference::quant::{blocks::Nvfp4Row, int};
use half::f16;

const V1: Format = Format::GptqV1(V1Zeros::Word);

/// Fixture and the format that its config must lead to.
const INT: [(&str, Format); 25] = [
    ("gptq_v1_w2", V1),
    ("gptq_v1_w3", Format::GptqV1(V1Zeros::Field)),
    ("gptq_v1_w4", V1),
    ("gptq_v1_w4_act_order", V1),
    ("gptq_v1_w4_autogptq", V1),
    ("gptq_v1_w4_short_group", V1),
    ("gptq_v1_w4_sym", V1),
    ("gptq_v1_w8", V1),
    ("gptq_v2_w2", Format::GptqV2),
    ("gptq_v2_w3", Format::GptqV2),
    ("gptq_v2_w4", Format::GptqV2),
    ("gptq_v2_w4_act_order", Format::GptqV2),
    ("gptq_v2_w4_short_group", Format::GptqV2),
    ("gptq_v2_w4_sym", Format::GptqV2),
    ("gptq_v2_w8", Format::GptqV2),
    ("awq_gemm_w4", Format::AwqGemm),
    ("awq_gemv_w4_g32", Format::AwqGemv),
    ("awq_gemv_w4_g64", Format::AwqGemv),
    ("awq_gemv_w4_g128", Format::AwqGemv),
    ("marlin_w4_channel", Format::Marlin),
    ("marlin_w4_g128", Format::Marlin),
    ("compressed_tensors_w4_asym", Format::CompressedTensors),
    ("compressed_tensors_w4_sym", Format::CompressedTensors),
    ("compressed_tensors_w8_asym", Format::CompressedTensors),
    ("compressed_tensors_w8_channel", Format::CompressedTensors),
];
const BLOCKS: [&str; 4] = [
    "compressed_tensors_nvfp4",
    "gguf_q4_0",
    "gguf_q4_1",
    "gguf_q8_0",
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

pub(crate) fn open(name: &str) -> Checkpoint {
    Checkpoint::open(folder().join(format!("{name}.safetensors"))).unwrap()
}

pub(crate) fn config(checkpoint: &Checkpoint) -> QuantConfig {
    let json = serde_json::from_str(&checkpoint.metadata()["quantization_config"]).unwrap();
    QuantConfig::from_json(&json).unwrap()
}

/// The plain numbers that went into the package's packer.
fn expected(checkpoint: &Checkpoint) -> IntWeights {
    let size = |key: &str| checkpoint.metadata()[key].parse::<usize>().unwrap();
    let shape = QuantShape::new(
        size("k"),
        size("n"),
        size("bits") as u32,
        Some(size("group")),
    )
    .unwrap();
    let read = |name: &str| checkpoint.tensor(name).unwrap();
    let g_idx = checkpoint.optional("expected.g_idx").unwrap();
    IntWeights::new(
        shape,
        read("expected.codes").to_vec().unwrap(),
        read("expected.zeros").to_vec().unwrap(),
        read("expected.scales").to_vec().unwrap(),
        g_idx.map(|view| view.to_words().unwrap()),
    )
    .unwrap()
}

#[test]
fn every_fixture_is_tested() {
    let listed: BTreeSet<String> = INT
        .map(|(name, _)| name)
        .into_iter()
        .chain(BLOCKS)
        .map(|name| format!("{name}.safetensors"))
        .collect();
    let found: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".safetensors"))
        .collect();
    assert_eq!(listed, found);
}

#[test]
fn int_fixtures_unpack_to_what_was_packed() {
    for (name, format) in INT {
        let checkpoint = open(name);
        let config = config(&checkpoint);
        assert_eq!(config.packing, Packing::Int(format), "{name}");
        let packed = PackedLinear::load(&checkpoint, "linear", &config).unwrap();
        assert_eq!(packed.unpack().unwrap(), expected(&checkpoint), "{name}");
    }
}

#[test]
fn int_fixtures_dequantize_as_their_package_does() {
    let mut compared = 0;
    for (name, _) in INT {
        let checkpoint = open(name);
        let Some(weight) = checkpoint.optional("expected.weight").unwrap() else {
            continue;
        };
        let packed = PackedLinear::load(&checkpoint, "linear", &config(&checkpoint)).unwrap();
        let ours = packed.unpack().unwrap().dequantize();
        let theirs: Vec<f32> = weight.to_vec().unwrap();
        assert_eq!(weight.shape, [packed.shape.k, packed.shape.n], "{name}");
        assert!(ours.iter().zip(&theirs).all(|(a, b)| a == b), "{name}");
        compared += 1;
    }
    // AutoGPTQ, Marlin and AWQ gemv have packers but no reader that runs on a CPU.
    assert_eq!(compared, INT.len() - 6);
}

#[test]
fn int_fixtures_repack_to_the_same_words() {
    for (name, format) in INT {
        let checkpoint = open(name);
        let packed = PackedLinear::pack(&expected(&checkpoint), format).unwrap();
        for (tensor, data) in packed.tensors("linear").unwrap() {
            let theirs = checkpoint.tensor(&tensor).unwrap();
            assert_eq!(data.shape(), theirs.shape, "{name} {tensor}");
            assert_eq!(data.dtype(), theirs.dtype, "{name} {tensor}");
            assert_eq!(data.bytes(), theirs.bytes, "{name} {tensor}");
        }
        let theirs = checkpoint
            .names()
            .filter(|tensor| tensor.starts_with("linear."))
            .count();
        assert_eq!(packed.tensors("linear").unwrap().len(), theirs, "{name}");
    }
}

#[test]
fn int_fixtures_agree_with_the_reference() {
    let mut compared = 0;
    for (name, format) in INT {
        let format = match format {
            Format::GptqV1(_) => int::Format::GptqV1,
            Format::GptqV2 => int::Format::GptqV2,
            Format::AwqGemm => int::Format::AwqGemm,
            Format::AwqGemv => int::Format::AwqGemv,
            _ => continue,
        };
        let checkpoint = open(name);
        let packed = PackedLinear::load(&checkpoint, "linear", &config(&checkpoint)).unwrap();
        let reference = int::Packed {
            format,
            bits: packed.shape.bits,
            k: packed.shape.k,
            n: packed.shape.n,
            group: packed.shape.group,
            qweight: &packed.weights,
            qzeros: packed.zeros.as_ref().unwrap(),
            scales: &packed.scales,
            g_idx: packed.g_idx.as_deref(),
        };
        let theirs = reference.dequantize().unwrap();
        let ours = packed.unpack().unwrap().dequantize();
        assert!(
            ours.iter().zip(&theirs).all(|(&a, &b)| f64::from(a) == b),
            "{name}"
        );
        compared += 1;
    }
    assert_eq!(compared, 19);
}

#[test]
fn v1_borrow_is_stored_across_fields() {
    // Zero points 0, 5, 1 stand first in every asymmetric fixture.
    let checkpoint = open("gptq_v1_w4");
    let stored = checkpoint
        .tensor("linear.qzeros")
        .unwrap()
        .to_words()
        .unwrap()[0];
    assert_eq!(stored & 0xff, 0x3f, "z = 0, 5 is stored as 15, 3");
    let mut packed = PackedLinear::load(&checkpoint, "linear", &config(&checkpoint)).unwrap();
    packed.format = Format::GptqV1(V1Zeros::Field);
    assert_eq!(
        packed.unpack().unwrap().zeros[..2],
        [0, 4],
        "a field-wise reader is off by one above the borrow"
    );
    packed.format = Format::GptqV1(V1Zeros::Strict);
    assert!(matches!(
        packed.unpack(),
        Err(FormatError::AmbiguousZero { index: 0, .. })
    ));
}

#[test]
fn nvfp4_fixture_matches_bit_for_bit() {
    let checkpoint = open("compressed_tensors_nvfp4");
    assert_eq!(config(&checkpoint).packing, Packing::Nvfp4);
    let linear = Nvfp4Linear::load(&checkpoint, "linear").unwrap();
    let weights = linear.unpack().unwrap();
    let theirs: Vec<f32> = checkpoint
        .tensor("expected.weight")
        .unwrap()
        .to_vec()
        .unwrap();
    assert_eq!(weights.dequantize(), theirs);
    assert_eq!(weights.pack().unwrap(), linear);
    for (tensor, data) in linear.tensors("linear").unwrap() {
        let theirs = checkpoint.tensor(&tensor).unwrap();
        assert_eq!(
            (data.dtype(), data.bytes()),
            (theirs.dtype, theirs.bytes),
            "{tensor}"
        );
    }
    // The reference divides in f64 where we round the block scale to f32: two roundings apart.
    for column in 0..weights.n {
        let pick = |values: &[u8]| {
            values
                .iter()
                .copied()
                .skip(column)
                .step_by(weights.n)
                .collect()
        };
        let (codes, scales) = (pick(&weights.codes), pick(&weights.scales));
        let row = Nvfp4Row {
            encode_factor: weights.encode_factor,
            codes,
            scales,
        }
        .dequantize()
        .unwrap();
        for (at, exact) in row.into_iter().enumerate() {
            let ours = f64::from(theirs[at * weights.n + column]);
            assert!(
                (ours - exact).abs() <= exact.abs() * f64::from(f32::EPSILON),
                "{at} {column}"
            );
        }
    }
}

fn gguf(name: &str) -> (GgufBlocks, Vec<f32>) {
    let checkpoint = open(name);
    let kind = match checkpoint.metadata()["kind"].as_str() {
        "Q4_0" => GgufKind::Q4_0,
        "Q4_1" => GgufKind::Q4_1,
        "Q8_0" => GgufKind::Q8_0,
        other => panic!("{other}"),
    };
    let blocks = checkpoint.tensor("linear.blocks").unwrap();
    let (n, k) = (blocks.shape[0], blocks.shape[1] / kind.block_bytes() * 32);
    let weight = checkpoint.tensor("expected.weight").unwrap();
    assert_eq!(weight.shape, [k, n]);
    (
        GgufBlocks::new(kind, k, n, blocks.to_vec().unwrap()).unwrap(),
        weight.to_vec().unwrap(),
    )
}

#[test]
fn gguf_fixtures_dequantize_as_their_package_does() {
    for name in ["gguf_q4_0", "gguf_q4_1", "gguf_q8_0"] {
        let (blocks, theirs) = gguf(name);
        assert_eq!(blocks.dequantize(), theirs, "{name}");
    }
}

#[test]
fn gguf_blocks_become_int_weights_where_that_is_exact() {
    for name in ["gguf_q4_0", "gguf_q8_0"] {
        let (blocks, theirs) = gguf(name);
        let weights = blocks.to_int_weights().unwrap();
        assert_eq!(weights.dequantize(), theirs, "{name}");
        assert!(weights.is_symmetric());
        let packed = PackedLinear::pack(&weights, Format::CompressedTensors).unwrap();
        assert_eq!(packed.unpack().unwrap().dequantize(), theirs, "{name}");
    }
    let (blocks, theirs) = gguf("gguf_q4_1");
    let weights = blocks.to_int_weights().unwrap();
    assert_eq!(weights.dequantize(), theirs);
    assert!(!weights.is_symmetric());
    for format in [Format::GptqV2, Format::CompressedTensors] {
        let refused = PackedLinear::pack(&weights, format).unwrap_err();
        assert!(refused.to_string().contains("minima"), "{refused}");
    }
}

#[test]
fn gguf_fixtures_survive_tiles_and_files() {
    for (name, kind) in [
        ("gguf_q4_0", GgufKind::Q4_0),
        ("gguf_q4_1", GgufKind::Q4_1),
        ("gguf_q8_0", GgufKind::Q8_0),
    ] {
        let (blocks, theirs) = gguf(name);
        let linear = QuantizedLinear::from_gguf(&blocks).unwrap();
        assert_eq!(linear.to_gguf(kind).unwrap(), blocks, "{name}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let tensors = linear.tensors("x").unwrap().into_iter().collect();
        save(&path, &tensors, &BTreeMap::new()).unwrap();
        let loaded = QuantizedLinear::load(&Checkpoint::open(&path).unwrap(), "x").unwrap();
        assert_eq!(loaded, linear, "{name}");
        assert_eq!(loaded.unpack().unwrap().dequantize(), theirs, "{name}");
    }
}

#[test]
fn symmetric_fixtures_show_their_version() {
    for (name, version) in [
        ("gptq_v1_w4_sym", GptqVersion::V1),
        ("gptq_v2_w4_sym", GptqVersion::V2),
    ] {
        let checkpoint = open(name);
        let mut config = config(&checkpoint);
        let packed = PackedLinear::load(&checkpoint, "linear", &config).unwrap();
        let words = packed.zeros.as_ref().unwrap();
        assert_eq!(
            sniff_version(words, &packed.shape).unwrap(),
            Some(version),
            "{name}"
        );

        // Declared as the other version, the same file must not be read one scale off.
        config.packing = Packing::Int(match version {
            GptqVersion::V1 => Format::GptqV2,
            GptqVersion::V2 => Format::GptqV1(V1Zeros::Word),
        });
        let error = PackedLinear::load(&checkpoint, "linear", &config).unwrap_err();
        let FormatError::ZeroPointVersion { tensor, found, .. } = &error else {
            panic!("{name}: {error}");
        };
        assert_eq!(tensor, "linear.qzeros");
        assert_eq!(*found, if version == GptqVersion::V1 { 7 } else { 8 });
    }
    let checkpoint = open("gptq_v2_w4");
    let packed = PackedLinear::load(&checkpoint, "linear", &config(&checkpoint)).unwrap();
    assert_eq!(
        sniff_version(packed.zeros.as_ref().unwrap(), &packed.shape).unwrap(),
        None
    );
}

#[test]
fn fixtures_name_their_origin() {
    for name in INT.map(|(name, _)| name).into_iter().chain(BLOCKS) {
        let checkpoint = open(name);
        for key in [
            "package",
            "package_version",
            "package_licence",
            "weight_from",
        ] {
            assert!(
                checkpoint
                    .metadata()
                    .get(key)
                    .is_some_and(|value| !value.is_empty()),
                "{name} {key}"
            );
        }
    }
}

#[test]
fn zero_point_of_zero_in_awq_is_the_plain_product() {
    // Zero read as 15 or 16 would shift every weight.
    let shape = QuantShape::new(64, 16, 4, Some(32)).unwrap();
    let codes: Vec<u8> = (0..64 * 16).map(|at| (at * 7 % 16) as u8).collect();
    let scale = f16::from_f32(0.125);
    let weights =
        IntWeights::new(shape, codes.clone(), vec![0; 32], vec![scale; 32], None).unwrap();
    for format in [Format::AwqGemm, Format::AwqGemv] {
        let read = PackedLinear::pack(&weights, format)
            .unwrap()
            .unpack()
            .unwrap();
        let expected: Vec<f32> = codes.iter().map(|&code| f32::from(code) * 0.125).collect();
        assert_eq!(read.dequantize(), expected, "{format}");
    }
}
