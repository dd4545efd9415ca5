//! Attention maps: what each query looked at.

use crate::AttentionCall;

/// One head's attention map over a sentence's own tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadMap {
    /// Encoder layer, from 0.
    pub layer: usize,
    /// Head, from 0.
    pub head: usize,
    /// Weights p_ij of query i on key j, row-major [n, n].
    pub weights: Vec<f32>,
}

/// All maps of one sentence.
#[derive(Debug, Clone, PartialEq)]
pub struct SentenceMaps {
    /// Tokens n of the sentence.
    pub n: usize,
    /// One map for each layer and head, layers first.
    pub heads: Vec<HeadMap>,
}

impl SentenceMaps {
    pub(super) fn empty(lengths: &[usize]) -> Vec<Self> {
        lengths
            .iter()
            .map(|&n| Self {
                n,
                heads: Vec::new(),
            })
            .collect()
    }

    /// For each layer, the head that looks most sharply at other words: largest sum of squared
    /// weights between different tokens, the special first and last ones left out.
    pub fn sharpest_heads(&self) -> Vec<&HeadMap> {
        let words = 1..self.n.saturating_sub(1);
        let sharpness = |map: &HeadMap| -> f32 {
            let pairs = words
                .clone()
                .flat_map(|i| words.clone().map(move |j| (i, j)));
            pairs
                .filter(|(i, j)| i != j)
                .map(|(i, j)| map.weights[i * self.n + j].powi(2))
                .sum()
        };
        let layers = self
            .heads
            .iter()
            .map(|map| map.layer + 1)
            .max()
            .unwrap_or(0);
        (0..layers)
            .filter_map(|layer| {
                let heads = self.heads.iter().filter(|map| map.layer == layer);
                heads.max_by(|a, b| sharpness(a).total_cmp(&sharpness(b)))
            })
            .collect()
    }
}

/// Adds one layer: `p_ij = exp(scale q_i k_j - lse_i)` from the q and k that the kernel was given
/// and the `lse` [b, h, s] that it returned, so that rows sum to 1 only if that lse is right.
pub(super) fn add_layer(maps: &mut [SentenceMaps], call: &AttentionCall<'_, f32>, lse: &[f32]) {
    let scale = call.scale as f32;
    for (b, maps) in maps.iter_mut().enumerate() {
        for head in 0..call.h_q {
            let first = (b * call.h_q + head) * call.s;
            let values = |row: usize| (first + row) * call.d..(first + row + 1) * call.d;
            let mut weights = Vec::with_capacity(maps.n * maps.n);
            for i in 0..maps.n {
                let q = &call.q[values(i)];
                weights.extend((0..maps.n).map(|j| {
                    let dot: f32 = q.iter().zip(&call.k[values(j)]).map(|(q, k)| q * k).sum();
                    (scale * dot - lse[first + i]).exp()
                }));
            }
            maps.heads.push(HeadMap {
                layer: call.layer,
                head,
                weights,
            });
        }
    }
}
