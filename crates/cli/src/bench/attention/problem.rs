//! The problems of the suite `attention_forward`. The script that times peers
//! (`benches/peers/peers.py`) has the same list; a test compares them.

use std::ops::Range;

use flashcube::DType;
use serde_json::{Value, json};

use crate::bench::draw::mix;
use crate::bench::report::Goal;

/// One attention problem: q [b, h_q, s_q, d], k and v [b, h_kv, s_kv, d].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AttendProblem {
    pub(super) dtype: DType,
    pub(super) b: usize,
    pub(super) h_q: usize,
    pub(super) h_kv: usize,
    pub(super) s_q: usize,
    pub(super) s_kv: usize,
    pub(super) d: usize,
    pub(super) causal: bool,
    pub(super) form: Form,
}

/// What a problem is beside its sizes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Form {
    Dense,
    /// Keys further left of the query than this are hidden.
    Window(usize),
    /// Lengths are given, each as long as the tensor: the work of `Dense`, by a kernel that could
    /// do with less.
    Lengths,
    /// Sequences of these lengths one after the other, b = 1 and s_q = s_kv their sum.
    Packed(Vec<usize>),
    /// A decode: every sequence's keys lie in a cache.
    Cache(Cache),
}

/// Where a decode's keys lie and how it is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cache {
    /// Rows of a page, in disorder; `None` for one piece.
    pub(super) page: Option<usize>,
    /// Launches are replays of a graph that holds the step.
    pub(super) graph: bool,
    /// K and V are E4M3 codes.
    pub(super) codes: bool,
}

/// (b, h_q, h_kv, s_kv) of decodes, d 128.
const CACHES: [(usize, usize, usize, usize); 7] = [
    (1, 32, 8, 131_072),
    (16, 32, 8, 8192),
    (64, 32, 8, 4096),
    (128, 64, 8, 2048),
    (1, 32, 8, 8192),
    (8, 32, 8, 512),
    (32, 16, 1, 8192),
];
/// Caches below this many keys take less time than their launches.
const LAUNCH_BOUND: usize = 1 << 14;

fn cached(
    dtype: DType,
    (b, h_q, h_kv, s_kv): (usize, usize, usize, usize),
    cache: Cache,
) -> AttendProblem {
    AttendProblem {
        h_kv,
        s_q: 1,
        form: Form::Cache(cache),
        ..dense(dtype, (b, h_q, s_kv, 128), false)
    }
}

/// Decodes for the host's cores.
pub(super) fn decode_small(dtype: DType) -> Vec<AttendProblem> {
    let paged = |page| Cache {
        page,
        ..Cache::default()
    };
    [None, Some(64)]
        .map(|page| cached(dtype, (2, 8, 2, 1024), paged(page)))
        .to_vec()
}

/// Decodes for a GPU: in one piece and in pages of 64, and as graphs where launches cost as much.
pub(super) fn decode_large(dtype: DType) -> Vec<AttendProblem> {
    let mut all = Vec::new();
    for shape in CACHES {
        for page in [None, Some(64)] {
            let plain = Cache {
                page,
                ..Cache::default()
            };
            all.push(cached(dtype, shape, plain));
            if shape.0 * shape.3 < LAUNCH_BOUND {
                let graph = true;
                all.push(cached(dtype, shape, Cache { graph, ..plain }));
            }
            if shape.0 == 64 {
                let codes = true;
                all.push(cached(dtype, shape, Cache { codes, ..plain }));
            }
        }
    }
    all
}

/// (b, h, s, d) with which peers were measured before.
const SHAPES: [(usize, usize, usize, usize); 7] = [
    (16, 16, 1024, 128),
    (8, 16, 2048, 128),
    (4, 16, 4096, 128),
    (2, 16, 8192, 128),
    (1, 16, 16384, 128),
    (1, 32, 16384, 64),
    (1, 8, 16384, 256),
];

/// Lengths of the packed problem.
const MIXED: [usize; 16] = [
    128, 256, 384, 512, 777, 1024, 1025, 1536, 2048, 2500, 3000, 4096, 5000, 6000, 7000, 8192,
];

/// Problems drawn from the seed.
const DRAWN: u64 = 10;
/// Query rows of a drawn problem, about: as many as the listed shapes have.
const DRAWN_ROWS: usize = 1 << 18;

