//! What an attention call may ask for beside q, k and v.

use cubecl::server::Handle;

use super::{Policy, Tensor};
use crate::attention::MaskWidth;
use crate::error::InvalidProblem;

/// Which corner of the score matrix the causal diagonal, the window and ALiBi start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Alignment {
    /// Query i stands on key i.
    TopLeft,
    /// The last query stands on the last key: query i on key i + len_kv - len_q.
    #[default]
    BottomRight,
}

/// A boolean mask [b or 1, h_q or 1, s_q or 1, s_kv or 1]; non-zero hides. Axes of size 1 and
/// strides of 0 broadcast.
#[derive(Debug, Clone)]
pub struct BoolMask {
    /// The memory; its length in bytes is rounded down to whole 32-bit words by the driver, so
    /// allocate byte masks in multiples of 4.
    pub handle: Handle,
    /// Size of every axis: the tensor's or 1.
    pub shape: [usize; 4],
    /// Strides in elements.
    pub strides: [usize; 4],
    /// First element.
    pub offset: usize,
    /// Bytes or words.
    pub width: MaskWidth,
}

/// Options of [`attend_forward`](super::attend_forward); `Default` is plain softmax(q k^T / sqrt(d)) v.
///
/// ```
/// use flashcube_kernels::{Alignment, AttendOptions};
///
/// let options = AttendOptions {
///     causal: true,
///     alignment: Alignment::BottomRight,
///     window_left: Some(1024),
///     softcap: Some(50.0),
///     ..AttendOptions::default()
/// };
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Default)]
pub struct AttendOptions<'a> {
    /// Factor on q.k; 1 / sqrt(d) when absent. Finite; 0 and negative values work.
    pub scale: Option<f32>,
    /// x -> softcap * tanh(x / softcap), after the scale. Positive and finite.
    pub softcap: Option<f32>,
    /// Hide keys j > i + shift.
    pub causal: bool,
    /// Anchor of causal, window and ALiBi.
    pub alignment: Alignment,
    /// Hide keys j < i + shift - window_left.
    pub window_left: Option<usize>,
    /// Hide keys j > i + shift + window_right.
    pub window_right: Option<usize>,
    /// Queries of every batch entry, at most s_q; later rows give out 0 and lse -inf.
    pub lengths_q: Option<&'a [usize]>,
    /// Keys of every batch entry, at most s_kv.
    pub lengths_kv: Option<&'a [usize]>,
    /// Cumulative lengths of packed sequences, of queries and of keys, one entry more than there
    /// are sequences: sequence i is the rows from entry i to entry i + 1. Query rows past the last
    /// entry give out 0 and lse -inf. q is then [1, h_q, total_q, d], k and v [1, h_kv, total_kv,
    /// d]; see [`Tensor::packed`]. Excludes lengths, documents, mask and bias.
    pub cu_seqlens: Option<(&'a [usize], &'a [usize])>,
    /// Document ids of queries [b, s_q] and keys [b, s_kv]: only equal ids see each other.
    pub documents: Option<(&'a [u32], &'a [u32])>,
    /// Boolean mask; true hides.
    pub mask: Option<BoolMask>,
    /// Additive bias f32 [b or 1, h_q or 1, s_q or 1, s_kv or 1], after softcap and ALiBi.
    pub bias: Option<Tensor<4>>,
    /// ALiBi slopes `[h_q]`: x -= slope * |i + shift - j|.
    pub alibi: Option<&'a [f32]>,
    /// Learned logits `[h_q]`, natural: the normaliser of every row of head h has e^sinks\[h\] in it
    /// beside the keys' weights, and lse counts it. A row that sees no key gives out 0 and lse
    /// sinks\[h\].
    pub sinks: Option<&'a [f32]>,
    /// Where to write out [b, h_q, s_q, d_v]; allocated dense when absent.
    pub out: Option<Tensor<4>>,
    /// Where to write lse f32 [b, h_q, s_q]; allocated dense when absent.
    pub lse: Option<Tensor<3>>,
    /// What selection may choose.
    pub policy: Policy,
}

/// Strides of a [b, h, s_q, s_kv] operand with broadcast axes turned into stride 0.
pub(crate) fn broadcast(
    tensor: &'static str,
    shape: [usize; 4],
    strides: [usize; 4],
    full: [usize; 4],
) -> Result<[usize; 4], InvalidProblem> {
    const AXES: [&str; 4] = ["b", "h_q", "s_q", "s_kv"];
    let mut out = strides;
    for axis in 0..4 {
        if shape[axis] == 1 {
            out[axis] = 0;
        } else if shape[axis] != full[axis] {
            return Err(InvalidProblem::Shape {
                tensor,
                axis: AXES[axis],
                found: shape[axis],
                expected: full[axis],
            });
        }
    }
    Ok(out)
}
