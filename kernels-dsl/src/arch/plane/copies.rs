//! What the units of a cube bring into shared memory by cp.async, and when.

use cubecl::prelude::*;

use super::{CopyShape, PlaneCtx, PlaneCtxExpand, ptx};
use crate::attention::{KeyPages, TileCoords};
use crate::tile::Layout;

/// Shared address of chunk `chunk` of row `row` of the tile at `smem`; see
/// [`PlaneShape`](super::PlaneShape).
#[cube]
pub(super) fn shared_chunk(smem: u32, row: u32, chunk: u32, #[comptime] row_bytes: u32) -> u32 {
    shared_chunk_apart(smem, row, chunk, row_bytes, 2u32)
}

/// The same of a tile whose rows ldmatrix reads in the order of [`CopyShape::flip`].
#[cube]
fn shared_chunk_apart(
    smem: u32,
    row: u32,
    chunk: u32,
    #[comptime] row_bytes: u32,
    #[comptime] apart: u32,
) -> u32 {
    let flip = if comptime!(apart == 2) {
        row % 8u32
    } else {
        row / apart % 4u32 * 2u32 + row % 2u32
    };
    smem + row * row_bytes + (chunk ^ flip) * 16u32
}

/// Number of this unit among those that work on the same part of a tile.
#[cube]
pub(super) fn team_unit(#[comptime] team: u32) -> u32 {
    // Cubes of several teams have teams of one plane.
    if comptime!(team == 32u32) {
        UNIT_POS % 32u32
    } else {
        UNIT_POS
    }
}

/// One unit's share of the copies of an operand.
#[derive(CubeType, Clone, Copy)]
pub struct CopySource {
    /// Global address of the unit's chunk of row 0.
    pub from: u64,
    /// Shared address of the unit's first chunk of the tile, or of its first stage.
    pub to: u32,
    /// Bytes from row to row.
    pub step: u64,
    /// Bytes from page to page, where keys are paged.
    pub page_step: u64,
    /// First row of the unit.
    pub row: u32,
    /// The unit has a chunk to copy.
    pub active: bool,
}

#[cube]
impl CopySource {
    /// Keys of the tile `at` and of key head `head` in `data`, which has units of 16 bytes, to the stages at
    /// `smem`. With `paged` the layout's batch entries are pages.
    pub fn new(
        data: &[Vector<u32, Const<4>>],
        layout: &Layout,
        at: &TileCoords,
        head: u32,
        smem: u32,
        #[comptime] copy: CopyShape,
        #[comptime] paged: bool,
    ) -> CopySource {
        let unit = team_unit(comptime!(copy.lanes * copy.pass_rows));
        let row = unit / comptime!(copy.lanes);
        let chunk = unit % comptime!(copy.lanes);
        let row_bytes = layout.row as u64 * 16u64;
        let mut place = at.first_kv + row;
        let mut batch = at.batch;
        if comptime!(paged) {
            place = 0u32;
            batch = 0u32;
        }
        let start = layout.base(batch, head);
        let first = ptx::global_addr::<Vector<u32, Const<4>>>(&data[start]);
        CopySource {
            from: first + place as u64 * row_bytes + chunk as u64 * 16u64,
            to: shared_chunk_apart(
                smem,
                row,
                chunk,
                comptime!(copy.row_bytes),
                comptime!(copy.apart),
            ),
            step: row_bytes,
            page_step: layout.batch as u64 * 16u64,
            row,
            active: chunk < comptime!(copy.chunks),
        }
    }

    /// Starts copying tile `j` of the operand to the stage `offset` bytes on. With `ragged` rows
    /// from `end` on become zeros.
    fn copy(
        &self,
        pages: &ComptimeOption<KeyPages<'_>>,
        j: u32,
        offset: u32,
        end: u32,
        #[comptime] ragged: bool,
        #[comptime] copy: CopyShape,
    ) {
        let block = comptime!(copy.passes * copy.pass_rows);
        let row = j * block + self.row;
        let to = self.to + offset;
        #[comptime]
        match pages {
            ComptimeOption::Some(pages) => {
                if comptime!(pages.page % block == 0) {
                    // The whole block lies in one page.
                    let first = j * block;
                    let from = self.from
                        + pages.page_of(first) as u64 * self.page_step
                        + (first % comptime!(pages.page) + self.row) as u64 * self.step;
                    self.copy_rows(to, from, end as i32 - row as i32, ragged, copy);
                } else {
                    self.copy_scattered(pages, to, row, end, ragged, copy);
                }
            }
            ComptimeOption::None => {
                let from = self.from + (j * block) as u64 * self.step;
                self.copy_rows(to, from, end as i32 - row as i32, ragged, copy);
            }
        }
    }

