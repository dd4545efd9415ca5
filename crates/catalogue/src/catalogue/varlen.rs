//! Packed sequences, on every tier.
//!
//! Keys of a sequence without queries are seen by nobody and hold NaN: a neighbour that reads one of
//! them shows. Rows past the last sequence give 0 and -inf, and NaN in their q must not matter.

use flashcube::{Alignment, DType, Policy, TierName};

use super::Entry;
use crate::problem::{Attend, Memory, Task, Values};

const D: (usize, usize) = (16, 16);
const MATRIX_D: (usize, usize) = (64, 64);

/// Odd lengths with empty ones before, between and behind them.
const MIXED: [(usize, usize); 9] = [
    (0, 9),
    (37, 41),
    (0, 0),
    (1, 64),
    (5, 0),
    (64, 65),
    (0, 3),
    (70, 33),
    (0, 7),
];

/// The same around the edges of the tiles of matrix units: 192 rows by 128 keys on the Hopper tier,
/// 128 by 64 on the plane tier.
const MATRIX_MIXED: [(usize, usize); 9] = [
    (0, 130),
    (200, 300),
    (0, 0),
    (1, 129),
    (64, 0),
    (193, 127),
    (0, 3),
    (385, 128),
    (0, 50),
];

fn entry(feature: &'static str, detail: impl Into<String>, attend: Attend) -> Entry {
    Entry::new(feature, detail, Task::Forward(attend))
        .memory(Memory::Poisoned)
        .values(Values::HiddenNan)
}

fn unit(detail: impl Into<String>, attend: Attend) -> Entry {
    entry("varlen", detail, attend)
}

/// On a tier of matrix units, which has the feature of that name.
fn on(
    (tier, feature): (TierName, &'static str),
    detail: impl Into<String>,
    attend: Attend,
) -> Entry {
    let policy = Policy {
        tier: Some(tier),
        ..attend.policy
    };
    entry(feature, detail, Attend { policy, ..attend }).dtypes(&[DType::BF16])
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = lengths();
    entries.extend(hooks());
    for tier in [
        (TierName::Hopper, "hopper_varlen"),
        (TierName::Plane, "plane_varlen"),
        (TierName::Blackwell, "blackwell_varlen"),
    ] {
        entries.extend(on_matrix_units(tier));
    }
    entries
}

/// Few and many sequences, head groups, layouts.
fn lengths() -> Vec<Entry> {
    let packed = |sequences: &[(usize, usize)]| Attend::packed(sequences, (3, 4), (4, 2), D);
    let mut entries = vec![
        unit("mixed", packed(&MIXED)).all_dtypes(),
        unit("one", packed(&[(65, 65)])),
        unit("none", packed(&[])),
        unit("only_empty", packed(&[(0, 0), (0, 5), (7, 0)])),
        unit("no_rows", Attend::packed(&[(0, 0)], (0, 0), (4, 2), D)),
        unit("exact", Attend::packed(&MIXED, (0, 0), (4, 2), D)),
        unit("tokens", packed(&MIXED)).memory(Memory::HeadsInside),
        unit("offset4", packed(&MIXED)).memory(Memory::Offset(4)),
        unit("dense", packed(&MIXED)).memory(Memory::Dense),
        unit("outliers", packed(&MIXED)).values(Values::Outliers),
    ];
    for (h_q, h_kv) in [(8, 1), (6, 2), (5, 1)] {
        let sequences = [(1, 50), (1, 7), (1, 0), (3, 65)];
        let attend = Attend::packed(&sequences, (0, 0), (h_q, h_kv), D);
        entries.push(unit(format!("decode_h{h_q}on{h_kv}"), attend).values(Values::IndexV));
    }
    entries
}

/// Everything that counts from the start of a sequence.
fn hooks() -> Vec<Entry> {
    let packed = || Attend::packed(&MIXED, (3, 4), (4, 2), D);
    let mut entries = Vec::new();
    for (name, alignment) in [
        ("bottom_right", Alignment::BottomRight),
        ("top_left", Alignment::TopLeft),
    ] {
        let causal = Attend {
            causal: true,
            alignment,
            ..packed()
        };
        let window = Attend {
            window_left: Some(9),
            window_right: Some(3),
            alignment,
            ..packed()
        };
        let alibi = Attend {
            alibi: true,
            alignment,
            ..packed()
        };
        entries.push(unit(format!("causal_{name}"), causal));
        entries.push(unit(format!("window_{name}"), window));
        entries.push(unit(format!("alibi_{name}"), alibi));
    }
    let all = Attend {
        softcap: Some(20.0),
        alibi: true,
        causal: true,
        window_left: Some(30),
        ..packed()
    };
    entries.push(unit("softcap_alibi_window", all));
    entries
}

/// Matrix units: a V row that some query of the sequence sees holds no NaN.
fn on_matrix_units(tier: (TierName, &'static str)) -> Vec<Entry> {
    let packed = || Attend::packed(&MATRIX_MIXED, (3, 4), (4, 2), MATRIX_D);
    let causal = |attend| Attend {
        causal: true,
        ..attend
    };
    let top_left = Attend {
        alignment: Alignment::TopLeft,
        ..causal(packed())
    };
    let window = Attend {
        window_left: Some(130),
        window_right: Some(7),
        ..packed()
    };
    let all = Attend {
        softcap: Some(20.0),
        alibi: true,
        window_left: Some(100),
        ..causal(packed())
    };
    // More tiles than multiprocessors, full and empty ones.
    let many: Vec<(usize, usize)> = (0..60)
        .map(|i| {
            let q = [70, 193, 0, 1, 400][i * 3 % 5];
            (q, [150, 0, 1, 129, 260, 37, 128][i * 5 % 7])
        })
        .collect();
    let many = || Attend::packed(&many, (0, 0), (6, 2), MATRIX_D);
    let wide = |d| Attend::packed(&MATRIX_MIXED, (0, 0), (2, 1), d);
    let seen = |entry: Entry| entry.values(Values::Normal);
    let both = [DType::F16, DType::BF16];
    vec![
        on(tier, "mixed", packed()).dtypes(&both),
        on(tier, "causal", causal(packed())).dtypes(&both),
        seen(on(tier, "causal_top_left", top_left)),
        seen(on(tier, "window", window)),
        on(tier, "softcap_alibi_window", all).values(Values::Normal),
        on(tier, "many_tiles", many()),
        on(tier, "many_tiles_causal", causal(many())),
        on(tier, "d128", wide((128, 128))),
        on(tier, "d128_causal", causal(wide((128, 128)))).values(Values::IndexV),
        on(tier, "d192v128_causal", causal(wide((192, 128)))),
        on(tier, "d256", wide((256, 256))),
        on(tier, "tokens", packed()).memory(Memory::HeadsInside),
        on(tier, "none", Attend::packed(&[], (70, 0), (4, 2), MATRIX_D)),
    ]
}
