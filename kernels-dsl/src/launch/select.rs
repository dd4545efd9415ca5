//! (problem, caps, policy) -> blueprint, pure: testable for any device on a laptop.

use super::{AttendBlueprint, Caps, DType, Family, Fault, RoleSplit, TierName};
use crate::attention::{IssueOrder, LogitFeatures};
use crate::error::NotAvailable;

/// What the caller wants of selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Policy {
    /// Only this tier will do.
    pub tier: Option<TierName>,
    /// Deal the roles out like this.
    pub roles: Option<RoleSplit>,
    /// Issue the products in this order.
    pub order: Option<IssueOrder>,
    /// Compile a maskless copy of the step, or not.
    pub segmented: Option<bool>,
    /// Query rows and keys of a tile, where the tier leaves a choice.
    pub tile: Option<(usize, usize)>,
    /// Put the query heads that share a key head into the rows of one tile, or do not. Forward
    /// only.
    pub pack: Option<bool>,
    /// Address with 64 bits although no tensor needs it.
    pub wide: bool,
    /// In `attend_forward`: time the valid blueprints ([`candidates`](super::candidates)) at the first call of a
    /// problem's size and take the fastest from then on. That call launches each of them a few
    /// times and waits for the device; the result names the one that ran.
    pub autotune: bool,
    /// Sabotage for the conformance suite; see [`Fault`].
    pub fault: Option<Fault>,
}

/// Direction of an attention kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttendOp {
    /// out and lse.
    Forward,
    /// dQ, dK, dV.
    Backward,
}

impl AttendOp {
    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            AttendOp::Forward => "attend_forward",
            AttendOp::Backward => "attend_backward",
        }
    }
}

/// The facts of an attention problem that a blueprint depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttendKey {
    /// Direction.
    pub op: AttendOp,
    /// Element type.
    pub dtype: DType,
    /// Head dimension of q and k.
    pub d: usize,
    /// Head dimension of v.
    pub d_v: usize,
    /// Queries of the longest sequence: short problems get smaller tiles.
    pub s_q: usize,
    /// Query heads that share a key head.
    pub group: usize,
    /// Elements that may be loaded at once.
    pub vector: usize,
    /// Rows of q, k, v and out consist of aligned chunks of 16 bytes.
    pub chunks: bool,
    /// q, k, v can be addressed by the Tensor Memory Accelerator, and out 16 bytes at a time.
    pub tma: bool,
    /// The scale on raw scores is positive.
    pub positive_scale: bool,
    /// Largest element index of any tensor.
    pub reach: usize,
    /// Hooks needed.
    pub features: LogitFeatures,
}

/// Elements beyond which 32-bit kernels are not used: indices stay positive as i32 as well.
pub const NARROW_REACH: usize = 1 << 31;

impl AttendKey {
    /// Storage buffers the kernel binds: q, k, v, out, lse (forward) or q, k, v, d_out, lse,
    /// delta, dK, dV (backward), the optional ones, and the one CubeCL keeps scalars in.
    pub fn bindings(&self) -> u32 {
        let x = &self.features;
        let tensors = match self.op {
            AttendOp::Forward => 5,
            AttendOp::Backward => 8,
        };
        1 + tensors + x.mask.is_some() as u32 + x.bias as u32 + x.table() as u32
    }
}