fn dense(dtype: DType, (b, h, s, d): (usize, usize, usize, usize), causal: bool) -> AttendProblem {
    AttendProblem {
        dtype,
        b,
        h_q: h,
        h_kv: h,
        s_q: s,
        s_kv: s,
        d,
        causal,
        form: Form::Dense,
    }
}

/// Problems for the host's cores.
pub(super) fn small(dtype: DType) -> Vec<AttendProblem> {
    let grouped = |h_q, h_kv, problem| AttendProblem {
        h_q,
        h_kv,
        ..problem
    };
    vec![
        dense(dtype, (1, 4, 256, 32), false),
        grouped(4, 2, dense(dtype, (1, 4, 256, 64), true)),
        dense(dtype, (1, 2, 256, 128), true),
        AttendProblem {
            s_q: 1,
            ..grouped(8, 2, dense(dtype, (1, 8, 2048, 64), false))
        },
    ]
}

/// Problems for a GPU: the listed shapes with and without the causal mask, those drawn from
/// `seed`, a window, lengths, packed sequences.
pub(super) fn large(dtype: DType, seed: u64) -> Vec<AttendProblem> {
    let listed = SHAPES
        .into_iter()
        .flat_map(|shape| [false, true].map(|causal| dense(dtype, shape, causal)));
    let drawn = (0..DRAWN).map(|i| drawn(dtype, seed, i));
    let window = AttendProblem {
        form: Form::Window(1024),
        ..dense(dtype, SHAPES[4], true)
    };
    let lengths = AttendProblem {
        form: Form::Lengths,
        ..dense(dtype, SHAPES[3], false)
    };
    let packed = [false, true].map(|causal| AttendProblem {
        form: Form::Packed(MIXED.to_vec()),
        ..dense(dtype, (1, 16, MIXED.iter().sum(), 128), causal)
    });
    let others = [window, lengths].into_iter().chain(packed);
    listed.chain(drawn).chain(others).collect()
}

/// Problems for a GPU past what a grid's y and z (65,535) and 32-bit offsets (2^31 elements) reach: lanes of q, elements of
/// q, k, v and out, elements of a cache in one piece and in pages.
pub(super) fn limits(dtype: DType) -> Vec<AttendProblem> {
    let lanes = dense(dtype, (2, 40_000, 65, 64), true);
    let elements = dense(dtype, (1024, 32, 513, 128), true);
    let caches = [None, Some(64)].map(|page| {
        let cache = Cache {
            page,
            ..Cache::default()
        };
        cached(dtype, (64, 32, 8, 32_832), cache)
    });
    [lanes, elements].into_iter().chain(caches).collect()
}

/// Problem `i` of those drawn from `seed`: any length, so that last tiles are ragged, and up to
/// eight query heads for each key head.
fn drawn(dtype: DType, seed: u64, i: u64) -> AttendProblem {
    let pick = |field: u64, choices: usize| (mix(seed, 16 * i + field) % choices as u64) as usize;
    let d = [64, 96, 128, 192, 256][pick(0, 5)];
    let h_kv = 1 << pick(1, 4);
    let h_q = h_kv << pick(2, 4);
    let s = 512 + pick(3, 7680);
    let b = (DRAWN_ROWS / (h_q * s)).max(1);
    AttendProblem {
        h_kv,
        ..dense(dtype, (b, h_q, s, d), pick(4, 2) == 1)
    }
}

impl AttendProblem {
    /// Unique within the suite.
    pub(crate) fn name(&self) -> String {
        let &Self {
            b,
            h_q,
            h_kv,
            s_q,
            s_kv,
            d,
            ..
        } = self;
        let heads = match h_q == h_kv {
            true => format!("h{h_q}"),
            false => format!("h{h_q}on{h_kv}"),
        };
        let sizes = match (&self.form, s_q == s_kv) {
            (Form::Packed(lengths), _) => format!("varlen{}_{heads}", lengths.len()),
            (_, true) => format!("b{b}_{heads}_s{s_kv}"),
            (_, false) => format!("b{b}_{heads}_q{s_q}xkv{s_kv}"),
        };
        let mask = if self.causal { "/causal" } else { "" };
        let form = match self.form {
            Form::Window(left) => format!("/window{left}"),
            Form::Lengths => "/lengths".to_owned(),
            Form::Cache(Cache { page, graph, codes }) => {
                let page = page.map(|page| format!("/page{page}")).unwrap_or_default();
                let codes = if codes { "/e4m3" } else { "" };
                page + codes + if graph { "/graph" } else { "" }
            }
            Form::Dense | Form::Packed(_) => String::new(),
        };
        let kernel = match self.is_decode() {
            true => "attend_decode",
            false => "attend_forward",
        };
        format!("{kernel}/{}/{sizes}_d{d}{mask}{form}", self.dtype)
    }

