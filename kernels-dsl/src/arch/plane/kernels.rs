//! Entry point of the plane tier's forward.

use cubecl::prelude::*;

use super::copies::CopySource;
use super::operands::{code_rows_address, half_keys_address, keys_address, rows_address};
use super::{
    MergedLayouts, MmaCodes, MmaFragment, Plane, PlaneCtx, ScaleLayouts, ScaleSource, block_scaled,
    merge_parts, ptx,
};
use crate::arch::fma::{ForwardLayouts, ForwardSizes};
use crate::arch::hopper::ptx as shared;
use crate::attention::*;
use crate::launch::AttendBlueprint;
use crate::tile::Layout;

/// `attend_forward` on the plane tier: cube = one tile of query rows of one (batch, head).
///
/// q, k, v and out hold f16 or bf16, 8 elements a vector, as the blueprint's dtype says.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn attend_forward_plane(
    q: &[Vector<u32, Const<4>>],
    k: &[Vector<u32, Const<4>>],
    v: &[Vector<u32, Const<4>>],
    out: &mut [Vector<u32, Const<4>>],
    lse: &mut [f32],
    tensors: &LogitTensors,
    layouts: &ForwardLayouts,
    sizes: &ForwardSizes,
    order: &TileOrder,
    scalars: &LogitScalars,
    offsets: &TableOffsets,
    #[comptime] blueprint: AttendBlueprint,
) {
    let size!(NS) =
        comptime!((blueprint.plane_shape().score_registers() as usize).next_power_of_two());
    let size!(NP) = comptime!((blueprint.plane_shape().prob_words() as usize).next_power_of_two());
    if CUBE_POS < sizes.total {
        let position = CUBE_POS as u32;
        // There are no scale factors: nothing reads where they would lie.
        let one = 1.0f32.runtime();
        run_plane::<NS, NP, AsValues<MmaFragment<NS>>>(
            q, k, v, out, lse, tensors, layouts, &layouts.q, &layouts.k, &layouts.v, one, sizes,
            order, scalars, offsets, position, blueprint,
        );
    }
}

/// `attend_operands` on the plane tier of sm_120: q, k and v are codes of block-scaled operands, 16 bytes a vector, with
/// their scale factors in the same buffers; out is bf16.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn attend_operands_plane(
    q: &[Vector<u32, Const<4>>],
    k: &[Vector<u32, Const<4>>],
    v: &[Vector<u32, Const<4>>],
    out: &mut [Vector<u32, Const<4>>],
    lse: &mut [f32],
    tensors: &LogitTensors,
    layouts: &ForwardLayouts,
    scales: &ScaleLayouts,
    sizes: &ForwardSizes,
    order: &TileOrder,
    scalars: &LogitScalars,
    offsets: &TableOffsets,
    #[comptime] blueprint: AttendBlueprint,
) {
    let size!(NS) =
        comptime!((blueprint.plane_shape().score_registers() as usize).next_power_of_two());
    let size!(NP) = comptime!((blueprint.plane_shape().prob_words() as usize).next_power_of_two());
    if CUBE_POS < sizes.total {
        let position = CUBE_POS as u32;
        run_plane::<NS, NP, MmaCodes<NS>>(
            q,
            k,
            v,
            out,
            lse,
            tensors,
            layouts,
            &scales.q,
            &scales.k,
            &scales.v,
            scales.factor,
            sizes,
            order,
            scalars,
            offsets,
            position,
            blueprint,
        );
    }
}

