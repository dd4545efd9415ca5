//! How a kernel finds a row of a strided [b, h, s, d] tensor.

use cubecl::prelude::*;

/// Strides of a [b, h, s, d] view whose last axis is contiguous, in vectors of the kernel's width.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct Layout {
    /// First vector of the view.
    pub offset: usize,
    /// From one batch entry to the next.
    pub batch: usize,
    /// From one head to the next.
    pub head: usize,
    /// From one row to the next.
    pub row: usize,
}

#[cube]
impl Layout {
    /// First vector of row 0 of (batch, head).
    pub fn base(&self, batch: u32, head: u32) -> usize {
        self.offset + batch as usize * self.batch + head as usize * self.head
    }
}
