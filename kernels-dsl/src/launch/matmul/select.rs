//! (problem, caps, policy) -> blueprint and number of splits, pure.

use super::{LinearWeights, MatmulBlueprint, MatmulPolicy, multiprocessors};
use crate::error::NotAvailable;
use crate::launch::{
    COUNTERS, Caps, DType, Tensor, TierName, check_dtype, check_reach, cube_units,
};
use crate::quant::{ScaleType, Scaling, TILE, WeightTiles};

/// The facts of a product that a blueprint depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulKey {
    /// Dtype of x, bias and y.
    pub dtype: DType,
    /// Rows of x.
    pub m: usize,
    /// Columns of W.
    pub n: usize,
    /// Stored rows of W.
    pub rows: usize,
    /// How the weights are stored.
    pub tiles: WeightTiles,
    /// Rows of x consist of aligned chunks of 16 bytes.
    pub chunks: bool,
    /// n is even and rows of y consist of aligned pairs of elements.
    pub pairs: bool,
    /// Scales can be multiplied into weights of the dtype ([`LinearWeights::lift`]).
    pub liftable: bool,
    /// Largest element index of any tensor.
    pub reach: usize,
}

impl MatmulKey {
    pub(super) fn of(x: &Tensor<2>, out: &Tensor<2>, weights: &LinearWeights) -> Self {
        let words = weights.rows * weights.columns() / 32 * weights.bits as usize;
        Self {
            dtype: x.dtype,
            m: x.shape[0],
            n: weights.n,
            rows: weights.rows,
            tiles: weights.tiles(),
            chunks: x.row_chunks() && weights.gather.is_none(),
            pairs: out.row_pairs() && weights.n.is_multiple_of(2),
            liftable: weights.lift(x.dtype).is_some(),
            reach: x.reach().max(out.reach()).max(words),
        }
    }
}

/// Picks the blueprint of a product, and in how many parts its rows of W are summed: of the tier
/// that the policy names, or else the fastest that takes the problem.
///
/// # Errors
/// [`NotAvailable`] naming the limit: dtype, address width, or what the tier asked for lacks.
pub fn select_matmul(
    key: &MatmulKey,
    caps: &Caps,
    policy: &MatmulPolicy,
) -> Result<(MatmulBlueprint, usize), NotAvailable> {
    check_dtype("matmul_quantized", key.dtype, caps)?;
    let wide = check_reach("matmul_quantized", key.reach, caps)?;
    match policy.tier {
        Some(TierName::Unit) => unit(key, caps, policy, wide),
        Some(TierName::Plane) => plane(key, caps, policy, wide),
        Some(TierName::Hopper) => hopper(key, caps, policy, wide),
        Some(TierName::Blackwell) => Err(lacks(
            caps,
            "tiers of packed products",
            TierName::Blackwell,
            "unit, plane, hopper",
        )),
        None => match policy.fault {
            Some(_) => unit(key, caps, policy, wide),
            None => fastest(key, caps, policy, wide),
        },
    }
}

/// Few rows only read the weights, which the plane tier does with less in between.
fn fastest(
    key: &MatmulKey,
    caps: &Caps,
    policy: &MatmulPolicy,
    wide: bool,
) -> Result<(MatmulBlueprint, usize), NotAvailable> {
    const FEW: usize = 16;
    let hopper = || hopper(key, caps, policy, wide);
    let plane = || plane(key, caps, policy, wide);
    let matrix = match key.m {
        ..=FEW => plane().or_else(|_| hopper()),
        _ => hopper().or_else(|_| plane()),
    };
    matrix.or_else(|_| unit(key, caps, policy, wide))
}

fn lacks(
    caps: &Caps,
    limit: &'static str,
    needed: impl ToString,
    available: impl ToString,
) -> NotAvailable {
    NotAvailable {
        what: "matmul_quantized".into(),
        device: caps.device.clone(),
        limit,
        needed: needed.to_string(),
        available: available.to_string(),
    }
}

/// A few rows a unit: each unpacks a column's codes for all of them.
fn unit(
    key: &MatmulKey,
    caps: &Caps,
    policy: &MatmulPolicy,
    wide: bool,
) -> Result<(MatmulBlueprint, usize), NotAvailable> {
    let rows = policy.rows.unwrap_or(if key.m == 1 { 1 } else { 4 });
    let blueprint = MatmulBlueprint {
        tier: TierName::Unit,
        dtype: key.dtype,
        tiles: key.tiles,
        rows: rows.clamp(1, 64),
        columns: cube_units(caps),
        depth: 1,
        stages: 0,
        chunks: false,
        pairs: false,
        // In f32 weights have room.
        scaling: scaling(key, caps, policy, (true, false))?,
        split: false,
        wide,
        fault: policy.fault,
    };
    Ok((blueprint, 1))
}

