//! Entry points of the unit tier.

use cubecl::prelude::*;

use super::*;
use crate::attention::*;
use crate::launch::{AttendBlueprint, Fault, RoleSplit};
use crate::tile::Layout;

/// Strides of the four tensors of a forward pass, in vectors.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct ForwardLayouts {
    /// q [b, h_q, s_q, d].
    pub q: Layout,
    /// k [b, h_kv, s_kv, d].
    pub k: Layout,
    /// v [b, h_kv, s_kv, d_v].
    pub v: Layout,
    /// out [b, h_q, s_q, d_v].
    pub out: Layout,
    /// lse [b, h_q, s_q], in elements; `row` is its last stride.
    pub lse: Layout,
}

/// Sizes that stay run-time values, so that one compiled kernel serves every length.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct ForwardSizes {
    /// Query heads.
    pub h_q: u32,
    /// Query heads that share a key/value head.
    pub group: u32,
    /// Queries.
    pub s_q: u32,
    /// Keys.
    pub s_kv: u32,
    /// Tiles along s_q, or tiles of the list.
    pub tiles: u32,
    /// b * h_q * tiles, or h_q * tiles where they are listed; packed heads count as one.
    pub total: usize,
}

/// `attend_forward` on the unit tier: cube = one tile of query rows of one (batch, head).
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn attend_forward_fma<E: Float, N: Size>(
    q: &[Vector<E, N>],
    k: &[Vector<E, N>],
    v: &[Vector<E, N>],
    out: &mut [Vector<E, N>],
    parts: &mut ComptimeOption<Box<[Vector<f32, N>]>>,
    lse: &mut [f32],
    k_codes: &ComptimeOption<Box<[u32]>>,
    v_codes: &ComptimeOption<Box<[u32]>>,
    tensors: &LogitTensors,
    layouts: &ForwardLayouts,
    sizes: &ForwardSizes,
    scalars: &LogitScalars,
    offsets: &TableOffsets,
    #[comptime] blueprint: AttendBlueprint,
    #[define(E)] _dtype: ElemType,
) {
    if CUBE_POS < sizes.total {
        run_forward::<E, N>(
            q, k, v, out, parts, lse, k_codes, v_codes, tensors, layouts, sizes, scalars, offsets,
            blueprint,
        );
    }
}

