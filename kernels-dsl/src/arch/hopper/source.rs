//! Which tile comes next, as the producer decides it.

use cubecl::prelude::*;

use super::slots::close;
use super::{HopperCtx, ptx};
use crate::attention::*;

/// The tiles of a launch and this cube's place among them.
#[derive(CubeType)]
pub struct TileSource<'a> {
    /// Counter of the tiles that cubes have drawn beyond their first.
    pub tickets: &'a mut [Atomic<u32>],
    /// Position -> tile.
    pub order: &'a TileOrder,
    /// Position of the next tile; past the end when no more follows.
    pub position: u32,
    /// Tiles of the launch.
    pub total: u32,
    /// Query heads.
    pub h_q: u32,
    /// Tiles of a lane.
    pub tiles: u32,
}

/// The cube's own position first, then whatever the card's counter hands out: cubes that got short
/// tiles come back sooner, so that all of them end together. Cubes that share loads must take
/// neighbouring tiles; theirs are all equally long, and dealt out in turn. The last one closes the
/// stream.
#[cube]
pub(super) fn draw_tile(ctx: &mut HopperCtx<'_>, inputs: &LogitInputs<'_>) -> StreamTile {
    let shape = comptime!(ctx.shape);
    let position = ptx::shuffle_first(ctx.source.position);
    let open = position < ctx.source.total;
    if open {
        ctx.source.position = if comptime!(shape.cluster > 1) {
            position + CUBE_COUNT as u32
        } else {
            draw(&mut ctx.source)
        };
    } else if UNIT_POS == 0u32 {
        close(ctx);
    }
    let source = &ctx.source;
    let at = source.order.tile(
        position.min(source.total - 1u32),
        source.h_q,
        source.tiles,
        inputs,
        comptime!(shape.tile_shape()),
    );
    let range = if comptime!(shape.cluster > 1) {
        all_blocks(ctx.s_kv, comptime!(shape.block))
    } else {
        let rows = comptime!(shape.rows());
        segments(
            &at,
            inputs.scalars,
            rows,
            comptime!(shape.block),
            comptime!(shape.features),
        )
    };
    StreamTile { open, at, range }
}

/// The next ticket, in unit 0: every cube draws until it is past the end, so the launch draws
/// `total` times, and the last draw leaves the counter at 0 for the launch after it.
#[cube]
fn draw(source: &mut TileSource<'_>) -> u32 {
    let mut next = source.total;
    if UNIT_POS == 0u32 {
        let ticket = source.tickets[0].fetch_add(1u32);
        if ticket == source.total - 1u32 {
            source.tickets[0].store(0u32);
        }
        next = ticket + CUBE_COUNT as u32;
    }
    next
}
