//! Attention over operands of block-scaled products.

use flashcube::attention::MaskWidth;
use flashcube::{Alignment, DType, OperandFormat, Policy, ScaleRule, TierName};

use super::Entry;
use crate::problem::{Attend, Memory, Operands, Task, Values};

const D: (usize, usize) = (16, 16);
pub(super) const NVFP4: OperandFormat = OperandFormat::Nvfp4 { exponent: 0 };
pub(super) const MXFP4: OperandFormat = OperandFormat::Mxfp4(ScaleRule::Ceil);
pub(super) const MXFP8: OperandFormat = OperandFormat::Mxfp8(ScaleRule::Ceil);
pub(super) const FP8: OperandFormat = OperandFormat::Fp8 { exponent: 0 };
/// Formats of scores and of values, by what P is.
const PAIRS: [(&str, OperandFormat, OperandFormat); 4] = [
    ("nvfp4", NVFP4, NVFP4),
    ("mxfp4", MXFP4, MXFP4),
    ("mxfp8", NVFP4, MXFP8),
    ("fp8", FP8, FP8),
];

fn entry(
    feature: &'static str,
    detail: impl Into<String>,
    (scores, values): (OperandFormat, OperandFormat),
    attend: Attend,
) -> Entry {
    let sizes = Operands {
        attend,
        scores,
        values,
    };
    Entry::new(feature, detail, Task::Operands(sizes))
}

/// Two batch entries, four query heads on two key heads.
fn small(s_q: usize, s_kv: usize) -> Attend {
    Attend::plain(2, (4, 2), (s_q, s_kv), D)
}

pub(super) fn attend() -> Vec<Entry> {
    let mut entries = Vec::new();
    for (feature, scores, values) in PAIRS {
        entries.extend(of_format(feature, (scores, values)));
        entries.extend(on_planes(feature, (scores, values)));
    }
    entries.extend(on_planes("scores_mxfp8", (MXFP8, MXFP8)));
    for (name, scores, values) in [
        ("nvfp4", NVFP4, MXFP8),
        ("mxfp4", MXFP4, MXFP8),
        ("mxfp8", MXFP8, MXFP8),
        ("fp8", FP8, FP8),
        ("nvfp4_p", NVFP4, NVFP4),
        ("mxfp4_p", MXFP4, MXFP4),
    ] {
        entries.extend(on_blackwell(name, (scores, values)));
    }
    // Other rules of scales, and scores in the other formats.
    for (detail, scores, values) in [
        ("floor", MXFP4, OperandFormat::Mxfp4(ScaleRule::Floor)),
        (
            "round_even",
            MXFP4,
            OperandFormat::Mxfp4(ScaleRule::RoundEven),
        ),
        ("scores_mxfp8", MXFP8, MXFP4),
    ] {
        entries.push(entry("mxfp4", detail, (scores, values), small(37, 97)).long());
    }
    for (detail, scores) in [("scores_mxfp4", MXFP4), ("scores_mxfp8", MXFP8)] {
        entries.push(entry("mxfp8", detail, (scores, MXFP8), small(37, 97)).long());
    }
    let raised = OperandFormat::Nvfp4 { exponent: 7 };
    entries.push(entry("nvfp4", "exponent", (raised, raised), small(37, 97)));
    entries.extend(hooks());
    entries
}

