//! Results of a query stage, from tensor memory to memory.

use cubecl::prelude::*;

use super::shape::CHUNK;
use super::{BlackwellCtx, ptx};
use crate::arch::hopper::ptx as shared;
use crate::attention::Finished;

/// out rows in 16-byte stores, and lse: a thread a row. Rows past len_q give 0 and -inf, rows past
/// the sequence's part of the tensor nothing.
#[cube]
pub(super) fn store_rows(ctx: &mut BlackwellCtx<'_>, done: &Finished) {
    let shape = comptime!(ctx.shape);
    let stage = ctx.stage;
    if !ctx.empty {
        shared::mbar_wait(ctx.out_full(stage), 0u32);
        ptx::fence_after();
    }
    let row = ctx.stage_row(stage);
    let at = ctx.tile.query(row);
    let head = ctx.tile.head_of(row);
    let alive = at < ctx.tile.len_q;
    let exists = at < ctx.tile.rows_q;
    let mut inverse = select(alive, done.inverse[0], 0.0f32);
    if comptime!(shape.features.operands.is_some()) {
        inverse *= ctx.factor;
    }
    let place = (ctx.tile.first_q + at) as usize;
    let to = ctx.out_layout.base(ctx.tile.entry, head) + place * ctx.out_layout.row;
    let from = ctx.lane_address() + ctx.acc_column(stage);
    #[unroll]
    for c in 0..comptime!(shape.width() / CHUNK) {
        let size!(N) = comptime!(CHUNK as usize);
        let mut o = Vector::<f32, N>::zeroed();
        // The whole warp loads, whichever of its rows exist.
        if !ctx.empty {
            o = ptx::load_row::<N>(from + comptime!(c * CHUNK), CHUNK);
        }
        #[unroll]
        for g in 0..comptime!(CHUNK / 8) {
            let group = comptime!(c * CHUNK / 8 + g);
            if comptime!(group < shape.d_v / 8) {
                let mut line = Vector::<u32, Const<4>>::zeroed();
                #[unroll]
                for w in 0..4usize {
                    let i = comptime!(8 * g as usize + 2 * w);
                    let lo = o.extract(i) * inverse;
                    let hi = o.extract(comptime!(i + 1)) * inverse;
                    // A row of no query may hold what no product wrote.
                    let word = shared::pack2(lo, hi, comptime!(shape.ty));
                    line.insert(w, select(alive, word, 0u32));
                }
                if exists {
                    ctx.out[to + group as usize] = line;
                }
            }
        }
    }
    if exists {
        let to = ctx.lse_layout.base(ctx.tile.entry, head) + place * ctx.lse_layout.row;
        ctx.lse[to] = select(alive, done.lse[0], ctx.neg_inf);
    }
}
