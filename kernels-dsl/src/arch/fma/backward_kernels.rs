//! Entry points of the unit tier's backward: delta, then one pass per side.

use cubecl::prelude::*;

use super::*;
use crate::attention::*;
use crate::launch::AttendBlueprint;
use crate::tile::Layout;

/// Strides of the tensors of a backward pass, in vectors (lse: in elements).
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct BackwardLayouts {
    /// q [b, h_q, s_q, d].
    pub q: Layout,
    /// k [b, h_kv, s_kv, d].
    pub k: Layout,
    /// v [b, h_kv, s_kv, d_v].
    pub v: Layout,
    /// d_out [b, h_q, s_q, d_v].
    pub d_out: Layout,
    /// lse [b, h_q, s_q].
    pub lse: Layout,
    /// First gradient: dQ [b, h_q, s_q, d] or dK [b, h_kv, s_kv, d].
    pub first: Layout,
    /// Second gradient: dV [b, h_kv, s_kv, d_v]; ignored by the queries' pass.
    pub second: Layout,
}

/// delta [b, h_q, s_q] = sum_x d_out . out, one unit per row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn attend_delta_fma<E: Float, N: Size>(
    out: &[Vector<E, N>],
    d_out: &[Vector<E, N>],
    delta: &mut [f32],
    out_layout: &Layout,
    d_out_layout: &Layout,
    sizes: &ForwardSizes,
    #[comptime] len: usize,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS < sizes.total {
        let row = ABSOLUTE_POS % sizes.s_q as usize;
        let lane = (ABSOLUTE_POS / sizes.s_q as usize) as u32;
        let (batch, head) = (lane / sizes.h_q, lane % sizes.h_q);
        let a = out_layout.base(batch, head) + row * out_layout.row;
        let b = d_out_layout.base(batch, head) + row * d_out_layout.row;
        let mut part = Vector::<f32, N>::zeroed();
        for i in 0..len {
            part = fma(
                Vector::<f32, N>::cast_from(out[a + i]),
                Vector::<f32, N>::cast_from(d_out[b + i]),
                part,
            );
        }
        delta[ABSOLUTE_POS] = sum_lanes::<N>(part);
    }
}

/// One pass of the backward: cube = one tile of keys (all query heads of its group in turn) or
/// of queries.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn attend_backward_fma<E: Float, N: Size>(
    q: &[Vector<E, N>],
    k: &[Vector<E, N>],
    v: &[Vector<E, N>],
    d_out: &[Vector<E, N>],
    lse: &[f32],
    delta: &[f32],
    first: &mut [Vector<E, N>],
    second: &mut ComptimeOption<Box<[Vector<E, N>]>>,
    tensors: &LogitTensors,
    layouts: &BackwardLayouts,
    sizes: &ForwardSizes,
    scalars: &LogitScalars,
    offsets: &TableOffsets,
    #[comptime] side: Side,
    #[comptime] blueprint: AttendBlueprint,
    #[define(E)] _dtype: ElemType,
) {
    if CUBE_POS < sizes.total {
        run_backward::<E, N>(
            q, k, v, d_out, lse, delta, first, second, tensors, layouts, sizes, scalars, offsets,
            side, blueprint,
        );
    }
}

