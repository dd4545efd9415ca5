//! The plane tier: where it runs, what falls to it, and with which tiles.

use flashcube::attention::WeightFormat;
use flashcube::{OperandFormat, ScaleRule};

use super::*;

#[test]
fn the_plane_tier_needs_compute_capability_8() {
    let turing = cuda("RTX 2080 Ti", 75, 64 << 10);
    for caps in [turing, cpu(2), lavapipe(), apple()] {
        let wanted = AttendKey {
            dtype: DType::F16,
            ..half_key(64, 64)
        };
        let refused = select(&wanted, &caps, forced(TierName::Plane));
        let (limit, needed, available) = limit_of(refused);
        let have = caps.sm.map_or("none".into(), |sm| sm.to_string());
        assert_eq!(
            (limit, needed, available),
            ("compute capability", "80 or more".into(), have)
        );
        let free = select(&wanted, &caps, Policy::default()).unwrap();
        assert_eq!(free.tier, TierName::Unit);
    }
}

#[test]
fn plane_tiles_follow_the_head_dimension_and_shared_memory() {
    let [a100, rtx_4090, .., h200, b200, b300, rtx_5090] = gpus();
    let tile = |caps: &Caps, d| {
        let blueprint = select(&half_key(d, d), caps, forced(TierName::Plane)).unwrap();
        assert!(blueprint.units() <= 256, "{blueprint}");
        (blueprint.rows, blueprint.block, blueprint.stages)
    };
    for (caps, block) in [(&a100, 32), (&h200, 48), (&b200, 32), (&b300, 32)] {
        assert_eq!(tile(caps, 64), (128, 64, 2));
        assert_eq!(tile(caps, 128), (128, block, 2));
        assert_eq!(tile(caps, 256), (64, 64, 1));
    }
    for caps in [&rtx_4090, &rtx_5090] {
        assert_eq!(tile(caps, 64), (128, 64, 2));
        assert_eq!(tile(caps, 128), (64, 64, 1));
        assert_eq!(tile(caps, 256), (64, 64, 1));
    }
    // Hooks that read memory for every score get shorter blocks.
    let mut features = LogitFeatures {
        bias: true,
        ..LogitFeatures::default()
    };
    for tile in [(128, 32), (64, 32)] {
        let wanted = AttendKey {
            features,
            ..half_key(128, 128)
        };
        let blueprint = select(&wanted, &h200, forced(TierName::Plane)).unwrap();
        assert_eq!((blueprint.rows, blueprint.block), tile);
        features.documents = true;
    }
    for (tile, limit) in [
        ((96, 64), "plane tier's tiles"),
        ((192, 64), "plane tier's tiles"),
        ((128, 24), "plane tier's tiles"),
        ((128, 256), "shared memory (bytes)"),
    ] {
        let policy = Policy {
            tile: Some(tile),
            ..forced(TierName::Plane)
        };
        let refused = select(&half_key(128, 128), &rtx_4090, policy);
        assert_eq!(limit_of(refused).0, limit, "{tile:?}");
    }
}

#[test]
fn what_a_matrix_tier_cannot_do_falls_to_the_next_one_and_is_named_when_forced() {
    let good = half_key(64, 64);
    let h200 = &gpus()[3];
    let unit = TierName::Unit;
    let of_both = |dtypes: AttendKey, direction: AttendKey| {
        [
            (
                ["hopper tier's dtypes", "plane tier's dtypes"],
                "f32",
                dtypes,
            ),
            (["hopper tier", "plane tier"], "backward", direction),
            (
                ["d of the hopper tier", "d of the plane tier"],
                "12",
                half_key(12, 64),
            ),
            (
                ["d_v of the hopper tier", "d_v of the plane tier"],
                "12",
                half_key(64, 12),
            ),
            (
                ["d of the hopper tier", "d of the plane tier"],
                "264",
                half_key(264, 264),
            ),
        ]
    };
    let dtypes = AttendKey {
        dtype: DType::F32,
        ..good
    };
    let direction = AttendKey {
        op: AttendOp::Backward,
        ..good
    };
    for (limits, needed, wanted) in of_both(dtypes, direction) {
        let free = select(&wanted, h200, Policy::default()).unwrap();
        assert_eq!(free.tier, unit, "{limits:?}");
        for (tier, limit) in [TierName::Hopper, TierName::Plane].into_iter().zip(limits) {
            let (found, value, _) = limit_of(select(&wanted, h200, forced(tier)));
            assert_eq!((found, value.as_str()), (limit, needed));
        }
    }
    // A broadcast over the batch (stride 0) is beyond TMA alone, rows that are not 16 bytes apart
    // beyond cp.async as well.
    let broadcast = AttendKey { tma: false, ..good };
    let crooked = AttendKey {
        chunks: false,
        ..broadcast
    };
    for (wanted, next, tier, limit) in [
        (
            broadcast,
            TierName::Plane,
            TierName::Hopper,
            "TMA addressing",
        ),
        (crooked, unit, TierName::Plane, "rows of the plane tier"),
    ] {
        let free = select(&wanted, h200, Policy::default()).unwrap();
        assert_eq!(free.tier, next, "{limit}");
        let (found, value, _) = limit_of(select(&wanted, h200, forced(tier)));
        assert_eq!(
            (found, value.as_str()),
            (limit, "16-byte strides and start")
        );
    }
}

#[test]
fn block_scaled_operands_are_taken_where_mma_scales_blocks_or_refused_by_name() {
    let [.., h200, b200, _, rtx_5090] = gpus();
    let coded = |weights, features| AttendKey {
        dtype: DType::BF16,
        features: LogitFeatures {
            weights,
            operands: Some(OperandFormat::Nvfp4 { exponent: 0 }),
            ..features
        },
        ..half_key(128, 128)
    };
    let plain = LogitFeatures::default();
    let plane = forced(TierName::Plane);
    let all = [
        WeightFormat::E4m3,
        WeightFormat::Nvfp4,
        WeightFormat::Mxfp4(ScaleRule::Floor),
    ];
    for weights in all {
        let chosen = select(&coded(weights, plain), &rtx_5090, plane).unwrap();
        assert_eq!((chosen.rows, chosen.block), (64, 64), "{chosen}");
        assert!(!chosen.folded, "{chosen}");
        for other in [&h200, &b200] {
            let (limit, ..) = limit_of(select(&coded(weights, plain), other, plane));
            assert_eq!(limit, "compute capability for block-scaled operands");
        }
    }
    let refused = |key: AttendKey, policy| limit_of(select(&key, &rtx_5090, policy)).0;
    let packed = LogitFeatures {
        lengths: true,
        varlen: true,
        ..plain
    };
    let e4m3 = coded(WeightFormat::E4m3, plain);
    assert_eq!(
        refused(coded(WeightFormat::E4m3, packed), plane),
        "plane tier's operands"
    );
    assert_eq!(
        refused(coded(WeightFormat::Wide, plain), plane),
        "plane tier's weights"
    );
    let half = AttendKey {
        dtype: DType::F16,
        ..e4m3
    };
    assert_eq!(refused(half, plane), "plane tier's dtypes of operands");
    let tile = |block| Policy {
        tile: Some((64, block)),
        ..plane
    };
    assert_eq!(refused(e4m3, tile(48)), "keys of a block of operands");
    assert_eq!(
        refused(coded(WeightFormat::Nvfp4, plain), tile(32)),
        "keys of a block of operands"
    );
    // 32 keys are one step in E4M3.
    assert!(select(&e4m3, &rtx_5090, tile(32)).is_ok());
}
