//! Forward problems that the Hopper tier must run: 16-bit, heads a multiple of 8 wide, rows that
//! TMA can address. Its tile of d = 64 is 192 rows by 128 keys; others are asked for or come with
//! the head dimension. A compiled kernel serves every length, layout and head group, so hooks and
//! head dimensions are few: bf16 has all of them, f16 those in which its range could matter.
//!
//! V rows that some row of a tile sees spread a NaN within the tile. So the only NaN here are those
//! past a sequence's length, which nobody sees, and those between rows.

use flashcube::attention::{IssueOrder, MaskWidth};
use flashcube::{Alignment, DType, Policy, TierName};

use super::Entry;
use crate::problem::{Attend, Memory, Task, Values};

const BOTH: [DType; 2] = [DType::F16, DType::BF16];
const D: (usize, usize) = (64, 64);

/// Two batch entries, four query heads on two key heads.
fn small(s_q: usize, s_kv: usize) -> Attend {
    sized(s_q, s_kv, D)
}

fn sized(s_q: usize, s_kv: usize, d: (usize, usize)) -> Attend {
    Attend::plain(2, (4, 2), (s_q, s_kv), d)
}

fn hopper(detail: impl Into<String>, attend: Attend) -> Entry {
    let policy = Policy {
        tier: Some(TierName::Hopper),
        order: Some(IssueOrder::ScoresAhead),
        ..attend.policy
    };
    let task = Task::Forward(Attend { policy, ..attend });
    Entry::new("hopper", detail, task)
        .dtypes(&BOTH)
        .memory(Memory::Poisoned)
}

fn bf16(detail: impl Into<String>, attend: Attend) -> Entry {
    hopper(detail, attend).dtypes(&[DType::BF16])
}

