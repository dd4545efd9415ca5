//! Tiles handed from the producer, which decodes them, to the consumers: a ring of slots one
//! longer than that of the query stages and covered by their barriers. The slot of a tile is
//! written again only when every consumer is done with the scores of the tile after it, and has
//! therefore stored the tile: a consumer need not keep in registers what the store wants.

use cubecl::prelude::*;

use super::{HopperCtx, ptx};
use crate::attention::{Segments, StreamTile, TileCoords};

/// Words of a slot: see [`write_tile`].
pub(super) const SLOT: u32 = 16;

/// Publishes the tile with its queries: called by one thread between `q_empty`'s wait and the
/// arrival on `q_full`, which releases the words.
#[cube]
pub(super) fn write_tile(ctx: &mut HopperCtx<'_>, at: &TileCoords, range: &Segments) {
    let features = comptime!(ctx.shape.features);
    let slot = slot_of(&*ctx, ctx.tiles);
    ctx.slots[slot] = 1u32;
    ctx.slots[slot + 1] = at.batch;
    ctx.slots[slot + 2] = at.head;
    ctx.slots[slot + 3] = at.row0;
    if comptime!(features.lengths) {
        ctx.slots[slot + 4] = at.len_q;
        ctx.slots[slot + 5] = at.len_kv;
    }
    if comptime!(features.band_left || features.band_right || features.alibi) {
        ctx.slots[slot + 6] = u32::cast_from(at.shift);
    }
    if comptime!(features.alibi) {
        ctx.slots[slot + 7] = u32::reinterpret(at.slope);
    }
    ctx.slots[slot + 8] = range.start;
    ctx.slots[slot + 9] = range.inner_start;
    ctx.slots[slot + 10] = range.inner_end;
    ctx.slots[slot + 11] = range.end;
    if comptime!(features.varlen) {
        ctx.slots[slot + 12] = at.first_q;
        ctx.slots[slot + 13] = at.first_kv;
        ctx.slots[slot + 14] = at.rows_q;
    }
    if comptime!(features.split) {
        ctx.slots[slot + 15] = at.entry;
    }
}

/// Tells the consumers that no tile follows.
#[cube]
pub(super) fn close(ctx: &mut HopperCtx<'_>) {
    let stage = ctx.next_q_stage();
    ptx::mbar_wait(ctx.q_empty(stage), ctx.next_q_parity() ^ 1u32);
    let slot = slot_of(&*ctx, ctx.tiles);
    ctx.slots[slot] = 0u32;
    ptx::mbar_arrive(ctx.q_full(stage));
}

/// Waits for the next tile and its queries.
#[cube]
pub(super) fn await_tile(ctx: &HopperCtx<'_>) -> StreamTile {
    let stage = ctx.next_q_stage();
    ptx::mbar_wait(ctx.q_full(stage), ctx.next_q_parity());
    let slot = slot_of(ctx, ctx.tiles);
    StreamTile {
        open: ctx.slots[slot] == 1u32,
        at: tile_in(ctx, slot),
        range: Segments {
            start: ctx.slots[slot + 8],
            inner_start: ctx.slots[slot + 9],
            inner_end: ctx.slots[slot + 10],
            end: ctx.slots[slot + 11],
        },
    }
}

/// Tile number `tile` of the cube, until the one after the next is published.
#[cube]
pub(super) fn read_tile(ctx: &HopperCtx<'_>, tile: u32) -> TileCoords {
    tile_in(ctx, slot_of(ctx, tile))
}

#[cube]
fn slot_of(ctx: &HopperCtx<'_>, tile: u32) -> usize {
    (tile % comptime!(ctx.shape.slots()) * SLOT) as usize
}

/// What the blueprint leaves constant is neither written nor read: constants need no registers.
#[cube]
fn tile_in(ctx: &HopperCtx<'_>, slot: usize) -> TileCoords {
    let features = comptime!(ctx.shape.features);
    let mut len_q = ctx.s_q;
    let mut len_kv = ctx.s_kv;
    if comptime!(features.lengths) {
        len_q = ctx.slots[slot + 4];
        len_kv = ctx.slots[slot + 5];
    }
    let mut shift = 0i32;
    if comptime!(features.band_left || features.band_right || features.alibi) {
        shift = i32::cast_from(ctx.slots[slot + 6]);
    }
    let mut slope = 0.0f32;
    if comptime!(features.alibi) {
        slope = f32::reinterpret(ctx.slots[slot + 7]);
    }
    let mut first_q = 0u32;
    let mut first_kv = 0u32;
    let mut rows_q = ctx.s_q;
    if comptime!(features.varlen) {
        first_q = ctx.slots[slot + 12];
        first_kv = ctx.slots[slot + 13];
        rows_q = ctx.slots[slot + 14];
    }
    let batch = ctx.slots[slot + 1];
    let mut entry = batch;
    if comptime!(features.split) {
        entry = ctx.slots[slot + 15];
    }
    TileCoords {
        batch,
        entry,
        head: ctx.slots[slot + 2],
        row0: ctx.slots[slot + 3],
        len_q,
        len_kv,
        shift,
        slope,
        first_q,
        first_kv,
        rows_q,
        // The segments hold what the producer made of these.
        keys_lo: 0u32.runtime(),
        keys_hi: 0u32.runtime(),
        pack: comptime!(ctx.shape.pack),
    }
}
