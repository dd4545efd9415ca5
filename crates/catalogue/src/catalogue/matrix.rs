//! Forward problems that the tiers on matrix units must run: 16-bit, heads a multiple of 8 wide,
//! rows of 16-byte chunks. The same for each tier, so that they differ in nothing but the tier; a
//! tier's own part is its tiles, whose edges the problems straddle. A compiled kernel serves every
//! length, layout and head group, so hooks and head dimensions are few: bf16 has all of them, f16
//! those in which its range could matter.
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

/// A tier; its problems bear its name as their feature.
#[derive(Clone, Copy)]
struct On {
    tier: TierName,
    feature: &'static str,
    order: IssueOrder,
}

const HOPPER: On = On {
    tier: TierName::Hopper,
    feature: "hopper",
    order: IssueOrder::ScoresAhead,
};
const BLACKWELL: On = On {
    tier: TierName::Blackwell,
    feature: "blackwell",
    order: IssueOrder::Sequential,
};
const PLANE: On = On {
    tier: TierName::Plane,
    feature: "plane",
    order: IssueOrder::Sequential,
};

/// Head dimensions (d, d_v), the keys of the block that each gets, and whether f16 runs as well.
const HOPPER_BLOCKS: [((usize, usize), usize, bool); 8] = [
    ((8, 8), 128, false),
    ((40, 40), 128, false),
    ((72, 72), 128, false),
    ((96, 96), 128, false),
    ((128, 128), 128, true),
    ((192, 192), 112, false),
    ((192, 128), 128, false),
    ((256, 256), 80, true),
];
/// As [`HOPPER_BLOCKS`]. 40 and 72 end in half a step of the accumulator's columns.
const BLACKWELL_BLOCKS: [((usize, usize), usize, bool); 6] = [
    ((8, 8), 128, false),
    ((40, 40), 128, false),
    ((72, 104), 128, false),
    ((128, 128), 128, true),
    ((192, 128), 64, false),
    ((256, 256), 64, true),
];
/// As [`HOPPER_BLOCKS`]. Odd multiples of 8 end in a step of half the depth.
const PLANE_BLOCKS: [((usize, usize), usize, bool); 9] = [
    ((8, 8), 64, true),
    ((40, 40), 64, false),
    ((24, 104), 48, false),
    ((96, 72), 48, false),
    ((128, 128), 48, true),
    ((192, 192), 64, false),
    ((192, 128), 64, false),
    ((128, 200), 64, false),
    ((256, 256), 64, true),
];

/// Tiles asked for: rows, keys, head dimension.
const HOPPER_TILES: [(usize, usize, usize); 4] = [
    (64, 128, 64),
    (128, 128, 64),
    (192, 128, 64),
    (128, 176, 128),
];
/// One query stage and two, every block.
const BLACKWELL_TILES: [(usize, usize, usize); 5] = [
    (128, 128, 64),
    (256, 128, 64),
    (256, 64, 64),
    (128, 32, 128),
    (128, 128, 128),
];
/// One stage and two, one and two 16-row tiles a plane, 4 and 8 planes a cube.
const PLANE_TILES: [(usize, usize, usize); 6] = [
    (64, 64, 64),
    (128, 128, 64),
    (256, 64, 64),
    (64, 128, 128),
    (128, 64, 128),
    (128, 32, 256),
];

impl On {
    /// In f16 and bf16.
    fn both(self, detail: impl Into<String>, attend: Attend) -> Entry {
        let policy = Policy {
            tier: Some(self.tier),
            order: attend.policy.order.or(Some(self.order)),
            ..attend.policy
        };
        let task = Task::Forward(Attend { policy, ..attend });
        Entry::new(self.feature, detail, task)
            .dtypes(&BOTH)
            .memory(Memory::Poisoned)
    }

    fn bf16(self, detail: impl Into<String>, attend: Attend) -> Entry {
        self.both(detail, attend).dtypes(&[DType::BF16])
    }
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    for on in [HOPPER, PLANE, BLACKWELL] {
        for some in [tails, heads, memory, bands, lengths, hooks, values] {
            entries.extend(some(on));
        }
    }
    entries.extend(tiles(HOPPER, &HOPPER_BLOCKS, &HOPPER_TILES));
    entries.extend(tiles(PLANE, &PLANE_BLOCKS, &PLANE_TILES));
    entries.extend(tiles(BLACKWELL, &BLACKWELL_BLOCKS, &BLACKWELL_TILES));
    entries.extend(hopper_clusters());
    entries.extend(plane_scores_ahead());
    entries.extend(plane_addressing());
    entries
}