pub(super) fn entries() -> Vec<Entry> {
    [
        tails(),
        tiles(),
        heads(),
        memory(),
        bands(),
        lengths(),
        hooks(),
        values(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Rows and keys around the edges of the tiles, and empty axes.
fn tails() -> Vec<Entry> {
    let plain = |(s_q, s_kv)| hopper(format!("q{s_q}xkv{s_kv}"), small(s_q, s_kv));
    let rows = [1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 385].map(|s_q| (s_q, 130));
    let keys = [0, 1, 79, 127, 128, 129, 256, 257].map(|s_kv| (66, s_kv));
    let mut entries: Vec<Entry> = rows.into_iter().chain(keys).map(plain).collect();
    entries.push(plain((0, 41)));
    let no_batch = Attend::plain(0, (4, 2), (37, 41), D);
    entries.push(hopper("b0", no_batch));
    entries
}

/// Head dimensions with the tiles they get, and tiles by request.
fn tiles() -> Vec<Entry> {
    let mut entries = Vec::new();
    // (d, d_v), keys around the edge of the block of its tile, f16 as well.
    for (d, keys, every) in [
        ((8, 8), [175, 176, 177], false),
        ((40, 40), [127, 128, 129], false),
        ((72, 72), [175, 176, 177], false),
        ((96, 96), [175, 176, 177], false),
        ((128, 128), [175, 176, 177], true),
        ((192, 192), [111, 112, 113], false),
        ((192, 128), [127, 128, 129], false),
        ((256, 256), [79, 80, 81], true),
    ] {
        for s_kv in keys {
            let detail = format!("d{}v{}_q129xkv{s_kv}", d.0, d.1);
            let attend = Attend::plain(1, (2, 1), (129, s_kv), d);
            let entry = hopper(detail, attend).values(Values::IndexV);
            entries.push(if every {
                entry
            } else {
                entry.dtypes(&[DType::BF16])
            });
        }
    }
    for (tile, d) in [
        ((64, 128), 64),
        ((128, 128), 64),
        ((192, 128), 64),
        ((128, 176), 128),
    ] {
        let policy = Policy {
            tile: Some(tile),
            ..Policy::default()
        };
        let attend = Attend {
            policy,
            ..sized(193, 257, (d, d))
        };
        entries.push(bf16(format!("tile{}x{}_d{d}", tile.0, tile.1), attend));
    }
    entries
}

/// Head groups, and more tiles than a GPU has multiprocessors.
fn heads() -> Vec<Entry> {
    let mut entries = Vec::new();
    for (h_q, h_kv) in [(4, 1), (9, 3), (48, 2), (5, 5)] {
        let attend = Attend::plain(1, (h_q, h_kv), (37, 141), D);
        let entry = hopper(format!("h{h_q}on{h_kv}"), attend);
        entries.push(entry.values(Values::IndexV));
    }
    // Full and empty tiles in every order: each persistent cube meets some of both.
    let kv: Vec<usize> = (0..40)
        .map(|b| [150, 0, 1, 129, 0, 128, 37][b * 5 % 7])
        .collect();
    let q: Vec<usize> = (0..40).map(|b| [70, 65, 0, 1, 64][b * 3 % 5]).collect();
    let many = Attend {
        lengths_q: Some(q),
        lengths_kv: Some(kv),
        ..Attend::plain(40, (6, 2), (70, 150), D)
    };
    entries.push(hopper("many_tiles", many.clone()).values(Values::HiddenNan));
    let causal = Attend {
        causal: true,
        ..many
    };
    entries.push(bf16("many_tiles_causal", causal).values(Values::HiddenNan));
    entries
}

/// Strides, offsets, gaps, supplied outputs.
fn memory() -> Vec<Entry> {
    [
        ("dense", Memory::Dense),
        ("bshd", Memory::HeadsInside),
        ("offset8", Memory::Offset(8)),
        ("pad8", Memory::PaddedRows(8)),
    ]
    .map(|(detail, memory)| hopper(detail, small(70, 150)).memory(memory))
    .into()
}

/// Causal masks and windows.
fn bands() -> Vec<Entry> {
    let mut entries = Vec::new();
    for (s_q, s_kv) in [
        (64, 64),
        (200, 200),
        (129, 300),
        (300, 129),
        (1, 257),
        (257, 1),
        (40, 0),
    ] {
        for (name, alignment) in [
            ("bottom_right", Alignment::BottomRight),
            ("top_left", Alignment::TopLeft),
        ] {
            let attend = Attend {
                causal: true,
                alignment,
                ..Attend::plain(1, (2, 1), (s_q, s_kv), D)
            };
            entries.push(hopper(format!("causal_{name}_q{s_q}xkv{s_kv}"), attend));
        }
    }
    for (d, s_q, s_kv) in [((128, 128), 200, 300), ((192, 128), 150, 150)] {
        let attend = Attend {
            causal: true,
            ..Attend::plain(1, (2, 1), (s_q, s_kv), d)
        };
        let detail = format!("causal_d{}v{}", d.0, d.1);
        entries.push(hopper(detail, attend).values(Values::IndexV));
    }
    for (left, right) in [
        (Some(3), Some(0)),
        (Some(130), Some(140)),
        (None, Some(4)),
        (Some(4), None),
    ] {
        let text = |w: Option<usize>| w.map_or("all".into(), |w| w.to_string());
        let attend = Attend {
            window_left: left,
            window_right: right,
            ..Attend::plain(1, (2, 1), (200, 300), D)
        };
        let detail = format!("left_{}_right_{}", text(left), text(right));
        entries.push(bf16(detail, attend));
    }
    let beside = Attend {
        causal: true,
        window_left: Some(2),
        ..Attend::plain(1, (2, 1), (270, 20), D)
    };
    entries.push(bf16("rows_before_the_first_key", beside));
    entries
}

/// NaN in everything past a sequence's length, some of it inside the last visible block.
fn lengths() -> Vec<Entry> {
    let kv = |causal| Attend {
        lengths_kv: Some(vec![300, 0, 1, 129, 128]),
        causal,
        ..Attend::plain(5, (4, 2), (70, 300), D)
    };
    let both = |causal| Attend {
        lengths_q: Some(vec![200, 0, 1, 64, 193]),
        lengths_kv: Some(vec![300, 45, 0, 7, 127]),
        causal,
        ..Attend::plain(5, (2, 1), (200, 300), D)
    };
    let nan = |entry: Entry| entry.values(Values::HiddenNan);
    vec![
        nan(hopper("lengths_kv", kv(false))),
        nan(bf16("lengths_kv_causal", kv(true))),
        nan(hopper("lengths_both", both(false))),
        nan(bf16("lengths_both_causal", both(true))),
    ]
}

/// Everything that changes a logit or hides single keys.
fn hooks() -> Vec<Entry> {
    let (b, h, q, kv) = (2, 4, 70, 150);
    let at = || small(q, kv);
    let masked = |width, shape| Attend {
        mask: Some((width, shape)),
        ..at()
    };
    let scaled = |scale| Attend {
        scale: Some(scale),
        ..at()
    };
    let alibi = |alignment| Attend {
        alibi: true,
        alignment,
        ..at()
    };
    let biased = |shape| Attend {
        bias: Some(shape),
        ..at()
    };
    let capped = Attend {
        softcap: Some(5.0),
        ..at()
    };
    let documents = |count| Attend {
        documents: Some(count),
        ..small(q, q)
    };
    let long = |scattered| Attend {
        documents: Some(30),
        scattered,
        ..small(400, 700)
    };
    let causal_documents = Attend {
        causal: true,
        lengths_kv: Some(vec![700, 300]),
        ..long(false)
    };
    let all = Attend {
        softcap: Some(20.0),
        alibi: true,
        bias: Some([1, h, q, kv]),
        mask: Some((MaskWidth::U8, [b, 1, q, kv])),
        causal: true,
        window_left: Some(100),
        lengths_q: Some(vec![q, 50]),
        lengths_kv: Some(vec![140, kv]),
        documents: Some(2),
        ..at()
    };
    vec![
        hopper("scale_negative", scaled(-0.5)),
        hopper("scale_zero", scaled(0.0)),
        bf16("softcap", capped.clone()),
        bf16("softcap_large_logits", capped).values(Values::LargeLogits),
        bf16("alibi_bottom_right", alibi(Alignment::BottomRight)),
        bf16("alibi_top_left", alibi(Alignment::TopLeft)),
        bf16("bias_bhqk", biased([b, h, q, kv])),
        bf16("bias_b11k", biased([b, 1, 1, kv])),
        bf16("bias_1hq1", biased([1, h, q, 1])),
        bf16("mask_u8_bhqk", masked(MaskWidth::U8, [b, h, q, kv])),
        bf16("mask_u8_b11k", masked(MaskWidth::U8, [b, 1, 1, kv])),
        bf16("mask_u8_1hq1", masked(MaskWidth::U8, [1, h, q, 1])),
        bf16("mask_u32_b1qk", masked(MaskWidth::U32, [b, 1, q, kv])),
        bf16("documents_three", documents(3)),
        bf16("documents_many", documents(20)),
        bf16("documents_long", long(false)),
        bf16("documents_scattered", long(true)),
        bf16("documents_long_causal", causal_documents),
        hopper("every_hook", all),
    ]
}

/// Inputs that show faults which random ones average away.
fn values() -> Vec<Entry> {
    let scaled = |scale| Attend {
        scale: Some(scale),
        ..Attend::plain(1, (2, 1), (37, 700), D)
    };
    let spike = Attend {
        scale: Some(1.0),
        ..Attend::plain(1, (1, 1), (37, 2048), D)
    };
    let negative = Attend {
        scale: Some(-1.0),
        ..scaled(1.0)
    };
    let with = |detail, attend, values| hopper(detail, attend).values(values);
    vec![
        with("outliers", small(130, 300), Values::Outliers),
        with("one_hot_v", small(130, 64), Values::OneHotV),
        with("one_hot_v_wrapped", small(70, 300), Values::OneHotV),
        with("index_v", small(130, 300), Values::IndexV),
        with("large_logits", small(130, 300), Values::LargeLogits),
        with("equal_logits", small(70, 300), Values::EqualLogits),
        with("spike", spike, Values::Spike),
        with("ascending", scaled(1.0), Values::Ascending),
        with("peak", negative, Values::Peak),
    ]
}
