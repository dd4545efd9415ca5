//! What the units of a cube bring into shared memory by cp.async, and when.

use cubecl::prelude::*;

use super::{CopyShape, PlaneCtx, PlaneCtxExpand, ptx};
use crate::tile::Layout;

/// One unit's share of the copies of an operand.
#[derive(CubeType, Clone, Copy)]
pub struct CopySource {
    /// Global address of the unit's chunk of row 0.
    pub from: u64,
    /// Shared address of the unit's first chunk of the tile, or of its first stage.
    pub to: u32,
    /// Bytes from pass to pass.
    pub step: u64,
    /// First row of the unit.
    pub row: u32,
    /// The unit has a chunk to copy.
    pub active: bool,
}

#[cube]
impl CopySource {
    /// Rows of (batch, head) of `data`, which has units of 16 bytes, to the tile at `smem`.
    pub fn new(
        data: &[Vector<u32, Const<4>>],
        layout: &Layout,
        batch: u32,
        head: u32,
        smem: u32,
        #[comptime] copy: CopyShape,
    ) -> CopySource {
        let row = UNIT_POS / comptime!(copy.lanes);
        let chunk = UNIT_POS % comptime!(copy.lanes);
        let row_bytes = layout.row as u64 * 16u64;
        let first = ptx::global_addr::<Vector<u32, Const<4>>>(&data[layout.base(batch, head)]);
        CopySource {
            from: first + row as u64 * row_bytes + chunk as u64 * 16u64,
            to: smem + row * comptime!(copy.row_bytes) + (chunk ^ (row % 8u32)) * 16u32,
            step: row_bytes * comptime!(copy.pass_rows as u64),
            row,
            active: chunk < comptime!(copy.chunks),
        }
    }

    /// Starts copying tile `j` of the operand to the stage `offset` bytes on. With `ragged` rows
    /// from `end` on become zeros.
    fn copy(
        &self,
        j: u32,
        offset: u32,
        end: u32,
        #[comptime] ragged: bool,
        #[comptime] copy: CopyShape,
    ) {
        let from = self.from + j as u64 * (self.step * comptime!(copy.passes as u64));
        let to = self.to + offset;
        if comptime!(ragged) {
            let first = j * comptime!(copy.passes * copy.pass_rows) + self.row;
            ptx::copy_ragged(to, from, self.step, end as i32 - first as i32, copy);
        } else {
            ptx::copy_whole(to, from, self.step, copy);
        }
    }

    fn start(
        &self,
        j: u32,
        offset: u32,
        end: u32,
        #[comptime] ragged: bool,
        #[comptime] copy: CopyShape,
    ) {
        if comptime!(copy.partial()) {
            if self.active {
                self.copy(j, offset, end, ragged, copy);
            }
        } else {
            self.copy(j, offset, end, ragged, copy);
        }
    }
}

#[cube]
impl<'a> PlaneCtx<'a> {
    pub(super) fn copy_queries(&self) {
        let copy = comptime!(self.shape.q_copy());
        let tile = self.row0 / comptime!(self.shape.rows);
        self.q.start(tile, 0u32, self.s_q, true, copy);
    }
    /// Block `j` of K. Only a tile's first block, the last of the keys, can be `ragged`.
    pub(super) fn copy_keys(&self, j: u32, #[comptime] ragged: bool) {
        let offset = self.stage(j) * comptime!(self.shape.k_bytes());
        let copy = comptime!(self.shape.k_copy());
        self.k.start(j, offset, self.len_kv, ragged, copy);
    }
    /// Block `j` of V. Rows past the length become zeros: 0 * NaN is NaN.
    pub(super) fn copy_values(&self, j: u32, #[comptime] ragged: bool) {
        let offset = self.stage(j) * comptime!(self.shape.v_bytes());
        let copy = comptime!(self.shape.v_copy());
        self.v.start(j, offset, self.len_kv, ragged, copy);
    }
    /// Stage of block `j`.
    pub(super) fn stage(&self, j: u32) -> u32 {
        j % comptime!(self.shape.stages)
    }
}
