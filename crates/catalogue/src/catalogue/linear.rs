//! Products with packed weights.

use flashcube::{DType, MatmulPolicy, ScaleType, Scaling, TierName, WeightCodes, ZeroType};

use super::Entry;
use crate::problem::{LinearSizes, Memory, Task, Values};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

fn entry(feature: &'static str, detail: impl Into<String>, sizes: LinearSizes) -> Entry {
    Entry::new(feature, detail, Task::Linear(sizes))
}

fn sizes([m, n, k]: [usize; 3], group: usize) -> LinearSizes {
    LinearSizes {
        m,
        n,
        k,
        bits: 4,
        codes: WeightCodes::Int,
        scales: ScaleType::F16,
        group,
        zeros: None,
        gathered: false,
        bias: false,
        policy: MatmulPolicy::default(),
    }
}

fn zeros(sizes: LinearSizes) -> LinearSizes {
    LinearSizes {
        zeros: Some(ZeroType::Point),
        ..sizes
    }
}

/// As GGUF's Q4_1: an f16 minimum for every 32 rows.
fn minima(sizes: LinearSizes) -> LinearSizes {
    LinearSizes {
        zeros: Some(ZeroType::Minimum),
        ..sizes
    }
}

/// Every part of a problem that a tier may get wrong, of names that start with the tier's.
fn shapes(sizes_of: impl Fn([usize; 3], usize) -> LinearSizes) -> Vec<(String, LinearSizes)> {
    let mut all = Vec::new();
    for (mnk, group) in [
        ([1, 64, 64], 64),
        ([1, 1, 1], 64),
        ([3, 65, 130], 128),
        ([8, 96, 96], 32),
        ([9, 127, 1024], 128),
        ([16, 128, 576], 64),
        ([17, 200, 208], 128),
        ([33, 48, 520], 256),
        ([70, 136, 320], 64),
        ([130, 72, 256], 128),
    ] {
        let [m, n, k] = mnk;
        let name = format!("m{m}n{n}k{k}g{group}");
        all.push((name.clone(), sizes_of(mnk, group)));
        all.push((format!("{name}_zeros"), zeros(sizes_of(mnk, group))));
    }
    // One group for all rows.
    all.push(("per_channel".into(), sizes_of([5, 80, 200], 256)));
    for bits in [2, 3, 8] {
        let of = |mnk| LinearSizes {
            bits,
            ..zeros(sizes_of(mnk, 64))
        };
        all.push((format!("b{bits}_m2"), of([2, 72, 200])));
        all.push((format!("b{bits}_m40"), of([40, 72, 200])));
    }
    for (name, bits, codes, scales, group) in [
        ("nf4", 4, WeightCodes::Nf4, ScaleType::F16, 64),
        ("fp8", 8, WeightCodes::E4M3, ScaleType::F16, 512),
        ("nvfp4", 4, WeightCodes::E2M1, ScaleType::E4M3, 16),
        ("mxfp4", 4, WeightCodes::E2M1, ScaleType::E8M0, 32),
    ] {
        for (m, n, k) in [(2, 72, 200), (40, 200, 312)] {
            let floats = LinearSizes {
                bits,
                codes,
                scales,
                bias: m > 2,
                ..sizes_of([m, n, k], group)
            };
            all.push((format!("{name}_m{m}"), floats));
        }
    }
    for (detail, mnk, group) in [
        ("gathered_m1", [1, 64, 256], 64),
        ("gathered_m37", [37, 72, 300], 32),
    ] {
        let gathered = LinearSizes {
            gathered: true,
            ..zeros(sizes_of(mnk, group))
        };
        all.push((detail.into(), gathered));
    }
    for (mnk, group) in [
        ([1, 1, 32], 32),
        ([3, 65, 160], 32),
        ([16, 128, 576], 32),
        ([33, 47, 520], 32),
        ([70, 136, 320], 64),
        ([130, 72, 256], 32),
    ] {
        let [m, n, k] = mnk;
        let name = format!("minima_m{m}n{n}k{k}g{group}");
        all.push((name, minima(sizes_of(mnk, group))));
    }
    let gathered = LinearSizes {
        gathered: true,
        ..minima(sizes_of([37, 72, 300], 32))
    };
    all.push(("minima_gathered_m37".into(), gathered));
    let bytes = LinearSizes {
        bits: 8,
        ..minima(sizes_of([5, 72, 200], 128))
    };
    all.push(("minima_b8_m5".into(), bytes));
    for m in [1, 20] {
        let biased = LinearSizes {
            bias: true,
            ..sizes_of([m, 70, 136], 64)
        };
        all.push((format!("bias_m{m}"), biased));
    }
    all
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    for (detail, sizes) in shapes(sizes) {
        let feature = match detail.split('_').next() {
            Some("gathered") => "gathered",
            Some("bias") => "bias",
            Some("minima") => "minima",
            Some("b2" | "b3" | "b8") => "bits",
            Some("nf4" | "fp8" | "nvfp4" | "mxfp4") => "floats",
            _ => "sizes",
        };
        entries.push(entry(feature, detail, sizes).all_dtypes());
    }
    for (detail, mnk) in [("m0", [0, 64, 64]), ("n0", [3, 0, 64]), ("k0", [3, 70, 0])] {
        let empty = entry("empty", detail, sizes(mnk, 64));
        entries.push(empty.memory(Memory::Poisoned));
    }
    entries.extend(memories("sizes", sizes));
    entries.extend(distributions("sizes", sizes));
    for (feature, tier) in [("plane", TierName::Plane), ("hopper", TierName::Hopper)] {
        entries.extend(on_matrix_units(feature, tier));
    }
    entries
}