/// Lengths around groups and blocks, head dimensions, distributions.
fn of_format(feature: &'static str, formats: (OperandFormat, OperandFormat)) -> Vec<Entry> {
    let of = |detail: String, attend| entry(feature, detail, formats, attend);
    let both = [DType::F32, DType::BF16];
    let mut entries = Vec::new();
    for s_kv in [1, 15, 16, 17, 31, 33, 64, 130, 257] {
        let one = of(format!("q37xkv{s_kv}"), small(37, s_kv));
        entries.push(match s_kv {
            33 => one.dtypes(&both),
            1 | 17 | 130 => one,
            _ => one.long(),
        });
    }
    for (d, d_v) in [(8, 40), (40, 8), (64, 64), (128, 128)] {
        let attend = Attend::plain(1, (2, 1), (19, 150), (d, d_v));
        let one = of(format!("d{d}v{d_v}"), attend);
        let core = d == 64 && feature == "nvfp4";
        entries.push(if core { one } else { one.long() });
    }
    // 2048 keys of one logit 0 and -7 else: the tail weighs as much as it should.
    let tail = Attend {
        scale: Some(1.0),
        ..Attend::plain(1, (1, 1), (37, 2048), D)
    };
    let tail = of("tail_mass".into(), tail).values(Values::Spike);
    entries.push(tail.dtypes(&both));
    for (detail, values) in [
        ("one_hot_v", Values::OneHotV),
        ("index_v", Values::IndexV),
        ("equal_logits", Values::EqualLogits),
        // Group scales differ from block to block.
        ("ascending", Values::Ascending),
        ("peak", Values::Peak),
        ("large_logits", Values::LargeLogits),
        ("outliers", Values::Outliers),
    ] {
        let one = of(detail.into(), small(37, 200)).values(values);
        let core = matches!(values, Values::OneHotV | Values::Peak | Values::EqualLogits);
        entries.push(if core { one } else { one.long() });
    }
    let causal = Attend {
        causal: true,
        ..small(65, 97)
    };
    let causal = of("causal".into(), causal);
    entries.push(if feature == "mxfp8" {
        causal
    } else {
        causal.long()
    });
    for (detail, memory) in [
        ("poisoned", Memory::Poisoned),
        ("bshd", Memory::HeadsInside),
        ("offset3", Memory::Offset(3)),
    ] {
        let one = of(detail.into(), small(37, 41)).memory(memory);
        let core = memory != Memory::Offset(3);
        entries.push(if core { one } else { one.long() });
    }
    entries
}

/// The plane tier: 16 or 32 keys of a group lie in the registers of four lanes, or of two where products take their codes.
/// Lengths end inside a group and at the end of one, and hide whole ones.
fn on_planes(name: &str, formats: (OperandFormat, OperandFormat)) -> Vec<Entry> {
    let on = |detail: &str, attend: Attend| {
        let policy = Policy {
            tier: Some(TierName::Plane),
            ..attend.policy
        };
        let attend = Attend { policy, ..attend };
        let one = entry("plane", format!("{name}_{detail}"), formats, attend);
        one.dtypes(&[DType::BF16])
    };
    let wide = |d| Attend::plain(1, (4, 2), (150, 333), (d, d));
    let mut entries: Vec<Entry> = [64, 128, 256].map(|d| on(&format!("d{d}"), wide(d))).into();
    entries.push(on("few_keys", Attend::plain(2, (2, 1), (70, 5), (64, 64))));
    for (detail, values) in [
        ("one_hot_v", Values::OneHotV),
        ("index_v", Values::IndexV),
        ("equal_logits", Values::EqualLogits),
        ("ascending", Values::Ascending),
        ("peak", Values::Peak),
        ("outliers", Values::Outliers),
    ] {
        entries.push(on(detail, wide(64)).values(values));
    }
    let causal = Attend {
        causal: true,
        ..wide(128)
    };
    entries.push(on("causal", causal));
    let lengths = Attend {
        lengths_kv: Some(vec![333, 0, 47]),
        ..Attend::plain(3, (2, 2), (65, 333), (64, 64))
    };
    entries.push(on("lengths", lengths.clone()));
    entries.push(on("lengths_hidden", lengths).values(Values::HiddenNan));
    entries.push(on("odd", Attend::plain(2, (6, 2), (193, 130), (40, 72))));
    entries.push(on(
        "packed_heads",
        Attend::plain(2, (8, 2), (9, 200), (64, 64)),
    ));
    let sequences = [(70, 70), (0, 3), (129, 40), (1, 260)];
    let varlen = Attend {
        causal: true,
        ..Attend::packed(&sequences, (2, 5), (4, 2), (64, 64))
    };
    entries.push(on("varlen", varlen.clone()));
    let heads = |attend| Attend {
        policy: Policy {
            pack: Some(true),
            ..Policy::default()
        },
        ..attend
    };
    let few = Attend::plain(2, (8, 2), (37, 150), (64, 64));
    entries.push(on("heads_h8on2", heads(few)));
    entries.push(on("heads_varlen", heads(varlen)));
    let window = Attend {
        window_left: Some(60),
        window_right: Some(9),
        ..wide(64)
    };
    entries.push(on("window", window));
    entries
}