/// `attend_decode` on the plane tier with the keys of a tile split: cube = `blueprint.parts` parts of one
/// tile, a plane each, or all planes one part of a tile of more rows. Parts are merged where they meet: those of
/// a cube in shared memory, those of other cubes by the last one to arrive, from `parts` and `part_lses`,
/// in the order of the keys.
///
/// `arrivals` holds a zero for every tile and is left so.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn attend_parts_plane<E: Float>(
    q: &[Vector<u32, Const<4>>],
    k: &[Vector<u32, Const<4>>],
    v: &[Vector<u32, Const<4>>],
    parts: &mut [Vector<u32, Const<4>>],
    part_lses: &mut [f32],
    out: &mut [Vector<E, Const<4>>],
    lse: &mut [f32],
    arrivals: &mut [Atomic<u32>],
    tensors: &LogitTensors,
    layouts: &ForwardLayouts,
    merged: &MergedLayouts,
    sizes: &ForwardSizes,
    order: &TileOrder,
    scalars: &LogitScalars,
    offsets: &TableOffsets,
    #[comptime] blueprint: AttendBlueprint,
    #[define(E)] _dtype: ElemType,
) {
    let size!(NS) =
        comptime!((blueprint.plane_shape().score_registers() as usize).next_power_of_two());
    let size!(NP) = comptime!((blueprint.plane_shape().prob_words() as usize).next_power_of_two());
    let each = comptime!(blueprint.parts as u32);
    let cube = CUBE_POS as u32;
    if CUBE_POS * comptime!(blueprint.parts) < sizes.total {
        let mut position = cube;
        if comptime!(each > 1) {
            position = cube * each + UNIT_POS / 32u32;
        }
        // There are no scale factors: nothing reads where they would lie.
        let one = 1.0f32.runtime();
        let mut ctx = run_plane::<NS, NP, AsValues<MmaFragment<NS>>>(
            q, k, v, parts, part_lses, tensors, layouts, &layouts.q, &layouts.k, &layouts.v, one,
            sizes, order, scalars, offsets, position, blueprint,
        );
        merge_parts::<E>(&mut ctx, out, lse, arrivals, merged, scalars.splits);
    }
}

