//! Merge and Hadamard problems.

use super::Entry;
use crate::problem::{HadamardSizes, Memory, MergeSizes, Task, Values};

fn merged(feature: &'static str, detail: impl Into<String>, sizes: MergeSizes) -> Entry {
    Entry::new(feature, detail, Task::Merge(sizes))
}

pub(super) fn merge() -> Vec<Entry> {
    let sizes = |n, s, d_v, empty| MergeSizes {
        n,
        b: 2,
        h: 3,
        s,
        d_v,
        empty,
    };
    let mut entries = Vec::new();
    for n in [1, 2, 3, 17, 64] {
        let entry = merged("partials", format!("n{n}"), sizes(n, 33, 16, 0));
        entries.push(if n == 3 { entry.all_dtypes() } else { entry });
    }
    for (detail, sizes) in [
        ("no_partials", sizes(0, 33, 16, 0)),
        ("no_rows", sizes(3, 0, 16, 0)),
        ("no_columns", sizes(3, 33, 0, 0)),
    ] {
        entries.push(merged("empty", detail, sizes).memory(Memory::Poisoned));
    }
    // (0, -inf) merged with (0, -inf) is (0, -inf); an empty partial's out is never read.
    for (detail, empty) in [("every_second", 2), ("every_third", 3), ("all", 1)] {
        let entry = merged("empty_partials", detail, sizes(4, 33, 16, empty));
        let entry = entry.values(Values::HiddenNan).memory(Memory::Poisoned);
        entries.push(entry.all_dtypes());
    }
    for (detail, memory) in [
        ("bshd", Memory::HeadsInside),
        ("offset3", Memory::Offset(3)),
        ("pad5", Memory::PaddedRows(5)),
        ("pad8", Memory::PaddedRows(8)),
    ] {
        entries.push(merged("strides", detail, sizes(3, 33, 16, 0)).memory(memory));
    }
    for d_v in [1, 59, 128] {
        let entry = merged("head_dims", format!("d{d_v}"), sizes(5, 9, d_v, 0));
        entries.push(entry);
    }
    let large = merged("values", "large_lse", sizes(5, 33, 16, 0));
    entries.push(large.values(Values::LargeLogits));
    entries
}

pub(super) fn hadamard() -> Vec<Entry> {
    let transform =
        |feature, detail: String, sizes| Entry::new(feature, detail, Task::Hadamard(sizes));
    let sizes = |rows, n, signs, inverse| HadamardSizes {
        rows,
        n,
        signs,
        inverse,
    };
    let mut entries = Vec::new();
    for n in [1, 2, 64, 128, 1024] {
        let entry = transform("sizes", format!("n{n}"), sizes(37, n, false, false));
        entries.push(if n == 128 { entry.all_dtypes() } else { entry });
    }
    entries.push(transform(
        "empty",
        "rows0".into(),
        sizes(0, 64, false, false),
    ));
    for (detail, inverse) in [("forward", false), ("inverse", true)] {
        let entry = transform("signs", detail.into(), sizes(37, 64, true, inverse));
        entries.push(entry.values(Values::Outliers).all_dtypes());
    }
    for (detail, memory) in [
        ("poisoned", Memory::Poisoned),
        ("offset3", Memory::Offset(3)),
        ("pad5", Memory::PaddedRows(5)),
    ] {
        let entry = transform("strides", detail.into(), sizes(37, 64, true, false));
        entries.push(entry.memory(memory));
    }
    entries
}
