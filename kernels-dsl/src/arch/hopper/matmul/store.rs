//! Sums of a block over the cubes that share it, and to y.

use cubecl::prelude::*;

use super::{HopperMatmul, ptx};
use crate::arch::fma::bias_of;
use crate::arch::hopper::ptx as hopper;
use crate::arch::plane::{count_arrival, fence_device, global_addr, load_word};
use crate::quant::WorkUnit;

/// Named barrier of the consumers.
const CONSUMERS_BARRIER: u32 = 1;

/// sum_acc, with splits over the cubes of the block, to y.
#[cube]
pub(super) fn store_block<E: Float>(
    ctx: &HopperMatmul<'_>,
    unit: &WorkUnit,
    bias: &ComptimeOption<Box<[E]>>,
    y: &mut [E],
    sums: &mut [f32],
    counters: &mut [Atomic<u32>],
) {
    let shape = comptime!(ctx.shape);
    let mut last = true;
    if comptime!(shape.split) {
        if unit.parts > 1u32 {
            last = meet(ctx, unit, sums, counters);
        }
    }
    if last {
        let lane = UNIT_POS % 32u32;
        let warp = UNIT_POS % 128u32 / 32u32;
        #[unroll]
        for part in 0..comptime!(shape.parts()) {
            let tile = ctx.n_tile + ctx.wg * comptime!(shape.parts()) + part;
            let column = tile * 64u32 + warp * 16u32 + lane / 4u32 * 2u32;
            store_columns::<E>(ctx, bias, y, column, part);
        }
    }
}

/// sum_acc of one part to memory; whether this was the last of its block, whose sum_acc is then that of all parts,
/// added in their order.
#[cube]
fn meet(
    ctx: &HopperMatmul<'_>,
    unit: &WorkUnit,
    sums: &mut [f32],
    counters: &mut [Atomic<u32>],
) -> bool {
    let shape = comptime!(ctx.shape);
    let elements = comptime!((shape.rows * shape.columns()) as u64 * 4u64);
    let block = unit.block as u64 * unit.parts as u64;
    let thread = (ctx.wg * 128u32 + UNIT_POS % 128u32) as u64 * 4u64;
    let first = global_addr::<f32>(&sums[0]) + block * elements + thread;
    ptx::acc_save(first + unit.split as u64 * elements, shape);
    let last = arrive(ctx, unit, counters);
    if last {
        ptx::acc_zero(shape);
        for split in 0..unit.parts {
            let from = first + split as u64 * elements;
            #[unroll]
            for part in 0..comptime!(shape.parts()) {
                ptx::acc_add(from, part, shape);
            }
        }
    }
    last
}

/// The lane's two columns of a column block.
#[cube]
fn store_columns<E: Float>(
    ctx: &HopperMatmul<'_>,
    bias: &ComptimeOption<Box<[E]>>,
    y: &mut [E],
    column: u32,
    #[comptime] part: u32,
) {
    let shape = comptime!(ctx.shape);
    let n = ctx.sizes.n;
    if column < n {
        // Where columns come in pairs there is no odd one out.
        let mut both = true;
        if comptime!(!shape.pairs) {
            both = column + 1u32 < n;
        }
        let place = ctx.sizes.bias_offset + column as usize;
        let even = bias_of::<E>(bias, place);
        let mut odd = 0.0f32;
        if both {
            odd = bias_of::<E>(bias, place + 1);
        }
        let row0 = ctx.row0 + UNIT_POS % 4u32 * 2u32;
        let first = ctx.sizes.y_offset + column as usize;
        #[unroll]
        for g in 0..comptime!(shape.rows / 8) {
            #[unroll]
            for e in 0..2u32 {
                let row = row0 + comptime!(8 * g + e);
                if row < ctx.sizes.m {
                    let value = comptime!(part * shape.sum_registers() + 4 * g + e);
                    let low = fma(ptx::acc_get(value), ctx.sizes.factor, even);
                    let sum = ptx::acc_get(comptime!(value + 2));
                    let high = fma(sum, ctx.sizes.factor, odd);
                    let at = first + row as usize * ctx.sizes.y_row;
                    if comptime!(shape.pairs) {
                        let pair = hopper::pack2(low, high, comptime!(shape.ty));
                        ptx::store_global(global_addr::<E>(&y[at]), pair);
                    } else {
                        y[at] = E::cast_from(low);
                        if both {
                            y[at + 1] = E::cast_from(high);
                        }
                    }
                }
            }
        }
    }
}

/// Whether every other cube of the block has stored its sums.
#[cube]
fn arrive(ctx: &HopperMatmul<'_>, unit: &WorkUnit, counters: &mut [Atomic<u32>]) -> bool {
    let flag = ctx.smem + comptime!(ctx.shape.flag_at());
    fence_device();
    hopper::named_sync(
        CONSUMERS_BARRIER.runtime(),
        comptime!(ctx.shape.consumer_units()),
    );
    if UNIT_POS == 128u32 {
        count_arrival(flag, unit.parts, counters, unit.block);
    }
    hopper::named_sync(
        CONSUMERS_BARRIER.runtime(),
        comptime!(ctx.shape.consumer_units()),
    );
    fence_device();
    load_word(flag) == 1u32
}
