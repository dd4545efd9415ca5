//! The forward launches, one per tier.

use cubecl::prelude::{
    BufferArg, Client, CubeCount, CubeDim, TensorArg, TensorMapArg, TensorMapSwizzle, Tiled,
    TiledArgs,
};

use super::*;
use crate::arch::fma::{ForwardLayoutsLaunch, ForwardSizesLaunch, attend_forward_fma};
use crate::arch::hopper::{HopperLayoutsLaunch, attend_forward_hopper};
use crate::arch::plane::{MergedLayoutsLaunch, attend_forward_plane, attend_parts_plane};
use crate::arch::tcgen05::attend_forward_blackwell;
use crate::attention::TileOrderLaunch;
use crate::error::{Error, NotAvailable};
use crate::tile::LayoutLaunch;

/// A checked forward call with its blueprint.
pub(crate) struct ForwardCall<'a> {
    pub(crate) client: &'a Client,
    pub(crate) caps: &'a Caps,
    pub(crate) dims: AttendDims,
    pub(crate) hooks: &'a Hooks,
    /// Tiles of the list, where the blueprint reads one.
    pub(crate) listed: Option<usize>,
    pub(crate) blueprint: AttendBlueprint,
}

impl ForwardCall<'_> {
    /// Tiles of a lane, and those of the whole problem with all their parts.
    fn tiles(&self) -> (usize, usize) {
        let AttendBlueprint { rows, pack, .. } = self.blueprint;
        let tiles = (self.dims.s_q * pack).div_ceil(rows);
        // Cubes that share loads take neighbours of one lane, those of a pair one tile.
        let apart = self.blueprint.cluster / self.blueprint.cubes_of_tile();
        let tiles = self.listed.unwrap_or(tiles.next_multiple_of(apart));
        (tiles, self.lanes() * tiles * self.hooks.splits.splits)
    }

    /// What every tile along s_q is visited for: (batch, head) pairs, or heads where the list
    /// holds the tiles of all sequences. Packed heads count as one.
    fn lanes(&self) -> usize {
        let heads = self.dims.h_q / self.blueprint.pack;
        match self.listed {
            Some(_) => heads,
            None => self.dims.b * heads,
        }
    }

    pub(super) fn sizes(&self) -> ForwardSizesLaunch {
        let dims = &self.dims;
        let (tiles, total) = self.tiles();
        let keys = match self.blueprint.fault {
            Some(Fault::LastKeyDropped) => dims.s_kv.saturating_sub(1),
            _ => dims.s_kv,
        };
        ForwardSizesLaunch::new(
            dims.h_q as u32,
            (dims.h_q / dims.h_kv) as u32,
            dims.s_q as u32,
            keys as u32,
            tiles as u32,
            total,
        )
    }

    /// Launches the blueprint's kernel; out is f32 parts where its tiles are split.
    pub(crate) fn launch(&self, views: [&Tensor<4>; 4], lse: &Tensor<3>) -> Result<(), Error> {
        match self.blueprint.tier {
            TierName::Unit => self.unit(views, lse),
            TierName::Plane => self.plane(views, lse),
            TierName::Hopper => self.hopper(views, lse),
            TierName::Blackwell => self.blackwell(views, lse),
        }
    }

    fn unit(&self, [q, k, v, out]: [&Tensor<4>; 4], lse: &Tensor<3>) -> Result<(), Error> {
        let blueprint = self.blueprint;
        let w = blueprint.vector;
        let cubes = spread("attend_forward", self.tiles().1, self.caps)?;
        let layouts = layouts([q, k, v, out], lse, w);
        // Parts take the place of an out of q's dtype, which then stands in for it.
        let parts = blueprint.features.split.then_some(out);
        let out = if parts.is_some() { q } else { out };
        let result = parts.unwrap_or(out);
        // So do codes of k and v.
        let coded = blueprint.features.codes.is_some();
        let [k_codes, v_codes] = [k, v].map(|t| coded.then_some(t));
        let [k, v] = [k, v].map(|t| if coded { q } else { t });
        // SAFETY: every view was checked against its buffer; the kernel indexes rows below the
        // checked shape only (`BlockView::row` and `FmaCtx` clamp to the last row).
        unsafe {
            attend_forward_fma::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                w,
                buffer(q, w),
                buffer(k, w),
                buffer(v, w),
                buffer(out, w),
                parts.map(|parts| buffer(parts, w)).into(),
                BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
                k_codes.map(|codes| buffer(codes, 4)).into(),
                v_codes.map(|codes| buffer(codes, 4)).into(),
                self.hooks.tensors(self.client),
                layouts,
                self.sizes(),
                self.hooks.scalars(blueprint.fault),
                self.hooks.offsets(),
                blueprint,
                blueprint.dtype.elem(),
            );
        }
        self.launched(result, lse)
    }

    fn plane(&self, [q, k, v, out]: [&Tensor<4>; 4], lse: &Tensor<3>) -> Result<(), Error> {
        let blueprint = self.blueprint;
        let total = self.countable("tiles of the plane tier")?;
        let cubes = spread("attend_forward", total, self.caps)?;
        // SAFETY: every view was checked against its buffer and for 16-byte rows; rows past the
        // tensor are neither read nor stored.
        unsafe {
            attend_forward_plane::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                buffer(q, 8),
                buffer(k, chunk(k)),
                buffer(v, chunk(v)),
                buffer(out, chunk(out)),
                BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
                self.hooks.tensors(self.client),
                chunk_layouts([q, k, v, out], lse),
                self.sizes(),
                self.order(),
                self.hooks.scalars(blueprint.fault),
                self.hooks.offsets(),
                blueprint,
            );
        }
        self.launched(out, lse)
    }

    /// Launches the plane tier's kernel for split tiles, which merges them as well: parts and their lses
    /// [b * cubes of a tile, ..], unused where a cube takes all parts of a tile.
    pub(super) fn plane_parts(
        &self,
        [q, k, v]: [&Tensor<4>; 3],
        (parts, part_lses): (&Tensor<4>, &Tensor<3>),
        (out, lse): (&Tensor<4>, &Tensor<3>),
    ) -> Result<(), Error> {
        let blueprint = self.blueprint;
        let total = self.countable("parts of the plane tier")?;
        let cubes = spread("attend_decode", total / blueprint.parts, self.caps)?;
        // SAFETY: every view was checked against its buffer and for 16-byte rows; rows past the tensor
        // are neither read nor stored. A tile that several cubes share has a counter, which belongs to
        // the client's stream, on which launches follow one another.
        unsafe {
            attend_parts_plane::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                buffer(q, 8),
                buffer(k, chunk(k)),
                buffer(v, chunk(v)),
                buffer(parts, 4),
                BufferArg::from_raw_parts(part_lses.handle.clone(), part_lses.capacity()),
                buffer(out, 4),
                BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
                BufferArg::from_raw_parts(counters(self.client), COUNTERS),
                self.hooks.tensors(self.client),
                chunk_layouts([q, k, v, parts], part_lses),
                MergedLayoutsLaunch::new(layout(out, 4), lse_layout(lse)),
                self.sizes(),
                self.order(),
                self.hooks.scalars(blueprint.fault),
                self.hooks.offsets(),
                blueprint,
                out.dtype.elem(),
            );
        }
        self.launched(out, lse)
    }

    /// What became of a launch that writes out and lse.
    fn launched(&self, out: &Tensor<4>, lse: &Tensor<3>) -> Result<(), Error> {
        let outputs = [&out.handle, &lse.handle];
        check_launch(self.client, self.caps, &self.blueprint, outputs)
    }

    /// Tiles of the problem, which kernels that decode their order count in 32 bits.
    pub(super) fn countable(&self, limit: &'static str) -> Result<usize, NotAvailable> {
        let total = self.tiles().1;
        if total <= u32::MAX as usize / 2 {
            return Ok(total);
        }
        Err(NotAvailable {
            what: "attend_forward".into(),
            device: self.caps.device.clone(),
            limit,
            needed: total.to_string(),
            available: (u32::MAX / 2).to_string(),
        })
    }

    /// The order in which tiles are taken.
    pub(super) fn order(&self) -> TileOrderLaunch {
        let all = self.lanes();
        TileOrderLaunch::new(self.lanes_in_flight().min(all) as u32, all as u32)
    }

    /// (batch, head) pairs, or heads of a list, whose tiles are taken together. Without a right
    /// edge one key head's tiles walk the same blocks in step, and the fewer there are at a time
    /// the better. Under one they start at different blocks: as many key heads as fit into 32 MB
    /// of a 50 MB L2 cache, but at least 4.
    fn lanes_in_flight(&self) -> usize {
        let dims = &self.dims;
        let group = dims.h_q / dims.h_kv / self.blueprint.pack;
        if !self.blueprint.features.band_right {
            return group;
        }
        let row = (dims.d + dims.d_v) * self.blueprint.dtype.size();
        let bytes = self.hooks.longest_kv() * row;
        ((32 << 20) / bytes.max(1)).max(4).saturating_mul(group)
    }

    fn hopper(&self, [q, k, v, out]: [&Tensor<4>; 4], lse: &Tensor<3>) -> Result<(), Error> {
        let blueprint = self.blueprint;
        let total = self.countable("tiles of the hopper tier")?;
        let multiprocessors = self.caps.multiprocessors.unwrap_or(132) as usize;
        let cubes = total.min(multiprocessors / blueprint.cluster * blueprint.cluster);
        let boxes = blueprint.hopper_shape().box_rows() as usize;
        // SAFETY: every view was checked against its buffer and for TMA; rows past the tensor
        // arrive as zeros and are not stored. The tickets belong to the client's stream, on
        // which launches follow one another.
        unsafe {
            attend_forward_hopper::launch_unchecked(
                self.client,
                CubeCount::Static(cubes as u32, 1, 1),
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                query_map(q, &blueprint),
                tensor_map(k, [1, 1, boxes, 64]),
                tensor_map(v, [1, 1, boxes, 64]),
                buffer(out, chunk(out)),
                BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
                BufferArg::from_raw_parts(tickets(self.client), 1),
                self.hooks.tensors(self.client),
                HopperLayoutsLaunch::new(layout(out, chunk(out)), lse_layout(lse), self.order()),
                self.sizes(),
                self.hooks.scalars(blueprint.fault),
                self.hooks.offsets(),
                blueprint,
                blueprint.dtype.elem(),
            );
        }
        self.launched(out, lse)
    }

    fn blackwell(&self, [q, k, v, out]: [&Tensor<4>; 4], lse: &Tensor<3>) -> Result<(), Error> {
        let blueprint = self.blueprint;
        let total = self.countable("tiles of the blackwell tier")?;
        // An even number along x, so that the cubes of a pair are a cluster.
        let cubes = spread("attend_forward", total * blueprint.cluster, self.caps)?;
        let keys = blueprint.block / blueprint.cluster;
        // SAFETY: every view was checked against its buffer and for TMA; rows past the tensor
        // arrive as zeros and are not stored.
        unsafe {
            attend_forward_blackwell::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                query_map(q, &blueprint),
                tensor_map(k, [1, 1, keys, 64]),
                tensor_map(v, [1, 1, blueprint.block, 64]),
                buffer(out, chunk(out)),
                BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
                self.hooks.tensors(self.client),
                HopperLayoutsLaunch::new(layout(out, chunk(out)), lse_layout(lse), self.order()),
                self.sizes(),
                self.hooks.scalars(blueprint.fault),
                self.hooks.offsets(),
                blueprint,
                blueprint.dtype.elem(),
            );
        }
        self.launched(out, lse)
    }
}

