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
    /// Queries: short problems get smaller tiles.
    pub s_q: usize,
    /// Elements that may be loaded at once.
    pub vector: usize,
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
        let table = x.lengths || x.documents || x.alibi;
        let tensors = match self.op {
            AttendOp::Forward => 5,
            AttendOp::Backward => 8,
        };
        1 + tensors + x.mask.is_some() as u32 + x.bias as u32 + table as u32
    }
}

/// Picks the blueprint of an attention kernel.
///
/// # Errors
/// [`NotAvailable`] naming the limit: dtype, bindings, address width, units per cube, shared
/// memory, or barriers for split roles.
pub fn select_attend(
    key: &AttendKey,
    caps: &Caps,
    policy: &Policy,
) -> Result<AttendBlueprint, NotAvailable> {
    check_dtype(key.op.name(), key.dtype, caps)?;
    let lacks = |limit, needed: String, available: String| NotAvailable {
        what: key.op.name().into(),
        device: caps.device.clone(),
        limit,
        needed,
        available,
    };
    if key.bindings() > caps.bindings {
        return Err(lacks(
            "storage buffers",
            key.bindings().to_string(),
            caps.bindings.to_string(),
        ));
    }
    let wide = check_reach(key.op.name(), key.reach, caps)?;
    let roles = policy.roles.unwrap_or(RoleSplit::None);
    let (rows, block) = unit_tile(key, caps, roles);
    let blueprint = AttendBlueprint {
        op: key.op,
        tier: policy.tier.unwrap_or(TierName::Unit),
        roles,
        order: policy.order.unwrap_or(IssueOrder::Sequential),
        // WGSL drivers compile slowly, and masks cost little beside d FMAs a score.
        segmented: policy.segmented.unwrap_or(caps.family != Family::Wgpu),
        dtype: key.dtype,
        d: key.d,
        d_v: key.d_v,
        rows,
        block,
        vector: key.vector.min(caps.vector).max(1),
        wide,
        features: key.features,
        fault: policy.fault,
    };
    if blueprint.units() > caps.units_per_cube as usize {
        return Err(lacks(
            "units per cube",
            blueprint.units().to_string(),
            caps.units_per_cube.to_string(),
        ));
    }
    if roles == RoleSplit::Softmax {
        if !caps.divergent_barriers {
            return Err(lacks(
                "barriers in divergent code",
                "split roles".into(),
                "none".into(),
            ));
        }
        let bytes = 4 * rows * crate::arch::fma::exchange_words(block);
        if bytes > caps.shared_memory {
            return Err(lacks(
                "shared memory (bytes)",
                bytes.to_string(),
                caps.shared_memory.to_string(),
            ));
        }
    }
    Ok(blueprint)
}

/// Rows and keys of the unit tier's tile: as many rows as a cube has units, but no more than a
/// GPU needs to fill its planes; shorter for short problems, so that fewer units idle.
fn unit_tile(key: &AttendKey, caps: &Caps, roles: RoleSplit) -> (usize, usize) {
    let players = match roles {
        RoleSplit::None => 1,
        RoleSplit::Softmax => 2,
    };
    let units = (caps.units_per_cube as usize / players).clamp(1, 64);
    // Split roles pair unit u with unit u + rows; whole planes keep the halves convergent.
    let rows = if caps.family == Family::Cpu || roles == RoleSplit::Softmax {
        units.min(32)
    } else {
        units.min(key.s_q.next_power_of_two()).max(1)
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
