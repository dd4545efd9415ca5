//! Sums of a block: over the planes along k, over the cubes that share it, and to y.

use cubecl::prelude::*;

use super::{PlaneMatmul, ptx};
use crate::arch::fma::bias_of;
use crate::arch::plane::last_to_arrive;
use crate::quant::WorkUnit;

/// Sums of this plane to shared memory, [plane along k, row, column].
#[cube]
pub(super) fn share_sums(ctx: &PlaneMatmul<'_>, acc: &Array<Vector<f32, Const<4>>>) {
    let shape = comptime!(ctx.shape);
    let row_tiles = comptime!(shape.row_tiles() as usize);
    let lane = UNIT_POS % 32u32;
    let first = ctx.smem
        + (ctx.plane_k * comptime!(shape.sum_plane())
            + lane % 4u32 * 2u32 * comptime!(shape.sum_row())
            + ctx.strip * 16u32
            + lane / 4u32 * 2u32)
            * 4u32;
    #[unroll]
    for s in 0..comptime!(shape.strips() as usize) {
        #[unroll]
        for tile in 0..row_tiles {
            let sum = acc[comptime!(s * row_tiles + tile)];
            let to = first + comptime!(4 * (8 * tile as u32 * shape.sum_row() + 16 * s as u32));
            // Values 0 and 2 are neighbouring columns of one row of y.
            ptx::store_pair(to, sum.extract(0usize), sum.extract(2usize));
            let below = to + comptime!(4 * shape.sum_row());
            ptx::store_pair(below, sum.extract(1usize), sum.extract(3usize));
        }
    }
}

/// The block's sums over its planes, or with splits over its cubes, to y.
#[cube]
pub(super) fn store_block<E: Float>(
    ctx: &PlaneMatmul<'_>,
    unit: &WorkUnit,
    bias: &ComptimeOption<Box<[E]>>,
    y: &mut [E],
    sums: &mut [f32],
    counters: &mut [Atomic<u32>],
) {
    let shape = comptime!(ctx.shape);
    let elements = comptime!(shape.rows * shape.columns);
    let first = unit.block as usize * (ctx.sizes.splits as usize * comptime!(elements as usize));
    let mut last = true;
    if comptime!(shape.split) {
        let own = first + unit.split as usize * comptime!(elements as usize);
        let mut i = UNIT_POS;
        while i < elements {
            sums[own + i as usize] = plane_sum(ctx, i);
            i += comptime!(shape.units());
        }
        let flag = ctx.smem + comptime!(shape.flag_at());
        last = last_to_arrive(flag, ctx.sizes.splits, counters, unit.block);
    }
    if last {
        let column0 = ctx.n_tile * 64u32;
        let mut i = UNIT_POS;
        while i < elements {
            let row = ctx.row0 + i / comptime!(shape.columns);
            let column = column0 + i % comptime!(shape.columns);
            if row < ctx.sizes.m && column < ctx.sizes.n {
                let sum = if comptime!(shape.split) {
                    cube_sum(ctx, &*sums, first + i as usize, elements)
                } else {
                    plane_sum(ctx, i)
                };
                let at = ctx.sizes.y_offset + row as usize * ctx.sizes.y_row + column as usize;
                let added = bias_of::<E>(bias, ctx.sizes.bias_offset + column as usize);
                y[at] = E::cast_from(fma(sum, ctx.sizes.factor, added));
            }
            i += comptime!(shape.units());
        }
    }
}

/// Element `i` of the block over the planes along k, in their order.
#[cube]
fn plane_sum(ctx: &PlaneMatmul<'_>, i: u32) -> f32 {
    let shape = comptime!(ctx.shape);
    let columns = comptime!(shape.columns);
    let at = ctx.smem + (i / columns * comptime!(shape.sum_row()) + i % columns) * 4u32;
    let mut sum = ptx::load_float(at);
    #[unroll]
    for plane in 1..comptime!(shape.planes_k) {
        sum += ptx::load_float(at + comptime!(4 * plane * shape.sum_plane()));
    }
    sum
}

/// The element at `first` over the cubes of the block, in their order, whoever comes last.
#[cube]
fn cube_sum(ctx: &PlaneMatmul<'_>, sums: &[f32], first: usize, #[comptime] elements: u32) -> f32 {
    let mut sum = ptx::load_shared_sum(&sums[first]);
    for split in 1..ctx.sizes.splits {
        let at = first + split as usize * comptime!(elements as usize);
        sum += ptx::load_shared_sum(&sums[at]);
    }
    sum
}
