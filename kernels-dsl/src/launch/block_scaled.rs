//! Attention on matrix units that take block-scaled operands as they are: check, bind, launch.

use cubecl::prelude::{BufferArg, Client, CubeDim, TensorMapArg, TensorMapSwizzle, Tiled};

use super::*;
use crate::arch::hopper::HopperLayoutsLaunch;
use crate::arch::plane::{ScaleLayoutsLaunch, attend_operands_plane};
use crate::arch::tcgen05::attend_operands_blackwell;
use crate::attention::WeightFormat;
use crate::error::{Error, NotAvailable};
use crate::quant::{OperandFormat, SCALE_ROWS, ScaleRule};

/// Largest exponent of the product of the factors of q and k, which the scale of the scores takes in; that of v is in range.
const EXPONENTS: i32 = 64;

/// `attend_operands` without decoding: q, k and v as tcgen05 multiplies them, or mma.sync of sm_120.
///
/// # Errors
/// As `attend_operands`; [`NotAvailable`] where the device's tier does not take the operands.
pub(super) fn attend_block_scaled(
    client: &Client,
    [q, k, v]: [&Operand; 3],
    dtype: DType,
    weights: WeightFormat,
    options: &AttendOptions<'_>,
) -> Result<Attended, Error> {
    let dims = AttendDims::of_shapes([q.shape, k.shape, v.shape], q.shape[0], k.shape[2])?;
    let (out, lse) = results(client, &dims, dtype, options)?;
    let mut hooks = Hooks::check(&dims, options)?;
    hooks.features.weights = weights;
    let caps = Caps::of(client);
    let tier = options.policy.tier.unwrap_or(scaled_tier(&caps));
    let multiplied = multiplied(tier, [q, k, v], hooks.sequences(), options);
    hooks.features.operands = Some(multiplied);
    let raised = q.format.exponent() + k.format.exponent();
    if raised.abs() > EXPONENTS {
        return Err(lacks_of_operands(&caps, "exponents of q and k", raised, EXPONENTS).into());
    }
    // The products are larger by the factors of both.
    hooks.scale *= (-raised as f32).exp2();
    let key = AttendKey {
        op: AttendOp::Forward,
        dtype,
        d: dims.d,
        d_v: dims.d_v,
        s_q: dims.s_q,
        group: dims.h_q / dims.h_kv.max(1),
        vector: 1,
        chunks: out.chunks(),
        tma: out.tma(),
        positive_scale: hooks.scale > 0.0,
        reach: [q, k, v]
            .map(Operand::len)
            .into_iter()
            .fold(out.reach().max(hooks.reach), usize::max),
        features: hooks.features,
    };
    let pack = match tier {
        TierName::Plane => {
            unpacked(&caps, [q, k])?;
            options.policy.pack
        }
        _ => Some(packed(&caps, [q, k], key.group, options.policy.pack)?),
    };
    let policy = Policy {
        tier: Some(tier),
        pack,
        ..options.policy
    };
    let blueprint = select_attend(&key, &caps, &policy)?;
    if lse.elements() == 0 {
        return Ok(Attended {
            out,
            lse,
            blueprint: None,
        });
    }
    let listed = key.features.listed();
    let listed = listed.then(|| hooks.list_tiles(&dims, &blueprint));
    let starts = starts([q, k, v], hooks.sequences(), hooks.features.varlen);
    let starts = starts.ok_or_else(|| {
        let needed = "tiles of scale factors that start where sequences do";
        lacks_of_operands(&caps, "layout of the operands", needed, "others")
    })?;
    // Without packed sequences everything starts at 0.
    let starts = match hooks.features.varlen {
        true => hooks.append(starts),
        false => 0,
    };
    let call = ForwardCall {
        client,
        caps: &caps,
        dims,
        hooks: &hooks,
        listed,
        blueprint,
    };
    match blueprint.tier {
        TierName::Plane => call.scaled_plane([q, k, v], &out, &lse)?,
        _ => call.scaled_blackwell([q, k, v], starts, &out, &lse)?,
    }
    Ok(Attended {
        out,
        lse,
        blueprint: Some(blueprint),
    })
}

