//! Entry points of the Blackwell tier's forward.

use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::tensor_map_address;

use super::{BinaryCoded, BinaryMixed, Blackwell, BlackwellCtx, BlackwellShape, ptx};
use crate::arch::fma::ForwardSizes;
use crate::arch::hopper::{Binary, HopperLayouts, ptx as shared};
use crate::attention::*;
use crate::launch::AttendBlueprint;

/// `attend_forward` on the Blackwell tier: a cube or a pair of cubes a tile, the longest first.
#[cube(launch_unchecked, address_type = "dynamic", cluster_dim = CubeDim::new_1d(blueprint.cluster as u32))]
pub fn attend_forward_blackwell<E: Float>(
    q: &TensorMap<E, Tiled>,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    out: &mut [Vector<u32, Const<4>>],
    lse: &mut [f32],
    tensors: &LogitTensors,
    layouts: &HopperLayouts,
    sizes: &ForwardSizes,
    scalars: &LogitScalars,
    offsets: &TableOffsets,
    #[comptime] blueprint: AttendBlueprint,
    #[define(E)] _dtype: ElemType,
) {
    let maps = BlackwellMaps {
        q: tensor_map_address(q),
        k: tensor_map_address(k),
        v: tensor_map_address(v),
        q_scales: 0u64.runtime(),
        k_scales: 0u64.runtime(),
        v_scales: 0u64.runtime(),
    };
    let factor = 1.0f32.runtime();
    let starts = 0usize.runtime();
    attend_cube::<E>(
        maps, out, lse, tensors, layouts, sizes, scalars, offsets, factor, starts, blueprint,
    );
}

/// `attend_operands` on the Blackwell tier. Codes come as places of 16 bits: q [b, h_q, s_q, d], k [b, h_kv, s_kv, d] and v
/// [b, h_kv, d_v, s_kv]; scale factors as tiles of 256 places, [b, h, rows / 128, 256 * tiles of a row], h_q / pack heads of q
/// where heads are packed. Outputs are multiplied by `factor`, as the values that codes of v stand for would be. Packed
/// sequences start where the words [n, 3] from `starts` on in the table say: tile of q's scale factors, of k's, first column of v.
#[cube(launch_unchecked, address_type = "dynamic", cluster_dim = CubeDim::new_1d(blueprint.cluster as u32))]
pub fn attend_operands_blackwell<E: Float>(
    q: &TensorMap<E, Tiled>,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    q_scales: &TensorMap<E, Tiled>,
    k_scales: &TensorMap<E, Tiled>,
    v_scales: &TensorMap<E, Tiled>,
    out: &mut [Vector<u32, Const<4>>],
    lse: &mut [f32],
    tensors: &LogitTensors,
    layouts: &HopperLayouts,
    sizes: &ForwardSizes,
    scalars: &LogitScalars,
    offsets: &TableOffsets,
    factor: f32,
    starts: usize,
    #[comptime] blueprint: AttendBlueprint,
    #[define(E)] _dtype: ElemType,
) {
    let maps = BlackwellMaps {
        q: tensor_map_address(q),
        k: tensor_map_address(k),
        v: tensor_map_address(v),
        q_scales: tensor_map_address(q_scales),
        k_scales: tensor_map_address(k_scales),
        v_scales: tensor_map_address(v_scales),
    };
    attend_cube::<E>(
        maps, out, lse, tensors, layouts, sizes, scalars, offsets, factor, starts, blueprint,
    );
}

