//! Results of a plane, from the accumulator's registers to memory.

use cubecl::prelude::*;

use super::{PlaneCtx, PlaneShape, ptx};
use crate::attention::Finished;

/// out rows through the shared memory of the query tile, so that they leave whole, and lse. Rows
/// past len_q give 0 and -inf, rows past the tensor nothing.
#[cube]
pub(super) fn store_rows(ctx: &mut PlaneCtx<'_>, done: &Finished) {
    let shape = comptime!(ctx.shape);
    let rows = comptime!(2 * shape.m_tiles() as usize);
    sync_plane();
    let place = ptx::load_chunk(ctx.place());
    let (batch, head) = (place.extract(0usize), place.extract(1usize));
    let (row0, len_q) = (place.extract(2usize), place.extract(3usize));
    let mut inverse = Vector::<f32, Const<4>>::zeroed();
    #[unroll]
    for r in 0..rows {
        inverse.insert(r, done.inverse[r]);
        let row = row0 + ctx.unit_row() + comptime!((16 * (r / 2) + 8 * (r % 2)) as u32);
        if UNIT_POS % 4u32 == 0u32 && row < ctx.s_q {
            let to = ctx.lse_layout.base(batch, head) + row as usize * ctx.lse_layout.row;
            ctx.lse[to] = select(row < len_q, done.lse[r], ctx.neg_inf);
        }
    }
    if comptime!(shape.d != shape.d_v) {
        // Rows of another length: a plane's output covers queries of others.
        sync_cube();
    }
    ptx::bank_store(
        ctx.smem
            + ctx.unit_row() * comptime!(PlaneShape::row_bytes(shape.d_v))
            + UNIT_POS % 32u32 / 4u32 * 16u32
            + UNIT_POS % 4u32 * 4u32,
        inverse,
        shape,
    );
    sync_plane();
    let copy = comptime!(shape.out_copy());
    let lane = UNIT_POS % 32u32;
    let chunk = lane % comptime!(copy.lanes);
    let first = ctx.plane_row() + lane / comptime!(copy.lanes);
    let from = ctx.smem + first * comptime!(copy.row_bytes) + (chunk ^ (first % 8u32)) * 16u32;
    let base = ctx.out_layout.base(batch, head) + chunk as usize;
    #[unroll]
    for pass in 0..comptime!(copy.passes) {
        let row = row0 + first + comptime!(pass * copy.pass_rows);
        if row < ctx.s_q && chunk < comptime!(copy.chunks) {
            let flip = comptime!(pass * copy.pass_rows % 8 * 16);
            let offset = comptime!(pass * copy.pass_rows * copy.row_bytes);
            let kept = ptx::load_chunk((from ^ flip) + offset);
            let alive = row < len_q;
            let mut line = Vector::<u32, Const<4>>::zeroed();
            #[unroll]
            for w in 0..4usize {
                line.insert(w, select(alive, kept.extract(w), 0u32));
            }
            ctx.out[base + row as usize * ctx.out_layout.row] = line;
        }
    }
}
