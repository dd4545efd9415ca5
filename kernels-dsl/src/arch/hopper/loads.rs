//! The producer: what one warp brings into the stages by TMA.

use cubecl::prelude::*;

use super::slots::write_tile;
use super::{HopperCtx, ptx};
use crate::attention::{KeyPages, Segments, TileCoords};

/// The tile and its queries, once the consumers are done with the last one of the stage.
#[cube]
pub(super) fn load_queries(ctx: &mut HopperCtx<'_>, at: &TileCoords, range: &Segments) {
    let shape = comptime!(ctx.shape);
    let stage = ctx.next_q_stage();
    let full = ctx.q_full(stage);
    ptx::mbar_wait(ctx.q_empty(stage), ctx.next_q_parity() ^ 1u32);
    write_tile(ctx, at, range);
    ptx::mbar_expect(full, comptime!(shape.q_bytes()));
    let stages = ctx.q_smem + stage * comptime!(shape.q_bytes());
    let query = (at.first_q + at.query(0u32.runtime())) as i32;
    let batch = at.batch as i32;
    #[unroll]
    for c in 0..comptime!(shape.d.div_ceil(64)) {
        let to = stages + comptime!(c * shape.rows() * 128);
        let column = comptime!((c * 64) as i32).runtime();
        if comptime!(shape.pack == 1) {
            ptx::tma_load(to, ctx.q_map, column, query, at.head as i32, batch, full);
        } else {
            let head_kv = (at.head / ctx.group) as i32;
            ptx::tma_load_packed(to, ctx.q_map, column, query, head_kv, batch, full);
        }
    }
}

#[cube]
pub(super) fn load_keys(ctx: &mut HopperCtx<'_>, at: &TileCoords, j: u32) {
    let shape = comptime!(ctx.shape);
    let stages = comptime!(shape.stages);
    let stage = ctx.k_pos % stages;
    let full = ctx.k_full(stage);
    ptx::mbar_wait(ctx.k_empty(stage), (ctx.k_pos / stages % 2u32) ^ 1u32);
    ptx::mbar_expect(full, comptime!(shape.k_bytes()));
    let smem = ctx.k_smem + stage * comptime!(shape.k_bytes());
    load_block(&*ctx, at, j, smem, ctx.k_map, full, comptime!(shape.d));
}

/// Block j of K or V, `width` columns wide, in 64-column tiles: one box each, or with pages as many as it
/// takes for each to lie in one page. Boxes past the sequence are those of its last key. Cubes of a
/// cluster take turns with the 64-column parts, each of which arrives in both.
#[cube]
fn load_block(
    ctx: &HopperCtx<'_>,
    at: &TileCoords,
    j: u32,
    smem: u32,
    map: u64,
    bar: u32,
    #[comptime] width: u32,
) {
    let shape = comptime!(ctx.shape);
    let rows = comptime!(shape.box_rows());
    let head = (at.head / ctx.group) as i32;
    #[unroll]
    for b in 0..comptime!(shape.block / rows) {
        let mut row = j * comptime!(shape.block) + comptime!(b * rows);
        let mut entry = at.batch;
        if comptime!(shape.features.page.is_some()) {
            let page = comptime!(shape.features.page.unwrap_or(1));
            let pages = KeyPages::new(ctx.tensors, ctx.offsets, at.batch, page);
            // Boxes divide pages: the last key's box starts where a box would.
            let last = (at.len_kv - 1u32) / rows * rows;
            row = row.min(last);
            entry = pages.page_of(row);
            row %= page;
        } else {
            row += at.first_kv;
        }
        #[unroll]
        for c in 0..comptime!(width.div_ceil(64)) {
            let to = smem + comptime!(c * shape.block * 128 + b * rows * 128);
            let column = comptime!((c * 64) as i32).runtime();
            if comptime!(shape.cluster == 1) {
                ptx::tma_load(to, map, column, row as i32, head, entry as i32, bar);
            } else if CUBE_POS_CLUSTER == comptime!(c % shape.cluster) {
                ptx::tma_load_both(to, map, column, row as i32, head, entry as i32, bar);
            }
        }
    }
}

/// Value block j. Rows past the tensor arrive as zeros; rows past the sequence's length, the next
/// sequence's among them, are zeroed by the producer's warp before the consumers see the stage,
/// since 0 * NaN is NaN.
#[cube]
pub(super) fn load_values(ctx: &mut HopperCtx<'_>, at: &TileCoords, j: u32) {
    let shape = comptime!(ctx.shape);
    let stages = comptime!(shape.stages);
    let stage = ctx.v_pos % stages;
    let full = ctx.v_full(stage);
    let row0 = j * comptime!(shape.block);
    let end = row0 + comptime!(shape.block);
    let mut lands = full;
    let mut mend = false;
    if comptime!(shape.mends()) {
        mend = end > at.len_kv;
        if comptime!(shape.features.page.is_none()) {
            mend = mend && at.first_kv + at.len_kv < ctx.s_kv;
        }
        if mend {
            lands = ctx.v_landed();
        }
    }
    if UNIT_POS == 0u32 {
        ptx::mbar_wait(ctx.v_empty(stage), (ctx.v_pos / stages % 2u32) ^ 1u32);
        ptx::mbar_expect(lands, comptime!(shape.v_bytes()));
        let smem = ctx.v_smem + stage * comptime!(shape.v_bytes());
        load_block(&*ctx, at, j, smem, ctx.v_map, lands, comptime!(shape.d_v));
    }
    if comptime!(shape.mends()) {
        if mend {
            zero_past_length(ctx, stage, at.len_kv.max(row0) - row0, lands, full);
        }
    }
}

#[cube]
fn zero_past_length(ctx: &mut HopperCtx<'_>, stage: u32, kept: u32, lands: u32, full: u32) {
    let shape = comptime!(ctx.shape);
    sync_plane();
    ptx::mbar_wait(lands, ctx.mended % 2u32);
    ctx.mended += 1u32;
    let smem = ctx.v_smem + stage * comptime!(shape.v_bytes());
    zero_rows(smem, kept, comptime!(shape.block), comptime!(shape.d_v));
    sync_plane();
    if UNIT_POS % 32u32 == 0u32 {
        ptx::mbar_arrive(full);
    }
}

/// Zeroes rows `kept..block` of the stage at `smem`, `width` columns wide in 64-column tiles, by the
/// calling warp.
#[cube]
pub(in crate::arch) fn zero_rows(
    smem: u32,
    kept: u32,
    #[comptime] block: u32,
    #[comptime] width: u32,
) {
    let lane = UNIT_POS % 32u32;
    let mut row = kept + lane;
    while row < block {
        #[unroll]
        for c in 0..comptime!(width.div_ceil(64)) {
            // The swizzle permutes 16-byte chunks within a row of 128 bytes.
            let line = smem + comptime!(c * block * 128) + row * 128u32;
            #[unroll]
            for chunk in 0..8u32 {
                ptx::store_zero16(line + chunk * 16u32);
            }
        }
        row += 32u32;
    }
    ptx::fence_async();
}