/// Elements of 16 bytes.
pub(super) fn chunk(t: &Tensor<4>) -> usize {
    16 / t.dtype.size()
}

/// Strides in vectors of `w` elements.
fn layouts(views: [&Tensor<4>; 4], lse: &Tensor<3>, w: usize) -> ForwardLayoutsLaunch {
    let [q, k, v, out] = views.map(|t| layout(t, w));
    ForwardLayoutsLaunch::new(q, k, v, out, lse_layout(lse))
}

/// Strides in units of 16 bytes.
pub(super) fn chunk_layouts(views: [&Tensor<4>; 4], lse: &Tensor<3>) -> ForwardLayoutsLaunch {
    let [q, k, v, out] = views.map(|t| layout(t, chunk(t)));
    ForwardLayoutsLaunch::new(q, k, v, out, lse_layout(lse))
}

pub(super) fn lse_layout(lse: &Tensor<3>) -> LayoutLaunch {
    LayoutLaunch::new(lse.offset, lse.strides[0], lse.strides[1], lse.strides[2])
}

/// Map of q with boxes of a tile's rows: over [b, h_q, s_q, d], or over [b, h_kv, s_q, pack, d] where
/// the heads of a group alternate.
///
/// # Safety
/// As [`tensor_map`].
pub(super) unsafe fn query_map(q: &Tensor<4>, blueprint: &AttendBlueprint) -> TensorMapArg<Tiled> {
    let pack = blueprint.pack;
    let rows = blueprint.rows / blueprint.cubes_of_tile();
    // SAFETY: the caller's; the second view names the same elements.
    unsafe {
        if pack == 1 {
            return tensor_map(q, [1, 1, rows, 64]);
        }
        let ([b, h, s, d], [batch, head, row, _]) = (q.shape, q.strides);
        let view = Tensor::strided(
            q.handle.clone(),
            [b, h / pack, s, pack, d],
            [batch, head * pack, row, head, 1],
            q.offset,
            q.dtype,
        );
        tensor_map(&view, [1, 1, rows / pack, pack, 64])
    }
}

