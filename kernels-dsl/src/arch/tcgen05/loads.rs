//! What the loading warp brings into the stages by TMA.

use cubecl::prelude::*;

use super::ptx::mask_shared16;
use super::shape::SCALE_BYTES;
use super::{BlackwellCtx, BlackwellShape, STAGE_ROWS};
use crate::arch::hopper::ptx::lane;
use crate::arch::hopper::{ptx, zero_rows};
use crate::attention::TileCoords;
use crate::quant::OperandFormat;

/// The queries of both stages, by one thread.
#[cube]
pub(super) fn load_queries(ctx: &BlackwellCtx<'_>, at: &TileCoords) {
    let shape = comptime!(ctx.shape);
    let full = ctx.q_full();
    ptx::mbar_expect(full, comptime!(shape.q_bytes()));
    let query = (at.first_q + at.query(0u32.runtime())) as i32;
    let batch = at.batch as i32;
    #[unroll]
    for c in 0..comptime!(shape.row_places().div_ceil(64)) {
        let to = ctx.q_smem + comptime!(c * shape.rows() * 128);
        let column = comptime!((c * 64) as i32).runtime();
        if comptime!(shape.pack == 1) {
            ptx::tma_load(to, ctx.maps.q, column, query, at.head as i32, batch, full);
        } else {
            let head_kv = (at.head / ctx.group) as i32;
            ptx::tma_load_packed(to, ctx.maps.q, column, query, head_kv, batch, full);
        }
    }
    if comptime!(shape.features.operands.is_some()) {
        // Tiles of queries start where those of scale factors do.
        #[unroll]
        for s in 0..comptime!(shape.q_stages) {
            let to =
                ctx.q_smem + comptime!(shape.q_codes() + s * shape.score_tiles() * SCALE_BYTES);
            let tile = (ctx.starts.q + at.row0 / STAGE_ROWS + s) as i32;
            let n = comptime!(shape.score_tiles());
            load_scales(
                to,
                ctx.maps.q_scales,
                tile,
                0u32,
                at.head / comptime!(shape.pack),
                at.batch,
                full,
                n,
            );
        }
    }
}

/// `n` tiles of scale factors of 128 rows by 4 groups from tile (row, first) of a head on.
#[cube]
fn load_scales(
    smem: u32,
    map: u64,
    row: i32,
    first: u32,
    head: u32,
    batch: u32,
    bar: u32,
    #[comptime] n: u32,
) {
    #[unroll]
    for t in 0..n {
        let to = smem + comptime!(t * SCALE_BYTES);
        let place = ((first + t) * comptime!(SCALE_BYTES / 2)) as i32;
        ptx::tma_load(to, map, place, row, head as i32, batch as i32, bar);
    }
}

/// Key block j, by one thread.
#[cube]
pub(super) fn load_keys(ctx: &BlackwellCtx<'_>, at: &TileCoords, j: u32) {
    let shape = comptime!(ctx.shape);
    let stages = comptime!(shape.stages);
    let stage = ctx.k_pos % stages;
    let full = ctx.k_full(stage);
    ptx::mbar_wait(ctx.k_empty(stage), (ctx.k_pos / stages % 2u32) ^ 1u32);
    ptx::mbar_expect(full, comptime!(shape.k_bytes()));
    let smem = ctx.k_smem + stage * comptime!(shape.k_stage());
    load_block(
        ctx,
        at,
        j,
        smem,
        ctx.maps.k,
        full,
        comptime!(shape.row_places()),
    );
    if comptime!(shape.features.operands.is_some()) {
        let to = smem + comptime!(shape.k_codes());
        let tile = (ctx.starts.k + j * comptime!(shape.block) / STAGE_ROWS) as i32;
        let n = comptime!(shape.score_tiles());
        load_scales(
            to,
            ctx.maps.k_scales,
            tile,
            0u32,
            at.head / ctx.group,
            at.batch,
            full,
            n,
        );
    }
}

/// Value block j in FP8 or FP4, by one thread: a row for each column of V, and the keys' scale factors. Keys past the last
/// one have codes 0.
#[cube]
fn load_coded_values(ctx: &BlackwellCtx<'_>, at: &TileCoords, j: u32, smem: u32, bar: u32) {
    let shape = comptime!(ctx.shape);
    let head = at.head / ctx.group;
    let first = ctx.starts.v + j * comptime!(shape.block);
    let place = (first / comptime!(16 / shape.weight_bits())) as i32;
    let zero = 0i32.runtime();
    ptx::tma_load(
        smem,
        ctx.maps.v,
        place,
        zero,
        head as i32,
        at.batch as i32,
        bar,
    );
    let tile = first / comptime!(quad(shape));
    #[unroll]
    for i in 0..comptime!(shape.value_tiles()) {
        let to = smem + comptime!(shape.v_codes() + i * SCALE_BYTES);
        let row = comptime!((i % shape.value_rows()) as i32).runtime();
        let tile = tile + comptime!(i / shape.value_rows());
        load_scales(to, ctx.maps.v_scales, row, tile, head, at.batch, bar, 1u32);
    }
}