#[cube]
fn run_backward<'a, E: Float, N: Size>(
    q: &'a [Vector<E, N>],
    k: &'a [Vector<E, N>],
    v: &'a [Vector<E, N>],
    d_out: &'a [Vector<E, N>],
    lse: &'a [f32],
    delta: &'a [f32],
    first: &mut [Vector<E, N>],
    second: &mut ComptimeOption<Box<[Vector<E, N>]>>,
    tensors: &'a LogitTensors,
    layouts: &BackwardLayouts,
    sizes: &ForwardSizes,
    scalars: &'a LogitScalars,
    offsets: &'a TableOffsets,
    #[comptime] side: Side,
    #[comptime] blueprint: AttendBlueprint,
) {
    let shape = comptime!(blueprint.fma_shape());
    let keys = comptime!(side == Side::Keys);
    let units = comptime!(shape.units as u32);
    let inputs = LogitInputs::<'a> {
        tensors,
        scalars,
        offsets,
        s_q: sizes.s_q,
        s_kv: sizes.s_kv,
    };
    let (own_rows, other_rows) = if keys {
        (sizes.s_kv, sizes.s_q)
    } else {
        (sizes.s_q, sizes.s_kv)
    };
    let own_heads = if keys {
        sizes.h_q / sizes.group
    } else {
        sizes.h_q
    };
    let turns = if keys { sizes.group } else { 1u32.runtime() };
    let tile = (CUBE_POS % sizes.tiles as usize) as u32;
    let lane = (CUBE_POS / sizes.tiles as usize) as u32;
    let own_head = lane % own_heads;
    let batch = lane / own_heads;
    let row0 = tile * units;
    let row = row0 + UNIT_POS;
    let read = row.min(own_rows - 1u32);
    let blocks = other_rows.div_ceil(comptime!(shape.block as u32));

    let mut acc = GradientAcc::<FmaGrad<'a, E, N>>::new(
        AccRow::<N>::zeroed(comptime!(shape.len)),
        AccRow::<N>::zeroed(comptime!(shape.len_v)),
    );
    for turn in 0..turns {
        let (head, head_kv) = if keys {
            (own_head * sizes.group + turn, own_head)
        } else {
            (own_head, own_head / sizes.group)
        };
        let features = comptime!(blueprint.features);
        let at = tile_coords(&inputs, batch, head, row0, features, 1u32);
        let mut ctx = FmaGradCtx::<'a, E, N> {
            own_first: own_row::<E, N>(
                q,
                k,
                &layouts.q,
                &layouts.k,
                batch,
                head,
                head_kv,
                read,
                side,
                comptime!(shape.len),
            ),
            own_second: own_row::<E, N>(
                d_out,
                v,
                &layouts.d_out,
                &layouts.v,
                batch,
                head,
                head_kv,
                read,
                side,
                comptime!(shape.len_v),
            ),
            other_first: other_block::<E, N>(
                q,
                k,
                &layouts.q,
                &layouts.k,
                batch,
                head,
                head_kv,
                other_rows,
                side,
                comptime!(shape.len),
            ),
            other_second: other_block::<E, N>(
                d_out,
                v,
                &layouts.d_out,
                &layouts.v,
                batch,
                head,
                head_kv,
                other_rows,
                side,
                comptime!(shape.len_v),
            ),
            lse,
            lse_at: layouts.lse.base(batch, head),
            lse_row: layouts.lse.row,
            delta,
            delta_at: (batch * sizes.h_q + head) as usize * sizes.s_q as usize,
            s_q: sizes.s_q,
            row: UNIT_POS,
            block: comptime!(shape.block),
        };
        differentiate_tile::<FmaGrad<'a, E, N>>(
            &mut ctx,
            &mut acc,
            &at,
            0u32,
            blocks,
            &inputs,
            side,
            comptime!(blueprint.loop_plan()),
        );
    }
    if row < own_rows {
        let to = layouts.first.base(batch, own_head) + row as usize * layouts.first.row;
        for i in 0..comptime!(shape.len) {
            first[to + i] = Vector::<E, N>::cast_from(acc.first.x[i]);
        }
        let to = layouts.second.base(batch, own_head) + row as usize * layouts.second.row;
        #[comptime]
        match second {
            ComptimeOption::Some(second) => {
                for i in 0..comptime!(shape.len_v) {
                    second[to + i] = Vector::<E, N>::cast_from(acc.second.x[i]);
                }
            }
            ComptimeOption::None => {}
        }
    }
}

/// The own side's row: of the key tensor in the keys' pass, of the query tensor in the other.
#[cube]
fn own_row<'a, E: Float, N: Size>(
    query: &'a [Vector<E, N>],
    key: &'a [Vector<E, N>],
    query_layout: &Layout,
    key_layout: &Layout,
    batch: u32,
    head: u32,
    head_kv: u32,
    row: u32,
    #[comptime] side: Side,
    #[comptime] len: usize,
) -> RowView<'a, E, N> {
    if comptime!(side == Side::Keys) {
        RowView::<'a, E, N>::new(key, key_layout, batch, head_kv, row, len)
    } else {
        RowView::<'a, E, N>::new(query, query_layout, batch, head, row, len)
    }
}

/// The other side's rows.
#[cube]
fn other_block<'a, E: Float, N: Size>(
    query: &'a [Vector<E, N>],
    key: &'a [Vector<E, N>],
    query_layout: &Layout,
    key_layout: &Layout,
    batch: u32,
    head: u32,
    head_kv: u32,
    rows: u32,
    #[comptime] side: Side,
    #[comptime] len: usize,
) -> BlockView<'a, E, N> {
    if comptime!(side == Side::Keys) {
        BlockView::<'a, E, N>::new(query, query_layout, batch, head, 0u32, rows, len)
    } else {
        BlockView::<'a, E, N>::new(key, key_layout, batch, head_kv, 0u32, rows, len)
    }
}
