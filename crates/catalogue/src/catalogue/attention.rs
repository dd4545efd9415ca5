//! Forward problems. Head dimensions repeat on purpose: a compiled kernel serves every length, so
//! new lengths are cheap and new head dimensions or hooks are not.

use flashcube::attention::{IssueOrder, MaskWidth};
use flashcube::{Alignment, Policy, RoleSplit};

use super::Entry;
use crate::problem::{Attend, Memory, Task, Values};

const D: (usize, usize) = (16, 16);

fn forward(feature: &'static str, detail: impl Into<String>, attend: Attend) -> Entry {
    Entry::new(feature, detail, Task::Forward(attend))
}

/// Two batch entries, four query heads on two key heads.
fn small(s_q: usize, s_kv: usize) -> Attend {
    Attend::plain(2, (4, 2), (s_q, s_kv), D)
}

/// Lengths around the tile edges, empty axes, head groups, head dimensions.
pub(super) fn sizes() -> Vec<Entry> {
    let mut entries = Vec::new();
    // Tiles are 64 rows (32 on the CPU) of 8 keys.
    for s_kv in [1, 7, 8, 9, 31, 63, 64, 65, 97] {
        let one = forward("sizes", format!("q37xkv{s_kv}"), small(37, s_kv));
        entries.push(if s_kv == 65 { one.all_dtypes() } else { one });
    }
    for s_q in [1, 63, 64, 65, 129] {
        entries.push(forward("sizes", format!("q{s_q}xkv41"), small(s_q, 41)));
    }
    // More keys than an i16 counts; rising logits make the last ones matter.
    let long = Attend {
        scale: Some(1.0),
        ..Attend::plain(1, (1, 1), (1, 33_728), D)
    };
    let long = forward("sizes", "q1xkv33728", long).long();
    entries.push(long.values(Values::Ascending));
    let heads_65537 = Attend::plain(1, (65_537, 65_537), (1, 2), (4, 4));
    entries.push(forward("sizes", "heads65537", heads_65537).long());

    let empty = [
        ("b0", Attend::plain(0, (4, 2), (37, 41), D)),
        ("h0", Attend::plain(2, (0, 0), (37, 41), D)),
        ("q0", small(0, 41)),
        ("kv0", small(37, 0)),
        ("dv0", Attend::plain(2, (4, 2), (37, 41), (16, 0))),
    ];
    entries.extend(
        empty.map(|(detail, attend)| forward("empty", detail, attend).memory(Memory::Poisoned)),
    );

    for (h_q, h_kv) in [(4, 1), (9, 3), (48, 2), (5, 5)] {
        let attend = Attend::plain(1, (h_q, h_kv), (37, 41), D);
        let entry = forward("heads", format!("h{h_q}on{h_kv}"), attend);
        entries.push(entry.values(Values::IndexV));
    }
    for (d, d_v) in [
        (1, 1),
        (8, 8),
        (40, 40),
        (59, 59),
        (64, 64),
        (111, 111),
        (128, 128),
        (256, 256),
        (16, 8),
        (8, 40),
    ] {
        let attend = Attend::plain(1, (2, 1), (37, 41), (d, d_v));
        let entry = forward("head_dims", format!("d{d}v{d_v}"), attend);
        entries.push(if d == 64 { entry.all_dtypes() } else { entry });
    }
    entries
}

/// Strides, offsets, gaps, supplied outputs.
pub(super) fn memory() -> Vec<Entry> {
    let layouts = [
        ("poisoned", Memory::Poisoned),
        ("bshd", Memory::HeadsInside),
        ("offset3", Memory::Offset(3)),
        ("offset4", Memory::Offset(4)),
        ("pad5", Memory::PaddedRows(5)),
        ("pad8", Memory::PaddedRows(8)),
        ("shared_kv", Memory::SharedKv),
    ];
    let mut entries: Vec<Entry> = layouts
        .into_iter()
        .map(|(detail, memory)| {
            let entry = forward("strides", detail, small(37, 41)).memory(memory);
            match memory {
                Memory::Offset(3) | Memory::PaddedRows(8) => entry.all_dtypes(),
                _ => entry,
            }
        })
        .collect();
    for (detail, memory) in [
        ("bshd_odd", Memory::HeadsInside),
        ("offset1", Memory::Offset(1)),
    ] {
        let attend = Attend::plain(2, (3, 3), (33, 35), (59, 59));
        entries.push(forward("strides", detail, attend).memory(memory));
    }
    entries
}

