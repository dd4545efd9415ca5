//! Entry point of the Hopper tier's forward.

use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::tensor_map_address;

use super::slots::SLOT;
use super::source::TileSource;
use super::{Hopper, HopperCtx, HopperShape, ptx};
use crate::arch::fma::ForwardSizes;
use crate::attention::*;
use crate::launch::AttendBlueprint;
use crate::tile::Layout;

/// Where results go and in which order tiles are taken.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct HopperLayouts {
    /// out [b, h_q, s_q, d_v], in units of 8 elements.
    pub out: Layout,
    /// lse [b, h_q, s_q], in elements.
    pub lse: Layout,
    /// In which order tiles are drawn.
    pub order: TileOrder,
}

/// `attend_forward` on the Hopper tier: persistent cubes draw their tiles from `tickets`, one u32
/// that is 0 before and after every launch. Launches that share it must not overlap.
#[cube(launch_unchecked, address_type = "dynamic", cluster_dim = CubeDim::new_1d(blueprint.cluster as u32))]
pub fn attend_forward_hopper<E: Float>(
    q: &TensorMap<E, Tiled>,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    out: &mut [Vector<u32, Const<4>>],
    lse: &mut [f32],
    tickets: &mut [Atomic<u32>],
    tensors: &LogitTensors,
    layouts: &HopperLayouts,
    sizes: &ForwardSizes,
    scalars: &LogitScalars,
    offsets: &TableOffsets,
    #[comptime] blueprint: AttendBlueprint,
    #[define(E)] _dtype: ElemType,
) {
    let shape = comptime!(blueprint.hopper_shape());
    let q_tile: Shared<[E]> = Shared::new_aligned_slice(
        comptime!((shape.q_stages() * shape.q_bytes()) as usize / 2),
        1024usize,
    );
    let k_stages: Shared<[E]> = Shared::new_aligned_slice(
        comptime!((shape.stages * shape.k_bytes()) as usize / 2),
        1024usize,
    );
    let v_stages: Shared<[E]> = Shared::new_aligned_slice(
        comptime!((shape.stages * shape.v_bytes()) as usize / 2),
        1024usize,
    );
    let barriers: Shared<[u64]> =
        Shared::new_aligned_slice(comptime!(shape.barriers() as usize), 128usize);
    let mut slots: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!((shape.slots() * SLOT) as usize), 16usize);
    let bars = ptx::smem_addr::<u64>(&barriers[0]);
    if UNIT_POS == 0u32 {
        init_barriers(bars, shape);
    }
    sync_cluster(shape);
    let size!(NS) = comptime!((shape.block as usize / 2).next_power_of_two());
    let size!(NP) = comptime!((shape.block as usize / 4).next_power_of_two());
    let maps = HopperMaps {
        q: tensor_map_address(q),
        k: tensor_map_address(k),
        v: tensor_map_address(v),
    };
    let smem = HopperSmem {
        q: ptx::smem_addr::<E>(&q_tile[0]),
        k: ptx::smem_addr::<E>(&k_stages[0]),
        v: ptx::smem_addr::<E>(&v_stages[0]),
        bars,
    };
    run_hopper::<NS, NP>(
        out, lse, tickets, &mut slots, &maps, &smem, tensors, layouts, sizes, scalars, offsets,
        blueprint,
    );
    // A cube must not leave while its neighbour may still arrive on its barriers.
    if comptime!(shape.cluster > 1) {
        ptx::cluster_sync();
    }
}

/// All units of all cubes that share loads meet.
#[cube]
fn sync_cluster(#[comptime] shape: HopperShape) {
    if comptime!(shape.cluster > 1) {
        ptx::cluster_sync();
    } else {
        sync_cube();
    }
}

/// Addresses of the tensor maps.
#[derive(CubeType)]
struct HopperMaps {
    q: u64,
    k: u64,
    v: u64,
}

/// Shared addresses of the first Q, K and V stages and the barriers.
#[derive(CubeType)]
struct HopperSmem {
    q: u32,
    k: u32,
    v: u32,
    bars: u32,
}