/// Shared and tensor memory of a cube, and its tile.
#[cube]
fn attend_cube<E: Float>(
    maps: BlackwellMaps,
    out: &mut [Vector<u32, Const<4>>],
    lse: &mut [f32],
    tensors: &LogitTensors,
    layouts: &HopperLayouts,
    sizes: &ForwardSizes,
    scalars: &LogitScalars,
    offsets: &TableOffsets,
    factor: f32,
    starts: usize,
    #[comptime] blueprint: AttendBlueprint,
) {
    let shape = comptime!(blueprint.blackwell_shape());
    let q_tile: Shared<[E]> =
        Shared::new_aligned_slice(comptime!(shape.q_space() as usize / 2), 1024usize);
    let k_stages: Shared<[E]> = Shared::new_aligned_slice(
        comptime!((shape.stages * shape.k_stage()) as usize / 2),
        1024usize,
    );
    let v_stages: Shared<[E]> = Shared::new_aligned_slice(
        comptime!((shape.stages * shape.v_stage()) as usize / 2),
        1024usize,
    );
    let barriers: Shared<[u64]> =
        Shared::new_aligned_slice(comptime!(shape.barriers() as usize), 128usize);
    let mut rows: Shared<[f32]> =
        Shared::new_aligned_slice(comptime!(shape.row_words() as usize), 16usize);
    let tensor: Shared<[u32]> = Shared::new_aligned_slice(4usize, 16usize);
    if CUBE_POS / comptime!(shape.cubes as usize) < sizes.total {
        let smem = BlackwellSmem {
            q: shared::smem_addr::<E>(&q_tile[0]),
            k: shared::smem_addr::<E>(&k_stages[0]),
            v: shared::smem_addr::<E>(&v_stages[0]),
            bars: shared::smem_addr::<u64>(&barriers[0]),
        };
        // The same in all units of a plane, which the compiler cannot know of UNIT_POS.
        let warp = shared::shuffle_first(UNIT_POS / 32u32);
        if UNIT_POS == 0u32 {
            init_barriers(smem.bars, shape);
        }
        if warp == 0u32 {
            let place = shared::smem_addr::<u32>(&tensor[0]);
            let columns = comptime!(shape.tensor_plan().allocated());
            ptx::tensor_alloc(place, columns, comptime!(shape.cubes));
        }
        meet(shape);
        let columns = tensor[0];
        run_blackwell(
            out, lse, &mut rows, maps, &smem, columns, warp, tensors, layouts, sizes, scalars,
            offsets, factor, starts, blueprint,
        );
        // No cube leaves while another may use its memory or arrive on its barriers.
        meet(shape);
        if warp == 0u32 {
            let allocated = comptime!(shape.tensor_plan().allocated());
            ptx::tensor_free(columns, allocated, comptime!(shape.cubes));
        }
    }
}

/// All units of all cubes of a tile meet, with what they did to tensor memory.
#[cube]
fn meet(#[comptime] shape: BlackwellShape) {
    ptx::fence_before();
    if comptime!(shape.cubes > 1) {
        shared::cluster_sync();
    } else {
        sync_cube();
    }
    ptx::fence_after();
}

/// Addresses of the tensor maps: elements, and scale factors of block-scaled operands.
#[derive(CubeType)]
pub struct BlackwellMaps {
    /// Queries.
    pub q: u64,
    /// Keys.
    pub k: u64,
    /// Values.
    pub v: u64,
    /// Scale factors of queries.
    pub q_scales: u64,
    /// Scale factors of keys.
    pub k_scales: u64,
    /// Scale factors of values.
    pub v_scales: u64,
}

/// Where the sequence of a tile starts in block-scaled operands; 0 unless sequences are packed.
#[derive(CubeType, Clone, Copy)]
pub struct OperandStarts {
    /// Tile of scale factors of its first queries.
    pub q: u32,
    /// Of its first keys.
    pub k: u32,
    /// Column of v that its first key has.
    pub v: u32,
}

/// Shared addresses of Q, the first K and V stages and the barriers.
#[derive(CubeType)]
struct BlackwellSmem {
    q: u32,
    k: u32,
    v: u32,
    bars: u32,
}

#[cube]
fn init_barriers(bars: u32, #[comptime] shape: BlackwellShape) {
    #[unroll]
    for i in 0..comptime!(shape.barriers()) {
        shared::mbar_init(bars + comptime!(8 * i), comptime!(arrivals(shape, i)));
    }
    shared::mbar_init_fence();
}

/// Arrivals that barrier `i` counts; see [`BlackwellCtx`].
fn arrivals(shape: BlackwellShape, i: u32) -> u32 {
    let ring = 1 + 4 * shape.stages;
    let of_stage = ring + 5 * shape.q_stages;
    if (1..ring).contains(&i) {
        // Full: the loading thread of every cube. Empty: a commit for each query stage.
        return match (i - 1) / shape.stages % 2 {
            0 => shape.cubes,
            _ => shape.q_stages,
        };
    }
    if (ring..of_stage).contains(&i) {
        return match (i - ring) / shape.q_stages {
            // Scores and outputs: a commit.
            0 | 4 => 1,
            // Weights: the warps of the softmax and of the correction of every cube.
            1 => 8 * shape.cubes,
            _ => 4,
        };
    }
    match i {
        0 => shape.cubes,
        _ => 1,
    }
}

/// Position of this cube's tile: the cubes of a tile follow one another.
#[cube]
fn position_here(#[comptime] shape: BlackwellShape) -> u32 {
    (CUBE_POS / comptime!(shape.cubes as usize)) as u32
}

/// The tile of this cube.
#[cube]
fn tile_here(
    layouts: &HopperLayouts,
    sizes: &ForwardSizes,
    inputs: &LogitInputs<'_>,
    #[comptime] shape: BlackwellShape,
) -> TileCoords {
    let tile = comptime!(shape.tile_shape());
    let position = position_here(shape);
    layouts
        .order
        .tile(position, sizes.h_q, sizes.tiles, inputs, tile)
}