/// Picks the blueprint of an attention kernel: the tier that the policy names, or else the
/// fastest that takes the problem.
///
/// # Errors
/// [`NotAvailable`] naming the limit: dtype, bindings, address width, units per cube, shared
/// memory, barriers for split roles, or what the tier asked for lacks.
pub fn select_attend(
    key: &AttendKey,
    caps: &Caps,
    policy: &Policy,
) -> Result<AttendBlueprint, NotAvailable> {
    check_dtype(key.op.name(), key.dtype, caps)?;
    check_bindings(key, caps)?;
    let reach = match policy.wide {
        true => key.reach.max(NARROW_REACH + 1),
        false => key.reach,
    };
    let wide = check_reach(key.op.name(), reach, caps)?;
    match policy.tier {
        Some(TierName::Unit) => select_unit(key, caps, policy, wide),
        Some(TierName::Plane) => select_plane(key, caps, policy, wide),
        Some(TierName::Hopper) => select_hopper(key, caps, policy, wide),
        None => {
            // Role splits and faults belong to the unit tier.
            let plain = policy.roles.is_none() && policy.fault.is_none();
            let fastest = || {
                select_hopper(key, caps, policy, wide)
                    .or_else(|_| select_plane(key, caps, policy, wide))
            };
            match plain.then(fastest) {
                Some(Ok(blueprint)) => Ok(blueprint),
                _ => select_unit(key, caps, policy, wide),
            }
        }
    }
}

fn lacks(
    key: &AttendKey,
    caps: &Caps,
    limit: &'static str,
    needed: impl ToString,
    available: impl ToString,
) -> NotAvailable {
    NotAvailable {
        what: key.op.name().into(),
        device: caps.device.clone(),
        limit,
        needed: needed.to_string(),
        available: available.to_string(),
    }
}

fn check_bindings(key: &AttendKey, caps: &Caps) -> Result<(), NotAvailable> {
    if key.bindings() <= caps.bindings {
        return Ok(());
    }
    Err(lacks(
        key,
        caps,
        "storage buffers",
        key.bindings(),
        caps.bindings,
    ))
}

/// The unit tier: takes every problem that fits the device's limits.
fn select_unit(
    key: &AttendKey,
    caps: &Caps,
    policy: &Policy,
    wide: bool,
) -> Result<AttendBlueprint, NotAvailable> {
    let roles = policy.roles.unwrap_or(RoleSplit::None);
    // A row has a unit of its own whatever its head, so packing pays only where it is asked for.
    let pack = match policy.pack {
        Some(true) if key.op == AttendOp::Forward => key.group.max(1),
        _ => 1,
    };
    check_packed_rows(key, caps, pack)?;
    let (rows, block) = unit_tile(key, caps, roles, pack);
    let blueprint = AttendBlueprint {
        op: key.op,
        tier: TierName::Unit,
        roles,
        order: policy.order.unwrap_or(IssueOrder::Sequential),
        // WGSL drivers compile slowly, and masks cost little beside d FMAs a score.
        segmented: policy.segmented.unwrap_or(caps.family != Family::Wgpu),
        dtype: key.dtype,
        d: key.d,
        d_v: key.d_v,
        rows,
        pack,
        block,
        stages: 0,
        vector: key.vector.min(caps.vector).max(1),
        wide,
        // Beyond |logit| = 2^30 a folded weight may exceed 1; the unit tier is exact at any size.
        folded: false,
        features: key.features,
        fault: policy.fault,
    };
    if blueprint.units() > caps.units_per_cube as usize {
        let units = blueprint.units();
        return Err(lacks(
            key,
            caps,
            "units per cube",
            units,
            caps.units_per_cube,
        ));
    }
    if roles == RoleSplit::Softmax {
        if !caps.divergent_barriers {
            let limit = "barriers in divergent code";
            return Err(lacks(key, caps, limit, "split roles", "none"));
        }
        let bytes = 4 * rows * crate::arch::fma::exchange_words(block);
        if bytes > caps.shared_memory {
            let limit = "shared memory (bytes)";
            return Err(lacks(key, caps, limit, bytes, caps.shared_memory));
        }
    }
    Ok(blueprint)
}

