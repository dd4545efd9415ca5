//! The parts of a tile whose keys were split, merged where they meet.

use cubecl::prelude::*;

use super::{PlaneCtx, last_to_arrive, load_word, ptx};
use crate::attention::{
    InMemory, Partials, PartialsExpand, Share, head_of, merge_group, merge_share, query_of,
};
use crate::tile::Layout;

/// Results of cubes whose loads a unit has under way at a time: fewer where a cube's planes are few and each
/// has more registers in use.
fn group(parts: u32) -> u32 {
    if parts < 4 { 4 } else { 16 }
}

/// Of so many cubes a unit merges two outputs at a time, where registers allow as many as in [`group`].
const FEW: u32 = 4;

/// Where merged results go: out in units of 4 elements, lse in elements.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct MergedLayouts {
    /// Strides of out.
    pub out: Layout,
    /// Strides of lse.
    pub lse: Layout,
}

/// Parts that the planes of a cube left in shared memory.
#[derive(CubeType)]
struct InCube {
    /// Shared address of the first part's row.
    row: u32,
    /// Bytes to the four columns in question.
    column: u32,
    /// Bytes to the row's lse.
    #[cube(comptime)]
    lse: u32,
    /// Bytes from part to part.
    #[cube(comptime)]
    step: u32,
}

#[cube]
impl Partials<Const<4>> for InCube {
    fn lse(&self, p: u32) -> f32 {
        f32::from_bits(load_word(self.row + p * self.step + self.lse))
    }
    fn out(&self, p: u32) -> Vector<f32, Const<4>> {
        let words = ptx::load_chunk(self.row + p * self.step + self.column);
        Vector::<f32, Const<4>>::reinterpret(words)
    }
}

/// Which tile a cube's parts belong to.
#[derive(CubeType, Clone, Copy)]
struct Place {
    /// Shared address of the first part.
    smem: u32,
    batch: u32,
    first_head: u32,
    row0: u32,
    /// Queries of the sequence, existing or not.
    rows_q: u32,
    /// Entry of the cube's own result, and of the tile's first one, among those of all cubes.
    entry: u32,
    first_entry: u32,
    /// Cubes of the tile.
    cubes: u32,
}

/// out and lse of the tile that this cube's parts belong to, written by the last cube of the tile to come
/// here. `splits` parts make a tile. Rows past the sequence's queries give 0 and -inf.
#[cube]
pub(super) fn merge_parts<E: Float>(
    ctx: &mut PlaneCtx<'_>,
    out: &mut [Vector<E, Const<4>>],
    lse: &mut [f32],
    arrivals: &mut [Atomic<u32>],
    merged: &MergedLayouts,
    splits: u32,
) {
    let shape = comptime!(ctx.shape);
    sync_cube();
    let mut smem = ctx.smem;
    if comptime!(shape.parts > 1) {
        smem -= UNIT_POS / 32u32 * comptime!(shape.part_bytes());
    }
    let words = ptx::load_chunk(smem + comptime!(shape.place_at()));
    let sizes = ptx::load_chunk(smem + comptime!(shape.place_at() + 16));
    let rows_q = sizes.extract(1usize);
    let part = words.extract(0usize);
    let cubes = splits / comptime!(shape.parts);
    let batch = part / splits;
    let place = Place {
        smem,
        batch,
        first_head: words.extract(1usize),
        row0: words.extract(2usize),
        rows_q,
        entry: part / comptime!(shape.parts),
        first_entry: batch * cubes,
        cubes,
    };
    let width = comptime!(shape.d_v / 4);
    // Rows past the last query of the sequence belong to nobody.
    let live = (rows_q * comptime!(shape.pack) - place.row0).min(comptime!(shape.rows));
    let outputs = live * width;
    if cubes == 1u32 {
        let mut output = UNIT_POS;
        while output < outputs {
            let share = of_cube(&*ctx, &place, output / width, output % width);
            write::<E>(&share, &*ctx, &place, output, out, lse, merged);
            output += comptime!(shape.units());
        }
    } else {
        let mut output = UNIT_POS;
        while output < outputs {
            leave(ctx, &place, output / width, output % width);
            output += comptime!(shape.units());
        }
        // From memory: in a register it would live across all blocks.
        let tile = sizes.extract(2usize) / cubes;
        let flag = smem + comptime!(shape.part_bytes() * shape.parts);
        if last_to_arrive(flag, cubes, arrivals, tile) {
            let mut output = UNIT_POS;
            if comptime!(shape.parts >= 4) && cubes <= FEW {
                while output < outputs {
                    let next = output + comptime!(shape.units());
                    let there = next.min(outputs - 1u32);
                    let one = of_few(&*ctx, &place, output / width, output % width);
                    let two = of_few(&*ctx, &place, there / width, there % width);
                    write::<E>(&one, &*ctx, &place, output, out, lse, merged);
                    if next < outputs {
                        write::<E>(&two, &*ctx, &place, next, out, lse, merged);
                    }
                    output = next + comptime!(shape.units());
                }
            } else {
                while output < outputs {
                    let share = of_tile(&*ctx, &place, output / width, output % width);
                    write::<E>(&share, &*ctx, &place, output, out, lse, merged);
                    output += comptime!(shape.units());
                }
            }
        }
    }
}