/// Where scales go: into weights that have minima; else where the policy asks for, on a tier that leaves the `choice`,
/// or into the weights if they `fit` there.
fn scaling(
    key: &MatmulKey,
    caps: &Caps,
    policy: &MatmulPolicy,
    (fit, choice): (bool, bool),
) -> Result<Scaling, NotAvailable> {
    let minima = key.tiles.minima();
    let wanted = match policy.scaling {
        Some(Scaling::Sums) if minima => {
            let limit = "scales of weights with minima";
            return Err(lacks(caps, limit, "in sums", "in weights"));
        }
        _ if minima => Scaling::Weights,
        Some(asked) if choice => asked,
        None if choice && fit => Scaling::Weights,
        _ => Scaling::Sums,
    };
    if wanted == Scaling::Weights && !fit {
        let needed = "LinearWeights::scale_range, within what 16 bits hold";
        return Err(lacks(caps, "range of scales in weights", needed, "none"));
    }
    Ok(wanted)
}

/// The plane tier: 16-bit elements on sm_80 and up.
fn plane(
    key: &MatmulKey,
    caps: &Caps,
    policy: &MatmulPolicy,
    wide: bool,
) -> Result<(MatmulBlueprint, usize), NotAvailable> {
    let sm = caps.sm.unwrap_or(0);
    if sm < 80 {
        return Err(lacks(caps, "compute capability", "80 or more", sm));
    }
    if key.dtype == DType::F32 {
        return Err(lacks(caps, "plane tier's dtypes", key.dtype, "f16, bf16"));
    }
    let rows = policy.rows.unwrap_or(match key.m {
        0..=8 => 8,
        9..=16 => 16,
        17..=32 => 32,
        _ => 64,
    });
    if !matches!(rows, 8 | 16 | 32 | 64) {
        return Err(lacks(caps, "plane tier's rows of x", rows, "8, 16, 32, 64"));
    }
    // Few rows: planes deal the rows of W out among them; many: planes lie side by side, and x is read by fewer cubes.
    let few = rows <= 16;
    let columns = if few { 64 } else { 128 };
    let blocks = key.m.div_ceil(rows) * key.n.div_ceil(columns);
    let processors = multiprocessors(caps);
    let scaling = scaling(key, caps, policy, (key.liftable, false))?;
    let of = |depth, stages, split| MatmulBlueprint {
        tier: TierName::Plane,
        dtype: key.dtype,
        tiles: key.tiles,
        rows,
        columns,
        depth,
        stages,
        chunks: key.chunks,
        pairs: false,
        scaling,
        split,
        wide,
        fault: policy.fault,
    };
    let bytes = |depth, stages| of(depth, stages, true).plane_shape().smem_bytes() as usize;
    let fits = |depth: &usize| bytes(*depth, 2) <= caps.shared_memory;
    // ptxas keeps 512 units with E8M0 scales to 64 registers each, and spills.
    let spills = |depth: &usize| *depth == 16 && key.tiles.scales == ScaleType::E8M0;
    let depth = match (few, key.chunks) {
        (true, true) => deepest(blocks, processors, |d| fits(d) && !spills(d)),
        // Single elements of x are read through the first cache, which shares its memory with the stages.
        (true, false) => 8,
        (false, _) => 2,
    };
    if !fits(&depth) {
        let limit = "shared memory (bytes)";
        return Err(lacks(caps, limit, bytes(depth, 2), caps.shared_memory));
    }
    let resident = if few { PLANES / depth } else { 2 };
    // Each cube costs another KB.
    let share = (caps.shared_memory / resident).saturating_sub(1024);
    let stages = (2..=4).rev().find(|&s| bytes(depth, s) <= share);
    let stages = stages.unwrap_or(2);
    let k_blocks = key.rows.div_ceil(depth * TILE as usize);
    let slots = resident * processors;
    let auto = match few {
        true => few_splits(blocks, k_blocks, depth, slots),
        false => plane_splits(blocks, k_blocks, slots),
    };
    let splits = allowed_splits(caps, policy, (blocks, k_blocks), auto)?;
    Ok((of(depth, stages, splits > 1), splits))
}

/// Planes on a multiprocessor that multiply few rows: enough to hide each other's waits, and what 128 registers
/// a unit leave room for.
const PLANES: usize = 16;

/// Planes of a cube that deal the rows of W out among them: as many as leave no block without a place in the first
/// round, and whose stages fit.
fn deepest(blocks: usize, processors: usize, fits: impl Fn(&usize) -> bool) -> usize {
    let mut depths = [16, 8, 4].into_iter().filter(fits);
    depths
        .find(|depth| blocks * depth <= PLANES * processors)
        .unwrap_or(4)
}

