//! Results of a query stage, from tensor memory to memory.

use cubecl::prelude::*;

use super::{BlackwellCtx, ptx};
use crate::arch::hopper::ptx as shared;

/// out rows in 16-byte stores, and lse: a thread a row. Rows past len_q give 0 and -inf, rows past
/// the sequence's part of the tensor nothing.
#[cube]
pub(super) fn store_rows(ctx: &mut BlackwellCtx<'_>, stage: u32) {
    let shape = comptime!(ctx.shape);
    let chunk = comptime!(shape.chunk());
    let slot = ctx.row_slot(stage);
    shared::mbar_wait(ctx.finished_full(stage), 0u32);
    let mut inverse = ctx.rows[slot + comptime!(shape.rows() as usize)];
    let lse = ctx.rows[slot + comptime!(2 * shape.rows() as usize)];
    if !ctx.empty {
        shared::mbar_wait(ctx.out_full(stage), 0u32);
        ptx::fence_after();
    }
    let row = ctx.stage_row(stage);
    let at = ctx.tile.query(row);
    let head = ctx.tile.head_of(row);
    let alive = at < ctx.tile.len_q;
    let exists = at < ctx.tile.rows_q;
    inverse = select(alive, inverse, 0.0f32);
    let place = (ctx.tile.first_q + at) as usize;
    let to = ctx.out_layout.base(ctx.tile.entry, head) + place * ctx.out_layout.row;
    let from = ctx.lane_address() + ctx.acc_column(stage);
    #[unroll]
    for c in 0..comptime!(shape.width() / chunk) {
        let size!(N) = comptime!(chunk as usize);
        let mut o = Vector::<f32, N>::zeroed();
        // The whole warp loads, whichever of its rows exist.
        if !ctx.empty {
            o = ptx::load_row::<N>(from + comptime!(c * chunk), chunk);
        }
        #[unroll]
        for g in 0..comptime!(chunk / 8) {
            let group = comptime!(c * chunk / 8 + g);
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
        ctx.lse[to] = select(alive, lse, ctx.neg_inf);
    }
}
