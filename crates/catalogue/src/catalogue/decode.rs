//! Few queries against a cache: every number of parts, every page size, lengths around the edges of
//! pages and blocks, tables of the host and of the device.

use flashcube::attention::ScaledBy;
use flashcube::{DType, Policy, TierName};

use super::Entry;
use crate::problem::{Attend, Decode, Memory, Task, Values};

/// A decode in one piece, split as planned.
fn plain(attend: Attend) -> Decode {
    Decode {
        attend,
        page: None,
        splits: None,
        prefix: 0,
        device_tables: false,
        codes: None,
    }
}

fn entry(feature: &'static str, detail: impl Into<String>, decode: Decode) -> Entry {
    Entry::new(feature, detail, Task::Decode(decode)).memory(Memory::Poisoned)
}

/// Parts that divide the keys, that do not, and more than there are blocks.
const SPLITS: [usize; 10] = [1, 2, 3, 4, 5, 17, 32, 55, 97, 133];
const PAGES: [usize; 5] = [1, 16, 64, 128, 256];

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = unit();
    for on in [PLANE, HOPPER] {
        entries.extend(matrix(on));
    }
    entries
}

fn unit() -> Vec<Entry> {
    let sizes = |s_q, s_kv| Attend::plain(2, (4, 2), (s_q, s_kv), (16, 16));
    let mut entries = Vec::new();
    for splits in SPLITS {
        let decode = Decode {
            splits: Some(splits),
            ..plain(sizes(3, 150))
        };
        let entry = entry("splits", format!("n{splits}_q3xkv150"), decode);
        entries.push(if splits == 5 {
            entry.all_dtypes()
        } else {
            entry
        });
    }
    for (detail, decode) in lengths(&sizes(2, 130), 3) {
        entries.push(entry("lengths", detail, decode).values(Values::HiddenNan));
    }
    for (detail, decode) in pages(&sizes(2, 150), 5) {
        entries.push(entry("pages", detail, decode).values(Values::IndexV));
    }
    for (detail, decode) in hooks(&sizes(5, 90), 4) {
        entries.push(entry("hooks", detail, decode));
    }
    for (detail, decode) in empty(&sizes(1, 40)) {
        entries.push(entry("empty", detail, decode));
    }
    for (detail, decode) in codes(&sizes(2, 150), 3) {
        entries.push(entry("e4m3", detail, decode).all_dtypes());
    }
    for (detail, decode) in cascades(&sizes(2, 90)) {
        entries.push(entry("cascade", detail, decode));
    }
    for (detail, decode) in device(&sizes(2, 130), 3) {
        entries.push(entry("device_tables", detail, decode).values(Values::HiddenNan));
    }
    entries
}

/// Lengths around blocks of 8, 16 and 32 keys and around 64, shorter than their parts, and 0.
fn lengths(attend: &Attend, splits: usize) -> Vec<(String, Decode)> {
    let mut all = Vec::new();
    for (a, b) in [
        (0, 130),
        (1, 129),
        (7, 8),
        (9, 0),
        (31, 32),
        (33, 63),
        (64, 65),
        (127, 128),
    ] {
        let attend = Attend {
            lengths_kv: Some(vec![a, b]),
            causal: true,
            ..attend.clone()
        };
        let decode = Decode {
            splits: Some(splits),
            ..plain(attend)
        };
        all.push((format!("kv{a}_{b}"), decode));
    }
    all
}

fn pages(attend: &Attend, splits: usize) -> Vec<(String, Decode)> {
    let mut all = Vec::new();
    for page in PAGES {
        for (detail, lengths) in [
            ("full", None),
            ("short", Some(vec![page.min(attend.s_kv), attend.s_kv / 3])),
            ("over", Some(vec![(page + 1).min(attend.s_kv), 0])),
        ] {
            for splits in [1, splits] {
                let decode = Decode {
                    page: Some(page),
                    splits: Some(splits),
                    ..plain(Attend {
                        lengths_kv: lengths.clone(),
                        ..attend.clone()
                    })
                };
                all.push((format!("page{page}_{detail}_n{splits}"), decode));
            }
        }
    }
    all
}

