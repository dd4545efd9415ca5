//! Where a mask is anchored, and tensors that are broadcast over some axes.

use crate::error::{Error, check_length};
use crate::tensor::volume;

/// Which corner of the score matrix the diagonal runs through.
///
/// The diagonal of query i is key i + shift; it anchors causal masks, windows and ALiBi alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Alignment {
    /// The first query sees the first key: shift = 0.
    TopLeft,
    /// The last query sees the last key: shift = len_kv - len_q, negative when queries outnumber keys.
    #[default]
    BottomRight,
}

/// A tensor [b, h_q, s_q, s_kv] whose axes may each have size 1 instead, meaning "the same for all".
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Broadcast<'a, T> {
    /// Row-major values, as many as `shape` says.
    pub data: &'a [T],
    /// Sizes of [b, h_q, s_q, s_kv], each full or 1.
    pub shape: [usize; 4],
}

impl<T: Copy> Broadcast<'_, T> {
    /// The value that applies to [b, h, i, j].
    pub fn get(&self, b: usize, h: usize, i: usize, j: usize) -> T {
        let [size_b, size_h, size_i, size_j] = self.shape;
        let at = |index, size| if size == 1 { 0 } else { index };
        let row = (at(b, size_b) * size_h + at(h, size_h)) * size_i + at(i, size_i);
        self.data[row * size_j + at(j, size_j)]
    }

    pub(crate) fn check(&self, tensor: &'static str, full: [usize; 4]) -> Result<(), Error> {
        let axes = ["b", "h_q", "s_q", "s_kv"];
        for ((axis, size), full) in axes.into_iter().zip(self.shape).zip(full) {
            if size != full && size != 1 {
                return Err(Error::Broadcast {
                    tensor,
                    axis,
                    size,
                    full,
                });
            }
        }
        check_length(tensor, self.data.len(), volume(self.shape))
    }
}