/// Block-scaled products of the Blackwell tier: scores in each format beside weights and values in E4M3, and E2M1 throughout.
/// Queries and keys cross tiles of scale factors, whose rows differ; blocks of 64 keys are half of one.
fn on_blackwell(name: &str, formats: (OperandFormat, OperandFormat)) -> Vec<Entry> {
    let of = |detail: &str, attend: Attend, tile| {
        let policy = Policy {
            tier: Some(TierName::Blackwell),
            tile,
            ..attend.policy
        };
        let attend = Attend { policy, ..attend };
        let detail = format!("{name}_{detail}");
        entry("blackwell", detail, formats, attend).dtypes(&[DType::BF16])
    };
    let on = |detail: &str, attend: Attend| of(detail, attend, None);
    let wide = |d| Attend::plain(1, (2, 1), (150, 333), (d, d));
    let mut entries: Vec<Entry> = [40, 64, 128, 256]
        .map(|d| on(&format!("d{d}"), wide(d)))
        .into();
    entries.push(on(
        "d128v64",
        Attend::plain(1, (2, 1), (300, 200), (128, 64)),
    ));
    entries.push(on("few_keys", Attend::plain(2, (2, 1), (70, 5), (64, 64))));
    entries.push(on("no_keys", Attend::plain(1, (2, 1), (70, 0), (64, 64))));
    for (rows, block) in [(128, 64), (128, 128), (256, 64)] {
        let detail = format!("tile{rows}x{block}");
        entries.push(of(&detail, wide(64), Some((rows, block))));
    }
    for (detail, values) in [
        ("one_hot_v", Values::OneHotV),
        ("index_v", Values::IndexV),
        ("equal_logits", Values::EqualLogits),
        ("ascending", Values::Ascending),
        ("peak", Values::Peak),
        ("outliers", Values::Outliers),
    ] {
        entries.push(on(detail, wide(64)).values(values));
    }
    let causal = |attend| Attend {
        causal: true,
        ..attend
    };
    entries.push(on("causal", causal(wide(128))));
    let window = Attend {
        window_left: Some(60),
        window_right: Some(9),
        ..wide(64)
    };
    entries.push(on("window", window));
    let hooks = Attend {
        softcap: Some(4.0),
        alibi: true,
        mask: Some((MaskWidth::U32, [1, 1, 1, 333])),
        ..causal(wide(64))
    };
    entries.push(on("hooks", hooks));
    // Lengths that end inside a group and at its end, one that leaves whole groups hidden, and none.
    let lengths = Attend {
        lengths_kv: Some(vec![333, 0, 47, 160]),
        lengths_q: Some(vec![150, 3, 0, 129]),
        ..Attend::plain(4, (2, 1), (150, 333), (64, 64))
    };
    entries.push(on("lengths", lengths.clone()));
    entries.push(on("lengths_hidden", lengths.clone()).values(Values::HiddenNan));
    entries.push(on("lengths_causal", causal(lengths)));
    entries.push(on("odd", Attend::plain(2, (6, 2), (193, 130), (64, 40))));
    // Sequences that start anywhere and end inside groups, without queries or keys among them.
    let sequences = [(70, 70), (0, 3), (300, 40), (1, 260), (130, 0), (129, 129)];
    let varlen = |h| Attend::packed(&sequences, (2, 5), h, (64, 64));
    entries.push(on("varlen", varlen((2, 1))));
    entries.push(on("varlen_causal", causal(varlen((2, 1)))));
    entries.push(on("varlen_hidden", varlen((2, 1))).values(Values::HiddenNan));
    let wider = Attend::packed(&sequences, (0, 0), (2, 1), (128, 128));
    entries.push(on("varlen_d128", wider));
    // Heads of a group in one tile: groups of 4, all of 8 query heads, and packed sequences of them.
    let heads = |detail: &str, attend: Attend| {
        let policy = Policy {
            pack: Some(true),
            ..attend.policy
        };
        on(detail, Attend { policy, ..attend })
    };
    let few = |h, s_q| Attend::plain(2, h, (s_q, 150), (64, 64));
    entries.push(heads("heads_h8on2", few((8, 2), 37)));
    entries.push(heads("heads_h8on1", few((8, 1), 41)));
    entries.push(heads("heads_causal", causal(few((8, 2), 70))));
    let sloped = Attend {
        alibi: true,
        ..causal(few((4, 1), 70))
    };
    entries.push(heads("heads_alibi", sloped));
    entries.push(heads("heads_varlen", causal(varlen((4, 2)))));
    let raise = |format, exponent| match format {
        OperandFormat::Nvfp4 { .. } => OperandFormat::Nvfp4 { exponent },
        OperandFormat::Fp8 { .. } => OperandFormat::Fp8 { exponent },
        other => other,
    };
    if let (OperandFormat::Nvfp4 { .. } | OperandFormat::Fp8 { .. }, values) = formats {
        let attend = Attend {
            policy: Policy {
                tier: Some(TierName::Blackwell),
                ..Policy::default()
            },
            ..causal(wide(64))
        };
        let raised = (raise(formats.0, 5), raise(values, -3));
        let one = entry("blackwell", format!("{name}_exponent"), raised, attend);
        entries.push(one.dtypes(&[DType::BF16]));
    }
    entries
}