#[cube]
fn run_forward<'a, E: Float, N: Size>(
    q: &'a [Vector<E, N>],
    k: &'a [Vector<E, N>],
    v: &'a [Vector<E, N>],
    out: &'a mut [Vector<E, N>],
    parts: &'a mut ComptimeOption<Box<[Vector<f32, N>]>>,
    lse: &'a mut [f32],
    k_codes: &'a ComptimeOption<Box<[u32]>>,
    v_codes: &'a ComptimeOption<Box<[u32]>>,
    tensors: &'a LogitTensors,
    layouts: &ForwardLayouts,
    sizes: &ForwardSizes,
    scalars: &'a LogitScalars,
    offsets: &'a TableOffsets,
    #[comptime] blueprint: AttendBlueprint,
) {
    let features = comptime!(blueprint.features);
    let shape = comptime!(blueprint.fma_shape());
    let units = comptime!(shape.units as u32);
    let pack = comptime!(blueprint.pack as u32);

    let inputs = LogitInputs::<'a> {
        tensors,
        scalars,
        offsets,
        s_q: sizes.s_q,
        s_kv: sizes.s_kv,
    };
    let mut cube = CUBE_POS;
    let mut part = 0u32;
    if comptime!(features.split) {
        part = (cube % scalars.splits as usize) as u32;
        cube /= scalars.splits as usize;
    }
    let position = (cube % sizes.tiles as usize) as u32;
    let lane = (cube / sizes.tiles as usize) as u32;
    let mut at = if comptime!(features.listed()) {
        listed_tile(&inputs, position, lane * pack, features, pack)
    } else {
        let heads = sizes.h_q / pack;
        let (batch, head) = (lane / heads, lane % heads * pack);
        tile_coords(&inputs, batch, head, position * units, features, pack)
    };
    if comptime!(features.split) {
        at.entry = at.batch * scalars.splits + part;
    }
    let range = segments(&at, scalars, units, comptime!(shape.block as u32), features);
    let mut head_kv = at.head / sizes.group;
    if comptime!(blueprint.fault == Some(Fault::WrongKvHead)) {
        head_kv = at.head % (sizes.h_q / sizes.group);
    }

    // Units past the sequence's rows follow its last row, so that barriers are met by all.
    let slot = UNIT_POS % units;
    let query = at.query(slot);
    let place = at.first_q + query.min(at.rows_q - 1u32);
    let head = at.head_of(slot);
    let mut head_out = head;
    if comptime!(blueprint.fault == Some(Fault::PackedHeadsSwapped)) {
        head_out = 2u32 * at.head + comptime!(pack - 1) - head;
    }
    let exchange = if comptime!(blueprint.roles == RoleSplit::Softmax) {
        let words = comptime!(exchange_words(shape.block) * shape.units);
        ComptimeOption::new_Some(Shared::<[f32]>::new_slice(words))
    } else {
        ComptimeOption::new_None()
    };
    let mut ctx = FmaCtx::<'a, E, N> {
        q: RowView::new(q, &layouts.q, at.batch, head, place, comptime!(shape.len)),
        k: keys::<E, N>(
            k,
            k_codes,
            &layouts.k,
            &at,
            head_kv,
            &inputs,
            false,
            comptime!(shape.len),
            features,
        ),
        v: keys::<E, N>(
            v,
            v_codes,
            &layouts.v,
            &at,
            head_kv,
            &inputs,
            true,
            comptime!(shape.len_v),
            features,
        ),
        out,
        parts,
        lse,
        out_at: layouts.out.base(at.entry, head_out) + place as usize * layouts.out.row,
        lse_at: layouts.lse.base(at.entry, head_out) + place as usize * layouts.lse.row,
        row: slot,
        exists: query < at.rows_q,
        alive: query < at.len_q,
        last: query + 1u32 == at.rows_q,
        neg_inf: scalars.neg_inf,
        exchange,
        shape,
    };
    let plan = comptime!(blueprint.loop_plan());
    if comptime!(blueprint.roles == RoleSplit::Softmax) {
        if UNIT_POS < units {
            attend_tile::<Fma<'a, E, N, SplitRoles, Natural>>(
                &mut ctx,
                &at,
                &range,
                &inputs,
                plan,
                comptime!(Roles::PRODUCTS),
            );
        } else {
            attend_tile::<Fma<'a, E, N, SplitRoles, Natural>>(
                &mut ctx,
                &at,
                &range,
                &inputs,
                plan,
                comptime!(Roles::SOFTMAX),
            );
        }
    } else if comptime!(features.weights.encoded()) {
        attend_tile::<Fma<'a, E, N, OneRole, Dyadic>>(
            &mut ctx,
            &at,
            &range,
            &inputs,
            plan,
            comptime!(Roles::ALL),
        );
    } else {
        attend_tile::<Fma<'a, E, N, OneRole, Natural>>(
            &mut ctx,
            &at,
            &range,
            &inputs,
            plan,
            comptime!(Roles::ALL),
        );
    }
}

/// K, or V with `values`, of the tile's sequence.
#[cube]
fn keys<'a, E: Float, N: Size>(
    data: &'a [Vector<E, N>],
    words: &'a ComptimeOption<Box<[u32]>>,
    layout: &Layout,
    at: &TileCoords,
    head: u32,
    inputs: &LogitInputs<'a>,
    #[comptime] values: bool,
    #[comptime] len: usize,
    #[comptime] features: LogitFeatures,
) -> BlockView<'a, E, N> {
    let mut batch = at.batch;
    let mut first = at.first_kv;
    let mut rows = inputs.s_kv - first;
    let pages = if comptime!(features.page.is_some()) {
        batch = 0u32;
        first = 0u32;
        rows = at.len_kv;
        let page = comptime!(features.page.unwrap_or(1));
        let pages = KeyPages::<'a>::new(inputs.tensors, inputs.offsets, at.batch, page);
        ComptimeOption::new_Some(pages)
    } else {
        ComptimeOption::new_None()
    };
    let codes = if comptime!(features.codes.is_some()) {
        ComptimeOption::new_Some(CodedRows::<'a> {
            words,
            scales: CodeScales::<'a>::new(inputs.tensors, inputs.offsets, head, values),
            by_page: comptime!(features.codes == Some(ScaledBy::Page)),
        })
    } else {
        ComptimeOption::new_None()
    };
    let range = RowRange {
        batch,
        head,
        first,
        rows,
    };
    BlockView::<'a, E, N>::cached(data, layout, &range, pages, codes, len)
}