/// What every tier on matrix units takes: 16-bit forward, heads of a multiple of 8 up to 256.
/// `limits` are the tier's words for direction, dtypes, d and d_v.
fn check_matrix(
    key: &AttendKey,
    caps: &Caps,
    limits: [&'static str; 4],
) -> Result<(), NotAvailable> {
    let [direction, dtypes, d, d_v] = limits;
    if key.op == AttendOp::Backward {
        return Err(lacks(key, caps, direction, "backward", "forward"));
    }
    if key.dtype == DType::F32 {
        return Err(lacks(key, caps, dtypes, key.dtype, "f16, bf16"));
    }
    for (limit, d) in [(d, key.d), (d_v, key.d_v)] {
        if d == 0 || d > 256 || !d.is_multiple_of(8) {
            return Err(lacks(key, caps, limit, d, "multiples of 8 up to 256"));
        }
    }
    Ok(())
}

/// The plane tier: 16-bit forward on sm_80 and up with rows of 16-byte chunks.
fn select_plane(
    key: &AttendKey,
    caps: &Caps,
    policy: &Policy,
    wide: bool,
) -> Result<AttendBlueprint, NotAvailable> {
    let no = |limit, needed: &dyn std::fmt::Display, available: &dyn std::fmt::Display| {
        Err(lacks(key, caps, limit, needed, available))
    };
    match caps.sm {
        Some(80..) => {}
        Some(sm) => return no("compute capability", &"80 or more", &sm),
        None => return no("compute capability", &"80 or more", &"none"),
    }
    check_matrix(
        key,
        caps,
        [
            "plane tier",
            "plane tier's dtypes",
            "d of the plane tier",
            "d_v of the plane tier",
        ],
    )?;
    if !key.chunks {
        return no(
            "cp.async addressing",
            &"16-byte strides and start",
            &"other strides",
        );
    }
    let tile = |packed| policy.tile.unwrap_or_else(|| plane_tile(key, caps, packed));
    let pack = packed_heads(key, tile(false).0, policy);
    let (rows, block) = tile(pack > 1);
    if !matches!(rows, 64 | 128 | 256) || block == 0 || block > 256 || !block.is_multiple_of(16) {
        let tile = format!("{rows}x{block}");
        return no(
            "plane tier's tiles",
            &tile,
            &"64, 128, 256 rows x multiples of 16 keys",
        );
    }
    check_packed_tile(key, caps, rows, pack)?;
    let of = |stages| AttendBlueprint {
        op: key.op,
        tier: TierName::Plane,
        roles: RoleSplit::None,
        order: policy.order.unwrap_or(IssueOrder::Sequential),
        segmented: true,
        dtype: key.dtype,
        d: key.d,
        d_v: key.d_v,
        rows,
        pack,
        block,
        stages,
        vector: 8,
        wide,
        folded: key.features.plain() && key.positive_scale,
        features: key.features,
        fault: policy.fault,
    };
    let bytes = |blueprint: &AttendBlueprint| blueprint.plane_shape().smem_bytes() as usize;
    let blueprint = if policy.order == Some(IssueOrder::ScoresAhead) {
        of(2)
    } else {
        // A second stage where it does not cost the second cube of a multiprocessor.
        let two = of(2);
        if bytes(&two) <= plane_share(&two, caps) {
            two
        } else {
            of(1)
        }
    };
    if bytes(&blueprint) > caps.shared_memory {
        return no(
            "shared memory (bytes)",
            &bytes(&blueprint),
            &caps.shared_memory,
        );
    }
    if blueprint.units() > 256 {
        return no("units of the plane tier", &blueprint.units(), &256);
    }
    Ok(blueprint)
}

/// Shared memory that a cube of the plane tier should stay within: half of a multiprocessor's
/// where two cubes of at most 4 planes share it. Each cube costs another KB.
fn plane_share(blueprint: &AttendBlueprint, caps: &Caps) -> usize {
    match blueprint.units() {
        ..=128 => (caps.shared_memory - 1024) / 2,
        _ => caps.shared_memory,
    }
}

/// Rows and keys of the plane tier's tile: 32 rows a plane where S, P and O of them fit into 255
/// registers, as many keys as then remain without a spill, and two cubes a multiprocessor where
/// shared memory has room for them. Hooks that read memory for every score, and a band with two
/// edges that move with the lengths, want registers too, and get shorter blocks.
fn plane_tile(key: &AttendKey, caps: &Caps, packed: bool) -> (usize, usize) {
    let x = &key.features;
    let reads = x.bias as u32 + x.documents as u32 + x.mask.is_some() as u32;
    let crowded = reads + (x.band_left && x.lengths) as u32 + (packed && x.alibi) as u32;
    let roomy = caps.shared_memory >= 128 << 10;
    match (key.d.max(key.d_v), crowded) {
        (..=64, 0) => (128, 64),
        (..=64, _) => (128, 32),
        (..=128, 0) if roomy => (128, 48),
        (..=128, 1) if roomy => (128, 32),
        (_, 0) => (64, 64),
        (..=128, _) | (_, 1) => (64, 32),
        _ => (64, 16),
    }
}

/// The Hopper tier: 16-bit forward on sm_90 with views that TMA can address.
fn select_hopper(
    key: &AttendKey,
    caps: &Caps,
    policy: &Policy,
    wide: bool,
) -> Result<AttendBlueprint, NotAvailable> {
    let no = |limit, needed: &dyn std::fmt::Display, available: &dyn std::fmt::Display| {
        Err(lacks(key, caps, limit, needed, available))
    };
    match caps.sm {
        Some(90) => {}
        Some(sm) => return no("compute capability", &90, &sm),
        None => return no("compute capability", &90, &"none"),
    }
    check_matrix(
        key,
        caps,
        [
            "hopper tier",
            "hopper tier's dtypes",
            "d of the hopper tier",
            "d_v of the hopper tier",
        ],
    )?;
    if !key.tma {
        return no(
            "TMA addressing",
            &"16-byte strides and start",
            &"other strides",
        );
    }
    if key.vector < 2 {
        return no(
            "hopper tier's output words",
            &"even strides",
            &"odd strides",
        );
    }
    let tile = |packed| policy.tile.unwrap_or_else(|| hopper_tile(key, packed));
    let pack = packed_heads(key, tile(false).0, policy);
    let (rows, block) = tile(pack > 1);
    if !matches!(rows, 64 | 128 | 192) || block == 0 || block > 256 || !block.is_multiple_of(16) {
        let tile = format!("{rows}x{block}");
        return no(
            "hopper tier's tiles",
            &tile,
            &"64, 128, 192 rows x multiples of 16 keys",
        );
    }
    check_packed_tile(key, caps, rows, pack)?;
    let blueprint = AttendBlueprint {
        op: key.op,
        tier: TierName::Hopper,
        roles: RoleSplit::None,
        order: IssueOrder::ScoresAhead,
        segmented: true,
        dtype: key.dtype,
        d: key.d,
        d_v: key.d_v,
        rows,
        pack,
        block,
        stages: 2,
        vector: 8,
        wide,
        folded: key.features.plain() && key.positive_scale,
        features: key.features,
        fault: policy.fault,
    };
    let bytes = blueprint.hopper_shape().smem_bytes() as usize;
    if bytes > caps.shared_memory {
        return no("shared memory (bytes)", &bytes, &caps.shared_memory);
    }
    Ok(blueprint)
}

/// Rows and keys of the Hopper tier's tile, FlashAttention-3's table: as many keys as registers
/// (S, P and O of a consumer) and shared memory (two stages of K and V) hold; a band wastes less
/// of a square tile. Hooks that read memory for every score want registers for addresses, and
/// get shorter blocks, the more so where rows of a tile have heads and slopes of their own: none of
/// these tiles spills. Packing does not change the rows.
fn hopper_tile(key: &AttendKey, packed: bool) -> (usize, usize) {
    let x = &key.features;
    let banded = x.band_left || x.band_right;
    let reads = match x.bias as u32 + x.documents as u32 + x.mask.is_some() as u32 {
        0 => 0,
        reads => reads + x.alibi as u32 + packed as u32,
    };
    match (key.d.max(key.d_v), reads) {
        (..=64, 0) => (192, 128),
        (..=128, 0) if !banded => (128, 176),
        (..=128, 0) => (128, 128),
        (..=192, 0) if key.d_v <= 128 => (128, 128),
        (..=192, 0) => (128, 112),
        (_, 0) => (128, 80),
        (..=192, 1) => (128, 64),
        (_, 1) => (128, 48),
        _ => (128, 32),
    }
}

/// Query heads in a tile: those of a group where that takes a tenth fewer tiles, since few queries
/// leave most rows of a tile empty and K and V are then read once for the whole group.
fn packed_heads(key: &AttendKey, rows: usize, policy: &Policy) -> usize {
    let apart = key.s_q.div_ceil(rows).saturating_mul(key.group);
    let together = key.s_q.saturating_mul(key.group).div_ceil(rows);
    let pays = rows.is_multiple_of(key.group.max(1)) && 10 * together <= 9 * apart;
    match policy.pack.unwrap_or(pays) {
        true => key.group.max(1),
        false => 1,
    }
}

/// Packed heads divide the rows of a matrix unit's tile.
fn check_packed_tile(
    key: &AttendKey,
    caps: &Caps,
    rows: usize,
    pack: usize,
) -> Result<(), NotAvailable> {
    if pack > 1 && !rows.is_multiple_of(pack) {
        let limit = "rows of a tile that packed heads divide";
        return Err(lacks(key, caps, limit, pack, rows));
    }
    check_packed_rows(key, caps, pack)
}

/// Rows count queries times packed heads in 32 bits.
fn check_packed_rows(key: &AttendKey, caps: &Caps, pack: usize) -> Result<(), NotAvailable> {
    const LIMIT: usize = 1 << 31;
    match key.s_q.saturating_mul(pack) {
        rows if rows > LIMIT => Err(lacks(key, caps, "rows of packed heads", rows, LIMIT)),
        _ => Ok(()),
    }
}

/// Rows and keys of the unit tier's tile: as many rows as a cube has units, but no more than a
/// GPU needs to fill its planes; shorter for short problems, so that fewer units idle.
fn unit_tile(key: &AttendKey, caps: &Caps, roles: RoleSplit, pack: usize) -> (usize, usize) {
    let players = match roles {
        RoleSplit::None => 1,
        RoleSplit::Softmax => 2,
    };
    let units = (caps.units_per_cube as usize / players).clamp(1, 64);
    // Split roles pair unit u with unit u + rows; whole planes keep the halves convergent.
    let rows = if caps.family == Family::Cpu || roles == RoleSplit::Softmax {
        units.min(32)
    } else {
        units.min((key.s_q * pack).next_power_of_two()).max(1)
    };
    (rows, 8)
}

pub(crate) fn check_dtype(what: &str, dtype: DType, caps: &Caps) -> Result<(), NotAvailable> {
    if caps.supports(dtype) {
        return Ok(());
    }
    let have: Vec<String> = caps.dtypes.iter().map(DType::to_string).collect();
    Err(NotAvailable {
        what: what.into(),
        device: caps.device.clone(),
        limit: "dtypes",
        needed: dtype.to_string(),
        available: have.join(", "),
    })
}

/// Whether 64-bit addressing is needed; an error where it is and the device lacks it.
pub(crate) fn check_reach(what: &str, reach: usize, caps: &Caps) -> Result<bool, NotAvailable> {
    if reach <= NARROW_REACH {
        return Ok(false);
    }
    if caps.address_64 {
        return Ok(true);
    }
    Err(NotAvailable {
        what: what.into(),
        device: caps.device.clone(),
        limit: "elements of a tensor",
        needed: reach.to_string(),
        available: NARROW_REACH.to_string(),
    })
}
