//! Results of a plane, from the accumulator's registers to memory.

use cubecl::prelude::*;

use super::copies::shared_chunk;
use super::forward::scale_of;
use super::{PlaneCtx, PlaneShape, ptx, store_word};
use crate::attention::{Finished, ScaledBy, head_of, query_of};

/// out rows through the shared memory of the query tile, so that they leave whole, and lse. Rows
/// past len_q give 0 and -inf, rows past the sequence's part of the tensor nothing.
#[cube]
pub(super) fn store_rows(ctx: &mut PlaneCtx<'_>, done: &Finished) {
    let shape = comptime!(ctx.shape);
    sync_plane();
    let place = ptx::load_chunk(ctx.place());
    let sizes = ptx::load_chunk(ctx.place() + 16u32);
    let entry = place.extract(0usize);
    let (first_head, row0) = (place.extract(1usize), place.extract(2usize));
    let first_q = place.extract(3usize);
    let (len_q, rows_q) = (sizes.extract(0usize), sizes.extract(1usize));

    let word = UNIT_POS % 4u32 * 4u32;
    let rows = comptime!(2 * shape.m_tiles() as usize);
    let mut inverse = Vector::<f32, Const<4>>::zeroed();
    #[unroll]
    for r in 0..rows {
        inverse.insert(r, done.inverse[r] * value_scale(&*ctx));
        let row = row0 + ctx.unit_row() + comptime!((16 * (r / 2) + 8 * (r % 2)) as u32);
        let query = query_of(row, comptime!(shape.pack));
        if word == 0u32 && query < rows_q {
            let head = head_of(first_head, row, comptime!(shape.pack));
            let to =
                ctx.lse_layout.base(entry, head) + (first_q + query) as usize * ctx.lse_layout.row;
            ctx.lse[to] = select(query < len_q, done.lse[r], ctx.neg_inf);
        }
    }
    if comptime!(shape.q_row() != PlaneShape::row_bytes(shape.d_v)) {
        // Rows of another length: a plane's output covers queries of others.
        ctx.meet();
    }
    let copy = comptime!(shape.out_copy());
    let lane = UNIT_POS % 32u32;
    let row_bytes = comptime!(copy.row_bytes);
    let mut to = shared_chunk(ctx.smem, ctx.unit_row(), 0u32.runtime(), row_bytes) + word;
    if comptime!(shape.codes.is_some()) {
        // 4 neighbouring columns of every 16.
        let column = UNIT_POS % 4u32;
        let first = shared_chunk(ctx.smem, ctx.unit_row(), column / 2u32, row_bytes);
        to = first + column % 2u32 * 8u32;
    }
    ptx::bank_store(to, inverse, shape);
    sync_plane();
    let chunk = lane % comptime!(copy.lanes);
    let first = ctx.plane_row() + lane / comptime!(copy.lanes);
    let from = shared_chunk(ctx.smem, first, chunk, row_bytes);
    #[unroll]
    for pass in 0..comptime!(copy.passes) {
        let row = row0 + first + comptime!(pass * copy.pass_rows);
        let query = query_of(row, comptime!(shape.pack));
        if query < rows_q && chunk < comptime!(copy.chunks) {
            let flip = comptime!(pass * copy.pass_rows % 8 * 16);
            let offset = comptime!(pass * copy.pass_rows * row_bytes);
            let kept = ptx::load_chunk((from ^ flip) + offset);
            let alive = query < len_q;
            let mut line = Vector::<u32, Const<4>>::zeroed();
            #[unroll]
            for w in 0..4usize {
                line.insert(w, select(alive, kept.extract(w), 0u32));
            }
            let head = head_of(first_head, row, comptime!(shape.pack));
            let to = ctx.out_layout.base(entry, head)
                + (first_q + query) as usize * ctx.out_layout.row
                + chunk as usize;
            ctx.out[to] = line;
        }
    }
}

/// f32 rows of a part of the keys and their lse, in shared memory, where [`merge_parts`](super::merge_parts)
/// finds them.
#[cube]
pub(super) fn store_part(ctx: &mut PlaneCtx<'_>, done: &Finished) {
    let shape = comptime!(ctx.shape);
    // Every plane is done with the stages.
    ctx.meet();
    let row0 = ptx::load_chunk(ctx.place()).extract(2usize);
    let len_q = ptx::load_chunk(ctx.place() + 16u32).extract(0usize);
    let column = UNIT_POS % 4u32;
    #[unroll]
    for r in 0..comptime!(2 * shape.m_tiles() as usize) {
        let row = ctx.unit_row() + comptime!((16 * (r / 2) + 8 * (r % 2)) as u32);
        let line = ctx.smem + row * comptime!(shape.result_row());
        if column == 0u32 {
            let alive = query_of(row0 + row, comptime!(shape.pack)) < len_q;
            let lse = select(alive, done.lse[r], ctx.neg_inf);
            store_word(line + comptime!(4 * shape.d_v), lse.to_bits());
        }
        let bytes = comptime!(if shape.codes.is_some() { 16u32 } else { 8u32 });
        let factor = done.inverse[r] * value_scale(&*ctx);
        ptx::bank_part(line + column * bytes, factor, comptime!(r as u32), shape);
    }
}

/// Scale of the head's values, where they are codes with one scale, or of all block-scaled ones.
#[cube]
fn value_scale(ctx: &PlaneCtx<'_>) -> f32 {
    if comptime!(ctx.shape.codes == Some(ScaledBy::Head)) {
        scale_of(&ctx.v_scales, &ctx.pages, 0u32.runtime(), false)
    } else if comptime!(ctx.shape.operands.is_some()) {
        ctx.factor
    } else {
        1.0f32.runtime()
    }
}
