//! What the loading warp brings into the stages by TMA.

use cubecl::prelude::*;

use super::ptx::{mask_shared16, pair_load, pair_load_packed};
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
    let full = ctx.for_product(ctx.q_full());
    ctx.expect(full, comptime!(shape.q_bytes()));
    let query = (at.first_q + at.query(ctx.rank * comptime!(shape.rows()))) as i32;
    let batch = at.batch as i32;
    #[unroll]
    for c in 0..comptime!(shape.row_places().div_ceil(64)) {
        let to = ctx.q_smem + comptime!(c * shape.rows() * 128);
        let column = comptime!((c * 64) as i32).runtime();
        if comptime!(shape.pack == 1) {
            load_box(
                to,
                ctx.maps.q,
                column,
                query,
                at.head as i32,
                batch,
                full,
                shape,
            );
        } else {
            let head_kv = (at.head / ctx.group) as i32;
            if comptime!(shape.cubes > 1) {
                pair_load_packed(to, ctx.maps.q, column, query, head_kv, batch, full);
            } else {
                ptx::tma_load_packed(to, ctx.maps.q, column, query, head_kv, batch, full);
            }
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

/// A box of four axes, whose bytes a barrier of either cube counts.
#[cube]
fn load_box(
    smem: u32,
    map: u64,
    x: i32,
    row: i32,
    head: i32,
    batch: i32,
    bar: u32,
    #[comptime] shape: BlackwellShape,
) {
    if comptime!(shape.cubes > 1) {
        pair_load(smem, map, x, row, head, batch, bar);
    } else {
        ptx::tma_load(smem, map, x, row, head, batch, bar);
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
    let full = ctx.for_product(ctx.k_full(stage));
    ptx::mbar_wait(ctx.k_empty(stage), (ctx.k_pos / stages % 2u32) ^ 1u32);
    ctx.expect(full, comptime!(shape.k_bytes()));
    let smem = ctx.k_smem + stage * comptime!(shape.k_stage());
    // The half of the keys that this cube of a pair multiplies with.
    let rows = comptime!(shape.key_rows());
    let row = at.first_kv + j * comptime!(shape.block) + ctx.rank * rows;
    let columns = comptime!(shape.row_places());
    let first = 0u32.runtime();
    load_block(ctx, at, row, first, smem, ctx.maps.k, full, rows, columns);
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

/// Zeroes the scale factors of the groups of value block j that start at key `len` or later, by the calling warp.
/// Their codes are numbers, whatever the values were.
#[cube]
fn zero_scales(smem: u32, j: u32, len: u32, #[comptime] shape: BlackwellShape) {
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
}

/// `rows` rows and `columns` columns of K or V from (row, column) on, in 64-column tiles.
#[cube]
fn load_block(
    ctx: &BlackwellCtx<'_>,
    at: &TileCoords,
    row: u32,
    column: u32,
    smem: u32,
    map: u64,
    bar: u32,
    #[comptime] rows: u32,
    #[comptime] columns: u32,
) {
    let shape = comptime!(ctx.shape);
    let head = (at.head / ctx.group) as i32;
    #[unroll]
    for c in 0..comptime!(columns.div_ceil(64)) {
        let to = smem + comptime!(c * rows * 128);
        let column = (column + comptime!(c * 64)) as i32;
        let (row, batch) = (row as i32, at.batch as i32);
        load_box(to, map, column, row, head, batch, bar, shape);
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
    let full = ctx.for_product(ctx.v_full(stage));
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
        ctx.expect(lands, comptime!(shape.v_bytes()));
        if comptime!(shape.features.operands.is_some()) {
            load_coded_values(&*ctx, at, j, smem, lands);
        } else {
            // The half of the columns that this cube of a pair multiplies with.
            let (row, columns) = (at.first_kv + row0, comptime!(shape.value_columns()));
            let (block, column) = (comptime!(shape.block), ctx.rank * columns);
            load_block(
                &*ctx, at, row, column, smem, ctx.maps.v, lands, block, columns,
            );
        }
    }
    if comptime!(mends(shape)) {
        if mend {
            sync_plane();
            ptx::mbar_wait(lands, ctx.mended % 2u32);
            ctx.mended += 1u32;
            if comptime!(shape.features.operands.is_some()) {
                zero_scales(smem, j, at.len_kv, shape);
            } else {
                let kept = at.len_kv.max(row0) - row0;
                zero_rows(
                    smem,
                    kept,
                    comptime!(shape.block),
                    comptime!(shape.value_columns()),
                );
            }
            sync_plane();
            if lane() == 0u32 {
                ctx.arrive_once(full);
            }
        }
    }
}
