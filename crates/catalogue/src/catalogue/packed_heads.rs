//! Query heads of a group in the rows of one tile: row r is query r / pack of head r % pack. What
//! depends on the head (slopes, masks, biases, places of results) must follow the row.

use flashcube::attention::MaskWidth;
use flashcube::{Alignment, DType, Policy, TierName};

use super::Entry;
use crate::problem::{Attend, Memory, Task, Values};

const D: (usize, usize) = (16, 16);
const MATRIX_D: (usize, usize) = (64, 64);

fn entry(
    feature: &'static str,
    detail: impl Into<String>,
    attend: Attend,
    policy: Policy,
) -> Entry {
    let task = Task::Forward(Attend { policy, ..attend });
    Entry::new(feature, detail, task).memory(Memory::Poisoned)
}

/// On the unit tier packing is asked for.
fn unit(detail: impl Into<String>, attend: Attend) -> Entry {
    let policy = Policy {
        pack: Some(true),
        ..attend.policy
    };
    entry("packed_heads", detail, attend, policy)
}

/// A tier of matrix units, the feature of its problems, and heads (h_q, h_kv) whose groups divide the
/// rows of its tile for d = 64.
#[derive(Clone, Copy)]
struct On {
    tier: TierName,
    feature: &'static str,
    heads: (usize, usize),
}

/// 192 rows.
const HOPPER: On = On {
    tier: TierName::Hopper,
    feature: "hopper_packed_heads",
    heads: (6, 2),
};
/// 256 rows, or 128.
const BLACKWELL: On = On {
    tier: TierName::Blackwell,
    feature: "blackwell_packed_heads",
    heads: (8, 2),
};
/// 128 rows.
const PLANE: On = On {
    tier: TierName::Plane,
    feature: "plane_packed_heads",
    heads: (8, 2),
};

impl On {
    fn bf16(self, detail: impl Into<String>, attend: Attend) -> Entry {
        let policy = Policy {
            tier: Some(self.tier),
            pack: Some(true),
            ..attend.policy
        };
        entry(self.feature, detail, attend, policy).dtypes(&[DType::BF16])
    }
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    // Groups that do not divide a tile of 2, 32 or 64 rows among them.
    for (h_q, h_kv, s_q) in [
        (4, 2, 37),
        (9, 3, 5),
        (10, 2, 1),
        (8, 1, 9),
        (48, 2, 3),
        (4, 1, 70),
    ] {
        let detail = format!("h{h_q}on{h_kv}_q{s_q}xkv61");
        let attend = Attend::plain(2, (h_q, h_kv), (s_q, 61), D);
        entries.push(unit(detail, attend).values(Values::IndexV));
    }
    for (detail, attend) in hooks(Attend::plain(2, (6, 2), (37, 45), D)) {
        entries.push(unit(detail, attend));
    }
    let varlen = [(5, 9), (0, 7), (37, 41), (1, 0), (3, 64)];
    for (detail, attend) in packed(Attend::packed(&varlen, (2, 1), (6, 2), D)) {
        entries.push(unit(detail, attend).values(Values::HiddenNan));
    }
    entries.extend(on_matrix_units(HOPPER));
    entries.extend(on_matrix_units(PLANE));
    entries.extend(on_matrix_units(BLACKWELL));
    entries
}

/// Everything that counts queries or depends on the head.
fn hooks(plain: Attend) -> Vec<(&'static str, Attend)> {
    let (b, h, q, kv) = (plain.b, plain.h_q, plain.s_q, plain.s_kv);
    let with = |change: &dyn Fn(&mut Attend)| {
        let mut attend = plain.clone();
        change(&mut attend);
        attend
    };
    let top_left = Alignment::TopLeft;
    vec![
        ("causal", with(&|a| a.causal = true)),
        (
            "causal_top_left",
            with(&|a| (a.causal, a.alignment) = (true, top_left)),
        ),
        (
            "window",
            with(&|a| (a.window_left, a.window_right) = (Some(9), Some(3))),
        ),
        ("alibi", with(&|a| a.alibi = true)),
        ("softcap", with(&|a| a.softcap = Some(3.0))),
        ("bias_1hqk", with(&|a| a.bias = Some([1, h, q, kv]))),
        (
            "mask_bhqk",
            with(&|a| a.mask = Some((MaskWidth::U8, [b, h, q, kv]))),
        ),
        (
            "mask_1h1k",
            with(&|a| a.mask = Some((MaskWidth::U32, [1, h, 1, kv]))),
        ),
        (
            "lengths",
            with(&|a| {
                a.lengths_q = Some(vec![q, q / 2]);
                a.lengths_kv = Some(vec![kv / 3, kv]);
                a.causal = true;
            }),
        ),
        (
            "documents",
            with(&|a| (a.documents, a.scattered) = (Some(9), true)),
        ),
    ]
}

fn packed(varlen: Attend) -> Vec<(&'static str, Attend)> {
    let causal = Attend {
        causal: true,
        alibi: true,
        ..varlen.clone()
    };
    vec![("varlen", varlen), ("varlen_causal_alibi", causal)]
}

/// Groups that divide the tile's rows.
fn on_matrix_units(on: On) -> Vec<Entry> {
    let mut entries = Vec::new();
    let both = [DType::F16, DType::BF16];
    for (h_q, h_kv, s_q, s_kv) in [
        (4, 2, 1, 130),
        (4, 2, 97, 257),
        (on.heads.0, on.heads.1, 64, 129),
        (on.heads.0, on.heads.1, 65, 128),
        (16, 2, 1, 700),
        (16, 2, 24, 300),
        (16, 2, 25, 300),
        (4, 1, 0, 40),
        (4, 1, 7, 0),
    ] {
        let detail = format!("h{h_q}on{h_kv}_q{s_q}xkv{s_kv}");
        let attend = Attend::plain(2, (h_q, h_kv), (s_q, s_kv), MATRIX_D);
        entries.push(on.bf16(detail, attend).values(Values::IndexV).dtypes(&both));
    }
    for d in [(128, 128), (192, 128), (256, 256)] {
        let attend = Attend {
            causal: true,
            ..Attend::plain(2, (8, 2), (45, 300), d)
        };
        entries.push(on.bf16(format!("causal_d{}v{}", d.0, d.1), attend));
    }
    let memory = |detail, memory| {
        let attend = Attend::plain(2, (8, 2), (45, 150), MATRIX_D);
        on.bf16(detail, attend).memory(memory)
    };
    entries.push(memory("dense", Memory::Dense));
    entries.push(memory("bshd", Memory::HeadsInside));
    entries.push(memory("pad8", Memory::PaddedRows(8)));
    // Hooks that read memory for every score may have tiles of fewer rows.
    for (detail, attend) in hooks(Attend::plain(2, (8, 2), (97, 300), MATRIX_D)) {
        entries.push(on.bf16(detail, attend));
    }
    let varlen = [(5, 9), (0, 130), (97, 300), (1, 0), (64, 129), (200, 128)];
    // Packed sequences may have them too, whatever divides those of others.
    for (detail, attend) in packed(Attend::packed(&varlen, (2, 1), (8, 2), MATRIX_D)) {
        entries.push(on.bf16(detail, attend).values(Values::HiddenNan));
    }
    // Where selection packs by itself.
    let free = Attend::plain(2, (16, 2), (1, 300), MATRIX_D);
    let policy = Policy {
        tier: Some(on.tier),
        ..Policy::default()
    };
    let chosen = entry(on.feature, "chosen", free, policy);
    entries.push(chosen.dtypes(&[DType::BF16]));
    entries
}
