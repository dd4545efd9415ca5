//! Mutated files through every reader, for a bounded time: `FLASHCUBE_FUZZ_SECONDS`, 2 for each
//! kind when absent. Each round has a seed of its own, which a failure names; coverage-guided runs
//! over the same readers are in `fuzz/`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::{drive, gguf_file};

fn seconds() -> f64 {
    let asked = std::env::var("FLASHCUBE_FUZZ_SECONDS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(2.0)
}

/// Numbers at which counts and offsets turn.
const NUMBERS: [u64; 8] = [0, 1, 7, 255, 1 << 31, 1 << 32, i64::MAX as u64, u64::MAX];

/// One to four changes: bits, bytes, numbers, cuts, repetitions, digits of a header's text.
fn mutate(bytes: &mut Vec<u8>, random: &mut StdRng) {
    for _ in 0..random.random_range(1..5) {
        if bytes.is_empty() {
            return;
        }
        // Most of what can be wrong stands at the front.
        let reach = if random.random_bool(0.8) {
            bytes.len().min(1024)
        } else {
            bytes.len()
        };
        let at = random.random_range(0..reach);
        match random.random_range(0..7) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at] = random.random(),
            2 => {
                let number = NUMBERS[random.random_range(0..NUMBERS.len())].to_le_bytes();
                let end = (at + 8).min(bytes.len());
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
            3 => bytes.truncate(at),
            4 => {
                let end = (at + random.random_range(1..32)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => drop(bytes.drain(at..(at + random.random_range(1..32)).min(bytes.len()))),
            _ => {
                let digits = bytes[..reach]
                    .iter_mut()
                    .filter(|byte| byte.is_ascii_digit());
                let digits: Vec<&mut u8> = digits.collect();
                let count = digits.len();
                if let Some(digit) = digits.into_iter().nth(random.random_range(0..count.max(1))) {
                    *digit = b'0' + random.random_range(0..10);
                }
            }
        }
    }
}

/// Mutants of `bases` until the time is over; some must be refused and some accepted, or the round
/// tells nothing.
fn rounds(kind: &str, bases: &[Vec<u8>], drive: fn(&[u8]) -> bool) {
    for base in bases {
        assert!(drive(base), "{kind}: a base file is refused");
    }
    let end = Instant::now() + Duration::from_secs_f64(seconds());
    let mut counts = [0u64; 2];
    let mut seed = 0;
    while Instant::now() < end {
        let mut random = StdRng::seed_from_u64(seed);
        let mut bytes = bases[random.random_range(0..bases.len())].clone();
        mutate(&mut bytes, &mut random);
        match catch_unwind(AssertUnwindSafe(|| drive(&bytes))) {
            Ok(accepted) => counts[usize::from(accepted)] += 1,
            Err(_) => panic!("{kind}: the mutant of seed {seed} made a reader panic"),
        }
        seed += 1;
    }
    println!("{kind}: {} refused, {} accepted", counts[0], counts[1]);
    assert!(counts[0] > 0 && counts[1] > 0, "{kind}: {counts:?}");
}

#[test]
fn mutated_safetensors_never_panic() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|e| e == "safetensors"));
    let bases: Vec<Vec<u8>> = files.map(|path| std::fs::read(path).unwrap()).collect();
    rounds("safetensors", &bases, drive::safetensors);
}

#[test]
fn mutated_gguf_never_panics() {
    rounds("gguf", &[gguf_file::sample()], drive::gguf);
}

#[test]
fn mutated_configs_never_panic() {
    let bases = [
        r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true, "sym": true}"#,
        r#"{"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": true, "version": "gemm"}"#,
        r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32,
            "strategy": "group", "symmetric": false}}}}"#,
    ];
    let bases = bases.map(|text| text.as_bytes().to_vec());
    rounds("config", &bases, drive::config);
}
