//! Random attention problems that own what their options borrow, and comparisons.

use flashcube_reference::{Alignment, Broadcast, Options, Tensor4};
use proptest::prelude::*;

/// A small deterministic generator (xorshift64*), so that a seed names an input.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.bits() >> 33) as usize % limit
    }

    /// Sum of four uniforms: roughly normal with standard deviation 1.
    pub(crate) fn normal(&mut self) -> f64 {
        let uniform = |bits: u64| (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        (0..4).map(|_| uniform(self.bits())).sum::<f64>() * 3f64.sqrt()
    }

    pub(crate) fn normals(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.normal()).collect()
    }

    pub(crate) fn tensor(&mut self, shape: [usize; 4]) -> Tensor4 {
        Tensor4::from_fn(shape, |_| self.normal())
    }
}

/// An attention problem with everything that [`Options`] borrows.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) q: Tensor4,
    pub(crate) k: Tensor4,
    pub(crate) v: Tensor4,
    pub(crate) scale: f64,
    pub(crate) softcap: Option<f64>,
    pub(crate) causal: bool,
    pub(crate) alignment: Alignment,
    pub(crate) window_left: Option<usize>,
    pub(crate) window_right: Option<usize>,
    pub(crate) lengths_q: Option<Vec<usize>>,
    pub(crate) lengths_kv: Option<Vec<usize>>,
    pub(crate) documents: Option<(Vec<u32>, Vec<u32>)>,
    pub(crate) mask: Option<(Vec<bool>, [usize; 4])>,
    pub(crate) bias: Option<(Vec<f64>, [usize; 4])>,
    pub(crate) alibi: Option<Vec<f64>>,
    pub(crate) sinks: Option<Vec<f64>>,
}

impl Case {
    /// Standard normal q, k, v and no option set. `heads` is (h_q, h_kv).
    pub(crate) fn plain(
        seed: u64,
        b: usize,
        heads: (usize, usize),
        s: (usize, usize),
        d: (usize, usize),
    ) -> Self {
        let mut random = Random::new(seed);
        Self {
            q: random.tensor([b, heads.0, s.0, d.0]),
            k: random.tensor([b, heads.1, s.1, d.0]),
            v: random.tensor([b, heads.1, s.1, d.1]),
            scale: 1.0 / (d.0.max(1) as f64).sqrt(),
            softcap: None,
            causal: false,
            alignment: Alignment::BottomRight,
            window_left: None,
            window_right: None,
            lengths_q: None,
            lengths_kv: None,
            documents: None,
            mask: None,
            bias: None,
            alibi: None,
            sinks: None,
        }
    }

    /// Each bit of `features` switches one option on, with random contents.
    pub(crate) fn with_features(mut self, seed: u64, features: u32) -> Self {
        let [b, h_q, s_q, _] = self.q.shape;
        let s_kv = self.k.shape[2];
        let mut random = Random::new(seed ^ 0xfeed);
        let on = |bit: u32| features >> bit & 1 == 1;
        let shape = |bits: usize| {
            let pick = |axis: usize, full| if bits >> axis & 1 == 1 { 1 } else { full };
            [pick(0, b), pick(1, h_q), pick(2, s_q), pick(3, s_kv)]
        };
        self.causal = on(0);
        if on(1) {
            self.alignment = Alignment::TopLeft;
        }
        self.window_left = on(2).then(|| random.below(s_kv + 1));
        self.window_right = on(3).then(|| random.below(s_kv + 1));
        self.lengths_q = on(4).then(|| (0..b).map(|_| random.below(s_q + 1)).collect());
        self.lengths_kv = on(5).then(|| (0..b).map(|_| random.below(s_kv + 1)).collect());
        self.documents = on(6).then(|| {
            let mut ids = |n| (0..n).map(|_| random.below(3) as u32).collect::<Vec<_>>();
            (ids(b * s_q), ids(b * s_kv))
        });
        self.mask = on(7).then(|| {
            let shape = shape(random.below(16));
            let n = shape.iter().product();
            ((0..n).map(|_| random.below(3) == 0).collect(), shape)
        });
        self.bias = on(8).then(|| {
            let shape = shape(random.below(16));
            let n = shape.iter().product();
            let mut value = || match random.below(8) {
                0 => f64::NEG_INFINITY,
                _ => random.normal(),
            };
            ((0..n).map(|_| value()).collect(), shape)
        });
        self.alibi = on(9).then(|| (1..=h_q).map(|h| 0.5f64.powi(h as i32)).collect());
        self.sinks = on(11).then(|| (0..h_q).map(|h| h as f64 - 1.0).collect());
        self.softcap = on(10).then_some(1.5);
        self
    }

    pub(crate) fn options(&self) -> Options<'_> {
        Options {
            scale: self.scale,
            softcap: self.softcap,
            causal: self.causal,
            alignment: self.alignment,
            window_left: self.window_left,
            window_right: self.window_right,
            lengths_q: self.lengths_q.as_deref(),
            lengths_kv: self.lengths_kv.as_deref(),
            cu_seqlens: None,
            documents: self.documents.as_ref().map(|(q, kv)| (&q[..], &kv[..])),
            mask: self.mask.as_ref().map(|(data, shape)| Broadcast {
                data,
                shape: *shape,
            }),
            bias: self.bias.as_ref().map(|(data, shape)| Broadcast {
                data,
                shape: *shape,
            }),
            alibi: self.alibi.as_deref(),
            sinks: self.sinks.as_deref(),
        }
    }
}

/// Small problems over all sizes (zero included), head groups and options.
pub(crate) fn any_case() -> impl Strategy<Value = Case> {
    let sizes = (
        (0usize..3, 1usize..4, 1usize..3),
        (0usize..9, 0usize..9),
        (0usize..11, 0usize..4),
    );
    (sizes, any::<u64>(), any::<u32>()).prop_map(|(((b, group, h_kv), s, d), seed, features)| {
        Case::plain(seed, b, (group * h_kv, h_kv), s, d).with_features(seed, features)
    })
}

/// Asserts |got - want| <= bound for every element; equal infinities agree, NaN never does.
#[track_caller]
pub(crate) fn assert_close(got: &[f64], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len());
    for (index, (&got, &want)) in got.iter().zip(want).enumerate() {
        assert!(
            got == want || (got - want).abs() <= bound,
            "element {index}: {got} against {want}, bound {bound:e}"
        );
    }
}