/// Two cubes that load keys and values once between them: an odd number of tiles, one 64-column part
/// and three, one block and many, more tiles than cubes.
fn hopper_clusters() -> Vec<Entry> {
    let policy = Policy {
        cluster: Some(2),
        ..Policy::default()
    };
    [
        ("cluster_q130xkv1", sized(130, 1, (128, 128))),
        ("cluster_q300xkv413", sized(300, 413, (128, 128))),
        ("cluster_q256xkv0", sized(256, 0, (128, 128))),
        ("cluster_d64_q400xkv700", sized(400, 700, D)),
        ("cluster_d192v128_q256xkv257", sized(256, 257, (192, 128))),
        ("cluster_d256_q256xkv257", sized(256, 257, (256, 256))),
        (
            "cluster_many_tiles",
            Attend::plain(3, (40, 8), (513, 300), (128, 128)),
        ),
    ]
    .map(|(detail, attend)| {
        HOPPER
            .bf16(detail, Attend { policy, ..attend })
            .values(Values::IndexV)
    })
    .into()
}

/// The plane tier's other order: scores of a block before the values of the one before it.
fn plane_scores_ahead() -> Vec<Entry> {
    let policy = Policy {
        order: Some(IssueOrder::ScoresAhead),
        ..Policy::default()
    };
    let lengths = Attend {
        lengths_kv: Some(vec![257, 0, 1, 129, 64]),
        ..Attend::plain(5, (4, 2), (70, 257), D)
    };
    [
        ("ahead_q70xkv1", small(70, 1), Values::IndexV),
        ("ahead_q130xkv300", small(130, 300), Values::IndexV),
        ("ahead_lengths", lengths, Values::HiddenNan),
    ]
    .map(|(detail, attend, values)| {
        PLANE
            .both(detail, Attend { policy, ..attend })
            .values(values)
    })
    .into()
}

/// Rows and keys around the edges of the tiles, and empty axes.
fn tails(on: On) -> Vec<Entry> {
    let plain = |(s_q, s_kv)| on.both(format!("q{s_q}xkv{s_kv}"), small(s_q, s_kv));
    let rows = [1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 385].map(|s_q| (s_q, 130));
    let keys = [0, 1, 63, 64, 65, 79, 127, 128, 129, 256, 257].map(|s_kv| (66, s_kv));
    let mut entries: Vec<Entry> = rows.into_iter().chain(keys).map(plain).collect();
    entries.push(plain((0, 41)));
    let no_batch = Attend::plain(0, (4, 2), (37, 41), D);
    entries.push(on.both("b0", no_batch));
    entries
}

/// What cp.async reaches and TMA does not, and 64-bit addresses.
fn plane_addressing() -> Vec<Entry> {
    let wide = Policy {
        wide: true,
        ..Policy::default()
    };
    let far = Attend {
        policy: wide,
        ..small(70, 150)
    };
    vec![
        PLANE
            .both("batch_stride_0", small(70, 150))
            .memory(Memory::SharedKv),
        PLANE.bf16("wide", far),
    ]
}

/// Head dimensions with the tiles they get, keys around the edge of the block, and tiles by request.
fn tiles(
    on: On,
    blocks: &[((usize, usize), usize, bool)],
    asked: &[(usize, usize, usize)],
) -> Vec<Entry> {
    let mut entries = Vec::new();
    for &(d, block, every) in blocks {
        for s_kv in [block - 1, block, block + 1] {
            let detail = format!("d{}v{}_q129xkv{s_kv}", d.0, d.1);
            let attend = Attend::plain(1, (2, 1), (129, s_kv), d);
            let entry = on.both(detail, attend).values(Values::IndexV);
            entries.push(if every {
                entry
            } else {
                entry.dtypes(&[DType::BF16])
            });
        }
    }
    for &(rows, block, d) in asked {
        let policy = Policy {
            tile: Some((rows, block)),
            ..Policy::default()
        };
        let attend = Attend {
            policy,
            ..sized(193, 257, (d, d))
        };
        entries.push(on.bf16(format!("tile{rows}x{block}_d{d}"), attend));
    }
    entries
}

