//! Results of a consumer warpgroup, from the accumulator's registers to memory.

use cubecl::prelude::*;

use super::{HopperCtx, ptx};
use crate::attention::{Finished, LOWEST, TileCoords};

/// out rows in 16-byte stores, and lse. Rows past len_q give 0 and -inf, rows past the sequence's
/// part of the tensor nothing.
#[cube]
pub(super) fn store_rows(ctx: &mut HopperCtx<'_>, tile: &TileCoords, done: &Finished) {
    let groups = comptime!(ctx.shape.d_v / 8);
    let lane = UNIT_POS % 4u32;
    #[unroll]
    for r in 0..2usize {
        let row = ctx.thread_row() + comptime!(8 * r as u32);
        let at = tile.query(row);
        let head = tile.head_of(row);
        let alive = at < tile.len_q;
        let inverse = select(alive, done.inverse[r], 0.0f32);
        let exists = at < tile.rows_q;
        let place = (tile.first_q + at) as usize;
        let to = ctx.out_layout.base(tile.entry, head) + place * ctx.out_layout.row;
        // Four groups of 8 columns at a time: the quad's lanes hold 2 columns of each, and
        // leave with 8 columns of one.
        #[unroll]
        for quad in 0..comptime!(groups.div_ceil(4)) {
            let mut words = Array::<u32>::new(4usize);
            #[unroll]
            for g in 0..4u32 {
                let group = comptime!(4 * quad + g);
                words[g as usize] = if comptime!(group < groups) {
                    let lo = ptx::bank_get(comptime!(4 * group + 2 * r as u32)) * inverse;
                    let hi = ptx::bank_get(comptime!(4 * group + 2 * r as u32 + 1)) * inverse;
                    ptx::pack2(lo, hi, comptime!(ctx.shape.ty))
                } else {
                    0u32.runtime()
                };
            }
            quad_transpose(&mut words, lane);
            let group = comptime!(4 * quad) + lane;
            if exists && group < groups {
                let mut line = Vector::<u32, Const<4>>::zeroed();
                #[unroll]
                for w in 0..4usize {
                    line.insert(w, select(alive, words[w], 0u32));
                }
                ctx.out[to + group as usize] = line;
            }
        }
        if lane == 0u32 && exists {
            let to = ctx.lse_layout.base(tile.entry, head) + place * ctx.lse_layout.row;
            ctx.lse[to] = select(alive, done.lse[r], ctx.neg_inf);
        }
    }
}

/// f32 rows of a part of the keys, and their lse; of a row that saw no key only lse.
#[cube]
pub(super) fn store_part(ctx: &mut HopperCtx<'_>, tile: &TileCoords, done: &Finished) {
    let groups = comptime!(ctx.shape.d_v / 8);
    let lane = UNIT_POS % 4u32;
    #[unroll]
    for r in 0..2usize {
        let row = ctx.thread_row() + comptime!(8 * r as u32);
        let at = tile.query(row);
        let head = tile.head_of(row);
        let alive = at < tile.len_q;
        let seen = alive && done.lse[r] >= LOWEST;
        let place = (tile.first_q + at) as usize;
        let to = ctx.out_layout.base(tile.entry, head) + place * ctx.out_layout.row;
        // Two groups of 8 columns at a time: of each pair of lanes, which hold 4 columns of both,
        // one leaves with those of the first and the other with those of the second.
        #[unroll]
        for pair in 0..comptime!(groups.div_ceil(2)) {
            let mut words = Array::<u32>::new(4usize);
            #[unroll]
            for w in 0..4u32 {
                let group = comptime!(2 * pair + w / 2);
                words[w as usize] = if comptime!(group < groups) {
                    let x = ptx::bank_get(comptime!(4 * group + 2 * r as u32 + w % 2));
                    u32::reinterpret(x * done.inverse[r])
                } else {
                    0u32.runtime()
                };
            }
            let odd = lane % 2u32 == 1u32;
            exchange(&mut words, 0usize, 2usize, odd, 1u32);
            exchange(&mut words, 1usize, 3usize, odd, 1u32);
            let group = comptime!(2 * pair) + lane % 2u32;
            if seen && group < groups {
                let mut line = Vector::<u32, Const<4>>::zeroed();
                #[unroll]
                for w in 0..4usize {
                    line.insert(w, words[w]);
                }
                ctx.out[to + (2u32 * group + lane / 2u32) as usize] = line;
            }
        }
        if lane == 0u32 && at < tile.rows_q {
            let to = ctx.lse_layout.base(tile.entry, head) + place * ctx.lse_layout.row;
            ctx.lse[to] = select(alive, done.lse[r], ctx.neg_inf);
        }
    }
}

/// Word g of lane l -> word l of lane g, over the four lanes of a quad.
#[cube]
fn quad_transpose(words: &mut Array<u32>, lane: u32) {
    let odd = lane % 2u32 == 1u32;
    let high = lane >= 2u32;
    exchange(words, 0usize, 1usize, odd, 1u32);
    exchange(words, 2usize, 3usize, odd, 1u32);
    exchange(words, 0usize, 2usize, high, 2u32);
    exchange(words, 1usize, 3usize, high, 2u32);
}

/// Lanes with `upper` unset keep word a and get the partner's a as their b; the others keep b
/// and get the partner's b as their a.
#[cube]
fn exchange(
    words: &mut Array<u32>,
    #[comptime] a: usize,
    #[comptime] b: usize,
    upper: bool,
    #[comptime] mask: u32,
) {
    let (wa, wb) = (words[a], words[b]);
    let other = ptx::shuffle_xor_u32(select(upper, wa, wb), mask);
    words[a] = select(upper, other, wa);
    words[b] = select(upper, wb, other);
}
