//! The forward launches, one per tier.

use cubecl::prelude::{
    BufferArg, Client, CubeCount, CubeDim, TensorArg, TensorMapArg, TensorMapSwizzle, Tiled,
    TiledArgs,
};

use super::*;
use crate::arch::fma::{ForwardLayoutsLaunch, ForwardSizesLaunch, attend_forward_fma};
use crate::arch::hopper::{HopperLayoutsLaunch, attend_forward_hopper};
use crate::arch::plane::attend_forward_plane;
use crate::attention::TileOrderLaunch;
use crate::error::{Error, NotAvailable};
use crate::tile::LayoutLaunch;

/// A checked forward call with its blueprint.
pub(crate) struct ForwardCall<'a> {
    pub(crate) client: &'a Client,
    pub(crate) caps: &'a Caps,
    pub(crate) dims: AttendDims,
    pub(crate) hooks: &'a Hooks,
    pub(crate) blueprint: AttendBlueprint,
}

impl ForwardCall<'_> {
    /// Row tiles of a (batch, head) and of the whole problem.
    fn tiles(&self) -> (usize, usize) {
        let tiles = self.dims.s_q.div_ceil(self.blueprint.rows);
        (tiles, self.dims.b * self.dims.h_q * tiles)
    }

    fn sizes(&self) -> ForwardSizesLaunch {
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

    pub(crate) fn unit(
        &self,
        [q, k, v, out]: [&Tensor<4>; 4],
        lse: &Tensor<3>,
    ) -> Result<(), Error> {
        let blueprint = self.blueprint;
        let w = blueprint.vector;
        let cubes = spread("attend_forward", self.tiles().1, self.caps)?;
        let layouts = layouts([q, k, v, out], lse, w);
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
                BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
                self.hooks.tensors(self.client),
                layouts,
                self.sizes(),
                self.hooks.scalars(blueprint.fault),
                self.hooks.offsets(),
                blueprint,
                blueprint.dtype.elem(),
            );
        }
        check_launch(
            self.client,
            self.caps,
            &blueprint,
            [&out.handle, &lse.handle],
        )
    }

    pub(crate) fn plane(
        &self,
        [q, k, v, out]: [&Tensor<4>; 4],
        lse: &Tensor<3>,
    ) -> Result<(), Error> {
        let blueprint = self.blueprint;
        let total = self.countable("tiles of the plane tier")?;
        let cubes = spread("attend_forward", total, self.caps)?;
        // Cubes in flight; a group must have more tiles than that, so that its long tiles do not
        // straggle, and its K and V should fit the L2 cache.
        let flying = 2 * self.caps.multiprocessors.unwrap_or(132) as usize;
        let lanes = self
            .lanes_in_cache()
            .max(2 * flying.div_ceil(self.tiles().0));
        // SAFETY: every view was checked against its buffer and for 16-byte rows; rows past the
        // tensor are neither read nor stored.
        unsafe {
            attend_forward_plane::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                buffer(q, 8),
                buffer(k, 8),
                buffer(v, 8),
                buffer(out, 8),
                BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
                self.hooks.tensors(self.client),
                layouts([q, k, v, out], lse, 8),
                self.sizes(),
                self.order(lanes),
                self.hooks.scalars(blueprint.fault),
                self.hooks.offsets(),
                blueprint,
            );
        }
        check_launch(
            self.client,
            self.caps,
            &blueprint,
            [&out.handle, &lse.handle],
        )
    }

    /// Tiles of the problem, which kernels that decode their order count in 32 bits.
    fn countable(&self, limit: &'static str) -> Result<usize, NotAvailable> {
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

    /// Query heads whose K and V fit into 32 MB together: the L2 cache of an H100 has 50.
    fn lanes_in_cache(&self) -> usize {
        let dims = &self.dims;
        let bytes = dims.s_kv * (dims.d + dims.d_v) * self.blueprint.dtype.size();
        ((32 << 20) / bytes.max(1)).saturating_mul(dims.h_q / dims.h_kv)
    }

    /// Tiles in groups of `lanes`, whole key heads.
    fn order(&self, lanes: usize) -> TileOrderLaunch {
        let dims = &self.dims;
        let all = dims.b * dims.h_q;
        let lanes = lanes.next_multiple_of(dims.h_q / dims.h_kv).min(all);
        TileOrderLaunch::new(lanes as u32, all as u32)
    }

    pub(crate) fn hopper(
        &self,
        [q, k, v, out]: [&Tensor<4>; 4],
        lse: &Tensor<3>,
    ) -> Result<(), Error> {
        let blueprint = self.blueprint;
        let dims = &self.dims;
        let total = self.countable("tiles of the hopper tier")?;
        let cubes = total.min(self.caps.multiprocessors.unwrap_or(132) as usize);
        let all_lanes = dims.b * dims.h_q;
        let group = dims.h_q / dims.h_kv;
        // Lanes in flight together: as many key heads as fit into 32 MB of a 50 MB L2 cache, but
        // at least 16, whose tiles fill the card several to a head and read the same keys.
        let bytes = (dims.s_kv * (dims.d + dims.d_v) * blueprint.dtype.size()).max(1);
        let lanes = ((32 << 20) / bytes)
            .max(16)
            .saturating_mul(group)
            .min(all_lanes);
        // SAFETY: every view was checked against its buffer and for TMA; rows past the tensor
        // arrive as zeros and are not stored. The tickets belong to the client's stream, on
        // which launches follow one another.
        unsafe {
            attend_forward_hopper::launch_unchecked(
                self.client,
                CubeCount::Static(cubes as u32, 1, 1),
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                tensor_map(q, blueprint.rows),
                tensor_map(k, blueprint.block),
                tensor_map(v, blueprint.block),
                buffer(out, 8),
                BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
                BufferArg::from_raw_parts(tickets(self.client), 1),
                self.hooks.tensors(self.client),
                HopperLayoutsLaunch::new(
                    layout(out, 8),
                    lse_layout(lse),
                    lanes as u32,
                    all_lanes as u32,
                ),
                self.sizes(),
                self.hooks.scalars(blueprint.fault),
                self.hooks.offsets(),
                blueprint,
                blueprint.dtype.elem(),
            );
        }
        check_launch(
            self.client,
            self.caps,
            &blueprint,
            [&out.handle, &lse.handle],
        )
    }
}

fn layouts([q, k, v, out]: [&Tensor<4>; 4], lse: &Tensor<3>, w: usize) -> ForwardLayoutsLaunch {
    ForwardLayoutsLaunch::new(
        layout(q, w),
        layout(k, w),
        layout(v, w),
        layout(out, w),
        lse_layout(lse),
    )
}

fn lse_layout(lse: &Tensor<3>) -> LayoutLaunch {
    LayoutLaunch::new(lse.offset, lse.strides[0], lse.strides[1], lse.strides[2])
}

/// Tensor map over [b, h, s, d] with boxes of `rows` rows and 64 columns, 128-byte swizzled;
/// what lies outside the tensor is read as zero.
///
/// # Safety
/// The view must lie inside its buffer and satisfy [`Tensor::tma`].
unsafe fn tensor_map(t: &Tensor<4>, rows: usize) -> TensorMapArg<Tiled> {
    // Axes of length 0 or 1 keep whatever stride they have; the hardware wants a legal one.
    let filler = t.shape[3].next_multiple_of(8);
    let strides: Vec<usize> = (0..4)
        .map(|a| match a {
            3 => 1,
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
        tile_size: [1usize, 1, rows, 64].into(),
    };
    TensorMapArg::new(boxes, tensor, t.dtype.elem()).with_swizzle(TensorMapSwizzle::B128)
}