/// Everything that hides keys.
pub(super) fn masks() -> Vec<Entry> {
    let mut entries = Vec::new();
    let lengths = [
        (37, 37),
        (64, 64),
        (65, 64),
        (33, 97),
        (97, 33),
        (1, 50),
        (50, 1),
        (40, 0),
    ];
    for (s_q, s_kv) in lengths {
        for (name, alignment) in [
            ("bottom_right", Alignment::BottomRight),
            ("top_left", Alignment::TopLeft),
        ] {
            let attend = Attend {
                causal: true,
                alignment,
                ..small(s_q, s_kv)
            };
            let entry = forward("causal", format!("{name}_q{s_q}xkv{s_kv}"), attend);
            let entry = entry.memory(Memory::Poisoned);
            let half = (s_q, s_kv) == (33, 97);
            entries.push(if half { entry.all_dtypes() } else { entry });
        }
    }
    let burn = Attend {
        causal: true,
        ..Attend::plain(2, (4, 4), (16, 16), (32, 32))
    };
    entries.push(forward("causal", "b2h4s16d32", burn));

    for (left, right) in [
        (Some(3), Some(0)),
        (Some(0), Some(0)),
        (Some(5), Some(2)),
        (None, Some(0)),
        (None, Some(4)),
        (Some(4), None),
        (Some(1000), Some(1000)),
    ] {
        let text = |w: Option<usize>| w.map_or("all".into(), |w| w.to_string());
        let attend = Attend {
            window_left: left,
            window_right: right,
            ..small(37, 45)
        };
        let detail = format!("left_{}_right_{}", text(left), text(right));
        entries.push(forward("window", detail, attend));
    }
    let beside = Attend {
        causal: true,
        window_left: Some(2),
        ..small(70, 20)
    };
    entries.push(forward("window", "rows_before_the_first_key", beside));
    entries.extend(lengths_entries());
    entries.extend(documents());
    entries.extend(dense_masks());
    entries
}

fn lengths_entries() -> Vec<Entry> {
    let kv = |lengths: &[usize], causal| Attend {
        lengths_kv: Some(lengths.to_vec()),
        causal,
        ..Attend::plain(lengths.len(), (4, 2), (37, 45), D)
    };
    let both = |q: &[usize], kv: &[usize], causal| Attend {
        lengths_q: Some(q.to_vec()),
        lengths_kv: Some(kv.to_vec()),
        causal,
        ..Attend::plain(q.len(), (9, 3), (70, 45), D)
    };
    let poisoned = |detail, attend| forward("lengths", detail, attend).memory(Memory::Poisoned);
    vec![
        poisoned("kv", kv(&[45, 0, 1, 33], false)),
        poisoned("kv_causal", kv(&[45, 0, 1, 33], true)),
        poisoned("both", both(&[70, 0, 1, 64, 65], &[45, 45, 0, 7, 8], false)),
        poisoned(
            "both_causal",
            both(&[0, 1, 0, 1, 70], &[0, 3, 0, 5, 40], true),
        ),
    ]
}

fn documents() -> Vec<Entry> {
    let attend = |count, causal| Attend {
        documents: Some(count),
        causal,
        ..small(37, 37)
    };
    // Several tiles, each of which reaches a few of the documents.
    let long = |scattered| Attend {
        documents: Some(30),
        scattered,
        ..small(150, 300)
    };
    let lengths = Attend {
        lengths_q: Some(vec![150, 70]),
        lengths_kv: Some(vec![33, 300]),
        causal: true,
        ..long(false)
    };
    let window = Attend {
        window_left: Some(40),
        window_right: Some(70),
        alignment: Alignment::TopLeft,
        ..long(false)
    };
    let nan = |detail, attend| forward("documents", detail, attend).values(Values::HiddenNan);
    vec![
        forward("documents", "three", attend(3, false)),
        forward("documents", "three_causal", attend(3, true)),
        forward("documents", "many", attend(20, false)),
        nan("long", long(false)),
        nan("scattered", long(true)),
        nan("long_lengths_causal", lengths),
        nan("long_window", window),
        forward(
            "documents",
            "no_key",
            Attend {
                documents: Some(3),
                ..small(37, 0)
            },
        ),
    ]
}

fn dense_masks() -> Vec<Entry> {
    let (b, h, q, kv) = (2, 4, 37, 45);
    let masked = |width, shape| Attend {
        mask: Some((width, shape)),
        ..small(q, kv)
    };
    let biased = |shape| Attend {
        bias: Some(shape),
        ..small(q, kv)
    };
    let mut entries = Vec::new();
    for (detail, shape) in [
        ("11qk", [1, 1, q, kv]),
        ("bhqk", [b, h, q, kv]),
        ("b11k", [b, 1, 1, kv]),
        ("1hq1", [1, h, q, 1]),
        ("b1qk", [b, 1, q, kv]),
    ] {
        let u8_mask = masked(MaskWidth::U8, shape);
        entries.push(forward("mask", format!("u8_{detail}"), u8_mask).memory(Memory::Poisoned));
        entries.push(forward("bias", detail, biased(shape)));
    }
    entries.push(forward(
        "mask",
        "u32_b1qk",
        masked(MaskWidth::U32, [b, 1, q, kv]),
    ));
    let causal = Attend {
        causal: true,
        ..masked(MaskWidth::U8, [b, 1, q, kv])
    };
    entries.push(forward("mask", "u8_b1qk_causal", causal));
    entries
}

