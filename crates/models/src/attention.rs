//! The attention that models leave to their caller, and the layouts on both of its sides.

use crate::{ModelError, Real};

/// One attention that a model asks its caller for: `softmax(scale q k^T) v` over the keys that
/// `lengths` and `causal` leave.
///
/// A decoder that reads a text piece by piece brings only the new keys and values: the caller keeps
/// those of earlier calls for the same layer, `past` of them, and starts anew when `past` is 0.
#[derive(Debug, Clone, Copy)]
pub struct AttentionCall<'a, T> {
    /// Layer, from 0.
    pub layer: usize,
    /// Batch rows (sentences).
    pub b: usize,
    /// Query heads.
    pub h_q: usize,
    /// Heads of keys and values, which divide h_q.
    pub h_kv: usize,
    /// Padded sequence length of the queries and of the new keys.
    pub s: usize,
    /// Head width of q, k and v.
    pub d: usize,
    /// Keys of this layer that came in earlier calls, before the new ones.
    pub past: usize,
    /// Queries, [b, h_q, s, d] contiguous; rows past a length are 0.
    pub q: &'a [T],
    /// New keys, [b, h_kv, s, d] contiguous; rows past a length are 0.
    pub k: &'a [T],
    /// New values, [b, h_kv, s, d] contiguous; rows past a length are 0.
    pub v: &'a [T],
    /// Valid new keys of each batch row, `[b]`: keys from there on are hidden.
    pub lengths: &'a [usize],
    /// Whether query i sees only the past and the new keys 0 to i.
    pub causal: bool,
    /// Factor on the scores: 1 / sqrt(d).
    pub scale: f64,
}

/// The two layouts of activations: [tokens, h d] over valid tokens only, so that the linear parts
/// spend nothing on padding, and [b, h, s, d] with zeros past each length, for attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads<'a> {
    pub(crate) h: usize,
    pub(crate) s: usize,
    pub(crate) d: usize,
    pub(crate) lengths: &'a [usize],
}

impl Heads<'_> {
    /// (offset in [tokens, h d], offset in [b, h, s, d]) of each run of d values.
    fn runs(&self) -> impl Iterator<Item = (usize, usize)> {
        let valid = self
            .lengths
            .iter()
            .enumerate()
            .flat_map(|(b, &length)| (0..length).map(move |i| (b, i)));
        valid.enumerate().flat_map(move |(token, (b, i))| {
            (0..self.h).map(move |head| {
                let padded = (b * self.h + head) * self.s + i;
                ((token * self.h + head) * self.d, padded * self.d)
            })
        })
    }

    pub(crate) fn split<T: Real>(&self, x: &[T]) -> Vec<T> {
        let mut y = vec![T::zero(); self.lengths.len() * self.h * self.s * self.d];
        for (from, to) in self.runs() {
            y[to..to + self.d].copy_from_slice(&x[from..from + self.d]);
        }
        y
    }

    pub(crate) fn join<T: Real>(&self, y: &[T]) -> Vec<T> {
        let tokens: usize = self.lengths.iter().sum();
        let mut x = vec![T::zero(); tokens * self.h * self.d];
        for (to, from) in self.runs() {
            x[to..to + self.d].copy_from_slice(&y[from..from + self.d]);
        }
        x
    }
}

/// Calls `attend` and checks the length of what it returns.
pub(crate) fn attended<T: Real, E: From<ModelError>>(
    call: AttentionCall<'_, T>,
    attend: &mut impl FnMut(AttentionCall<'_, T>) -> Result<Vec<T>, E>,
) -> Result<Vec<T>, E> {
    let out = attend(call)?;
    if out.len() == call.q.len() {
        return Ok(out);
    }
    let what = "values returned by attention";
    Err(ModelError::invalid(what, out.len(), call.q.len()).into())
}
