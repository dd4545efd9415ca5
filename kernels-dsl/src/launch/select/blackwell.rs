//! The Blackwell tier.

use super::{AttendKey, AttendOp, Policy, check_matrix, check_packed_tile, lacks, packed_heads};
use crate::arch::tcgen05::{STAGE_ROWS, TENSOR_COLUMNS};
use crate::attention::IssueOrder;
use crate::error::NotAvailable;
use crate::launch::{AttendBlueprint, Caps, RoleSplit, TierName};

/// The Blackwell tier: 16-bit forward on sm_100 and sm_103 with views that TMA can address.
pub(super) fn select_blackwell(
    key: &AttendKey,
    caps: &Caps,
    policy: &Policy,
    wide: bool,
) -> Result<AttendBlueprint, NotAvailable> {
    let no = |limit, needed: &dyn std::fmt::Display, available: &dyn std::fmt::Display| {
        Err(lacks(key, caps, limit, needed, available))
    };
    match caps.sm {
        Some(100 | 103) => {}
        Some(sm) => return no("compute capability", &"100 or 103", &sm),
        None => return no("compute capability", &"100 or 103", &"none"),
    }
    if key.op == AttendOp::Decode {
        return no("blackwell tier", &"decode", &"forward");
    }
    check_matrix(
        key,
        caps,
        [
            "blackwell tier",
            "blackwell tier's dtypes",
            "d of the blackwell tier",
            "d_v of the blackwell tier",
        ],
    )?;
    if key.features.page.is_some() || key.features.codes.is_some() {
        return no(
            "blackwell tier's caches",
            &"pages or codes",
            &"one piece, 16-bit",
        );
    }
    if key.features.weights.encoded() {
        return no("blackwell tier's weights", &"e4m3 or e2m1", &"16-bit");
    }
    if !key.tma {
        let strides = "16-byte strides and start";
        return no("TMA addressing", &strides, &"other strides");
    }
    let unpacked = policy.tile.unwrap_or_else(|| blackwell_tile(key, false));
    let pack = packed_heads(key, unpacked.0, policy, false);
    let (rows, block) = policy.tile.unwrap_or_else(|| blackwell_tile(key, pack > 1));
    if !matches!(rows, 128 | 256) || !matches!(block, 32 | 64 | 128) {
        let tile = format!("{rows}x{block}");
        return no(
            "blackwell tier's tiles",
            &tile,
            &"128, 256 rows x 32, 64, 128 keys",
        );
    }
    check_packed_tile(key, caps, rows, pack)?;
    let of = |stages| AttendBlueprint {
        op: key.op,
        tier: TierName::Blackwell,
        roles: RoleSplit::None,
        order: IssueOrder::Sequential,
        segmented: true,
        dtype: key.dtype,
        d: key.d,
        d_v: key.d_v,
        rows,
        pack,
        block,
        stages,
        cluster: 1,
        vector: 8,
        wide,
        folded: key.features.plain() && key.positive_scale,
        // B300 has twice the special-function units.
        polynomial: caps.sm == Some(100),
        features: key.features,
        fault: policy.fault,
    };
    let columns = of(2).blackwell_shape().tensor_plan().used();
    if columns > TENSOR_COLUMNS {
        return no("columns of tensor memory", &columns, &TENSOR_COLUMNS);
    }
    let bytes = |stages| of(stages).blackwell_shape().smem_bytes() as usize;
    let stages = (2..=4).rev().find(|&s| bytes(s) <= caps.shared_memory);
    match stages {
        Some(stages) => Ok(of(stages)),
        None => no("shared memory (bytes)", &bytes(2), &caps.shared_memory),
    }
}

/// Rows and keys of the tile: two query stages where tensor memory has columns for two outputs and shared
/// memory room for their queries, and there are rows for them. Hooks that read memory for every score want
/// registers for addresses, and get shorter blocks.
fn blackwell_tile(key: &AttendKey, packed: bool) -> (usize, usize) {
    let x = &key.features;
    let reads = match x.bias as u32 + x.documents as u32 + x.mask.is_some() as u32 {
        0 => 0,
        reads => reads + x.alibi as u32 + packed as u32,
    };
    let wide = key.d.max(key.d_v) > 128;
    let one = wide || key.s_q <= STAGE_ROWS as usize;
    let rows = if one { 128 } else { 256 };
    // Whatever changes a logit wants registers, too.
    let block = match (wide || !x.plain(), reads) {
        (_, 2..) => 32,
        (true, _) | (_, 1) => 64,
        _ => 128,
    };
    (rows, block)
}