/// Parts of the rows of W for few rows: those with which the cube that has most to do has least. A cube costs as
/// much as 16 tiles along k on top of its own, cubes that meet 80 more.
fn few_splits(blocks: usize, k_blocks: usize, depth: usize, slots: usize) -> usize {
    let cost = |splits: usize| {
        let apart = if splits > 1 { 80 } else { 0 };
        (blocks * splits).div_ceil(slots) * (k_blocks.div_ceil(splits) * depth + 16) + apart
    };
    let most = k_blocks.clamp(1, MOST_PARTS);
    (1..=most).min_by_key(|&splits| cost(splits)).unwrap_or(1)
}

/// The parts that the policy asks for or `auto`, no more than there are k-blocks, and one where the
/// counters that parts meet at do not reach for all blocks.
fn allowed_splits(
    caps: &Caps,
    policy: &MatmulPolicy,
    (blocks, k_blocks): (usize, usize),
    auto: usize,
) -> Result<usize, NotAvailable> {
    let asked = policy.splits.unwrap_or(auto).clamp(1, k_blocks.max(1));
    let splits = if blocks > COUNTERS { 1 } else { asked };
    if blocks * splits > u32::MAX as usize / 2 {
        let limit = "blocks of a launch";
        return Err(lacks(caps, limit, blocks * splits, u32::MAX / 2));
    }
    Ok(splits)
}

/// Parts that a block's last cube adds up.
const MOST_PARTS: usize = 32;

/// Parts of the rows of W: enough cubes that no multiprocessor is without one, as long as each has
/// two k-blocks.
fn plane_splits(blocks: usize, k_blocks: usize, slots: usize) -> usize {
    // Three quarters of the multiprocessors keep the memory busy.
    if 8 * blocks >= 3 * slots {
        return 1;
    }
    (slots / blocks.max(1))
        .min(k_blocks / 2)
        .clamp(1, MOST_PARTS)
}

/// The Hopper tier: 16-bit elements on sm_90. x that TMA cannot address is arranged first.
fn hopper(
    key: &MatmulKey,
    caps: &Caps,
    policy: &MatmulPolicy,
    wide: bool,
) -> Result<(MatmulBlueprint, usize), NotAvailable> {
    match caps.sm {
        Some(90) => {}
        Some(sm) => return Err(lacks(caps, "compute capability", 90, sm)),
        None => return Err(lacks(caps, "compute capability", 90, "none")),
    }
    if key.dtype == DType::F32 {
        return Err(lacks(caps, "hopper tier's dtypes", key.dtype, "f16, bf16"));
    }
    let rows = policy.rows.unwrap_or(match key.m {
        0..=8 => 8,
        9..=16 => 16,
        17..=32 => 32,
        33..=64 => 64,
        _ => 128,
    });
    if !matches!(rows, 8 | 16 | 32 | 64 | 128) {
        let takes = "8, 16, 32, 64, 128";
        return Err(lacks(caps, "hopper tier's rows of x", rows, takes));
    }
    let scaling = scaling(key, caps, policy, (key.liftable, true))?;
    // Two tiles: half the copies and barriers a tile. Sums that are scaled apart leave no registers for that.
    let depth = match scaling {
        Scaling::Sums => 1,
        Scaling::Weights => 2,
    };
    let of = |stages, split| MatmulBlueprint {
        tier: TierName::Hopper,
        dtype: key.dtype,
        tiles: key.tiles,
        rows,
        columns: 256,
        depth,
        stages,
        chunks: key.chunks,
        pairs: key.pairs,
        scaling,
        split,
        wide,
        fault: policy.fault,
    };
    let bytes = |stages| of(stages, true).hopper_shape().smem_bytes() as usize;
    let stages = (2..=16).rev().find(|&s| bytes(s) <= caps.shared_memory);
    let Some(stages) = stages else {
        let limit = "shared memory (bytes)";
        return Err(lacks(caps, limit, bytes(2), caps.shared_memory));
    };
    let blocks = key.m.div_ceil(rows) * key.n.div_ceil(256);
    // Blocks of full rounds have no parts.
    let rest = blocks - of(stages, true).whole(blocks, caps);
    let k_tiles = key.rows / TILE as usize;
    let auto = hopper_splits(rest, k_tiles, multiprocessors(caps));
    let splits = match rest {
        0 => 1,
        _ => allowed_splits(caps, policy, (rest, k_tiles.div_ceil(depth)), auto)?,
    };
    Ok((of(stages, splits > 1), splits))
}

/// Parts of the rows of W for the last `rest` blocks: those with which the cube that has most to do has least. A
/// block's first loads and its store cost as much as 6 tiles along k, its partial sums 12 more and 3 for every
/// part that is added.
fn hopper_splits(rest: usize, k_tiles: usize, cubes: usize) -> usize {
    let cost = |splits: usize| {
        let apart = if splits > 1 { 18 } else { 6 };
        (rest * splits).div_ceil(cubes) * (k_tiles.div_ceil(splits) + apart) + 3 * (splits - 1)
    };
    let most = (k_tiles / 4).clamp(1, 16);
    (1..=most).min_by_key(|&splits| cost(splits)).unwrap_or(1)
}
