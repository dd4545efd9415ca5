//! Entry point of the plane tier's product with packed weights.

use cubecl::prelude::*;

use super::store::{share_sums, store_block};
use super::{PlaneMatmul, PlaneMatmulTier};
use crate::arch::hopper::ptx as hopper;
use crate::arch::plane::operands::keys_address;
use crate::arch::plane::ptx as plane;
use crate::launch::MatmulBlueprint;
use crate::quant::{MatmulRoles, MatmulSizes, Scaling, TILE, multiply_blocks};

/// y [m, n] = x [m, k] W (+ bias `[n]`) on the plane tier: cube = one block of y over one part of the
/// rows of W. `sums` [blocks, splits, rows, columns] and `counters` are used where there are splits;
/// counters are 0 before and after every launch.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn matmul_quantized_plane<E: Float>(
    x: &[u16],
    words: &[u32],
    scales: &[u32],
    zeros: &ComptimeOption<Box<[u32]>>,
    gather: &ComptimeOption<Box<[u32]>>,
    bias: &ComptimeOption<Box<[E]>>,
    y: &mut [E],
    sums: &mut [f32],
    counters: &mut [Atomic<u32>],
    sizes: &MatmulSizes,
    #[comptime] blueprint: MatmulBlueprint,
    #[define(E)] _dtype: ElemType,
) {
    if CUBE_POS < sizes.m_blocks as usize * sizes.n_blocks as usize * sizes.splits as usize {
        run_plane::<E>(
            x, words, scales, zeros, gather, bias, y, sums, counters, sizes, blueprint,
        );
    }
}

#[cube]
fn run_plane<'a, E: Float>(
    x: &'a [u16],
    words: &[u32],
    scales: &[u32],
    zeros: &ComptimeOption<Box<[u32]>>,
    gather: &'a ComptimeOption<Box<[u32]>>,
    bias: &ComptimeOption<Box<[E]>>,
    y: &mut [E],
    sums: &mut [f32],
    counters: &mut [Atomic<u32>],
    sizes: &'a MatmulSizes,
    #[comptime] blueprint: MatmulBlueprint,
) {
    let shape = comptime!(blueprint.plane_shape());
    let bytes: Shared<[Vector<u32, Const<4>>]> =
        Shared::new_aligned_slice(comptime!(shape.smem_bytes() as usize / 16), 128usize);
    let smem = hopper::smem_addr::<Vector<u32, Const<4>>>(&bytes[0]);
    let unit = sizes.unit(CUBE_POS as u32, comptime!(shape.planes_k), false);
    let n_tile = unit.n_block * comptime!(shape.tiles_n());
    let mut whole = sizes.k_tiles.min(sizes.k / TILE) / comptime!(shape.planes_k);
    if n_tile + comptime!(shape.tiles_n()) > sizes.n_tiles {
        whole = 0u32.runtime();
    }
    let number = UNIT_POS / 32u32;
    let plane_k = number / comptime!(shape.planes_n());
    let mut ctx = PlaneMatmul::<'a> {
        x,
        gather,
        sizes,
        words_from: plane::global_addr::<u32>(&words[0]),
        scales_from: plane::global_addr::<u32>(&scales[0]),
        zeros_from: address_of(zeros),
        whole,
        smem,
        row0: unit.m_block * comptime!(shape.rows),
        n_tile,
        strip: number % comptime!(shape.planes_n()) * comptime!(shape.strips()),
        plane_k,
        x_at: plane_k * comptime!(shape.rows * 128) + keys_address(UNIT_POS % 32u32, 128u32, 2u32),
        shape,
    };
    let fragments = comptime!((shape.strips() * shape.row_tiles()) as usize);
    let mut group = Array::<Vector<f32, Const<4>>>::new(fragments);
    let mut acc = Array::<Vector<f32, Const<4>>>::new(fragments);
    #[unroll]
    for i in 0..fragments {
        // Sums of scaled weights go on from k-block to k-block.
        group[i] = Vector::<f32, Const<4>>::zeroed();
        acc[i] = Vector::<f32, Const<4>>::zeroed();
    }
    multiply_blocks::<PlaneMatmulTier<'a>>(
        &mut ctx,
        &mut group,
        &mut acc,
        unit.start,
        unit.end,
        comptime!(shape.tiles),
        comptime!(blueprint.scaling),
        comptime!(MatmulRoles::ALL),
    );
    // The stages become the block's sums.
    plane::copies_wait(0u32);
    sync_cube();
    match comptime!(blueprint.scaling) {
        Scaling::Sums => share_sums(&ctx, &acc),
        Scaling::Weights => share_sums(&ctx, &group),
    }
    sync_cube();
    store_block::<E>(&ctx, &unit, bias, y, sums, counters);
}

/// Global address of an optional buffer, 0 where there is none.
#[cube]
pub(in crate::arch) fn address_of(buffer: &ComptimeOption<Box<[u32]>>) -> u64 {
    #[comptime]
    match buffer {
        ComptimeOption::Some(buffer) => plane::global_addr::<u32>(&buffer[0]),
        ComptimeOption::None => 0u64.runtime(),
    }
}