    /// Whether the kernel is that of a decode.
    pub(super) fn is_decode(&self) -> bool {
        matches!(self.form, Form::Cache(_))
    }

    /// Element type of k and v.
    pub(super) fn kv_dtype(&self) -> DType {
        match self.form {
            Form::Cache(Cache { codes: true, .. }) => DType::E4M3,
            _ => self.dtype,
        }
    }

    /// Whether some peer takes the problem: a goal against another of our rows stands in where none
    /// does.
    pub(super) fn has_peers(&self) -> bool {
        match self.form {
            Form::Cache(cache) => cache == Cache::default(),
            _ => self.goal().is_none(),
        }
    }

    /// What the problem is grouped by: `none`, `causal`, `window`, `varlen`, `varlen causal`,
    /// `decode` or `decode paged`.
    pub(super) fn mask(&self) -> &'static str {
        match (&self.form, self.causal) {
            (Form::Cache(Cache { page: None, .. }), _) => "decode",
            (Form::Cache(_), _) => "decode paged",
            (Form::Window(_), _) => "window",
            (Form::Packed(_), true) => "varlen causal",
            (Form::Packed(_), false) => "varlen",
            (_, true) => "causal",
            (_, false) => "none",
        }
    }

    /// Rows to check: more where an offset may have lost its upper bits.
    pub(super) fn sampled(&self) -> usize {
        let past = |lanes: usize, rows: usize| lanes > 65_535 || lanes * rows * self.d > 1 << 31;
        match past(self.b * self.h_q, self.s_q) || past(self.b * self.h_kv, self.s_kv) {
            true => 64,
            false => 9,
        }
    }

    /// The keys that query `i` sees.
    pub(super) fn keys_of(&self, i: usize) -> Range<usize> {
        let (mut first, mut end) = (0, self.s_kv);
        if let Form::Packed(lengths) = &self.form {
            for &length in lengths {
                end = first + length;
                if i < end {
                    break;
                }
                first = end;
            }
        }
        let diagonal = (i + self.s_kv).saturating_sub(self.s_q);
        if self.causal {
            end = end.min(diagonal + 1);
        }
        if let Form::Window(left) = self.form {
            first = first.max(diagonal.saturating_sub(left));
        }
        first..end
    }

    /// Scores in view of one head. A causal mask counts as half of them, as is the custom.
    fn scores(&self) -> usize {
        let halved = |scores: usize| if self.causal { scores / 2 } else { scores };
        match &self.form {
            Form::Dense | Form::Lengths | Form::Cache(_) => halved(self.b * self.s_q * self.s_kv),
            Form::Packed(lengths) => halved(lengths.iter().map(|s| s * s).sum()),
            Form::Window(left) => {
                let seen = |i: usize| (i + 1).min(left + 1);
                self.b * (0..self.s_q).map(seen).sum::<usize>()
            }
        }
    }

    /// Two products, two operations for each score and column.
    pub(super) fn flops(&self) -> u64 {
        (4 * self.h_q * self.scores() * self.d) as u64
    }

    /// q, k, v read once, out and lse written once.
    pub(super) fn bytes(&self) -> u64 {
        let rows = self.b * self.h_q * self.s_q;
        let keys = self.b * self.h_kv * self.s_kv;
        let cached = 2 * keys * self.d * self.kv_dtype().size();
        (cached + 2 * rows * self.d * self.dtype.size() + 4 * rows) as u64
    }

    /// What this problem must gain on another one.
    pub(super) fn goal(&self) -> Option<Goal> {
        let mut plain = AttendProblem {
            form: Form::Dense,
            ..self.clone()
        };
        let at_least = match self.form {
            Form::Window(_) => 4.0,
            Form::Lengths => 0.98,
            Form::Cache(cache) if cache.codes => {
                plain.form = Form::Cache(Cache {
                    codes: false,
                    ..cache
                });
                1.7
            }
            Form::Cache(cache) if cache.page.is_some() => {
                plain.form = Form::Cache(Cache {
                    page: None,
                    ..cache
                });
                0.95
            }
            Form::Dense | Form::Packed(_) | Form::Cache(_) => return None,
        };
        Some(Goal {
            against: plain.name(),
            at_least,
        })
    }

    /// The problem as the peers' script takes it.
    pub(super) fn to_json(&self) -> Value {
        let (window, packed) = match &self.form {
            Form::Window(left) => (Some(*left), None),
            Form::Packed(lengths) => (None, Some(lengths)),
            Form::Dense | Form::Lengths | Form::Cache(_) => (None, None),
        };
        let cache = match self.form {
            Form::Cache(Cache { page, graph, codes }) => {
                json!({"page": page, "graph": graph, "codes": codes})
            }
            _ => Value::Null,
        };
        json!({
            "name": self.name(),
            "dtype": self.dtype.to_string(),
            "b": self.b, "h_q": self.h_q, "h_kv": self.h_kv,
            "s_q": self.s_q, "s_kv": self.s_kv, "d": self.d,
            "causal": self.causal, "window_left": window, "packed": packed,
            "lengths": self.form == Form::Lengths, "cache": cache,
            "mask": self.mask(), "bytes": self.bytes(), "flops": self.flops(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_goals_name_a_problem() {
        let problems = large(DType::BF16, 7);
        let names: BTreeSet<String> = problems.iter().map(AttendProblem::name).collect();
        assert_eq!(names.len(), problems.len());
        assert_eq!(problems.len(), 14 + 10 + 4);
        let goals: Vec<Goal> = problems.iter().filter_map(AttendProblem::goal).collect();
        assert_eq!(goals.len(), 2);
        for goal in goals {
            assert!(names.contains(&goal.against), "{}", goal.against);
        }
    }

    #[test]
    fn limits_are_passed_and_looked_at_more_closely() {
        let all = limits(DType::BF16);
        let most = |of: fn(&AttendProblem) -> usize| all.iter().map(of).max().unwrap();
        assert!(most(|p| p.b * p.h_q) > 65_535);
        assert!(most(|p| p.b * p.h_q * p.s_q * p.d) > 1 << 31);
        assert!(most(|p| p.b * p.h_kv * p.s_kv * p.d) > 1 << 31);
        assert!(all.iter().all(|p| p.sampled() == 64));
        assert!(large(DType::BF16, 7).iter().all(|p| p.sampled() == 9));
    }

    #[test]
    fn drawn_problems_differ_by_seed_and_fit_the_card() {
        let of = |seed| {
            (0..DRAWN)
                .map(|i| drawn(DType::F16, seed, i))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        for problem in (0..50).flat_map(of) {
            assert!(problem.bytes() < 4 << 30, "{}", problem.name());
            assert!(problem.h_q.is_multiple_of(problem.h_kv));
        }
    }

    #[test]
    fn a_query_sees_what_the_masks_leave() {
        let causal = dense(DType::F16, (1, 1, 10, 8), true);
        assert_eq!(causal.keys_of(3), 0..4);
        let window = AttendProblem {
            form: Form::Window(2),
            ..causal.clone()
        };
        assert_eq!((window.keys_of(1), window.keys_of(9)), (0..2, 7..10));
        let packed = AttendProblem {
            form: Form::Packed(vec![4, 6]),
            ..causal
        };
        assert_eq!(
            (packed.keys_of(3), packed.keys_of(4), packed.keys_of(9)),
            (0..4, 4..5, 4..10)
        );
        let decode = AttendProblem {
            s_q: 1,
            ..dense(DType::F16, (1, 1, 10, 8), false)
        };
        assert_eq!(decode.keys_of(0), 0..10);
    }

    #[test]
    fn flops_follow_the_scores_in_view() {
        let plain = dense(DType::F16, (2, 3, 100, 8), false);
        assert_eq!(plain.flops(), 4 * 2 * 3 * 100 * 100 * 8);
        let causal = dense(DType::F16, (2, 3, 100, 8), true);
        assert_eq!(causal.flops(), plain.flops() / 2);
        let window = AttendProblem {
            form: Form::Window(1),
            ..causal
        };
        assert_eq!(window.flops(), 4 * 2 * 3 * (1 + 99 * 2) * 8);
        let packed = AttendProblem {
            form: Form::Packed(vec![10, 20]),
            ..dense(DType::F16, (1, 3, 30, 8), false)
        };
        assert_eq!(packed.flops(), 4 * 3 * (100 + 400) * 8);
    }
}
