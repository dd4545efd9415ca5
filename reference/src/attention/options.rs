//! Everything that turns q . k into a score.

use crate::error::{Error, check_entries, check_length};
use crate::mask::{Alignment, Broadcast};

/// Scale, logit transforms and masks of one attention problem.
///
/// The score of query i and key j, with shift = len_kv - len_q of the batch entry
/// ([`Alignment::BottomRight`]) or 0 ([`Alignment::TopLeft`]):
///
/// ```text
/// x  = scale * q_i . k_j
/// x  = softcap * tanh(x / softcap)
/// x += -slope_h * |i + shift - j|                                 ALiBi
/// x += bias
/// x  = -inf   if  i >= len_q  or  j >= len_kv                     lengths
///             or  j > i + shift                                   causal
///             or  j < i + shift - left  or  j > i + shift + right window
///             or  document_q[i] != document_kv[j]  or  mask
///             or  i, j of different packed sequences              cu_seqlens
/// ```
///
/// In packed sequences the diagonal starts anew with each: i and j count from its start there.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    /// Factor of q . k; any finite value, 0 and negative ones included. Default 1.
    pub scale: f64,
    /// Bound of the scores, finite and positive.
    pub softcap: Option<f64>,
    /// Hide the keys right of the diagonal.
    pub causal: bool,
    /// Which diagonal causal, windows and ALiBi refer to. Default bottom-right.
    pub alignment: Alignment,
    /// Keys visible left of the diagonal; `None` is unlimited.
    pub window_left: Option<usize>,
    /// Keys visible right of the diagonal; `None` is unlimited.
    pub window_right: Option<usize>,
    /// `[b]` queries in use, each at most s_q.
    pub lengths_q: Option<&'a [usize]>,
    /// `[b]` keys in use, each at most s_kv.
    pub lengths_kv: Option<&'a [usize]>,
    /// Cumulative lengths `[n + 1]` of n sequences packed into the rows of the only batch entry, of
    /// queries and of keys: sequence x is rows `cu[x]..cu[x + 1]`. Rows past the last belong to none.
    pub cu_seqlens: Option<(&'a [usize], &'a [usize])>,
    /// [b, s_q] and [b, s_kv] ids: a query sees the keys of its own document only.
    pub documents: Option<(&'a [u32], &'a [u32])>,
    /// [b, h_q, s_q, s_kv], true = hidden.
    pub mask: Option<Broadcast<'a, bool>>,
    /// [b, h_q, s_q, s_kv], added to the score; -inf hides.
    pub bias: Option<Broadcast<'a, f64>>,
    /// `[h_q]` finite slopes of ALiBi.
    pub alibi: Option<&'a [f64]>,
    /// `[h_q]` finite logits that take part in the normaliser and the log-sum-exp, without a value.
    pub sinks: Option<&'a [f64]>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            scale: 1.0,
            softcap: None,
            causal: false,
            alignment: Alignment::BottomRight,
            window_left: None,
            window_right: None,
            lengths_q: None,
            lengths_kv: None,
            cu_seqlens: None,
            documents: None,
            mask: None,
            bias: None,
            alibi: None,
            sinks: None,
        }
    }
}

impl Options<'_> {
    /// Checks the options against the sizes [b, h_q, s_q, s_kv].
    pub(super) fn check(&self, full: [usize; 4]) -> Result<(), Error> {
        let [b, h_q, s_q, s_kv] = full;
        if !self.scale.is_finite() {
            return Err(Error::Parameter {
                name: "scale",
                value: self.scale,
                requirement: "finite",
            });
        }
        if let Some(softcap) = self.softcap
            && !(softcap.is_finite() && softcap > 0.0)
        {
            return Err(Error::Parameter {
                name: "softcap",
                value: softcap,
                requirement: "finite and positive",
            });
        }
        for (name, lengths, limit) in [
            ("lengths_q", self.lengths_q, s_q),
            ("lengths_kv", self.lengths_kv, s_kv),
        ] {
            if let Some(lengths) = lengths {
                check_length(name, lengths.len(), b)?;
                check_entries(name, lengths.iter().copied(), limit)?;
            }
        }
        if let Some((cu_q, cu_kv)) = self.cu_seqlens {
            check_cumulative("cu_seqlens of q", cu_q, s_q)?;
            check_cumulative("cu_seqlens of kv", cu_kv, s_kv)?;
            check_length("cu_seqlens of kv", cu_kv.len(), cu_q.len())?;
            if b != 1 {
                return Err(Error::Axis {
                    tensor: "q, beside cu_seqlens",
                    axis: "b",
                    size: b,
                    expected: 1,
                });
            }
            if self.lengths_q.is_some() || self.lengths_kv.is_some() {
                return Err(Error::Conflict {
                    option: "cu_seqlens",
                    with: "lengths",
                });
            }
        }
        if let Some((ids_q, ids_kv)) = self.documents {
            check_length("documents of q", ids_q.len(), b.saturating_mul(s_q))?;
            check_length("documents of kv", ids_kv.len(), b.saturating_mul(s_kv))?;
        }
        if let Some(mask) = &self.mask {
            mask.check("mask", full)?;
        }
        if let Some(bias) = &self.bias {
            bias.check("bias", full)?;
        }
        for (name, entry, values) in [
            ("alibi", "alibi slope", self.alibi),
            ("sinks", "sink", self.sinks),
        ] {
            let Some(values) = values else {
                continue;
            };
            check_length(name, values.len(), h_q)?;
            if let Some(&value) = values.iter().find(|x| !x.is_finite()) {
                return Err(Error::Parameter {
                    name: entry,
                    value,
                    requirement: "finite",
                });
            }
        }
        Ok(())
    }
}

/// A table of cumulative lengths starts with 0, never falls, and ends within its rows.
fn check_cumulative(name: &'static str, table: &[usize], rows: usize) -> Result<(), Error> {
    check_length(name, table.len().min(1), 1)?;
    for (position, &value) in table.iter().enumerate() {
        let limit = match position {
            0 => 0,
            _ => table.get(position + 1).copied().unwrap_or(rows),
        };
        if value > limit {
            return Err(Error::Index {
                tensor: name,
                position,
                value,
                limit,
            });
        }
    }
    Ok(())
}