/// Head groups, and more tiles than a GPU has multiprocessors.
fn heads(on: On) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (h_q, h_kv) in [(4, 1), (9, 3), (48, 2), (5, 5)] {
        let attend = Attend::plain(1, (h_q, h_kv), (37, 141), D);
        let entry = on.both(format!("h{h_q}on{h_kv}"), attend);
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
    entries.push(
        on.both("many_tiles", many.clone())
            .values(Values::HiddenNan),
    );
    let causal = Attend {
        causal: true,
        ..many
    };
    entries.push(
        on.bf16("many_tiles_causal", causal)
            .values(Values::HiddenNan),
    );
    entries
}

/// Strides, offsets, gaps, supplied outputs.
fn memory(on: On) -> Vec<Entry> {
    [
        ("dense", Memory::Dense),
        ("bshd", Memory::HeadsInside),
        ("offset8", Memory::Offset(8)),
        ("pad8", Memory::PaddedRows(8)),
    ]
    .map(|(detail, memory)| on.both(detail, small(70, 150)).memory(memory))
    .into()
}

/// Causal masks and windows.
fn bands(on: On) -> Vec<Entry> {
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
            entries.push(on.both(format!("causal_{name}_q{s_q}xkv{s_kv}"), attend));
        }
    }
    for (d, s_q, s_kv) in [((128, 128), 200, 300), ((192, 128), 150, 150)] {
        let attend = Attend {
            causal: true,
            ..Attend::plain(1, (2, 1), (s_q, s_kv), d)
        };
        let detail = format!("causal_d{}v{}", d.0, d.1);
        entries.push(on.both(detail, attend).values(Values::IndexV));
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
        entries.push(on.bf16(detail, attend));
    }
    let beside = Attend {
        causal: true,
        window_left: Some(2),
        ..Attend::plain(1, (2, 1), (270, 20), D)
    };
    entries.push(on.bf16("rows_before_the_first_key", beside));
    entries
}

/// NaN in everything past a sequence's length, some of it inside the last visible block.
fn lengths(on: On) -> Vec<Entry> {
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
        nan(on.both("lengths_kv", kv(false))),
        nan(on.bf16("lengths_kv_causal", kv(true))),
        nan(on.both("lengths_both", both(false))),
        nan(on.bf16("lengths_both_causal", both(true))),
    ]
}

/// Everything that changes a logit or hides single keys.
fn hooks(on: On) -> Vec<Entry> {
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
        on.both("scale_negative", scaled(-0.5)),
        on.both("scale_zero", scaled(0.0)),
        on.bf16("softcap", capped.clone()),
        on.bf16("softcap_large_logits", capped)
            .values(Values::LargeLogits),
        on.bf16("alibi_bottom_right", alibi(Alignment::BottomRight)),
        on.bf16("alibi_top_left", alibi(Alignment::TopLeft)),
        on.bf16("bias_bhqk", biased([b, h, q, kv])),
        on.bf16("bias_b11k", biased([b, 1, 1, kv])),
        on.bf16("bias_1hq1", biased([1, h, q, 1])),
        on.bf16("mask_u8_bhqk", masked(MaskWidth::U8, [b, h, q, kv])),
        on.bf16("mask_u8_b11k", masked(MaskWidth::U8, [b, 1, 1, kv])),
        on.bf16("mask_u8_1hq1", masked(MaskWidth::U8, [1, h, q, 1])),
        on.bf16("mask_u32_b1qk", masked(MaskWidth::U32, [b, 1, q, kv])),
        on.bf16("documents_three", documents(3)),
        on.bf16("documents_many", documents(20)),
        on.bf16("documents_long", long(false)),
        on.bf16("documents_scattered", long(true)),
        on.bf16("documents_long_causal", causal_documents),
        on.both("every_hook", all),
    ]
}

/// Inputs that show faults which random ones average away.
fn values(on: On) -> Vec<Entry> {
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
    let with = |detail, attend, values| on.both(detail, attend).values(values);
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
