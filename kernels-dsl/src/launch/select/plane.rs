//! When the plane tier is chosen, and with which tile and how many stages.

use core::fmt::Display;

use super::{
    AttendKey, AttendOp, Policy, check_groups, check_matrix, check_packed_rows, check_packed_tile,
    lacks, packed_heads,
};
use crate::attention::{IssueOrder, WeightFormat};
use crate::error::NotAvailable;
use crate::launch::{AttendBlueprint, Caps, DType, PARTS, RoleSplit, TierName};
use crate::quant::OperandFormat;

/// The plane tier: 16-bit forward on sm_80 and up with rows of 16-byte chunks.
pub(super) fn select_plane(
    key: &AttendKey,
    caps: &Caps,
    policy: &Policy,
    wide: bool,
) -> Result<AttendBlueprint, NotAvailable> {
    check_plane(key, caps)?;
    let tile = |packed| {
        policy.tile.unwrap_or_else(|| match key.op {
            AttendOp::Decode => decode_tile(key, caps, packed),
            _ => plane_tile(key, caps, packed),
        })
    };
    let pack = packed_heads(key, tile(false).0, policy, key.op == AttendOp::Decode);
    let (rows, block) = tile(pack > 1);
    if !matches!(rows, 16 | 32 | 64 | 128 | 256)
        || block == 0
        || block > 256
        || !block.is_multiple_of(16)
    {
        let (limit, takes) = (
            "plane tier's tiles",
            "16, 32, 64, 128, 256 rows x multiples of 16 keys",
        );
        return Err(lacks(key, caps, limit, format!("{rows}x{block}"), takes));
    }
    check_groups(key, caps, block)?;
    check_operands(key, caps, block)?;
    match key.op {
        // Queries are copied row by row: a group need not divide the tile.
        AttendOp::Decode => check_packed_rows(key, caps, pack)?,
        _ => check_packed_tile(key, caps, rows, pack)?,
    }
    let order = policy.order.unwrap_or(IssueOrder::Sequential);
    let once = key.op == AttendOp::Decode
        && pack == key.group.max(1)
        && key.s_q.saturating_mul(pack) <= rows;
    let of = |stages| AttendBlueprint {
        op: key.op,
        tier: TierName::Plane,
        roles: RoleSplit::None,
        order,
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
        folded: key.features.plain() && key.positive_scale && !key.features.weights.encoded(),
        parts: 1,
        once,
        polynomial: false,
        features: key.features,
        fault: policy.fault,
    };
    let blueprint = match of(2) {
        // A block's bytes and a cube's place decide how fast a cache is read, not its products.
        two if key.op == AttendOp::Decode && order == IssueOrder::Sequential => {
            decode_stages(two, caps)
        }
        // Scores ahead read K of one block and V of another.
        two if order == IssueOrder::ScoresAhead || affordable(&two, caps) => two,
        _ => of(1),
    };
    let bytes = smem_bytes(&blueprint);
    if bytes > caps.shared_memory {
        let limit = "shared memory (bytes)";
        return Err(lacks(key, caps, limit, bytes, caps.shared_memory));
    }
    if blueprint.units() > 256 {
        let limit = "units of the plane tier";
        return Err(lacks(key, caps, limit, blueprint.units(), 256));
    }
    Ok(blueprint)
}

