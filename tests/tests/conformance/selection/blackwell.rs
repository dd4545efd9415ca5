//! The Blackwell tier: where it runs, with which tiles, and what falls to the plane tier.

use flashcube::attention::WeightFormat;
use flashcube::{OperandFormat, ScaleRule};

use super::*;

fn b200() -> Caps {
    let [.., b200, _, _] = gpus();
    b200
}

#[test]
fn forcing_the_blackwell_tier_elsewhere_names_the_compute_capability() {
    let others = gpus()
        .into_iter()
        .filter(|caps| !matches!(caps.sm, Some(100 | 103)));
    for caps in others.chain([cpu(2), lavapipe(), apple()]) {
        let wanted = AttendKey {
            dtype: DType::F16,
            ..half_key(64, 64)
        };
        let refused = select(&wanted, &caps, forced(TierName::Blackwell));
        let (limit, needed, available) = limit_of(refused);
        let have = caps.sm.map_or("none".into(), |sm| sm.to_string());
        assert_eq!(
            (limit, needed, available),
            ("compute capability", "100 or 103".into(), have)
        );
    }
}

#[test]
fn blackwell_tiles_fill_tensor_memory_and_shared_memory() {
    let b200 = b200();
    let tile = |wanted: AttendKey| {
        let blueprint = select(&wanted, &b200, Policy::default()).unwrap();
        assert_eq!(blueprint.tier, TierName::Blackwell, "{blueprint}");
        assert_eq!(blueprint.units(), 640, "{blueprint}");
        (blueprint.rows, blueprint.block, blueprint.stages)
    };
    assert_eq!(tile(half_key(64, 64)), (256, 128, 4));
    assert_eq!(tile(half_key(128, 128)), (256, 128, 2));
    // Tensor memory has no room for two wide outputs, shared memory none for two wide blocks.
    assert_eq!(tile(half_key(192, 128)), (128, 64, 4));
    assert_eq!(tile(half_key(256, 256)), (128, 64, 2));
    let few = AttendKey {
        s_q: 128,
        ..half_key(128, 128)
    };
    assert_eq!(tile(few), (128, 128, 3));
    let with = |features| AttendKey {
        features,
        ..half_key(128, 128)
    };
    let capped = LogitFeatures {
        softcap: true,
        ..LogitFeatures::default()
    };
    let biased = LogitFeatures {
        bias: true,
        ..LogitFeatures::default()
    };
    let both = LogitFeatures {
        alibi: true,
        ..biased
    };
    assert_eq!(tile(with(capped)), (256, 64, 4));
    let window = LogitFeatures {
        band_left: true,
        band_right: true,
        ..LogitFeatures::default()
    };
    assert_eq!(tile(with(window)), (256, 64, 4));
    let sloped = LogitFeatures {
        alibi: true,
        lengths: true,
        ..LogitFeatures::default()
    };
    assert_eq!(tile(with(sloped)), (256, 64, 4));
    assert_eq!(tile(with(biased)), (256, 64, 4));
    assert_eq!(tile(with(both)), (256, 32, 4));
    for (tile, limit) in [
        ((64, 128), "blackwell tier's tiles"),
        ((128, 96), "blackwell tier's tiles"),
        ((256, 128), "columns of tensor memory"),
        ((128, 128), "shared memory (bytes)"),
    ] {
        let policy = Policy {
            tile: Some(tile),
            ..forced(TierName::Blackwell)
        };
        let refused = select(&half_key(256, 256), &b200, policy);
        assert_eq!(limit_of(refused).0, limit, "{tile:?}");
    }
}

/// Cubes of a pair have half of every block: two query stages at d 192, longer rings elsewhere.
#[test]
fn pairs_of_cubes_multiply_together_on_request() {
    let b200 = b200();
    let pair = |key: &AttendKey| {
        let policy = Policy {
            cluster: Some(2),
            ..forced(TierName::Blackwell)
        };
        select(key, &b200, policy)
    };
    for (d, alone, together) in [
        ((64, 128), (256, 128, 3), (512, 128, 4)),
        ((128, 128), (256, 128, 2), (512, 128, 4)),
        ((192, 128), (128, 64, 4), (512, 128, 3)),
        ((256, 256), (128, 64, 2), (256, 64, 4)),
    ] {
        let key = half_key(d.0, d.1);
        let tile = |x: AttendBlueprint| (x.rows, x.block, x.stages);
        let single = select(&key, &b200, forced(TierName::Blackwell)).unwrap();
        assert_eq!((tile(single), single.cluster), (alone, 1), "{d:?}");
        let double = pair(&key).unwrap();
        assert_eq!((tile(double), double.cluster), (together, 2), "{d:?}");
        assert_eq!(double.units(), 640);
    }
    let few = AttendKey {
        s_q: 200,
        ..half_key(128, 128)
    };
    assert_eq!(pair(&few).unwrap().rows, 256);
    let coded = AttendKey {
        features: LogitFeatures {
            operands: Some(OperandFormat::Mxfp8(ScaleRule::default())),
            weights: WeightFormat::E4m3,
            ..LogitFeatures::default()
        },
        ..half_key(128, 128)
    };
    for (key, limit) in [
        (half_key(128, 96), "d_v of a pair of cubes"),
        (coded, "operands of a pair of cubes"),
    ] {
        assert_eq!(limit_of(pair(&key)).0, limit);
    }
    let four = Policy {
        cluster: Some(4),
        ..forced(TierName::Blackwell)
    };
    let refused = select(&half_key(128, 128), &b200, four);
    assert_eq!(limit_of(refused).0, "cubes that multiply together");
}