/// Number of this cube among those of its tile.
#[cube]
fn rank_here(#[comptime] shape: BlackwellShape) -> u32 {
    if comptime!(shape.cubes > 1) {
        CUBE_POS_CLUSTER
    } else {
        0u32.runtime()
    }
}

/// What the table has from `starts` on for the sequence of this cube's tile.
#[cube]
fn starts_here(
    layouts: &HopperLayouts,
    sizes: &ForwardSizes,
    inputs: &LogitInputs<'_>,
    starts: usize,
    #[comptime] shape: BlackwellShape,
) -> OperandStarts {
    let mut here = OperandStarts {
        q: 0u32.runtime(),
        k: 0u32.runtime(),
        v: 0u32.runtime(),
    };
    if comptime!(shape.features.operands.is_some() && shape.features.varlen) {
        let position = position_here(shape);
        let sequence = layouts.order.sequence(position, sizes.tiles, inputs);
        let at = starts + 3 * sequence as usize;
        here.q = table_word(inputs.tensors, at);
        here.k = table_word(inputs.tensors, at + 1);
        here.v = table_word(inputs.tensors, at + 2);
    }
    here
}

#[cube]
fn run_blackwell<'a>(
    out: &'a mut [Vector<u32, Const<4>>],
    lse: &'a mut [f32],
    rows: &'a mut [f32],
    maps: BlackwellMaps,
    smem: &BlackwellSmem,
    columns: u32,
    warp: u32,
    tensors: &'a LogitTensors,
    layouts: &'a HopperLayouts,
    sizes: &ForwardSizes,
    scalars: &'a LogitScalars,
    offsets: &'a TableOffsets,
    factor: f32,
    starts: usize,
    #[comptime] blueprint: AttendBlueprint,
) {
    let shape = comptime!(blueprint.blackwell_shape());
    let inputs = LogitInputs::<'a> {
        tensors,
        scalars,
        offsets,
        s_q: sizes.s_q,
        s_kv: sizes.s_kv,
    };
    let at = tile_here(layouts, sizes, &inputs, shape);
    let range = segments(
        &at,
        scalars,
        comptime!(shape.tile_rows()),
        comptime!(shape.block),
        comptime!(shape.features),
    );
    let warpgroup = warp / 4u32;
    let mut ctx = BlackwellCtx::<'a> {
        out,
        lse,
        out_layout: &layouts.out,
        lse_layout: &layouts.lse,
        maps,
        starts: starts_here(layouts, sizes, &inputs, starts, shape),
        q_smem: smem.q,
        k_smem: smem.k,
        v_smem: smem.v,
        bars: smem.bars,
        rank: rank_here(shape),
        tensor: columns,
        rows,
        // The same again: what the loop borrows cannot lie in its context.
        tile: tile_here(layouts, sizes, &inputs, shape),
        empty: range.is_empty(),
        stage: warpgroup,
        k_pos: 0u32,
        v_pos: 0u32,
        blocks: 0u32,
        mended: 0u32,
        s_kv: sizes.s_kv,
        group: sizes.group,
        neg_inf: scalars.neg_inf,
        factor,
        shape,
    };
    let plan = comptime!(blueprint.loop_plan());
    let q_stages = comptime!(shape.q_stages);
    let (softmax, correct, rest) = comptime!(shape.registers());
    if warpgroup < q_stages {
        shared::registers_up(softmax);
        let roles = comptime!(Roles::SOFTMAX);
        if comptime!(shape.features.operands.is_some()) {
            attend_tile::<Blackwell<'a, BinaryCoded>>(&mut ctx, &at, &range, &inputs, plan, roles);
        } else if comptime!(blueprint.polynomial) {
            attend_tile::<Blackwell<'a, BinaryMixed>>(&mut ctx, &at, &range, &inputs, plan, roles);
        } else {
            attend_tile::<Blackwell<'a, Binary>>(&mut ctx, &at, &range, &inputs, plan, roles);
        }
    } else if warpgroup < comptime!(2 * q_stages) {
        shared::registers_down(correct);
        ctx.stage = warpgroup - q_stages;
        let roles = comptime!(Roles::CORRECT);
        attend_tile::<Blackwell<'a, Binary>>(&mut ctx, &at, &range, &inputs, plan, roles);
    } else {
        shared::registers_down(rest);
        // The first warps multiply, one for each stage, those of cube 0 for a pair; the next one loads.
        ctx.stage = warp - 8u32 * q_stages;
        if ctx.stage < q_stages {
            if ctx.rank == 0u32 {
                let roles = comptime!(Roles::MULTIPLY);
                attend_tile::<Blackwell<'a, Binary>>(&mut ctx, &at, &range, &inputs, plan, roles);
            }
        } else if ctx.stage == q_stages {
            let roles = comptime!(Roles::LOAD);
            attend_tile::<Blackwell<'a, Binary>>(&mut ctx, &at, &range, &inputs, plan, roles);
        }
    }
}