fn check_plane(key: &AttendKey, caps: &Caps) -> Result<(), NotAvailable> {
    let capability = |available: String| {
        let limit = "compute capability";
        Err(lacks(key, caps, limit, "80 or more", available))
    };
    match caps.sm {
        Some(80..) => {}
        Some(sm) => return capability(sm.to_string()),
        None => return capability("none".into()),
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
    if key.features.codes.is_some() {
        // cvt of e4m3x2, and whole chunks of 16 codes.
        if caps.sm < Some(89) {
            let limit = "compute capability for e4m3";
            let sm = caps.sm.unwrap_or(0);
            return Err(lacks(key, caps, limit, "89 or more", sm));
        }
        for (limit, d) in [("d of e4m3 keys", key.d), ("d_v of e4m3 values", key.d_v)] {
            if !d.is_multiple_of(16) {
                return Err(lacks(key, caps, limit, d, "multiples of 16"));
            }
        }
    }
    if key.chunks {
        return Ok(());
    }
    let limit = "rows of the plane tier";
    let needed = "16-byte strides and start";
    Err(lacks(key, caps, limit, needed, "other strides"))
}

/// Block-scaled operands that mma.sync multiplies as they are: weights in FP8 or FP4, sequences that start where batch
/// entries do, so that blocks of keys start where groups and tiles of scale factors do.
fn check_operands(key: &AttendKey, caps: &Caps, block: usize) -> Result<(), NotAvailable> {
    if key.features.operands.is_none() {
        return Ok(());
    }
    let no = |limit, needed: &dyn Display, available: &dyn Display| {
        Err(lacks(key, caps, limit, needed, available))
    };
    let limit = "compute capability for block-scaled operands";
    match caps.sm {
        Some(120 | 121) => {}
        Some(sm) => return no(limit, &"120 or 121", &sm),
        None => return no(limit, &"120 or 121", &"none"),
    }
    if key.op != AttendOp::Forward {
        return no("plane tier's operands", &key.op.name(), &"attend_forward");
    }
    if key.dtype != DType::BF16 {
        return no("plane tier's dtypes of operands", &key.dtype, &"bf16");
    }
    if key.features.varlen {
        let limit = "plane tier's operands";
        return no(limit, &"packed sequences", &"a sequence a batch entry");
    }
    // One step of products, and no more than a word of scale factors.
    let keys = match key.features.weights {
        WeightFormat::Wide => return no("plane tier's weights", &"16-bit", &"e4m3 or e2m1"),
        WeightFormat::E4m3 => [32, 64, 128],
        WeightFormat::Nvfp4 => [64, 64, 64],
        WeightFormat::Mxfp4(_) => [64, 128, 128],
    };
    if !keys.contains(&block) {
        let takes = format!("{keys:?}");
        return no("keys of a block of operands", &block, &takes);
    }
    Ok(())
}

fn smem_bytes(blueprint: &AttendBlueprint) -> usize {
    blueprint.plane_shape().smem_bytes() as usize
}

/// Whether a cube's shared memory leaves room for a second cube of at most 4 planes on the
/// multiprocessor. Each cube costs another KB.
fn affordable(blueprint: &AttendBlueprint, caps: &Caps) -> bool {
    let share = match blueprint.units() {
        ..=128 => caps.shared_memory.saturating_sub(1024) / 2,
        _ => caps.shared_memory,
    };
    smem_bytes(blueprint) <= share
}

/// Rows and keys of the plane tier's tile: 32 rows a plane where S, P and O of them fit into 255
/// registers, as many keys as then remain without a spill, and two cubes a multiprocessor where
/// shared memory has room for them. Hooks that read memory for every score, a band with a left
/// edge, and encoded weights want registers too, and get shorter blocks.
fn plane_tile(key: &AttendKey, caps: &Caps, packed: bool) -> (usize, usize) {
    let x = &key.features;
    let width = key.d.max(key.d_v);
    if let Some(scores) = x.operands {
        // With 64 keys the compiler for sm_120 takes fewer registers than products in MXFP4 and in E4M3 need between them, and
        // wide heads leave none.
        let mxfp4 = matches!(scores, OperandFormat::Mxfp4(_));
        let crowded = width > 128 || mxfp4 && key.d_v > 64;
        let short = crowded && x.weights == WeightFormat::E4m3;
        return (64, if short { 32 } else { 64 });
    }
    let reads = x.bias as u32 + x.documents as u32 + x.mask.is_some() as u32;
    let left = x.band_left && (x.lengths || matches!(width, 65..=128));
    // Encoding takes registers for the maxima, codes and scales of groups.
    let encoded = 2 * x.weights.encoded() as u32;
    let crowded = reads + left as u32 + (packed && x.alibi) as u32 + encoded;
    let roomy = caps.shared_memory >= 128 << 10;
    // Compiled for anything but sm_90, 48 keys at d = 128 take a few registers too many; for sm_100
    // and up even 32 do at d = 96, or beside a hook that reads memory.
    let block = if caps.sm == Some(90) { 48 } else { 32 };
    let tight = caps.sm >= Some(100) && (width <= 96 || crowded > 0);
    let (rows, block) = match (width, crowded) {
        (..=64, 0) => (128, 64),
        (..=64, 1) => (128, 32),
        (..=128, 0) if roomy && !tight => (128, block),
        (..=128, 1) if roomy && !tight => (128, 32),
        (_, 0) => (64, 64),
        // Fewer than four planes do not keep their queries in registers. With 32 keys the compiler for sm_90 takes fewer registers than some of these steps need.
        (65..=128, _) if x.weights.encoded() && caps.sm == Some(90) => (32, 64),
        (65..=128, _) if x.weights.encoded() => (32, 32),
        (..=128, _) | (_, 1) => (64, 32),
        _ => (64, 16),
    };
    // With one group of 32 keys a block, the compiler takes fewer registers than the step needs.
    match x.weights.group() {
        32 if matches!(width, 65..=128) => (rows, 64),
        group => (rows, (block / group).max(1) * group),
    }
}

/// Rows and keys of a decode's tile: as few rows as hold the group's queries, up to 64, so that no
/// plane multiplies rows that do not exist; blocks of about 16 KB of K and V.
fn decode_tile(key: &AttendKey, caps: &Caps, packed: bool) -> (usize, usize) {
    let heads = if packed { key.group } else { 1 };
    let rows = key.s_q.saturating_mul(heads).next_power_of_two();
    let x = &key.features;
    // Codes take half the room, but as many registers.
    let block = match (key.d + key.d_v, x.band_left) {
        (..=128, false) => 64,
        (..=256, false) => 32,
        (..=128, true) => 32,
        // With one step of 16 the compiler for sm_120 takes fewer registers than the step needs.
        (_, false) if caps.sm >= Some(100) && x.page.is_none() => 32,
        _ => 16,
    };
    (rows.clamp(16, 64), block)
}

/// As many stages as leave room for four parts on a multiprocessor, at least two and at most eight:
/// the more blocks are under way, the less the memory idles. Codes are half the bytes, and decoding them
/// more work than their products: eight parts keep the schedulers busy.
fn decode_stages(blueprint: AttendBlueprint, caps: &Caps) -> AttendBlueprint {
    let parts = match blueprint.features.codes {
        Some(_) => 8,
        None => 4,
    };
    let share = (caps.shared_memory / parts).saturating_sub(1024);
    let of = |stages| AttendBlueprint {
        stages,
        ..blueprint
    };
    let fits = |stages: &usize| of(*stages).plane_shape().part_bytes() as usize <= share;
    let blueprint = of((3..=8).rev().find(fits).unwrap_or(2));
    together(blueprint, caps)
}

/// The four parts in one cube, as many of them as its shared memory holds: they are merged there, which saves
/// most of the traffic of parts through memory. Rows that several planes share leave one.
fn together(blueprint: AttendBlueprint, caps: &Caps) -> AttendBlueprint {
    let of = |parts| AttendBlueprint { parts, ..blueprint };
    let alone = blueprint.plane_shape().planes() == 1;
    if !(blueprint.features.split && alone) {
        return blueprint;
    }
    let fits = |parts: &usize| smem_bytes(&of(*parts)) <= caps.shared_memory;
    of([PARTS, PARTS / 2].into_iter().find(fits).unwrap_or(1))
}