fn hooks(attend: &Attend, splits: usize) -> Vec<(String, Decode)> {
    let (h, s_kv) = (attend.h_q, attend.s_kv);
    let with = |change: &dyn Fn(&mut Attend)| {
        let mut attend = attend.clone();
        change(&mut attend);
        attend
    };
    let some = [
        ("causal", with(&|a| a.causal = true)),
        (
            "window",
            with(&|a| (a.window_left, a.causal) = (Some(s_kv / 3), true)),
        ),
        ("alibi", with(&|a| a.alibi = true)),
        ("softcap", with(&|a| a.softcap = Some(3.0))),
        ("bias", with(&|a| a.bias = Some([1, h, 1, s_kv]))),
        ("sinks", with(&|a| a.sinks = true)),
        (
            "window_sinks",
            with(&|a| (a.window_left, a.causal, a.sinks) = (Some(s_kv / 5), true, true)),
        ),
        (
            "window_sinks_lengths",
            with(&|a| {
                (a.window_left, a.causal, a.sinks) = (Some(s_kv / 5), true, true);
                a.lengths_kv = Some(vec![s_kv / 2 + 1, 0]);
            }),
        ),
    ];
    let of = |(detail, attend): (&str, Attend)| {
        let decode = Decode {
            splits: Some(splits),
            ..plain(attend)
        };
        (detail.to_owned(), decode)
    };
    let mut all: Vec<_> = some.into_iter().map(of).collect();
    let sinks = with(&|a| a.sinks = true);
    let whole = Decode {
        splits: Some(1),
        ..plain(sinks)
    };
    all.push(("sinks_whole".into(), whole));
    all
}

fn empty(attend: &Attend) -> Vec<(String, Decode)> {
    let split = |attend| Decode {
        splits: Some(3),
        ..plain(attend)
    };
    let paged = |attend| Decode {
        page: Some(16),
        ..split(attend)
    };
    let of = |s_q, s_kv| Attend {
        s_q,
        s_kv,
        ..attend.clone()
    };
    let none = Attend {
        b: 0,
        ..attend.clone()
    };
    let narrow = Attend {
        d_v: 0,
        ..attend.clone()
    };
    vec![
        ("no_keys".into(), split(of(1, 0))),
        ("no_keys_paged".into(), paged(of(1, 0))),
        ("no_queries".into(), split(of(0, 40))),
        ("no_batch".into(), paged(none)),
        ("no_columns".into(), split(narrow)),
    ]
}

/// E4M3 caches, in one piece and in pages, scaled by head and by page.
fn codes(attend: &Attend, splits: usize) -> Vec<(String, Decode)> {
    let mut all = Vec::new();
    let lengths = vec![attend.s_kv, attend.s_kv / 2 + 1];
    for (codes, by) in [(ScaledBy::Head, "head"), (ScaledBy::Page, "page")] {
        for page in [None, Some(1), Some(16), Some(64), Some(256)] {
            if page.is_none() && codes == ScaledBy::Page {
                continue;
            }
            for splits in [1, splits] {
                let decode = Decode {
                    page,
                    splits: Some(splits),
                    codes: Some(codes),
                    ..plain(Attend {
                        lengths_kv: Some(lengths.clone()),
                        causal: true,
                        ..attend.clone()
                    })
                };
                let place = page.map_or("piece".to_owned(), |page| format!("page{page}"));
                all.push((format!("{place}_by_{by}_n{splits}"), decode));
            }
        }
    }
    all
}

/// Prefixes that all sequences share, in and out of memory where their queries are rows of one.
fn cascades(attend: &Attend) -> Vec<(String, Decode)> {
    let of = |prefix, splits, attend: Attend| Decode {
        prefix,
        splits: Some(splits),
        ..plain(attend)
    };
    let with = |change: &dyn Fn(&mut Attend)| {
        let mut attend = attend.clone();
        change(&mut attend);
        attend
    };
    let (b, s_kv) = (attend.b, attend.s_kv);
    let one = with(&|a| a.s_q = 1);
    let causal = with(&|a| (a.causal, a.sinks) = (true, true));
    let lengths = with(&|a| {
        (a.causal, a.lengths_kv) = (true, Some((0..b).map(|n| s_kv - 11 * n).collect()));
    });
    vec![
        ("one_query".into(), of(s_kv / 2, 1, one.clone())),
        ("one_query_n3".into(), of(s_kv / 2 + 1, 3, one)),
        ("causal_sinks".into(), of(s_kv / 3, 2, causal)),
        ("lengths".into(), of(s_kv / 3, 2, lengths)),
        ("no_suffix".into(), of(s_kv, 2, attend.clone())),
    ]
}

/// Tables that only the device knows.
fn device(attend: &Attend, splits: usize) -> Vec<(String, Decode)> {
    let attend = Attend {
        lengths_kv: Some(vec![attend.s_kv - 1, attend.s_kv / 4]),
        causal: true,
        ..attend.clone()
    };
    let of = |page: Option<usize>, splits: usize| Decode {
        page,
        splits: Some(splits),
        device_tables: true,
        ..plain(attend.clone())
    };
    vec![
        ("lengths".into(), of(None, splits)),
        ("lengths_whole".into(), of(None, 1)),
        ("pages1".into(), of(Some(1), splits)),
        ("pages16".into(), of(Some(16), splits)),
        ("pages64".into(), of(Some(64), splits)),
    ]
}