/// Columns `4 x` to `4 x + 3` of row `row` over the cube's parts.
#[cube]
fn of_cube(ctx: &PlaneCtx<'_>, place: &Place, row: u32, x: u32) -> Share<Const<4>> {
    let shape = comptime!(ctx.shape);
    let from = InCube {
        row: place.smem + row * comptime!(shape.result_row()),
        column: x * 16u32,
        lse: comptime!(4 * shape.d_v),
        step: comptime!(shape.part_bytes()),
    };
    let parts = comptime!(shape.parts);
    merge_share::<Const<4>, InCube>(&from, parts.runtime(), 0u32, ctx.neg_inf, 1u32, parts)
}

/// The same over the results of all cubes of the tile.
#[cube]
fn of_tile(ctx: &PlaneCtx<'_>, place: &Place, row: u32, x: u32) -> Share<Const<4>> {
    let from = results(ctx, place, row, x);
    merge_share::<Const<4>, InMemory<'_, u32, Const<4>>>(
        &from,
        place.cubes,
        0u32,
        ctx.neg_inf,
        1u32,
        comptime!(group(ctx.shape.parts)),
    )
}

/// The same where the cubes are few.
#[cube]
fn of_few(ctx: &PlaneCtx<'_>, place: &Place, row: u32, x: u32) -> Share<Const<4>> {
    let from = results(ctx, place, row, x);
    let mut share = Share::<Const<4>>::none(ctx.neg_inf);
    merge_group::<Const<4>, InMemory<'_, u32, Const<4>>>(
        &mut share,
        &from,
        place.cubes,
        0u32,
        ctx.neg_inf,
        1u32,
        FEW,
    );
    share
}

/// Where the cubes of the tile left columns `4 x` to `4 x + 3` of row `row`.
#[cube]
fn results<'a>(
    ctx: &'a PlaneCtx<'_>,
    place: &Place,
    row: u32,
    x: u32,
) -> InMemory<'a, u32, Const<4>> {
    let pack = comptime!(ctx.shape.pack);
    let row = place.row0 + row;
    let query = query_of(row, pack) as usize;
    let head = head_of(place.first_head, row, pack);
    let outs = ctx.out_layout.base(place.first_entry, head) + query * ctx.out_layout.row;
    InMemory::<u32, Const<4>>::new(
        &*ctx.out,
        &*ctx.lse,
        outs + x as usize,
        ctx.lse_layout.base(place.first_entry, head) + query * ctx.lse_layout.row,
        ctx.out_layout.batch,
        ctx.lse_layout.batch,
    )
}

/// The cube's result of four columns of a row, to memory.
#[cube]
fn leave(ctx: &mut PlaneCtx<'_>, place: &Place, row: u32, x: u32) {
    let pack = comptime!(ctx.shape.pack);
    let query = query_of(place.row0 + row, pack);
    if query < place.rows_q {
        let (value, total) = of_cube(&*ctx, place, row, x).result(ctx.neg_inf);
        let head = head_of(place.first_head, place.row0 + row, pack);
        let to = ctx.out_layout.base(place.entry, head) + query as usize * ctx.out_layout.row;
        ctx.out[to + x as usize] = Vector::<u32, Const<4>>::reinterpret(value);
        if x == 0u32 {
            let to = ctx.lse_layout.base(place.entry, head) + query as usize * ctx.lse_layout.row;
            ctx.lse[to] = total;
        }
    }
}

/// Four columns of a row of the tile, to where the caller wants them.
#[cube]
fn write<E: Float>(
    share: &Share<Const<4>>,
    ctx: &PlaneCtx<'_>,
    place: &Place,
    output: u32,
    out: &mut [Vector<E, Const<4>>],
    lse: &mut [f32],
    merged: &MergedLayouts,
) {
    let pack = comptime!(ctx.shape.pack);
    let width = comptime!(ctx.shape.d_v / 4);
    let (row, x) = (place.row0 + output / width, output % width);
    let query = query_of(row, pack);
    if query < place.rows_q {
        let head = head_of(place.first_head, row, pack);
        let (value, total) = share.result(ctx.neg_inf);
        let to = merged.out.base(place.batch, head) + query as usize * merged.out.row;
        out[to + x as usize] = Vector::<E, Const<4>>::cast_from(value);
        if x == 0u32 {
            lse[merged.lse.base(place.batch, head) + query as usize * merged.lse.row] = total;
        }
    }
}
