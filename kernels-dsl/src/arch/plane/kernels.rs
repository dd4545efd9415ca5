//! Entry point of the plane tier's forward.

use cubecl::prelude::*;

use super::copies::CopySource;
use super::{Plane, PlaneCtx, PlaneShape, ptx};
use crate::arch::fma::{ForwardLayouts, ForwardSizes};
use crate::arch::hopper::ptx as shared;
use crate::attention::*;
use crate::launch::AttendBlueprint;

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
    let size!(NP) =
        comptime!((blueprint.plane_shape().score_registers() as usize / 2).next_power_of_two());
    if CUBE_POS < sizes.total {
        run_plane::<NS, NP>(
            q, k, v, out, lse, tensors, layouts, sizes, order, scalars, offsets, blueprint,
        );
    }
}

#[cube]
fn run_plane<'a, NS: Size, NP: Size>(
    q: &'a [Vector<u32, Const<4>>],
    k: &[Vector<u32, Const<4>>],
    v: &[Vector<u32, Const<4>>],
    out: &'a mut [Vector<u32, Const<4>>],
    lse: &'a mut [f32],
    tensors: &'a LogitTensors,
    layouts: &'a ForwardLayouts,
    sizes: &ForwardSizes,
    order: &TileOrder,
    scalars: &'a LogitScalars,
    offsets: &'a TableOffsets,
    #[comptime] blueprint: AttendBlueprint,
) {
    let shape = comptime!(blueprint.plane_shape());
    let inputs = LogitInputs::<'a> {
        tensors,
        scalars,
        offsets,
        s_q: sizes.s_q,
        s_kv: sizes.s_kv,
    };
    let position = CUBE_POS as u32;
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
    let smem = shared::smem_addr::<Vector<u32, Const<4>>>(&tile[0]);
    let k_smem = smem + comptime!(shape.q_bytes());
    let v_smem = k_smem + comptime!(shape.stages * shape.k_bytes());
    // Matrices of A, and of V's transpose: rows 0-7, rows 8-15, then the next chunk. Of K: keys 0-7
    // in two chunks, then keys 8-15.
    let lane = UNIT_POS % 32u32;
    let swizzle = lane % 8u32;
    let (row, chunk) = (lane % 16u32, ((lane / 16u32) ^ swizzle) * 16u32);
    let (key, key_chunk) = (
        lane / 16u32 * 8u32 + swizzle,
        ((lane / 8u32 % 2u32) ^ swizzle) * 16u32,
    );
    let d_row = comptime!(PlaneShape::row_bytes(shape.d));
    let d_v_row = comptime!(PlaneShape::row_bytes(shape.d_v));
    let plane_row = UNIT_POS / 32u32 * comptime!(shape.plane_rows());
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
            sizes.group,
            k_smem,
            comptime!(shape.k_copy()),
        ),
        v: CopySource::new(
            v,
            &layouts.v,
            &at,
            sizes.group,
            v_smem,
            comptime!(shape.v_copy()),
        ),
        smem,
        q_at: smem + (plane_row + row) * d_row + chunk,
        k_at: k_smem + key * d_row + key_chunk,
        k_half_at: k_smem + row * d_row + swizzle * 16u32,
        v_at: v_smem + row * d_v_row + chunk,
        start: 0u32,
        first: 0u32,
        len_kv: 0u32,
        neg_inf: scalars.neg_inf,
        shape,
    };
    shared::bank_declare(comptime!(shape.acc_registers()));
    ptx::declare_queries(shape);
    attend_tile::<Plane<'a, NS, NP>>(
        &mut ctx,
        &at,
        &range,
        &inputs,
        comptime!(blueprint.loop_plan()),
        comptime!(Roles::ALL),
    );
}