/// A tier of matrix units.
#[derive(Clone, Copy)]
struct On {
    tier: TierName,
    feature: &'static str,
    pages: &'static str,
}

const PLANE: On = On {
    tier: TierName::Plane,
    feature: "plane",
    pages: "plane_pages",
};
const HOPPER: On = On {
    tier: TierName::Hopper,
    feature: "hopper",
    pages: "hopper_pages",
};

fn matrix(on: On) -> Vec<Entry> {
    let sizes = |heads, s_q, s_kv, d| Attend::plain(2, heads, (s_q, s_kv), (d, d));
    let mut problems = Vec::new();
    for splits in SPLITS {
        let decode = Decode {
            splits: Some(splits),
            ..plain(sizes((8, 2), 1, 700, 128))
        };
        problems.push((on.feature, format!("n{splits}_q1xkv700"), decode));
    }
    // Queries from one to several tiles, and groups that no tile is a multiple of.
    for (heads, s_q, d) in [
        ((4, 4), 1, 64),
        ((16, 1), 1, 128),
        ((14, 2), 1, 64),
        ((6, 2), 2, 128),
        ((8, 2), 7, 128),
        ((8, 2), 64, 64),
        ((5, 1), 3, 256),
        ((2, 2), 17, 40),
    ] {
        let decode = Decode {
            splits: Some(3),
            ..plain(Attend {
                causal: true,
                ..sizes(heads, s_q, 333, d)
            })
        };
        let (h_q, h_kv) = heads;
        problems.push((on.feature, format!("h{h_q}on{h_kv}_q{s_q}_d{d}"), decode));
    }
    let planned = Decode {
        splits: None,
        ..plain(sizes((8, 2), 1, 3000, 128))
    };
    problems.push((on.feature, "planned_kv3000".into(), planned));
    let plane = sizes((8, 2), 2, 260, 128);
    let named = |kind: &str, list: Vec<(String, Decode)>| -> Vec<_> {
        let of = |(detail, decode)| (on.feature, format!("{kind}_{detail}"), decode);
        list.into_iter().map(of).collect()
    };
    problems.extend(named("lengths", lengths(&plane, 3)));
    problems.extend(named("hooks", hooks(&plane, 4)));
    // Where the prefix is read for each sequence its batch stride is 0, which TMA cannot walk.
    let mut shared = cascades(&plane);
    shared.retain(|(_, decode)| on.tier != TierName::Hopper || decode.attend.s_q == 1);
    problems.extend(named("cascade", shared));
    problems.extend(named("empty", empty(&sizes((8, 2), 1, 64, 64))));
    // Two cubes of four parts.
    let list = pages(&plane, 8).into_iter();
    problems.extend(list.map(|(detail, decode)| (on.pages, detail, decode)));
    let list = device(&plane, 3).into_iter();
    problems.extend(list.map(|(detail, decode)| (on.pages, format!("device_{detail}"), decode)));
    // A box of the Hopper tier lies in one page, and its swizzle repeats every 8 rows.
    let boxed =
        |page: Option<usize>| on.tier == TierName::Plane || page.is_none_or(|page| page >= 8);
    problems.retain(|(_, _, decode)| boxed(decode.page));
    if on.tier == TierName::Plane {
        for (d, detail) in [(128, "d128"), (64, "d64"), (80, "d80")] {
            let list = codes(&sizes((8, 2), 2, 260, d), 8).into_iter();
            let named = |(name, decode)| ("plane_e4m3", format!("{name}_{detail}"), decode);
            problems.extend(list.map(named));
        }
    }
    let of = |(feature, detail, decode): (&'static str, String, Decode)| {
        // Values left of a window lie in the blocks of those inside it, and matrix units multiply them.
        let hidden = detail.contains("lengths") || detail.contains("page");
        let hidden = hidden && decode.attend.window_left.is_none();
        let attend = Attend {
            policy: Policy {
                tier: Some(on.tier),
                ..decode.attend.policy
            },
            ..decode.attend
        };
        let values = match hidden {
            true => Values::HiddenNan,
            false => Values::Normal,
        };
        entry(feature, detail, Decode { attend, ..decode })
            .values(values)
            .dtypes(&[DType::F16, DType::BF16])
    };
    problems.into_iter().map(of).collect()
}