#[cube]
fn init_barriers(bars: u32, #[comptime] shape: HopperShape) {
    let warps = comptime!(4 * shape.consumers);
    let stages = comptime!(shape.stages);
    // Full barriers count the producer's arrival and its bytes, empty ones every consumer warp, of
    // both cubes where a stage is filled for two.
    let q_stages = comptime!(shape.q_stages());
    #[unroll]
    for s in 0..q_stages {
        ptx::mbar_init(bars + comptime!(s * 8), 1u32);
        ptx::mbar_init(bars + comptime!((q_stages + s) * 8), warps);
    }
    let ring = bars + comptime!(2 * q_stages * 8);
    #[unroll]
    for s in 0..stages {
        let at = ring + comptime!(s * 8);
        ptx::mbar_init(at, 1u32);
        ptx::mbar_init(at + comptime!(stages * 8), comptime!(warps * shape.cluster));
        ptx::mbar_init(at + comptime!(stages * 16), 1u32);
        ptx::mbar_init(
            at + comptime!(stages * 24),
            comptime!(warps * shape.cluster),
        );
    }
    ptx::mbar_init(ring + comptime!(4 * stages * 8), 1u32);
    ptx::mbar_init_fence();
}

#[cube]
fn run_hopper<'a, NS: Size, NP: Size>(
    out: &'a mut [Vector<u32, Const<4>>],
    lse: &'a mut [f32],
    tickets: &'a mut [Atomic<u32>],
    slots: &'a mut [u32],
    maps: &HopperMaps,
    smem: &HopperSmem,
    tensors: &'a LogitTensors,
    layouts: &'a HopperLayouts,
    sizes: &ForwardSizes,
    scalars: &'a LogitScalars,
    offsets: &'a TableOffsets,
    #[comptime] blueprint: AttendBlueprint,
) {
    let shape = comptime!(blueprint.hopper_shape());
    let inputs = LogitInputs::<'a> {
        tensors,
        scalars,
        offsets,
        s_q: sizes.s_q,
        s_kv: sizes.s_kv,
    };
    // The same in all units of a plane, which the compiler cannot know of UNIT_POS.
    let warpgroup = ptx::shuffle_first(UNIT_POS / 128u32);
    let mut ctx = HopperCtx::<'a> {
        out,
        lse,
        out_layout: &layouts.out,
        lse_layout: &layouts.lse,
        q_map: maps.q,
        k_map: maps.k,
        v_map: maps.v,
        q_smem: smem.q,
        k_smem: smem.k,
        v_smem: smem.v,
        bars: smem.bars,
        tensors,
        offsets,
        source: TileSource::<'a> {
            tickets,
            order: &layouts.order,
            position: CUBE_POS as u32,
            total: sizes.total as u32,
            h_q: sizes.h_q,
            tiles: sizes.tiles,
        },
        slots,
        k_pos: 0u32,
        v_pos: 0u32,
        tiles: 0u32,
        q_stage: 0u32,
        stored: 0u32,
        mended: 0u32,
        wg: warpgroup.max(1u32) - 1u32,
        s_q: sizes.s_q,
        s_kv: sizes.s_kv,
        group: sizes.group,
        neg_inf: scalars.neg_inf,
        shape,
    };
    if warpgroup == 0u32 {
        ptx::registers_down(comptime!(shape.registers().0));
        if UNIT_POS < 32u32 {
            attend_stream::<Hopper<'a, NS, NP>>(
                &mut ctx,
                &inputs,
                comptime!(blueprint.loop_plan()),
                comptime!(Roles::LOAD),
            );
        }
    } else {
        ptx::registers_up(comptime!(shape.registers().1));
        ptx::bank_declare(comptime!(shape.d_v / 2));
        if comptime!(shape.consumers > 1) {
            // Warpgroup 0 has the first turn.
            if ctx.wg == comptime!(shape.consumers - 1) {
                ptx::named_arrive(1u32.runtime(), 256u32);
            }
        }
        attend_stream::<Hopper<'a, NS, NP>>(
            &mut ctx,
            &inputs,
            comptime!(blueprint.loop_plan()),
            comptime!(Roles::CONSUME),
        );
    }
}
