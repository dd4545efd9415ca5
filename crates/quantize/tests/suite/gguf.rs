//! GGUF files become checkpoints of integers, bit for bit where their blocks are integers.

use std::path::{Path, PathBuf};

use flashcube_models::Model;
use flashcube_quantize::model::{Target, convert_model};
use half::f16;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::convert::{check_chain, refusal};

const F32: u32 = 0;
const Q4_0: u32 = 2;
const Q4_1: u32 = 3;
const Q8_0: u32 = 8;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn texts(list: &[&str]) -> Vec<u8> {
    let mut value = [&8u32.to_le_bytes()[..], &(list.len() as u64).to_le_bytes()].concat();
    list.iter().for_each(|item| value.extend(text(item)));
    value
}

/// Random blocks of a type, [n, k].
fn blocks(kind: u32, k: usize, n: usize, random: &mut StdRng) -> Vec<u8> {
    let halves = if kind == Q4_1 { 2 } else { 1 };
    let quants = if kind == Q8_0 { 32 } else { 16 };
    let mut bytes = Vec::new();
    for _ in 0..n * k / 32 {
        for _ in 0..halves {
            bytes.extend(f16::from_f32(random.random_range(0.01..0.1)).to_le_bytes());
        }
        bytes.extend((0..quants).map(|_| random.random::<u8>()));
    }
    bytes
}

/// A Llama of one block, hidden size 32, two query heads and one of keys; `kinds` are the types of
/// attention and of the rest.
fn llama(file: &Path, kinds: [u32; 2]) -> PathBuf {
    let mut random = StdRng::seed_from_u64(7);
    let size = |size: u32| (4u32, size.to_le_bytes().to_vec());
    let float = |value: f32| (6u32, value.to_le_bytes().to_vec());
    let words = ["a", "b", "c", "d"];
    let pairs = [
        ("general.architecture", (8, text("llama"))),
        ("llama.embedding_length", size(32)),
        ("llama.feed_forward_length", size(64)),
        ("llama.block_count", size(1)),
        ("llama.attention.head_count", size(2)),
        ("llama.attention.head_count_kv", size(1)),
        ("llama.context_length", size(64)),
        ("llama.attention.layer_norm_rms_epsilon", float(1e-5)),
        ("tokenizer.ggml.model", (8, text("gpt2"))),
        ("tokenizer.ggml.pre", (8, text("smollm"))),
        ("tokenizer.ggml.tokens", (9, texts(&words))),
        ("tokenizer.ggml.merges", (9, texts(&[]))),
    ];
    let [attention, rest] = kinds;
    let tensors = [
        ("token_embd.weight", vec![4, 32], F32),
        ("output_norm.weight", vec![32], F32),
        ("blk.0.attn_norm.weight", vec![32], F32),
        ("blk.0.ffn_norm.weight", vec![32], F32),
        ("blk.0.attn_q.weight", vec![32, 32], attention),
        ("blk.0.attn_k.weight", vec![16, 32], attention),
        ("blk.0.attn_v.weight", vec![16, 32], attention),
        ("blk.0.attn_output.weight", vec![32, 32], attention),
        ("blk.0.ffn_gate.weight", vec![64, 32], rest),
        ("blk.0.ffn_up.weight", vec![64, 32], rest),
        ("blk.0.ffn_down.weight", vec![32, 64], rest),
    ];
    let mut header = [b"GGUF", &3u32.to_le_bytes()[..]].concat();
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((pairs.len() as u64).to_le_bytes());
    for (key, (kind, value)) in pairs {
        header.extend([text(key), u32::to_le_bytes(kind).to_vec(), value].concat());
    }
    let mut data: Vec<u8> = Vec::new();
    for (name, shape, kind) in tensors {
        data.resize(data.len().next_multiple_of(32), 0);
        header.extend(text(name));
        header.extend((shape.len() as u32).to_le_bytes());
        shape
            .iter()
            .rev()
            .for_each(|&size| header.extend((size as u64).to_le_bytes()));
        header.extend(kind.to_le_bytes());
        header.extend((data.len() as u64).to_le_bytes());
        let count: usize = shape.iter().product();
        data.extend(match kind {
            F32 => (0..count)
                .flat_map(|i| (1.0 + i as f32 / 99.0).to_le_bytes())
                .collect(),
            _ => blocks(kind, shape[1], shape[0], &mut random),
        });
    }
    header.resize(header.len().next_multiple_of(32), 0);
    std::fs::write(file, [header, data].concat()).unwrap();
    file.to_owned()
}

#[test]
fn q4_0_and_q8_0_pass_through_every_format_that_holds_groups_of_32() {
    let folder = tempfile::tempdir().unwrap();
    let four = ["gptq", "compressed-tensors", "gptq_v2", "awq", "flashcube"];
    let eight = ["gptq", "compressed-tensors", "gptq_v2", "flashcube"];
    for (kind, formats) in [(Q4_0, &four[..]), (Q8_0, &eight)] {
        let own = folder.path().join(kind.to_string());
        std::fs::create_dir(&own).unwrap();
        check_chain(&own, &llama(&own.join("model.gguf"), [kind; 2]), formats);
    }
}

/// Codes and scales, not only their products: byte for byte what the file holds.
#[test]
fn codes_are_those_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = llama(&folder.path().join("model.gguf"), [Q8_0; 2]);
    let out = folder.path().join("out");
    let target = Target::parse("gptq", 8).unwrap();
    convert_model(&Model::open(&file).unwrap(), &out, target, usize::MAX).unwrap();
    let converted = Model::open(&out).unwrap();
    let linear = "model.layers.0.mlp.down_proj";
    let packed = converted.quantized().unwrap().packed(linear).unwrap();
    let gguf = flashcube_formats::Gguf::open(&file).unwrap();
    let blocks = gguf
        .tensor("blk.0.ffn_down.weight")
        .unwrap()
        .blocks()
        .unwrap();
    assert_eq!(packed.unpack().unwrap(), blocks.to_int_weights().unwrap());
    assert_eq!(packed.shape.bits, 8);
    assert!(converted.quantized().unwrap().config().sym == Some(true));
}

#[test]
fn what_is_no_integer_grid_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (kinds, format, told) in [
        ([Q4_1; 2], "gptq", "a float minimum is no zero point"),
        ([F32; 2], "gptq", "F32"),
        ([Q4_0, Q8_0], "gptq", "both Q4_0 and Q8_0"),
        ([Q4_0; 2], "marlin", "marlin cannot hold"),
        ([Q8_0; 2], "awq", "awq gemm cannot hold"),
        ([Q4_0; 2], "nvfp4", "nvfp4"),
    ] {
        let file = llama(&folder.path().join("model.gguf"), kinds);
        let refused = refusal(&Model::open(&file).unwrap(), folder.path(), format);
        assert!(refused.contains(told), "{kinds:?} to {format}: {refused}");
    }
}
