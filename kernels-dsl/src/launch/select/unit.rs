//! When the unit tier is chosen, and with which tile.

use super::{AttendKey, AttendOp, Policy, check_packed_rows, lacks};
use crate::attention::IssueOrder;
use crate::error::NotAvailable;
use crate::launch::{AttendBlueprint, Caps, Family, RoleSplit, TierName};

/// The unit tier: takes every problem that fits the device's limits.
pub(super) fn select_unit(
    key: &AttendKey,
    caps: &Caps,
    policy: &Policy,
    wide: bool,
) -> Result<AttendBlueprint, NotAvailable> {
    let roles = policy.roles.unwrap_or(RoleSplit::None);
    // A row has a unit of its own whatever its head, so packing pays only where it is asked for.
    let pack = match policy.pack {
        Some(true) if key.op != AttendOp::Backward => key.group.max(1),
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
        cluster: 1,
        vector: key.vector.min(caps.vector).max(1),
        wide,
        // Beyond |logit| = 2^30 a folded weight may exceed 1; the unit tier is exact at any size.
        folded: false,
        parts: 1,
        once: false,
        polynomial: false,
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
        if key.features.weights.encoded() {
            let limit = "weights of split roles";
            return Err(lacks(key, caps, limit, "e4m3 or e2m1", "f32"));
        }
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
    (rows, key.features.weights.group().max(8))
}
