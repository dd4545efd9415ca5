//! What the units of a cube bring into shared memory by cp.async, and when.

use cubecl::prelude::*;

use super::{CopyShape, PlaneCtx, PlaneCtxExpand, ptx};
use crate::attention::TileCoords;
use crate::tile::Layout;

/// Shared address of chunk `chunk` of row `row` of the tile at `smem`; see
/// [`PlaneShape`](super::PlaneShape).
#[cube]
pub(super) fn shared_chunk(smem: u32, row: u32, chunk: u32, #[comptime] row_bytes: u32) -> u32 {
    smem + row * row_bytes + (chunk ^ (row % 8u32)) * 16u32
}

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
    /// Keys of the tile `at` in `data`, which has units of 16 bytes, to the stages at `smem`; `group`
    /// query heads share a key head.
    pub fn new(
        data: &[Vector<u32, Const<4>>],
        layout: &Layout,
        at: &TileCoords,
        group: u32,
        smem: u32,
        #[comptime] copy: CopyShape,
    ) -> CopySource {
        let row = UNIT_POS / comptime!(copy.lanes);
        let chunk = UNIT_POS % comptime!(copy.lanes);
        let row_bytes = layout.row as u64 * 16u64;
        let head = layout.base(at.batch, at.head / group);
        let first = ptx::global_addr::<Vector<u32, Const<4>>>(&data[head]);
        CopySource {
            from: first + (at.first_kv + row) as u64 * row_bytes + chunk as u64 * 16u64,
            to: shared_chunk(smem, row, chunk, comptime!(copy.row_bytes)),
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
    /// The tile's queries, row by row, since those of packed heads alternate. Rows past the
    /// sequence become zeros.
    pub(super) fn copy_queries(&self, at: &TileCoords) {
        let copy = comptime!(self.shape.q_copy());
        let first = UNIT_POS / comptime!(copy.lanes);
        let chunk = UNIT_POS % comptime!(copy.lanes);
        if chunk < comptime!(copy.chunks) {
            let to = shared_chunk(self.smem, first, chunk, comptime!(copy.row_bytes));
            #[unroll]
            for pass in 0..comptime!(copy.passes) {
                let row = first + comptime!(pass * copy.pass_rows);
                let query = at.query(row);
                let from = self.q_layout.base(at.batch, at.head_of(row))
                    + (at.first_q + query.min(at.rows_q - 1u32)) as usize * self.q_layout.row
                    + chunk as usize;
                ptx::copy_chunk(
                    (to ^ comptime!(pass * copy.pass_rows % 8 * 16))
                        + comptime!(pass * copy.pass_rows * copy.row_bytes),
                    ptx::global_addr::<Vector<u32, Const<4>>>(&self.q[from]),
                    query < at.rows_q,
                );
            }
        }
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
