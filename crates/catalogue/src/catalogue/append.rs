//! New rows into caches: pages that end in the middle of them, rotations, ragged and left-padded
//! batches.

use flashcube::attention::RopePairs;

use super::Entry;
use crate::problem::{Append, Memory, Task};

fn entry(feature: &'static str, detail: impl Into<String>, append: Append) -> Entry {
    Entry::new(feature, detail, Task::Append(append))
}

pub(super) fn entries() -> Vec<Entry> {
    let plain = Append {
        h: 2,
        s: 5,
        s_kv: 40,
        d: (16, 24),
        lengths: vec![0, 17, 35],
        rows: None,
        page: None,
        rope: None,
        device_tables: false,
    };
    let with = |change: &dyn Fn(&mut Append)| {
        let mut append = plain.clone();
        change(&mut append);
        append
    };
    let mut entries = vec![entry("pages", "one_piece", plain.clone()).all_dtypes()];
    for page in [1, 16, 64] {
        let paged = with(&|a| a.page = Some(page));
        entries.push(entry("pages", format!("page{page}"), paged).all_dtypes());
    }
    for (detail, memory) in [
        ("bshd", Memory::HeadsInside),
        ("offset3", Memory::Offset(3)),
        ("pad5", Memory::PaddedRows(5)),
    ] {
        entries.push(entry("strides", detail, plain.clone()).memory(memory));
    }
    let ragged = vec![(0, 3), (2, 0), (1, 4)];
    for page in [None, Some(16)] {
        let rows = with(&|a| (a.rows, a.page) = (Some(ragged.clone()), page));
        let name = page.map_or("one_piece".to_owned(), |page| format!("page{page}"));
        entries.push(entry("ragged", name.clone(), rows));
        for (pairs, how) in [
            (RopePairs::Interleaved, "interleaved"),
            (RopePairs::HalfSplit, "half_split"),
        ] {
            for columns in [16, 6] {
                let rope = with(&|a| {
                    (a.rope, a.page) = (Some((pairs, columns)), page);
                });
                let detail = format!("{how}{columns}_{name}");
                entries.push(entry("rope", detail, rope).all_dtypes());
            }
        }
        let device = with(&|a| {
            (a.page, a.device_tables) = (page, true);
            a.rope = Some((RopePairs::HalfSplit, 16));
        });
        entries.push(entry("device_tables", name.clone(), device));
        let device = with(&|a| {
            (a.page, a.device_tables) = (page, true);
            a.rows = Some(ragged.clone());
        });
        entries.push(entry("device_tables", format!("ragged_{name}"), device));
    }
    for (detail, none) in [
        ("no_heads", with(&|a| a.h = 0)),
        ("no_sequences", with(&|a| a.lengths.clear())),
        ("no_columns_of_v", with(&|a| a.d.1 = 0)),
    ] {
        entries.push(entry("empty", detail, none));
    }
    entries
}