/// Tensor map with boxes of `tile`, 128-byte swizzled; what lies outside the tensor is read as
/// zero.
///
/// # Safety
/// The view must lie inside its buffer and satisfy [`Tensor::tma`].
pub(crate) unsafe fn tensor_map<const N: usize>(
    t: &Tensor<N>,
    tile: [usize; N],
) -> TensorMapArg<Tiled> {
    // Axes of length 0 or 1 keep whatever stride they have; the hardware wants a legal one.
    let filler = t.shape[N - 1].next_multiple_of(8);
    let strides: Vec<usize> = (0..N)
        .map(|a| match a {
            _ if a == N - 1 => 1,
            _ if t.shape[a] <= 1 => filler,
            _ => t.strides[a],
        })
        .collect();
    let shape: Vec<usize> = t.shape.iter().map(|&n| n.max(1)).collect();
    let handle = t
        .handle
        .clone()
        .offset_start((t.offset * t.dtype.size()) as u64);
    // SAFETY: the caller's.
    let tensor = unsafe { TensorArg::from_raw_parts(handle, strides.into(), shape.into()) };
    let boxes = TiledArgs {
        tile_size: tile.into(),
    };
    TensorMapArg::new(boxes, tensor, t.dtype.elem()).with_swizzle(TensorMapSwizzle::B128)
}
