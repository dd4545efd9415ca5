//! Pairs of cubes of the Blackwell tier, each with half the rows of a tile and half of every block of keys and
//! values. What tells the halves apart: rows from 128 or 256 on, keys from the middle of a block on, columns of V from
//! 64 or 128 on, and tiles of which one cube has no row.

use flashcube::attention::MaskWidth;
use flashcube::{Alignment, DType, Policy, TierName};

use super::Entry;
use crate::problem::{Attend, Memory, Task, Values};

const D: (usize, usize) = (128, 128);

fn entry(detail: impl Into<String>, attend: Attend) -> Entry {
    let policy = Policy {
        tier: Some(TierName::Blackwell),
        cluster: Some(2),
        ..attend.policy
    };
    let task = Task::Forward(Attend { policy, ..attend });
    Entry::new("blackwell_pairs", detail, task)
        .dtypes(&[DType::BF16])
        .memory(Memory::Poisoned)
}

fn sized(s_q: usize, s_kv: usize, d: (usize, usize)) -> Attend {
    Attend::plain(1, (2, 1), (s_q, s_kv), d)
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = sizes();
    entries.extend(masks());
    entries.extend(sequences());
    entries
}

/// One query stage a cube and two, head dimensions, edges of halves and blocks, more tiles than one.
fn sizes() -> Vec<Entry> {
    let mut entries = Vec::new();
    for (s_q, s_kv) in [
        (1, 1),
        (129, 64),
        (256, 0),
        (257, 65),
        (300, 129),
        (513, 413),
    ] {
        let attend = Attend::plain(2, (4, 2), (s_q, s_kv), D);
        let entry = entry(format!("q{s_q}xkv{s_kv}"), attend);
        entries.push(entry.dtypes(&[DType::F16, DType::BF16]));
    }
    for d in [(64, 128), (72, 120), (192, 128), (256, 256), (256, 248)] {
        let detail = format!("d{}v{}_q300xkv161", d.0, d.1);
        entries.push(entry(detail, sized(300, 161, d)).values(Values::IndexV));
    }
    for (rows, block) in [(256, 128), (512, 64), (512, 32)] {
        let policy = Policy {
            tile: Some((rows, block)),
            ..Policy::default()
        };
        let attend = Attend {
            policy,
            ..sized(530, 257, D)
        };
        entries.push(entry(format!("tile{rows}x{block}"), attend));
    }
    entries
}

/// Cubes of a pair walk the same blocks, whichever of them their own rows see.
fn masks() -> Vec<Entry> {
    let causal = |alignment, s_q, s_kv| Attend {
        causal: true,
        alignment,
        ..sized(s_q, s_kv, D)
    };
    let window = Attend {
        window_left: Some(130),
        window_right: Some(40),
        ..sized(600, 500, D)
    };
    let hooks = Attend {
        causal: true,
        alibi: true,
        softcap: Some(20.0),
        mask: Some((MaskWidth::U8, [1, 2, 300, 300])),
        ..sized(300, 300, D)
    };
    let (last, first) = (Alignment::BottomRight, Alignment::TopLeft);
    vec![
        entry("causal", causal(last, 600, 600)),
        entry("causal_q700xkv200", causal(last, 700, 200)),
        entry("causal_top_left_q300xkv700", causal(first, 300, 700)),
        entry("window", window),
        entry("hooks", hooks),
    ]
}

/// Lengths of their own, packed sequences and packed heads.
fn sequences() -> Vec<Entry> {
    let lengths = Attend {
        lengths_q: Some(vec![300, 70, 0, 257]),
        lengths_kv: Some(vec![257, 0, 1, 129]),
        ..Attend::plain(4, (2, 1), (300, 257), D)
    };
    let sequences = [(300, 70), (0, 5), (1, 257), (257, 0), (513, 129)];
    let varlen = Attend::packed(&sequences, (3, 4), (2, 1), D);
    let varlen_causal = Attend {
        causal: true,
        ..varlen.clone()
    };
    let heads = Attend {
        policy: Policy {
            pack: Some(true),
            ..Policy::default()
        },
        ..Attend::plain(1, (8, 2), (100, 193), D)
    };
    let heads_causal = Attend {
        causal: true,
        ..heads.clone()
    };
    vec![
        entry("lengths", lengths).values(Values::HiddenNan),
        entry("varlen", varlen).values(Values::HiddenNan),
        entry("varlen_causal", varlen_causal).values(Values::HiddenNan),
        entry("packed_heads", heads),
        entry("packed_heads_causal", heads_causal),
    ]
}
