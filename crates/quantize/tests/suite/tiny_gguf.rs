//! A small Llama in a GGUF file, which the command's tests use as well.

use std::path::{Path, PathBuf};

use half::f16;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub(crate) const F32: u32 = 0;
pub(crate) const Q4_0: u32 = 2;
pub(crate) const Q4_1: u32 = 3;
pub(crate) const Q8_0: u32 = 8;

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
pub(crate) fn llama(file: &Path, kinds: [u32; 2]) -> PathBuf {
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