/// Keys of a tile of scale factors of V.
fn quad(shape: BlackwellShape) -> u32 {
    let quad = |format: OperandFormat| format.quad() as u32;
    shape.value_format().map_or(STAGE_ROWS, quad)
}

/// Zeroes the scale factors of the groups of value block j that start at key `len` or later, by the calling warp, which then
/// arrives once on `full`. Their codes are numbers, whatever the values were.
#[cube]
fn zero_scales(smem: u32, j: u32, len: u32, full: u32, #[comptime] shape: BlackwellShape) {
    let quad = comptime!(quad(shape));
    let first = j * comptime!(shape.block) / quad * quad;
    #[unroll]
    for i in 0..comptime!(shape.value_tiles()) {
        let start = first + comptime!(i / shape.value_rows() * quad);
        let kept = (len.max(start) - start)
            .div_ceil(comptime!(quad / 4))
            .min(4u32);
        let mask = select(kept == 4u32, 0xFFFF_FFFFu32, (1u32 << (8u32 * kept)) - 1u32);
        let line = smem + comptime!(shape.v_codes() + i * SCALE_BYTES) + lane() * 16u32;
        mask_shared16(line, mask);
    }
    ptx::fence_async();
    sync_plane();
    if lane() == 0u32 {
        ptx::mbar_arrive(full);
    }
}

/// Block j of K or V, `width` columns wide, in 64-column tiles.
#[cube]
fn load_block(
    ctx: &BlackwellCtx<'_>,
    at: &TileCoords,
    j: u32,
    smem: u32,
    map: u64,
    bar: u32,
    #[comptime] width: u32,
) {
    let block = comptime!(ctx.shape.block);
    let row = (at.first_kv + j * block) as i32;
    let head = (at.head / ctx.group) as i32;
    #[unroll]
    for c in 0..comptime!(width.div_ceil(64)) {
        let to = smem + comptime!(c * block * 128);
        let column = comptime!((c * 64) as i32).runtime();
        ptx::tma_load(to, map, column, row, head, at.batch as i32, bar);
    }
}

/// Whether value blocks may hold what stands behind a sequence: codes without scale factors have zeros there.
fn mends(shape: BlackwellShape) -> bool {
    shape.features.lengths && (shape.scaled() || shape.features.operands.is_none())
}

/// Value block j. Rows past the tensor arrive as zeros; rows past the sequence's length, the next
/// sequence's among them, are zeroed by the loading warp before the stage counts as full, since 0 * NaN
/// is NaN; of codes their scale factors.
#[cube]
pub(super) fn load_values(ctx: &mut BlackwellCtx<'_>, at: &TileCoords, j: u32) {
    let shape = comptime!(ctx.shape);
    let stages = comptime!(shape.stages);
    let stage = ctx.v_pos % stages;
    let full = ctx.v_full(stage);
    let smem = ctx.v_smem + stage * comptime!(shape.v_stage());
    let row0 = j * comptime!(shape.block);
    let mut lands = full;
    let mut mend = false;
    if comptime!(mends(shape)) {
        mend = row0 + comptime!(shape.block) > at.len_kv && at.first_kv + at.len_kv < ctx.s_kv;
        if mend {
            lands = ctx.v_landed();
        }
    }
    if lane() == 0u32 {
        ptx::mbar_wait(ctx.v_empty(stage), (ctx.v_pos / stages % 2u32) ^ 1u32);
        ptx::mbar_expect(lands, comptime!(shape.v_bytes()));
        if comptime!(shape.features.operands.is_some()) {
            load_coded_values(&*ctx, at, j, smem, lands);
        } else {
            load_block(&*ctx, at, j, smem, ctx.maps.v, lands, comptime!(shape.d_v));
        }
    }
    if comptime!(mends(shape)) {
        if mend {
            sync_plane();
            ptx::mbar_wait(lands, ctx.mended % 2u32);
            ctx.mended += 1u32;
            if comptime!(shape.features.operands.is_some()) {
                zero_scales(smem, j, at.len_kv, full, shape);
            } else {
                let kept = at.len_kv.max(row0) - row0;
                zero_rows(
                    smem,
                    kept,
                    comptime!(shape.block),
                    comptime!(shape.d_v),
                    full,
                );
            }
        }
    }
}
