//! The Blackwell tier.

use super::{AttendKey, AttendOp, Policy, check_matrix, check_packed_tile, lacks, packed_heads};
use crate::arch::tcgen05::{STAGE_ROWS, TENSOR_COLUMNS};
use crate::attention::{IssueOrder, WeightFormat};
use crate::error::NotAvailable;
use crate::launch::{AttendBlueprint, Caps, DType, RoleSplit, TierName};

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
    check_operands(key, caps)?;
    if !key.tma {
        let strides = "16-byte strides and start";
        return no("TMA addressing", &strides, &"other strides");
    }
    let cubes = cubes_of_tile(key, caps, policy)?;
    let unpacked = policy
        .tile
        .unwrap_or_else(|| blackwell_tile(key, cubes, false));
    // Tiles of scale factors of q are packed already, or are not.
    let pack = match (key.features.operands, policy.pack) {
        (Some(_), None) => 1,
        _ => packed_heads(key, unpacked.0, policy, false),
    };
    let (rows, block) = policy
        .tile
        .unwrap_or_else(|| blackwell_tile(key, cubes, pack > 1));
    let shortest = if key.features.operands.is_some() {
        64
    } else {
        32
    };
    let stages = [1, 2].map(|stages| stages * cubes * STAGE_ROWS as usize);
    if !stages.contains(&rows) || !matches!(block, 32 | 64 | 128) || block < shortest {
        let tile = format!("{rows}x{block}");
        let [one, two] = stages;
        let takes = format!("{one}, {two} rows x 32, 64, 128 keys, {shortest} or more");
        return no("blackwell tier's tiles", &tile, &takes);
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
        cluster: cubes,
        vector: 8,
        wide,
        folded: key.features.plain() && key.positive_scale && !key.features.weights.encoded(),
        parts: 1,
        once: false,
        // B300 has twice the special-function units.
        polynomial: caps.sm == Some(100) && !key.features.weights.encoded(),
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

/// Block-scaled operands that tcgen05 multiplies as they are: weights and values in FP8 or FP4.
fn check_operands(key: &AttendKey, caps: &Caps) -> Result<(), NotAvailable> {
    let no = |limit, needed, available| Err(lacks(key, caps, limit, needed, available));
    match (key.features.operands, key.features.weights) {
        (None, WeightFormat::Wide) => return Ok(()),
        (None, _) => return no("blackwell tier's weights", "e4m3 or e2m1", "16-bit"),
        (Some(_), WeightFormat::Wide) => {
            return no("blackwell tier's weights", "16-bit", "e4m3 or e2m1");
        }
        (Some(format), weights) if format.unscaled() && weights != WeightFormat::E4m3 => {
            return no("blackwell tier's weights", "e2m1", "e4m3 as q and k are");
        }
        (Some(_), _) => {}
    }
    if key.dtype != DType::BF16 {
        let limit = "blackwell tier's dtypes of operands";
        return Err(lacks(key, caps, limit, key.dtype, "bf16"));
    }
    Ok(())
}

/// Cubes that multiply together, 1 unless the policy asks for a pair: halves of V are 64 columns or 128, the span of a
/// swizzle.
fn cubes_of_tile(key: &AttendKey, caps: &Caps, policy: &Policy) -> Result<usize, NotAvailable> {
    let no = |limit, needed: &dyn std::fmt::Display, available: &dyn std::fmt::Display| {
        Err(lacks(key, caps, limit, needed, available))
    };
    match policy.cluster {
        None | Some(1) => Ok(1),
        Some(2) if key.features.operands.is_some() => {
            no("operands of a pair of cubes", &"FP4 or FP8", &"16-bit")
        }
        Some(2) if !key.d_v.next_multiple_of(16).is_multiple_of(128) => no(
            "d_v of a pair of cubes",
            &key.d_v,
            &"113 to 128, 241 to 256",
        ),
        Some(2) => Ok(2),
        Some(cubes) => no("cubes that multiply together", &cubes, &"1 or 2"),
    }
}

/// Rows and keys of the tile: two query stages where tensor memory has columns for two outputs and shared
/// memory room for their queries, and there are rows for them. Hooks that read memory for every score want
/// registers for addresses, and get shorter blocks.
fn blackwell_tile(key: &AttendKey, cubes: usize, packed: bool) -> (usize, usize) {
    let x = &key.features;
    let reads = match x.bias as u32 + x.documents as u32 + x.mask.is_some() as u32 {
        0 => 0,
        reads => reads + x.alibi as u32 + packed as u32,
    };
    let coded = key.features.operands.is_some();
    let scaled = key.features.operands.is_some_and(|x| !x.unscaled());
    // Cubes of a pair have half of every block of keys and values: room for longer queries.
    let longest = if cubes > 1 { 192 } else { 128 };
    let wide = key.d_v > 128 || !coded && key.d > longest;
    let least = cubes * STAGE_ROWS as usize;
    let one = wide || key.s_q <= least;
    let rows = if one { least } else { 2 * least };
    // Whatever changes a logit wants registers, too, and so does the second edge of a band.
    let block = match (wide || x.band_left || !x.plain(), reads) {
        // Half a swizzle of codes, and half a tile of scale factors, is the least. Two outputs of 128 columns leave
        // no room for scale factors beside longer blocks.
        _ if coded
            && (!x.plain()
                || x.band_left
                || reads > 0
                || scaled && rows > least && key.d_v > 96) =>
        {
            64
        }
        _ if coded => 128,
        (_, 2..) => 32,
        (true, _) | (_, 1) => 64,
        _ => 128,
    };
    (rows, block)
}
