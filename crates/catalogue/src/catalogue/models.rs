//! Shapes of real models, short enough for a software driver.

use flashcube::PackFormat;

use super::Entry;
use crate::problem::{Attend, MergeSizes, PackedSizes, Task, Values};

pub(super) fn entries() -> Vec<Entry> {
    let causal = |b, heads, s, d| Attend {
        causal: true,
        ..Attend::plain(b, heads, s, d)
    };
    let minilm = Attend {
        lengths_q: Some(vec![48, 31]),
        lengths_kv: Some(vec![48, 31]),
        ..Attend::plain(2, (12, 12), (48, 48), (32, 32))
    };
    let forward = [
        ("minilm_12x32", minilm.clone()),
        ("smollm2_9on3x64", causal(1, (9, 3), (65, 65), (64, 64))),
        ("smollm2_decode", causal(2, (9, 3), (1, 129), (64, 64))),
        (
            "llama3_8b_32on8x128",
            causal(1, (32, 8), (40, 72), (128, 128)),
        ),
        (
            "deepseek_mla_16x192v128",
            causal(1, (16, 16), (40, 40), (192, 128)),
        ),
        ("gemma_8on4x256", causal(1, (8, 4), (40, 64), (256, 256))),
    ];
    let mut entries: Vec<Entry> = forward
        .into_iter()
        .map(|(detail, attend)| Entry::new("models", detail, Task::Forward(attend)))
        .map(|entry| entry.values(Values::Outliers).all_dtypes().long())
        .collect();
    let backward = [
        ("minilm_12x32", minilm),
        ("smollm2_9on3x64", causal(1, (9, 3), (65, 65), (64, 64))),
        (
            "llama3_8b_8on2x128",
            causal(1, (8, 2), (40, 48), (128, 128)),
        ),
    ];
    entries.extend(
        backward
            .map(|(detail, attend)| Entry::new("models", detail, Task::Backward(attend)).long()),
    );
    let split_decode = MergeSizes {
        n: 16,
        b: 4,
        h: 32,
        s: 1,
        d_v: 128,
        empty: 5,
    };
    entries.push(Entry::new("models", "llama3_8b_split16", Task::Merge(split_decode)).long());
    let projection = PackedSizes {
        format: PackFormat::GptqV1,
        bits: 4,
        k: 1024,
        n: 576,
        group: 128,
        act_order: true,
    };
    entries.push(Entry::new("models", "gptq_1024x576", Task::Dequantize(projection)).long());
    entries
}