#[cube]
fn run_plane<'a, NS: Size, NP: Size, E: Encode<Scores = MmaFragment<NS>>>(
    q: &'a [Vector<u32, Const<4>>],
    k: &[Vector<u32, Const<4>>],
    v: &[Vector<u32, Const<4>>],
    out: &'a mut [Vector<u32, Const<4>>],
    lse: &'a mut [f32],
    tensors: &'a LogitTensors,
    layouts: &'a ForwardLayouts,
    q_scales: &'a Layout,
    k_scales: &Layout,
    v_scales: &Layout,
    factor: f32,
    sizes: &ForwardSizes,
    order: &TileOrder,
    scalars: &'a LogitScalars,
    offsets: &'a TableOffsets,
    position: u32,
    #[comptime] blueprint: AttendBlueprint,
) -> PlaneCtx<'a> {
    let shape = comptime!(blueprint.plane_shape());
    let inputs = LogitInputs::<'a> {
        tensors,
        scalars,
        offsets,
        s_q: sizes.s_q,
        s_kv: sizes.s_kv,
    };
    let of = comptime!(blueprint.tile_shape());
    let at = order.tile(position, sizes.h_q, sizes.tiles, &inputs, of);
    let rows = comptime!(shape.rows);
    let range = segments(
        &at,
        scalars,
        rows,
        comptime!(shape.block),
        comptime!(blueprint.features),
    );

    let words = comptime!(shape.smem_bytes() as usize / 16);
    let tile: Shared<[Vector<u32, Const<4>>]> = Shared::new_aligned_slice(words, 1024usize);
    let mut smem = shared::smem_addr::<Vector<u32, Const<4>>>(&tile[0]);
    let mut plane = UNIT_POS / 32u32;
    if comptime!(shape.parts > 1) {
        smem += plane * comptime!(shape.part_bytes());
    }
    if comptime!(shape.planes() == 1) {
        plane = 0u32;
    }
    let k_smem = smem + comptime!(shape.q_bytes());
    let v_smem = k_smem + comptime!(shape.stages * shape.k_bytes());
    let lane = UNIT_POS % 32u32;
    let q_row = comptime!(shape.q_row());
    let k_row = comptime!(shape.k_row());
    let coded = comptime!(shape.codes.is_some());
    let q_lane = if comptime!(coded) {
        code_rows_address(lane, q_row)
    } else {
        rows_address(lane, q_row)
    };
    let v_lane = if comptime!(shape.operands.is_some()) {
        keys_address(lane, comptime!(shape.v_row()), 2u32)
    } else {
        rows_address(lane, comptime!(shape.v_row()))
    };
    let head_kv = if comptime!(of.single) {
        at.head / comptime!(of.pack)
    } else {
        at.head / sizes.group
    };
    let plane_row = plane * comptime!(shape.plane_rows());
    let page = comptime!(blueprint.features.page);
    let paged = comptime!(page.is_some());
    let pages = if comptime!(paged) {
        let page = comptime!(page.unwrap_or(1));
        ComptimeOption::new_Some(KeyPages::<'a>::new(tensors, offsets, at.batch, page))
    } else {
        ComptimeOption::new_None()
    };
    let mut ctx = PlaneCtx::<'a> {
        out,
        lse,
        out_layout: &layouts.out,
        lse_layout: &layouts.lse,
        q,
        q_layout: &layouts.q,
        k: CopySource::new(
            k,
            &layouts.k,
            &at,
            head_kv,
            k_smem,
            comptime!(shape.k_copy()),
            paged,
        ),
        v: CopySource::new(
            v,
            &layouts.v,
            &at,
            head_kv,
            v_smem,
            comptime!(shape.v_copy()),
            paged,
        ),
        pages,
        smem,
        k_scales: scales(tensors, offsets, head_kv, false, coded),
        v_scales: scales(tensors, offsets, head_kv, true, coded),
        q_at: smem + plane_row * q_row + q_lane,
        k_at: k_smem + keys_address(lane, k_row, comptime!(shape.apart())),
        k_half_at: k_smem + half_keys_address(lane, k_row),
        v_at: v_smem + v_lane,
        q_scales,
        factor,
        k_scale: scale_source(
            k,
            k_scales,
            &at,
            head_kv,
            k_smem + comptime!(shape.k_codes()),
            comptime!(shape.operands.is_some()),
        ),
        v_scale: scale_source(
            v,
            v_scales,
            &at,
            head_kv,
            v_smem + comptime!(shape.v_codes()),
            comptime!(shape.operands.is_some()),
        ),
        block: 0u32,
        start: 0u32,
        first: 0u32,
        len_kv: 0u32,
        neg_inf: scalars.neg_inf,
        shape,
    };
    shared::bank_declare(comptime!(shape.acc_registers()));
    ptx::declare_queries(shape);
    if comptime!(shape.operands.is_some()) {
        block_scaled::declare_query_scales(shape);
    }
    attend_tile::<Plane<'a, NS, NP, E>>(
        &mut ctx,
        &at,
        &range,
        &inputs,
        comptime!(blueprint.loop_plan()),
        comptime!(Roles::ALL),
    );
    ctx
}

/// Scales of a head's codes, where there are codes.
#[cube]
fn scales<'a>(
    tensors: &'a LogitTensors,
    offsets: &TableOffsets,
    head: u32,
    #[comptime] values: bool,
    #[comptime] coded: bool,
) -> ComptimeOption<CodeScales<'a>> {
    if comptime!(coded) {
        ComptimeOption::new_Some(CodeScales::<'a>::new(tensors, offsets, head, values))
    } else {
        ComptimeOption::new_None()
    }
}

/// Where a head's scale factors come from, where products take them.
#[cube]
fn scale_source(
    data: &[Vector<u32, Const<4>>],
    layout: &Layout,
    at: &TileCoords,
    head: u32,
    to: u32,
    #[comptime] scaled: bool,
) -> ScaleSource {
    if comptime!(scaled) {
        ScaleSource::new(data, layout, at.batch, head, to)
    } else {
        ScaleSource {
            from: 0u64.runtime(),
            step: 0u64.runtime(),
            to,
        }
    }
}