/// What hides keys and changes logits, and nothing at all.
fn hooks() -> Vec<Entry> {
    let mut entries = Vec::new();
    let pairs = PAIRS.map(|(name, scores, values)| (name, (scores, values)));
    for (name, formats) in pairs {
        let lengths = Attend {
            lengths_kv: Some(vec![33, 0]),
            lengths_q: Some(vec![37, 5]),
            ..small(37, 97)
        };
        let one = entry("lengths", name, formats, lengths.clone());
        entries.push(if name == "mxfp4" { one } else { one.long() });
        let hidden = entry("hidden", name, formats, lengths);
        let hidden = hidden.values(Values::HiddenNan);
        entries.push(if name == "mxfp4" {
            hidden
        } else {
            hidden.long()
        });
        let sequences = [(9, 21), (0, 4), (30, 70), (5, 0), (2, 40)];
        let varlen = Attend {
            causal: true,
            ..Attend::packed(&sequences, (2, 3), (4, 2), D)
        };
        let one = entry("varlen", name, formats, varlen);
        entries.push(if name == "nvfp4" { one } else { one.long() });
        let mask = Attend {
            mask: Some((MaskWidth::U8, [2, 1, 37, 97])),
            ..small(37, 97)
        };
        let mask = entry("masks", format!("{name}_mask"), formats, mask);
        entries.push(if name == "mxfp8" { mask } else { mask.long() });
        let window = Attend {
            window_left: Some(20),
            window_right: Some(3),
            alignment: Alignment::TopLeft,
            ..small(37, 97)
        };
        let window = entry("masks", format!("{name}_window"), formats, window);
        entries.push(window.long());
    }
    let combined = Attend {
        softcap: Some(4.0),
        alibi: true,
        bias: Some([1, 4, 37, 97]),
        mask: Some((MaskWidth::U32, [2, 1, 1, 97])),
        causal: true,
        ..small(37, 97)
    };
    entries.push(entry("combined", "every_hook", (NVFP4, NVFP4), combined).long());
    for (h_q, h_kv) in [(4, 1), (9, 3)] {
        let attend = Attend::plain(1, (h_q, h_kv), (37, 41), D);
        let one = entry("heads", format!("h{h_q}on{h_kv}"), (NVFP4, NVFP4), attend);
        entries.push(one.values(Values::IndexV));
    }
    let packed = Attend {
        policy: Policy {
            pack: Some(true),
            ..Policy::default()
        },
        causal: true,
        ..Attend::packed(&[(9, 21), (0, 4), (30, 70)], (2, 3), (9, 3), D)
    };
    entries.push(entry("heads", "packed_varlen", (NVFP4, NVFP4), packed));
    let empty = [
        ("b0", Attend::plain(0, (4, 2), (37, 41), D)),
        ("q0", small(0, 41)),
        ("kv0", small(37, 0)),
        ("dv0", Attend::plain(2, (4, 2), (37, 41), (16, 0))),
    ];
    for (detail, attend) in empty {
        let one = entry("empty", detail, (NVFP4, NVFP4), attend);
        entries.push(one.memory(Memory::Poisoned));
    }
    entries
}