fn memories(
    feature: &'static str,
    sizes_of: impl Fn([usize; 3], usize) -> LinearSizes,
) -> Vec<Entry> {
    [
        ("poisoned", Memory::Poisoned),
        ("offset1", Memory::Offset(1)),
        ("pad8", Memory::PaddedRows(8)),
        ("pad5", Memory::PaddedRows(5)),
    ]
    .into_iter()
    .flat_map(|(detail, memory)| {
        [4, 40].map(|m| {
            let sizes = LinearSizes {
                bias: true,
                ..sizes_of([m, 72, 264], 128)
            };
            let entry = entry(feature, format!("{detail}_m{m}"), sizes);
            entry.memory(memory).dtypes(&HALVES)
        })
    })
    .collect()
}

fn distributions(
    feature: &'static str,
    sizes_of: impl Fn([usize; 3], usize) -> LinearSizes,
) -> Vec<Entry> {
    [
        ("outliers", Values::Outliers),
        ("large", Values::LargeLogits),
        ("cancelling", Values::Cancelling),
    ]
    .into_iter()
    .flat_map(|(detail, values)| {
        [
            (detail.to_owned(), zeros(sizes_of([6, 80, 1024], 128))),
            (
                format!("{detail}_minima"),
                minima(sizes_of([6, 80, 1024], 32)),
            ),
        ]
        .map(|(detail, sizes)| entry(feature, detail, sizes).values(values).dtypes(&HALVES))
    })
    .collect()
}

/// What a tier that scales weights does when it is asked to scale sums.
fn scaled_sums(sizes_of: impl Fn([usize; 3], usize) -> LinearSizes) -> Vec<Entry> {
    let mut entries = Vec::new();
    // With minima a tier has no choice.
    let choices = shapes(sizes_of)
        .into_iter()
        .filter(|(_, sizes)| !sizes.minima());
    for (detail, sizes) in choices {
        let sizes = LinearSizes {
            policy: MatmulPolicy {
                scaling: Some(Scaling::Sums),
                ..sizes.policy
            },
            ..sizes
        };
        let sums = entry("hopper_sums", detail, sizes);
        entries.push(sums.dtypes(&HALVES));
    }
    entries
}

/// The same on a tier of matrix units, and what only they have: parts of the rows of W, several
/// blocks of each size, rows of blocks asked for.
fn on_matrix_units(feature: &'static str, tier: TierName) -> Vec<Entry> {
    let with = |rows: Option<usize>, splits: Option<usize>| {
        move |mnk: [usize; 3], group: usize| LinearSizes {
            policy: MatmulPolicy {
                tier: Some(tier),
                rows,
                splits,
                ..MatmulPolicy::default()
            },
            ..sizes(mnk, group)
        }
    };
    let mut entries = Vec::new();
    for (detail, sizes) in shapes(with(None, None)) {
        entries.push(entry(feature, detail, sizes).dtypes(&HALVES));
    }
    if tier == TierName::Hopper {
        entries.extend(scaled_sums(with(None, None)));
    }
    entries.extend(memories(feature, with(None, None)));
    entries.extend(distributions(feature, with(None, None)));
    for splits in [2, 3, 7] {
        for (m, n, k) in [(4, 200, 4160), (20, 130, 2048), (140, 260, 1100)] {
            let detail = format!("splits{splits}_m{m}n{n}k{k}");
            let sizes = zeros(with(None, Some(splits))([m, n, k], 128));
            let split = entry(feature, detail, sizes).memory(Memory::Poisoned);
            entries.push(split.dtypes(&HALVES));
        }
    }
    for (m, n, k) in [(4, 200, 4160), (140, 260, 1100)] {
        let detail = format!("minima_splits3_m{m}n{n}k{k}");
        let sizes = minima(with(None, Some(3))([m, n, k], 32));
        let split = entry(feature, detail, sizes).memory(Memory::Poisoned);
        entries.push(split.dtypes(&HALVES));
    }
    // On a tier whose cubes stay: more blocks than cubes, of which those of the last round have parts.
    let rounds = zeros(with(Some(8), Some(2))([1070, 70, 520], 128));
    let rounds = entry(feature, "rounds_m1070n70k520", rounds).memory(Memory::Poisoned);
    entries.push(rounds.dtypes(&HALVES));
    if tier == TierName::Plane {
        // Columns that leave a cube 8 and 4 of 16 planes on 132 multiprocessors.
        for [m, n, k] in [[3, 8520, 600], [12, 16_936, 600]] {
            let sizes = zeros(with(None, None)([m, n, k], 128));
            let columns = entry(feature, format!("columns_m{m}n{n}k{k}"), sizes);
            entries.push(columns.memory(Memory::Poisoned).dtypes(&HALVES));
        }
    }
    let blocks: &[usize] = match tier {
        TierName::Hopper => &[16, 32, 64, 128],
        _ => &[8, 16, 32, 64],
    };
    for &rows in blocks {
        let detail = format!("blocks_of_{rows}");
        let sizes = with(Some(rows), Some(1))([150, 300, 640], 128);
        entries.push(entry(feature, detail, sizes).dtypes(&HALVES));
    }
    let long = zeros(with(None, None)([33, 1088, 4096], 128));
    entries.push(
        entry(feature, "large_m33n1088k4096", long)
            .dtypes(&HALVES)
            .long(),
    );
    let tall = with(None, None)([70000, 64, 64], 64);
    entries.push(
        entry(feature, "tall_m70000n64k64", tall)
            .dtypes(&HALVES)
            .long(),
    );
    entries
}
