//! Backward problems: smaller twins of the forward ones.

use flashcube::Alignment;
use flashcube::attention::MaskWidth;

use super::Entry;
use crate::problem::{Attend, Memory, Task, Values};

const D: (usize, usize) = (16, 16);

fn backward(feature: &'static str, detail: impl Into<String>, attend: Attend) -> Entry {
    Entry::new(feature, detail, Task::Backward(attend))
}

fn small(s_q: usize, s_kv: usize) -> Attend {
    Attend::plain(2, (4, 2), (s_q, s_kv), D)
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    for (s_q, s_kv) in [(1, 1), (37, 41), (64, 64), (65, 9), (33, 65)] {
        let entry = backward("sizes", format!("q{s_q}xkv{s_kv}"), small(s_q, s_kv));
        entries.push(if s_q == 37 { entry.all_dtypes() } else { entry });
    }
    for (detail, attend) in [
        ("b0", Attend::plain(0, (4, 2), (37, 41), D)),
        ("q0", small(0, 41)),
        ("kv0", small(37, 0)),
    ] {
        entries.push(backward("empty", detail, attend));
    }
    for (h_q, h_kv) in [(4, 1), (48, 2)] {
        let attend = Attend::plain(1, (h_q, h_kv), (33, 35), D);
        entries.push(backward("heads", format!("h{h_q}on{h_kv}"), attend).values(Values::IndexV));
    }
    for (d, d_v) in [(1, 1), (59, 59), (64, 64), (8, 40)] {
        let attend = Attend::plain(1, (2, 1), (33, 35), (d, d_v));
        entries.push(backward("head_dims", format!("d{d}v{d_v}"), attend));
    }
    for (detail, memory) in [
        ("bshd", Memory::HeadsInside),
        ("offset3", Memory::Offset(3)),
        ("pad5", Memory::PaddedRows(5)),
        ("pad8", Memory::PaddedRows(8)),
    ] {
        entries.push(backward("strides", detail, small(37, 41)).memory(memory));
    }
    entries.extend(masks());
    entries.extend(logits());
    entries.extend(values());
    entries
}

fn masks() -> Vec<Entry> {
    let causal = |s_q, s_kv, alignment| Attend {
        causal: true,
        alignment,
        ..small(s_q, s_kv)
    };
    let window = Attend {
        window_left: Some(3),
        window_right: Some(2),
        ..small(37, 45)
    };
    let lengths = Attend {
        lengths_q: Some(vec![37, 0, 20]),
        lengths_kv: Some(vec![30, 45, 0]),
        causal: true,
        ..Attend::plain(3, (4, 2), (37, 45), D)
    };
    let documents = Attend {
        documents: Some(3),
        ..small(37, 37)
    };
    let mask = Attend {
        mask: Some((MaskWidth::U8, [2, 1, 37, 45])),
        ..small(37, 45)
    };
    vec![
        backward("causal", "q33xkv65", causal(33, 65, Alignment::BottomRight)).all_dtypes(),
        // The first 32 rows see no key: their gradients are 0.
        backward("causal", "q65xkv33", causal(65, 33, Alignment::BottomRight)),
        backward(
            "causal",
            "top_left_q33xkv65",
            causal(33, 65, Alignment::TopLeft),
        ),
        backward("window", "left_3_right_2", window),
        backward("lengths", "both_causal", lengths),
        backward("documents", "three", documents),
        backward("mask", "u8_b1qk", mask),
    ]
}

fn logits() -> Vec<Entry> {
    let bias = Attend {
        bias: Some([1, 4, 37, 45]),
        ..small(37, 45)
    };
    let softcap = Attend {
        softcap: Some(2.0),
        ..small(37, 41)
    };
    let alibi = Attend {
        alibi: true,
        causal: true,
        ..small(37, 53)
    };
    let scaled = |scale| Attend {
        scale: Some(scale),
        ..small(37, 41)
    };
    vec![
        backward("bias", "1hqk", bias),
        backward("softcap", "cap2", softcap),
        backward("alibi", "causal", alibi),
        backward("scale", "zero", scaled(0.0)),
        backward("scale", "negative", scaled(-0.5)),
    ]
}

fn values() -> Vec<Entry> {
    let hidden = Attend {
        lengths_q: Some(vec![37, 20]),
        lengths_kv: Some(vec![33, 61]),
        ..small(37, 61)
    };
    // flash-attention#334: a single query and key gave NaN in dQ.
    let single = Attend::plain(1, (1, 1), (1, 1), D);
    vec![
        backward("values", "outliers", small(37, 61)).values(Values::Outliers),
        backward("values", "one_hot_v", small(37, 16)).values(Values::OneHotV),
        backward("values", "equal_logits", small(37, 61)).values(Values::EqualLogits),
        backward("values", "single", single).all_dtypes(),
        backward("hidden", "lengths", hidden).values(Values::HiddenNan),
    ]
}
