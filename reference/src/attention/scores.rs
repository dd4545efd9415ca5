//! A checked problem, its mask predicate and its scores.

use std::ops::Range;

use super::{Options, Output, Rows};
use crate::error::Error;
use crate::mask::Alignment;
use crate::tensor::{Tensor4, dot};

/// Inputs that have passed every check.
pub(super) struct Problem<'a> {
    pub(super) q: &'a Tensor4,
    pub(super) k: &'a Tensor4,
    pub(super) v: &'a Tensor4,
    pub(super) options: &'a Options<'a>,
}

/// The score of one query and key, -inf if hidden, and its derivative by scale * q . k.
#[derive(Clone, Copy)]
pub(super) struct Score {
    pub(super) value: f64,
    pub(super) derivative: f64,
}

impl Score {
    const HIDDEN: Score = Score {
        value: f64::NEG_INFINITY,
        derivative: 0.0,
    };

    pub(super) fn is_hidden(self) -> bool {
        self.value == f64::NEG_INFINITY
    }
}

impl<'a> Problem<'a> {
    pub(super) fn new(
        q: &'a Tensor4,
        k: &'a Tensor4,
        v: &'a Tensor4,
        options: &'a Options<'a>,
    ) -> Result<Self, Error> {
        q.check("q")?;
        k.check("k")?;
        v.check("v")?;
        let ([b, h_q, s_q, d], [_, h_kv, s_kv, _]) = (q.shape, k.shape);
        for (tensor, axis, size, expected) in [
            ("k", "b", k.shape[0], b),
            ("k", "d", k.shape[3], d),
            ("v", "b", v.shape[0], b),
            ("v", "h_kv", v.shape[1], h_kv),
            ("v", "s_kv", v.shape[2], s_kv),
        ] {
            if size != expected {
                return Err(Error::Axis {
                    tensor,
                    axis,
                    size,
                    expected,
                });
            }
        }
        if !h_q.is_multiple_of(h_kv) {
            return Err(Error::Heads { h_q, h_kv });
        }
        options.check([b, h_q, s_q, s_kv])?;
        Ok(Self { q, k, v, options })
    }

    pub(super) fn s_kv(&self) -> usize {
        self.k.shape[2]
    }

    pub(super) fn d_v(&self) -> usize {
        self.v.shape[3]
    }

    /// Query heads per key head.
    pub(super) fn group(&self) -> usize {
        self.q.shape[1] / self.k.shape[1]
    }

    /// The key head that query head h reads.
    pub(super) fn kv_head(&self, h: usize) -> usize {
        h / self.group()
    }

    /// Every (b, h, i), in the order of the output.
    pub(super) fn rows(&self) -> Vec<(usize, usize, usize)> {
        coordinates(self.q.shape)
    }

    /// Shapes the result of all rows.
    pub(super) fn output(&self, rows: Rows) -> Output {
        let [b, h_q, s_q, _] = self.q.shape;
        Output {
            out: Tensor4 {
                shape: [b, h_q, s_q, self.d_v()],
                data: rows.out,
            },
            lse: rows.lse,
        }
    }

    /// The key on the diagonal of query i; before the first key if negative.
    fn diagonal(&self, b: usize, i: usize) -> i64 {
        let (queries, keys) = self.sequence(b, i);
        let shift = match self.options.alignment {
            Alignment::TopLeft => 0,
            Alignment::BottomRight => keys.len() as i64 - queries.len() as i64,
        };
        keys.start as i64 + i as i64 - queries.start as i64 + shift
    }

    /// Queries and keys of the sequence that query i belongs to; none if it belongs to no sequence.
    pub(super) fn sequence(&self, b: usize, i: usize) -> (Range<usize>, Range<usize>) {
        let Some((cu_q, cu_kv)) = self.options.cu_seqlens else {
            let len_q = self.options.lengths_q.map_or(self.q.shape[2], |l| l[b]);
            let len_kv = self.options.lengths_kv.map_or(self.k.shape[2], |l| l[b]);
            return (0..len_q, 0..len_kv);
        };
        let mut sequences = cu_q.windows(2).zip(cu_kv.windows(2));
        sequences
            .find(|(queries, _)| (queries[0]..queries[1]).contains(&i))
            .map_or((0..0, 0..0), |(q, kv)| (q[0]..q[1], kv[0]..kv[1]))
    }

    /// The logit of the sink that a row of (b, h, i) has, -inf where it has none: rows that are no
    /// query have none.
    pub(super) fn sink(&self, (b, h, i): (usize, usize, usize)) -> f64 {
        let sinks = self
            .options
            .sinks
            .filter(|_| self.sequence(b, i).0.contains(&i));
        sinks.map_or(f64::NEG_INFINITY, |sinks| sinks[h])
    }

    /// May query i of head h see key j? (A bias of -inf hides it still.)
    fn visible(&self, b: usize, h: usize, i: usize, j: usize) -> bool {
        let (queries, keys) = self.sequence(b, i);
        if !queries.contains(&i) || !keys.contains(&j) {
            return false;
        }
        let right_of_diagonal = j as i64 - self.diagonal(b, i);
        if self.options.causal && right_of_diagonal > 0 {
            return false;
        }
        if let Some(left) = self.options.window_left
            && -right_of_diagonal > window(left)
        {
            return false;
        }
        if let Some(right) = self.options.window_right
            && right_of_diagonal > window(right)
        {
            return false;
        }
        if let Some((ids_q, ids_kv)) = self.options.documents {
            let (s_q, s_kv) = (self.q.shape[2], self.k.shape[2]);
            if ids_q[b * s_q + i] != ids_kv[b * s_kv + j] {
                return false;
            }
        }
        !self.options.mask.is_some_and(|mask| mask.get(b, h, i, j))
    }

    /// The score as [`Options`] defines it; a hidden key is not read.
    pub(super) fn score(&self, b: usize, h: usize, i: usize, j: usize) -> Score {
        if !self.visible(b, h, i, j) {
            return Score::HIDDEN;
        }
        let bias = self.options.bias.map_or(0.0, |bias| bias.get(b, h, i, j));
        if bias == f64::NEG_INFINITY {
            return Score::HIDDEN;
        }
        let q_row = self.q.row(b, h, i);
        let k_row = self.k.row(b, self.kv_head(h), j);
        let mut value = self.options.scale * dot(q_row, k_row);
        let mut derivative = 1.0;
        if let Some(softcap) = self.options.softcap {
            let tanh = (value / softcap).tanh();
            value = softcap * tanh;
            derivative = 1.0 - tanh * tanh;
        }
        if let Some(slopes) = self.options.alibi {
            value -= slopes[h] * (self.diagonal(b, i) - j as i64).abs() as f64;
        }
        value += bias;
        Score { value, derivative }
    }

    /// The scores `[s_kv]` of one row.
    pub(super) fn score_row(&self, (b, h, i): (usize, usize, usize)) -> Vec<f64> {
        let keys = 0..self.s_kv();
        keys.map(|j| self.score(b, h, i, j).value).collect()
    }
}

/// Every (b, h, s) of a tensor [b, h, s, d], in row-major order.
pub(super) fn coordinates([b, h, s, _]: [usize; 4]) -> Vec<(usize, usize, usize)> {
    let rows = (0..b).flat_map(|b| (0..h).map(move |h| (b, h)));
    rows.flat_map(|(b, h)| (0..s).map(move |s| (b, h, s)))
        .collect()
}

/// A width beyond i64 is unlimited all the same.
fn window(width: usize) -> i64 {
    i64::try_from(width).unwrap_or(i64::MAX)
}