/// The tier whose products take block-scaled operands on a device, if any does.
pub fn scaled_tier(caps: &Caps) -> TierName {
    match caps.sm {
        Some(120..) => TierName::Plane,
        _ => TierName::Blackwell,
    }
}

fn lacks_of_operands(
    caps: &Caps,
    limit: &'static str,
    needed: impl ToString,
    available: impl ToString,
) -> NotAvailable {
    NotAvailable {
        what: "attend_operands".into(),
        device: caps.device.clone(),
        limit,
        needed: needed.to_string(),
        available: available.to_string(),
    }
}

/// What q and k are multiplied as: in FP8, which is MXFP8 as well, on tcgen05 where v is in it, and behind its sequences are
/// zeros.
fn multiplied(
    tier: TierName,
    [q, _, v]: [&Operand; 3],
    sequences: &[Sequence],
    options: &AttendOptions<'_>,
) -> OperandFormat {
    let varlen = options.cu_seqlens.is_some();
    let whole = |(index, x): (usize, &Sequence)| {
        let batch = if varlen { 0 } else { index };
        x.len_kv == 0 || v.is_span(batch, (x.first_kv, x.len_kv))
    };
    let unscaled = tier == TierName::Blackwell
        && v.format.unscaled()
        && sequences.iter().enumerate().all(whole);
    match q.format.unscaled() && !unscaled {
        true => OperandFormat::Mxfp8(ScaleRule::default()),
        false => q.format.stored(),
    }
}

/// Every head has tiles of scales of its own, as mma.sync reads them.
fn unpacked(caps: &Caps, operands: [&Operand; 2]) -> Result<(), NotAvailable> {
    match operands.iter().find(|operand| operand.pack > 1) {
        Some(operand) => {
            let limit = "heads that alternate in tiles of scale factors";
            Err(lacks_of_operands(caps, limit, 1, operand.pack))
        }
        None => Ok(()),
    }
}

/// Whether heads are packed: as tiles of scales of q were laid out.
fn packed(
    caps: &Caps,
    [q, k]: [&Operand; 2],
    group: usize,
    asked: Option<bool>,
) -> Result<bool, NotAvailable> {
    let no = |needed: &str, available| {
        let limit = "heads that alternate in tiles of scale factors";
        Err(lacks_of_operands(caps, limit, needed, available))
    };
    if k.pack > 1 {
        return no("1 of k", k.pack);
    }
    let packed = q.pack > 1;
    let needed = match asked.unwrap_or(packed) {
        true => group.max(1),
        false => 1,
    };
    match q.pack == needed {
        true => Ok(packed),
        false => no(&format!("{needed} of q"), q.pack),
    }
}

/// Where every sequence starts in the operands: tiles of scale factors of its queries and of its keys, the place of its first
/// key in rows of v, [n, 3]. `None` where one starts within a tile.
fn starts([q, k, v]: [&Operand; 3], sequences: &[Sequence], varlen: bool) -> Option<Vec<u32>> {
    let of = |(index, x): (usize, &Sequence)| -> Option<[u32; 3]> {
        // Nothing of it is loaded.
        if x.len_q == 0 || x.len_kv == 0 {
            return Some([0; 3]);
        }
        let keys = (x.first_kv, x.len_kv);
        let batch = if varlen { 0 } else { index };
        Some([
            q.tile_of((x.first_q, x.len_q))? as u32,
            k.tile_of(keys)? as u32,
            v.column_of(batch, keys)? as u32,
        ])
    };
    let all: Option<Vec<[u32; 3]>> = sequences.iter().enumerate().map(of).collect();
    all.map(|words| words.concat())
}

