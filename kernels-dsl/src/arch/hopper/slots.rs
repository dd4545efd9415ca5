//! Tiles handed from the producer, which decodes them, to the consumers: one slot beside every
//! query stage, covered by that stage's barriers.

use cubecl::prelude::*;

use super::{HopperCtx, ptx};
use crate::attention::{Segments, StreamTile, TileCoords};

/// Words of a slot: see [`write_tile`]. The last ones are padding.
pub(super) const SLOT: u32 = 16;

/// Publishes the tile with its queries: called by one thread between `q_empty`'s wait and the
/// arrival on `q_full`, which releases the words.
#[cube]
pub(super) fn write_tile(ctx: &mut HopperCtx<'_>, at: &TileCoords, range: &Segments) {
    let slot = (ctx.next_q_stage() * SLOT) as usize;
    ctx.slots[slot] = 1u32;
    ctx.slots[slot + 1] = at.batch;
    ctx.slots[slot + 2] = at.head;
    ctx.slots[slot + 3] = at.row0;
    ctx.slots[slot + 4] = at.len_q;
    ctx.slots[slot + 5] = at.len_kv;
    ctx.slots[slot + 6] = u32::cast_from(at.shift);
    ctx.slots[slot + 7] = u32::reinterpret(at.slope);
    ctx.slots[slot + 8] = range.start;
    ctx.slots[slot + 9] = range.inner_start;
    ctx.slots[slot + 10] = range.inner_end;
    ctx.slots[slot + 11] = range.end;
    ctx.slots[slot + 12] = at.first_q;
    ctx.slots[slot + 13] = at.first_kv;
    ctx.slots[slot + 14] = at.rows_q;
}

/// Tells the consumers that no tile follows.
#[cube]
pub(super) fn close(ctx: &mut HopperCtx<'_>) {
    let stage = ctx.next_q_stage();
    ptx::mbar_wait(ctx.q_empty(stage), ctx.next_q_parity() ^ 1u32);
    ctx.slots[(stage * SLOT) as usize] = 0u32;
    ptx::mbar_arrive(ctx.q_full(stage));
}

/// Waits for the next tile and its queries. Its slot is free again after
/// [`scores_done`](crate::attention::Tier::scores_done).
#[cube]
pub(super) fn await_tile(ctx: &HopperCtx<'_>) -> StreamTile {
    let stage = ctx.next_q_stage();
    ptx::mbar_wait(ctx.q_full(stage), ctx.next_q_parity());
    let slot = (stage * SLOT) as usize;
    StreamTile {
        open: ctx.slots[slot] == 1u32,
        at: TileCoords {
            batch: ctx.slots[slot + 1],
            head: ctx.slots[slot + 2],
            row0: ctx.slots[slot + 3],
            len_q: ctx.slots[slot + 4],
            len_kv: ctx.slots[slot + 5],
            shift: i32::cast_from(ctx.slots[slot + 6]),
            slope: f32::reinterpret(ctx.slots[slot + 7]),
            first_q: ctx.slots[slot + 12],
            first_kv: ctx.slots[slot + 13],
            rows_q: ctx.slots[slot + 14],
            // The segments hold what the producer made of these.
            keys_lo: 0u32.runtime(),
            keys_hi: 0u32.runtime(),
            pack: comptime!(ctx.shape.pack),
        },
        range: Segments {
            start: ctx.slots[slot + 8],
            inner_start: ctx.slots[slot + 9],
            inner_end: ctx.slots[slot + 10],
            end: ctx.slots[slot + 11],
        },
    }
}