    /// Starts copying columns from byte `first` on of all rows to the stage `offset` bytes on.
    fn columns(&self, first: u32, offset: u32, #[comptime] copy: CopyShape) {
        if self.active {
            let from = self.from + first as u64;
            self.copy_rows(self.to + offset, from, 0i32.runtime(), false, copy);
        }
    }

    /// Rows that follow one another from `from`; those `left` on and later become zeros.
    fn copy_rows(
        &self,
        to: u32,
        from: u64,
        left: i32,
        #[comptime] ragged: bool,
        #[comptime] copy: CopyShape,
    ) {
        let step = self.step * comptime!(copy.pass_rows as u64);
        if comptime!(ragged) {
            ptx::copy_ragged(to, from, step, left, copy);
        } else {
            ptx::copy_whole(to, from, step, copy);
        }
    }

    /// Rows each of which is looked up; those from `end` on become zeros.
    fn copy_scattered(
        &self,
        pages: &KeyPages<'_>,
        to: u32,
        row: u32,
        end: u32,
        #[comptime] ragged: bool,
        #[comptime] copy: CopyShape,
    ) {
        #[unroll]
        for pass in 0..comptime!(copy.passes) {
            let key = row + comptime!(pass * copy.pass_rows);
            let mut there = key;
            let mut alive = true.runtime();
            if comptime!(ragged) {
                alive = key < end;
                there = key.min(end - 1u32);
            }
            let from = self.from
                + pages.page_of(there) as u64 * self.page_step
                + (there % comptime!(pages.page)) as u64 * self.step;
            let flip = comptime!(pass * copy.pass_rows % 8 * 16);
            let down = comptime!(pass * copy.pass_rows * copy.row_bytes);
            ptx::copy_chunk((to ^ flip) + down, from, alive);
        }
    }

    fn start(
        &self,
        pages: &ComptimeOption<KeyPages<'_>>,
        j: u32,
        offset: u32,
        end: u32,
        #[comptime] ragged: bool,
        #[comptime] copy: CopyShape,
    ) {
        if comptime!(copy.partial()) {
            if self.active {
                self.copy(pages, j, offset, end, ragged, copy);
            }
        } else {
            self.copy(pages, j, offset, end, ragged, copy);
        }
    }
}

#[cube]
impl<'a> PlaneCtx<'a> {
    /// The tile's queries, row by row, since those of packed heads alternate. Rows past the
    /// sequence become zeros.
    pub(super) fn copy_queries(&self, at: &TileCoords) {
        let copy = comptime!(self.shape.q_copy());
        let unit = team_unit(comptime!(self.shape.team()));
        let first = unit / comptime!(copy.lanes);
        let chunk = unit % comptime!(copy.lanes);
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
        self.k
            .start(&self.pages, j, offset, self.len_kv, ragged, copy);
        if comptime!(self.shape.operands.is_some()) {
            self.copy_key_scales(j);
        }
    }
    /// Block `j` of V. Rows past the length become zeros: 0 * NaN is NaN.
    pub(super) fn copy_values(&self, j: u32, #[comptime] ragged: bool) {
        let offset = self.stage(j) * comptime!(self.shape.v_bytes());
        let copy = comptime!(self.shape.v_copy());
        if comptime!(self.shape.operands.is_some()) {
            // Keys past the length are masked by their scale factors.
            let span = comptime!(self.shape.block * self.shape.weight_bits() / 8);
            self.v.columns(j * span, offset, copy);
            self.copy_value_scales(j);
        } else {
            self.v
                .start(&self.pages, j, offset, self.len_kv, ragged, copy);
        }
    }
    /// Stage of block `j`.
    pub(super) fn stage(&self, j: u32) -> u32 {
        j % comptime!(self.shape.stages)
    }
}
