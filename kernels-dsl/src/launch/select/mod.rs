//! (problem, caps, policy) -> blueprint, pure: testable for any device on a laptop.

mod blackwell;
mod hopper;
mod plane;
mod unit;

use blackwell::select_blackwell;
use hopper::select_hopper;
use plane::select_plane;
use unit::select_unit;

use super::{AttendBlueprint, Caps, DType, Fault, RoleSplit, TierName};
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
    /// Cubes that load K and V once between them, 1 or 2. On the Hopper tier they have a tile each: without an edge that
    /// moves with the queries or a length of its own, two tiles see the same keys. On the Blackwell tier they multiply
    /// together, half the rows of a tile in each (`cta_group::2`): 16-bit operands and d_v 113 to 128 or 241 to 256.
    pub cluster: Option<usize>,
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
    /// out and lse of few queries against a cache, its keys split over cubes.
    Decode,
    /// dQ, dK, dV.
    Backward,
}

impl AttendOp {
    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            AttendOp::Forward => "attend_forward",
            AttendOp::Decode => "attend_decode",
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
            AttendOp::Decode => 5,
            AttendOp::Backward => 8,
        };
        // Codes of the unit tier are bound beside stand-ins for k and v, and their scales.
        let codes = 4 * x.codes.is_some() as u32;
        let decode = x.split as u32 + x.device_lengths as u32 + x.device_pages as u32 + codes;
        1 + tensors + x.mask.is_some() as u32 + x.bias as u32 + x.table() as u32 + decode
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
        Some(TierName::Blackwell) => select_blackwell(key, caps, policy, wide),
        None => {
            // Role splits and faults belong to the unit tier.
            let plain = policy.roles.is_none() && policy.fault.is_none();
            let blackwell = || select_blackwell(key, caps, policy, wide);
            let hopper = || select_hopper(key, caps, policy, wide);
            let plane = || select_plane(key, caps, policy, wide);
            let fastest = || match key.op {
                // Few rows leave a warpgroup's products half empty, and many small cubes read faster.
                AttendOp::Decode => plane().or_else(|_| hopper()),
                _ => hopper().or_else(|_| blackwell()).or_else(|_| plane()),
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

/// Blocks of keys hold whole groups of encoded weights.
fn check_groups(key: &AttendKey, caps: &Caps, block: usize) -> Result<(), NotAvailable> {
    let group = key.features.weights.group();
    if block.is_multiple_of(group) {
        return Ok(());
    }
    let limit = "keys of a block that groups of weights divide";
    Err(lacks(key, caps, limit, group, block))
}

/// Query heads in a tile: those of a group where that takes a tenth fewer tiles, since few queries
/// leave most rows of a tile empty and K and V are then read once for the whole group.
/// `any` says that a group need not divide the rows.
fn packed_heads(key: &AttendKey, rows: usize, policy: &Policy, any: bool) -> usize {
    let apart = key.s_q.div_ceil(rows).saturating_mul(key.group);
    let together = key.s_q.saturating_mul(key.group).div_ceil(rows);
    let fits = any || rows.is_multiple_of(key.group.max(1));
    let pays = fits && 10 * together <= 9 * apart;
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