/// Scale, softcap, ALiBi and everything at once.
pub(super) fn logits() -> Vec<Entry> {
    let scaled = |scale| Attend {
        scale: Some(scale),
        ..small(37, 41)
    };
    let capped = |softcap| Attend {
        softcap: Some(softcap),
        ..small(37, 41)
    };
    let alibi = |causal, alignment| Attend {
        alibi: true,
        causal,
        alignment,
        ..small(37, 53)
    };
    let all = Attend {
        softcap: Some(20.0),
        alibi: true,
        bias: Some([1, 4, 37, 45]),
        mask: Some((MaskWidth::U8, [2, 1, 37, 45])),
        causal: true,
        window_left: Some(30),
        lengths_q: Some(vec![37, 30]),
        lengths_kv: Some(vec![40, 45]),
        documents: Some(2),
        ..small(37, 45)
    };
    vec![
        forward("scale", "zero", scaled(0.0)),
        forward("scale", "negative", scaled(-0.5)),
        forward("scale", "10000", scaled(1e4)),
        forward("softcap", "cap1", capped(1.0)),
        forward("softcap", "cap50_large_logits", capped(50.0)).values(Values::LargeLogits),
        forward(
            "alibi",
            "bottom_right",
            alibi(false, Alignment::BottomRight),
        ),
        forward("alibi", "top_left", alibi(false, Alignment::TopLeft)),
        forward("alibi", "causal", alibi(true, Alignment::BottomRight)),
        // 8 bindings are what WebGPU promises; q, k, v, out, lse, scalars, mask, bias and table
        // are 9, so some devices say NotAvailable here and the feature is not required of them.
        forward("combined", "every_hook", all),
    ]
}

/// Inputs that show faults which random ones average away.
pub(super) fn values() -> Vec<Entry> {
    let small_scale = |scale| Attend {
        scale: Some(scale),
        ..small(37, 61)
    };
    let hidden = |attend| Attend {
        lengths_q: Some(vec![37, 20]),
        lengths_kv: Some(vec![33, 61]),
        ..attend
    };
    let window = Attend {
        window_left: Some(4),
        window_right: Some(0),
        ..small(10, 61)
    };
    let with = |detail, attend, values| forward("values", detail, attend).values(values);
    vec![
        with("outliers", small(37, 61), Values::Outliers).all_dtypes(),
        with("one_hot_v", small(37, 16), Values::OneHotV),
        with("index_v", small(37, 61), Values::IndexV).all_dtypes(),
        with("large_logits", small(37, 61), Values::LargeLogits),
        with("equal_logits", small(37, 61), Values::EqualLogits),
        with(
            "spike",
            Attend {
                scale: Some(1.0),
                ..small(37, 2048)
            },
            Values::Spike,
        ),
        with("ascending", small_scale(1.0), Values::Ascending),
        with("peak", small_scale(-1.0), Values::Peak),
        forward("hidden", "lengths", hidden(small(37, 61))).values(Values::HiddenNan),
        forward("hidden", "window", window).values(Values::HiddenNan),
        forward(
            "hidden",
            "causal_top_left",
            Attend {
                causal: true,
                alignment: Alignment::TopLeft,
                ..small(10, 61)
            },
        )
        .values(Values::HiddenNan),
        forward(
            "hidden",
            "mask",
            Attend {
                mask: Some((MaskWidth::U8, [2, 1, 1, 61])),
                ..small(37, 61)
            },
        )
        .values(Values::HiddenNan),
    ]
}

/// Split roles and another issue order: the loop must not care.
pub(super) fn schedules() -> Vec<Entry> {
    let split = Policy {
        roles: Some(RoleSplit::Softmax),
        ..Policy::default()
    };
    let ahead = Policy {
        order: Some(IssueOrder::ScoresAhead),
        ..Policy::default()
    };
    let both = Policy {
        order: Some(IssueOrder::ScoresAhead),
        ..split
    };
    let mut entries = Vec::new();
    for (feature, name, policy) in [
        ("split_roles", "split", split),
        ("scores_ahead", "ahead", ahead),
        ("split_roles", "split_ahead", both),
    ] {
        let plain = Attend {
            policy,
            ..small(37, 61)
        };
        let causal = Attend {
            causal: true,
            policy,
            ..small(50, 33)
        };
        let lengths = Attend {
            lengths_kv: Some(vec![0, 33]),
            causal: true,
            policy,
            ..small(37, 45)
        };
        for (detail, attend) in [("plain", plain), ("causal", causal), ("lengths", lengths)] {
            let entry = forward(feature, format!("{name}_{detail}"), attend);
            entries.push(entry.memory(Memory::Poisoned));
        }
    }
    entries
}
