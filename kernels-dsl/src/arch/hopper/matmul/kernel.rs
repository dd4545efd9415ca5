//! Entry point of the Hopper tier's product with packed weights.

use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::tensor_map_address;

use super::store::store_block;
use super::{HopperMatmul, HopperMatmulShape, HopperMatmulTier, NamedSums, ptx};
use crate::arch::hopper::ptx as hopper;
use crate::arch::plane::{address_of, global_addr};
use crate::launch::MatmulBlueprint;
use crate::quant::{MatmulRoles, MatmulSizes, multiply_blocks};

/// y [m, n] = x [m, k] W (+ bias `[n]`) on the Hopper tier: persistent cubes take every
/// CUBE_COUNT-th block of y, or part of the rows of W of one. `sums` [blocks with parts, parts, values, units] and
/// `counters` are used where there are splits; counters are 0 before and after every launch.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn matmul_quantized_hopper<E: Float>(
    x: &TensorMap<E, Tiled>,
    words: &[u32],
    scales: &[u32],
    zeros: &ComptimeOption<Box<[u32]>>,
    bias: &ComptimeOption<Box<[E]>>,
    y: &mut [E],
    sums: &mut [f32],
    counters: &mut [Atomic<u32>],
    sizes: &MatmulSizes,
    #[comptime] blueprint: MatmulBlueprint,
    #[define(E)] _dtype: ElemType,
) {
    let map = tensor_map_address(x);
    run_hopper::<E>(
        map, words, scales, zeros, bias, y, sums, counters, sizes, blueprint,
    );
}

#[cube]
fn run_hopper<'a, E: Float>(
    x_map: u64,
    words: &[u32],
    scales: &[u32],
    zeros: &ComptimeOption<Box<[u32]>>,
    bias: &ComptimeOption<Box<[E]>>,
    y: &mut [E],
    sums: &mut [f32],
    counters: &mut [Atomic<u32>],
    sizes: &'a MatmulSizes,
    #[comptime] blueprint: MatmulBlueprint,
) {
    let shape = comptime!(blueprint.hopper_shape());
    let bytes: Shared<[Vector<u32, Const<4>>]> =
        Shared::new_aligned_slice(comptime!(shape.smem_bytes() as usize / 16), 1024usize);
    let smem = hopper::smem_addr::<Vector<u32, Const<4>>>(&bytes[0]);
    if UNIT_POS == 0u32 {
        init_barriers(smem, shape);
    }
    sync_cube();
    let warpgroup = UNIT_POS / 128u32;
    let mut ctx = HopperMatmul::<'a> {
        sizes,
        x_map,
        words_from: global_addr::<u32>(&words[0]),
        scales_from: global_addr::<u32>(&scales[0]),
        zeros_from: address_of(zeros),
        smem,
        pos: 0u32,
        held: 0u32,
        row0: 0u32,
        n_tile: 0u32,
        wg: warpgroup.max(1u32) - 1u32,
        shape,
    };
    let mut group = NamedSums {};
    let mut acc = NamedSums {};
    let total = sizes.units();
    let (tiles, scaling) = comptime!((shape.tiles, shape.scaling));
    let mut position = CUBE_POS as u32;
    if warpgroup == 0u32 {
        if comptime!(shape.crowded()) {
            hopper::registers_down(comptime!(shape.registers().0));
        }
        if UNIT_POS % 32u32 == 0u32 {
            while position < total {
                let unit = sizes.unit(position, comptime!(shape.depth), true);
                ctx.visit(&unit);
                let roles = comptime!(MatmulRoles::LOAD);
                multiply_blocks::<HopperMatmulTier<'a>>(
                    &mut ctx, &mut group, &mut acc, unit.start, unit.end, tiles, scaling, roles,
                );
                position += CUBE_COUNT as u32;
            }
        }
    } else {
        if comptime!(shape.crowded()) {
            hopper::registers_up(comptime!(shape.registers().1));
        }
        ptx::banks_declare(shape);
        while position < total {
            let unit = sizes.unit(position, comptime!(shape.depth), true);
            ctx.visit(&unit);
            ptx::acc_zero(shape);
            let roles = comptime!(MatmulRoles::MULTIPLY);
            multiply_blocks::<HopperMatmulTier<'a>>(
                &mut ctx, &mut group, &mut acc, unit.start, unit.end, tiles, scaling, roles,
            );
            store_block::<E>(&ctx, &unit, bias, y, sums, counters);
            position += CUBE_COUNT as u32;
        }
    }
}

/// Full barriers count the producer's arrival and its bytes, empty ones every consumer warp.
#[cube]
fn init_barriers(smem: u32, #[comptime] shape: HopperMatmulShape) {
    let bars = smem + comptime!(shape.bars_at());
    #[unroll]
    for s in 0..comptime!(shape.stages) {
        hopper::mbar_init(bars + comptime!(8 * s), 1u32);
        hopper::mbar_init(
            bars + comptime!(8 * (shape.stages + s)),
            comptime!(4 * shape.consumers()),
        );
    }
    hopper::mbar_init_fence();
}