/// Codes [b, h, rows, columns] of an operand as places of 16 bits, and its scale factors [b, h / pack, tiles, 256 * quads]. What is
/// empty is never read, and has something else in its place.
fn views(client: &Client, operand: &Operand) -> (Tensor<4>, Tensor<4>) {
    if operand.is_empty() {
        let none = Tensor::empty(client, [1, 1, 1, 256], DType::BF16);
        return (none.clone(), none);
    }
    let [b, h, ..] = operand.shape;
    let rows = operand.rows();
    let places = operand.columns() * operand.format.bits() / 16;
    let codes = Tensor::contiguous(operand.words.clone(), [b, h, rows, places], DType::BF16);
    let (tiles, h) = (operand.scale_tiles(), h / operand.pack);
    let row = 2 * SCALE_ROWS * operand.quads();
    let scales = Tensor::strided(
        operand.words.clone(),
        [b, h, tiles, row],
        [h * tiles * row, tiles * row, row, 1],
        2 * operand.scales_at(),
        DType::BF16,
    );
    (codes, scales)
}

/// A map that brings a tile of scale factors at a time.
///
/// # Safety
/// As [`tensor_map`].
unsafe fn scale_map(scales: &Tensor<4>) -> TensorMapArg<Tiled> {
    // SAFETY: the caller's.
    unsafe { tensor_map(scales, [1, 1, 1, 2 * SCALE_ROWS]) }.with_swizzle(TensorMapSwizzle::None)
}

impl ForwardCall<'_> {
    fn scaled_plane(
        &self,
        operands: [&Operand; 3],
        out: &Tensor<4>,
        lse: &Tensor<3>,
    ) -> Result<(), Error> {
        let blueprint = self.blueprint;
        let total = self.countable("tiles of the plane tier")?;
        let cubes = spread("attend_operands", total, self.caps)?;
        let factor = (-operands[2].format.exponent() as f32).exp2();
        let [q, k, v] = operands.map(|operand| views(self.client, operand));
        let scales = |scales: &Tensor<4>| layout(scales, chunk(scales));
        // SAFETY: operands were made by `quantize_operand`, which sizes their buffers: rows are multiples of 32 bytes, and
        // padded to whole tiles of scale factors. out and lse were checked against their buffers.
        unsafe {
            attend_operands_plane::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                buffer(&q.0, chunk(&q.0)),
                buffer(&k.0, chunk(&k.0)),
                buffer(&v.0, chunk(&v.0)),
                buffer(out, chunk(out)),
                BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
                self.hooks.tensors(self.client),
                chunk_layouts([&q.0, &k.0, &v.0, out], lse),
                ScaleLayoutsLaunch::new(scales(&q.1), scales(&k.1), scales(&v.1), factor),
                self.sizes(),
                self.order(),
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

    fn scaled_blackwell(
        &self,
        operands: [&Operand; 3],
        starts: usize,
        out: &Tensor<4>,
        lse: &Tensor<3>,
    ) -> Result<(), Error> {
        let blueprint = self.blueprint;
        let total = self.countable("tiles of the blackwell tier")?;
        let cubes = spread("attend_operands", total, self.caps)?;
        let [q, k, v] = operands.map(|operand| views(self.client, operand));
        let format = operands[2].format;
        let factor = (-format.exponent() as f32).exp2();
        let width = blueprint.blackwell_shape().width() as usize;
        // Rows of a block of values are as long as the block's keys.
        let span = blueprint.block * format.bits() / 8;
        let swizzle = match span {
            32 => TensorMapSwizzle::B32,
            64 => TensorMapSwizzle::B64,
            _ => TensorMapSwizzle::B128,
        };
        // SAFETY: operands were made by `quantize_operand`, which sizes their buffers: rows are multiples of 32 bytes;
        // rows past them arrive as zeros. out and lse were checked against their buffers.
        unsafe {
            attend_operands_blackwell::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                query_map(&q.0, &blueprint),
                tensor_map(&k.0, [1, 1, blueprint.block, 64]),
                tensor_map(&v.0, [1, 1, width, span / 2]).with_swizzle(swizzle),
                scale_map(&q.1),
                scale_map(&k.1),
                scale_map(&v.1),
                buffer(out, chunk(out)),
                BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
                self.hooks.tensors(self.client),
                HopperLayoutsLaunch::new(layout(out, chunk(out)), lse_layout(lse), self.order()),
                self.sizes(),
                self.hooks.scalars(blueprint.fault),
                self.hooks.offsets(),
                factor,
                starts,
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
