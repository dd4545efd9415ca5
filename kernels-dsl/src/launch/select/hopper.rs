//! When the Hopper tier is chosen, and with which tile.

use super::{AttendKey, AttendOp, Policy, check_matrix, check_packed_tile, lacks, packed_heads};
use crate::attention::IssueOrder;
use crate::error::NotAvailable;
use crate::launch::{AttendBlueprint, Caps, RoleSplit, TierName};

/// The Hopper tier: 16-bit forward on sm_90 with views that TMA can address.
pub(super) fn select_hopper(
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
    if key.features.codes.is_some() {
        return no("hopper tier's caches", &"codes", &"16-bit");
    }
    if key.features.weights.encoded() {
        return no("hopper tier's weights", &"e4m3 or e2m1", &"16-bit");
    }
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
    let tile = |packed| {
        policy.tile.unwrap_or_else(|| match key.op {
            AttendOp::Decode => decode_tile(key, packed),
            _ => hopper_tile(key, packed),
        })
    };
    let pack = packed_heads(key, tile(false).0, policy, false);
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
    let cluster = policy.cluster.unwrap_or(1);
    if cluster != 1 && (cluster != 2 || !in_step(key)) {
        return no(
            "cubes that share keys",
            &cluster,
            &"1, or 2 without edges or lengths",
        );
    }
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
        cluster,
        vector: 8,
        wide,
        folded: key.features.plain() && key.positive_scale,
        parts: 1,
        once: false,
        polynomial: false,
        features: key.features,
        fault: policy.fault,
    };
    let rows = blueprint.hopper_shape().box_rows();
    if !rows.is_multiple_of(8) {
        // The swizzle repeats every 8 rows.
        return no("rows of a page that blocks share", &rows, &"multiples of 8");
    }
    let bytes = blueprint.hopper_shape().smem_bytes() as usize;
    if bytes > caps.shared_memory {
        return no("shared memory (bytes)", &bytes, &caps.shared_memory);
    }
    Ok(blueprint)
}

/// Rows and keys of the Hopper tier's tile: as many keys as registers (S, P and O of a consumer) and
/// shared memory (two stages of K and V) hold, but up to d 128 no more than leave room for a second
/// tile of queries, which hides the edges of tiles (FlashAttention-3 takes 176 keys there without a
/// band). Hooks that read memory for every score want registers for addresses, and
/// get shorter blocks, the more so where rows of a tile have heads and slopes of their own: none of
/// these tiles spills. Packing does not change the rows.
fn hopper_tile(key: &AttendKey, packed: bool) -> (usize, usize) {
    let x = &key.features;
    let reads = match x.bias as u32 + x.documents as u32 + x.mask.is_some() as u32 {
        0 => 0,
        reads => reads + x.alibi as u32 + packed as u32,
    };
    // What else costs registers: three consumers have few for hooks or a second edge.
    let plain = x.plain() && !(x.band_left && x.band_right);
    match (key.d.max(key.d_v), reads) {
        // Packed sequences cost the producer registers that beside three consumers it lacks.
        (..=64, 0) if x.varlen => (128, 128),
        (..=64, 0) if plain => (192, 128),
        (..=64, 0) => (192, 112),
        (..=128, 0) => (128, 128),
        (..=192, 0) if key.d_v <= 128 => (128, 128),
        (..=192, 0) => (128, 112),
        (_, 0) if x.band_left && x.band_right => (128, 64),
        (_, 0) => (128, 80),
        (..=192, 1) => (128, 64),
        (_, 1) => (128, 48),
        _ => (128, 32),
    }
}

/// Whether all tiles see all keys.
fn in_step(key: &AttendKey) -> bool {
    let x = &key.features;
    !(x.band_left || x.band_right || x.listed() || x.split || x.page.is_some())
}

/// Rows and keys of a decode's tile: one consumer of 64 rows, whose registers hold as many keys as two
/// stages of K and V leave room for in shared memory; pages have powers of two of rows.
fn decode_tile(key: &AttendKey, packed: bool) -> (usize, usize) {
    let (rows, block) = hopper_tile(key, packed);
    let whole = match key.features.page {
        Some(_) => (block + 1).next_power_of_two() / 2,
        None => block,
    };
    match 64usize.is_multiple_of(key.group.max(1)) {
        true => (64, whole),
        false => (rows, whole),
    }
}