#[test]
fn what_the_blackwell_tier_lacks_falls_to_others_and_is_named_when_forced() {
    let b200 = b200();
    let good = half_key(64, 64);
    let broadcast = AttendKey { tma: false, ..good };
    let decode = AttendKey {
        op: AttendOp::Decode,
        s_q: 1,
        ..good
    };
    let single = AttendKey {
        dtype: DType::F32,
        ..good
    };
    let odd = half_key(60, 60);
    for (wanted, tier, limit) in [
        (broadcast, TierName::Plane, "TMA addressing"),
        (decode, TierName::Plane, "blackwell tier"),
        (single, TierName::Unit, "blackwell tier's dtypes"),
        (odd, TierName::Unit, "d of the blackwell tier"),
    ] {
        let free = select(&wanted, &b200, Policy::default()).unwrap();
        assert_eq!(free.tier, tier, "{limit}");
        let refused = select(&wanted, &b200, forced(TierName::Blackwell));
        assert_eq!(limit_of(refused).0, limit);
    }
}

#[test]
fn block_scaled_operands_leave_room_for_scale_factors_or_are_refused_by_name() {
    let b200 = b200();
    let nvfp4 = OperandFormat::Nvfp4 { exponent: 0 };
    let coded = |d, d_v, features| AttendKey {
        dtype: DType::BF16,
        features: LogitFeatures {
            weights: WeightFormat::E4m3,
            operands: Some(nvfp4),
            ..features
        },
        ..half_key(d, d_v)
    };
    let plain = LogitFeatures::default();
    let select_coded = |key: &AttendKey| select(key, &b200, forced(TierName::Blackwell));
    for (d, d_v, tile) in [
        (64, 64, (256, 128)),
        (128, 64, (256, 128)),
        (128, 128, (256, 64)),
        (256, 256, (128, 128)),
    ] {
        let chosen = select_coded(&coded(d, d_v, plain)).unwrap();
        assert_eq!((chosen.rows, chosen.block), tile, "{chosen}");
        assert!(!chosen.folded && !chosen.polynomial, "{chosen}");
        assert_eq!(chosen.pack, 1);
    }
    let refused = |key: AttendKey| limit_of(select_coded(&key)).0;
    let coded = |features| coded(64, 64, features);
    // Packed sequences have the same tiles; heads are packed where the caller says that q is.
    let packed = LogitFeatures {
        lengths: true,
        varlen: true,
        ..plain
    };
    let group = AttendKey {
        group: 4,
        ..coded(packed)
    };
    for (pack, heads) in [(None, 1), (Some(false), 1), (Some(true), 4)] {
        let policy = Policy {
            pack,
            ..forced(TierName::Blackwell)
        };
        let chosen = select(&group, &b200, policy).unwrap();
        assert_eq!((chosen.rows, chosen.block), (256, 128), "{chosen}");
        assert_eq!(chosen.pack, heads, "{chosen}");
    }
    let policy = Policy {
        pack: Some(true),
        ..forced(TierName::Blackwell)
    };
    let thirds = AttendKey { group: 3, ..group };
    let limit = limit_of(select(&thirds, &b200, policy)).0;
    assert_eq!(limit, "rows of a tile that packed heads divide");
    let mut wide = coded(plain);
    wide.features.weights = WeightFormat::Wide;
    assert_eq!(refused(wide), "blackwell tier's weights");
    // Weights in four bits, and lengths of batch entries, have the tiles of those in eight.
    let mut fp4 = coded(LogitFeatures {
        lengths: true,
        ..plain
    });
    for weights in [WeightFormat::Nvfp4, WeightFormat::Mxfp4(ScaleRule::Floor)] {
        fp4.features.weights = weights;
        let chosen = select_coded(&fp4).unwrap();
        assert_eq!((chosen.rows, chosen.block), (256, 128), "{chosen}");
    }
    let half = AttendKey {
        dtype: DType::F16,
        ..coded(plain)
    };
    assert_eq!(refused(half), "blackwell tier's dtypes of operands");
    let policy = Policy {
        tile: Some((256, 32)),
        ..forced(TierName::Blackwell)
    };
    let short = select(&coded(plain), &b200, policy);
    assert_eq!(limit_of(short).0, "blackwell tier's tiles");
}
