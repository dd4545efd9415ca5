//! Which kernel multiplies with packed weights, on made-up devices.

use flashcube::quant::WeightTiles;
use flashcube::{
    Caps, DType, LinearWeights, MatmulKey, MatmulPolicy, ScaleType, Scaling, TierName, WeightCodes,
    ZeroType, scale_range, select_matmul,
};

use super::invalid::client;
use super::selection::{apple, cpu, gpus, lavapipe};

fn key(m: usize) -> MatmulKey {
    MatmulKey {
        dtype: DType::F16,
        m,
        n: 8192,
        rows: 8192,
        tiles: WeightTiles {
            bits: 4,
            codes: WeightCodes::Int,
            scales: ScaleType::F16,
            zeros: Some(ZeroType::Point),
            groups: 1,
            gathered: false,
        },
        chunks: true,
        pairs: true,
        liftable: true,
        reach: 8192 * 8192,
    }
}

fn tier(key: &MatmulKey, caps: &Caps) -> TierName {
    select_matmul(key, caps, &MatmulPolicy::default())
        .unwrap()
        .0
        .tier
}

#[test]
fn few_rows_go_to_the_plane_tier_and_many_to_the_hopper_tier() {
    let [a100, rtx_4090, h100, h200, b200, b300, rtx_5090] = gpus();
    for caps in [&h100, &h200] {
        assert_eq!(tier(&key(1), caps), TierName::Plane);
        assert_eq!(tier(&key(16), caps), TierName::Plane);
        assert_eq!(tier(&key(17), caps), TierName::Hopper);
        assert_eq!(tier(&key(4096), caps), TierName::Hopper);
    }
    for caps in [&a100, &rtx_4090, &b200, &b300, &rtx_5090] {
        assert_eq!(tier(&key(1), caps), TierName::Plane);
        assert_eq!(tier(&key(4096), caps), TierName::Plane);
    }
    for caps in [&cpu(8), &lavapipe(), &apple()] {
        assert_eq!(tier(&key(64), caps), TierName::Unit);
    }
}

#[test]
fn f32_takes_the_unit_tier_everywhere() {
    for caps in &gpus() {
        let wanted = MatmulKey {
            dtype: DType::F32,
            ..key(64)
        };
        assert_eq!(tier(&wanted, caps), TierName::Unit);
    }
}

#[test]
fn what_a_forced_tier_lacks_is_named() {
    let [a100, .., h200, _, _, _] = gpus();
    let refusal = |key: &MatmulKey, caps: &Caps, tier, rows| {
        let policy = MatmulPolicy {
            tier: Some(tier),
            rows,
            ..MatmulPolicy::default()
        };
        let refused = select_matmul(key, caps, &policy).unwrap_err();
        (refused.limit, refused.needed, refused.available)
    };
    let limit = refusal(&key(64), &a100, TierName::Hopper, None);
    assert_eq!(limit, ("compute capability", "90".into(), "80".into()));
    let limit = refusal(&key(64), &cpu(4), TierName::Plane, None);
    assert_eq!(
        limit,
        ("compute capability", "80 or more".into(), "0".into())
    );
    let wide = MatmulKey {
        dtype: DType::F32,
        ..key(64)
    };
    assert_eq!(
        refusal(&wide, &h200, TierName::Hopper, None).0,
        "hopper tier's dtypes"
    );
    let limit = refusal(&key(64), &h200, TierName::Hopper, Some(24));
    assert_eq!(
        (limit.0, limit.1.as_str()),
        ("hopper tier's rows of x", "24")
    );
}

#[test]
fn blocks_fit_shared_memory_and_blocks_of_few_columns_are_split() {
    for caps in &gpus() {
        for m in [1, 8, 17, 64, 128, 4096] {
            for (n, groups) in [(256, 1), (8192, 4)] {
                let mut wanted = MatmulKey { n, ..key(m) };
                wanted.tiles.groups = groups;
                let (blueprint, splits) =
                    select_matmul(&wanted, caps, &MatmulPolicy::default()).unwrap();
                assert_eq!(blueprint.split, splits > 1, "{blueprint}");
                if n == 256 && m <= 64 {
                    assert!(splits > 1, "{} {blueprint}", caps.device);
                }
                if m == 4096 && n == 8192 {
                    assert_eq!(splits, 1, "{} {blueprint}", caps.device);
                }
            }
        }
    }
}

#[test]
fn cubes_of_few_rows_have_the_more_planes_the_fewer_columns() {
    let [.., h200, _, _, _] = gpus();
    let planes = |key: &MatmulKey| {
        let (blueprint, shares) = select_matmul(key, &h200, &MatmulPolicy::default()).unwrap();
        assert_eq!(shares, 1, "{blueprint}");
        blueprint.depth
    };
    for m in [1, 8, 16] {
        for (n, wanted) in [(8192, 16), (8449, 8), (16_896, 8), (16_897, 4), (40_000, 4)] {
            assert_eq!(planes(&MatmulKey { n, ..key(m) }), wanted, "m {m} n {n}");
        }
    }
    // x by elements wants the first cache; E8M0 scales spill at 512 units.
    let gathered = MatmulKey {
        chunks: false,
        ..key(8)
    };
    assert_eq!(planes(&gathered), 8);
    let mut scaled = key(8);
    scaled.tiles.scales = ScaleType::E8M0;
    assert_eq!(planes(&scaled), 8);
}

#[test]
fn scales_go_into_weights_where_their_range_allows_it() {
    let [.., h200, _, _, _] = gpus();
    let select = |liftable, scaling| {
        let policy = MatmulPolicy {
            tier: Some(TierName::Hopper),
            scaling,
            ..MatmulPolicy::default()
        };
        let wanted = MatmulKey {
            liftable,
            ..key(64)
        };
        select_matmul(&wanted, &h200, &policy).map(|(blueprint, _)| blueprint.scaling)
    };
    let (sums, weights) = (Scaling::Sums, Scaling::Weights);
    assert_eq!(select(true, None).unwrap(), weights);
    assert_eq!(select(false, None).unwrap(), sums);
    assert_eq!(select(true, Some(sums)).unwrap(), sums);
    assert_eq!(select(true, Some(weights)).unwrap(), weights);
    let refused = select(false, Some(weights)).unwrap_err();
    assert_eq!(refused.limit, "range of scales in weights");
    // Few rows only read the weights: their sums are scaled.
    let (few, _) = select_matmul(&key(8), &h200, &MatmulPolicy::default()).unwrap();
    assert_eq!((few.tier, few.scaling), (TierName::Plane, sums));
}

#[test]
fn weights_with_minima_hold_their_scales_or_go_to_the_unit_tier() {
    let [.., h200, _, _, _] = gpus();
    let select = |liftable, m, policy: MatmulPolicy| {
        let mut wanted = MatmulKey { liftable, ..key(m) };
        wanted.tiles.zeros = Some(ZeroType::Minimum);
        select_matmul(&wanted, &h200, &policy).map(|(b, _)| (b.tier, b.scaling))
    };
    let (any, weights) = (MatmulPolicy::default(), Scaling::Weights);
    assert_eq!(select(true, 8, any).unwrap(), (TierName::Plane, weights));
    assert_eq!(select(true, 64, any).unwrap(), (TierName::Hopper, weights));
    for m in [8, 64] {
        assert_eq!(select(false, m, any).unwrap(), (TierName::Unit, weights));
    }
    for tier in [TierName::Plane, TierName::Hopper] {
        let asked = MatmulPolicy {
            tier: Some(tier),
            ..any
        };
        let refused = select(false, 64, asked).unwrap_err();
        assert_eq!(refused.limit, "range of scales in weights");
    }
    for tier in [TierName::Unit, TierName::Plane, TierName::Hopper] {
        let asked = MatmulPolicy {
            tier: Some(tier),
            scaling: Some(Scaling::Sums),
            ..any
        };
        let refused = select(true, 64, asked).unwrap_err();
        assert_eq!(refused.limit, "scales of weights with minima");
    }
}

#[test]
fn a_lift_keeps_every_weight_normal() {
    let client = client();
    let weights = |scales: ScaleType, range| LinearWeights {
        bits: 4,
        codes: WeightCodes::Int,
        k: 64,
        n: 64,
        rows: 64,
        group: 64,
        words: client.empty(2048),
        scales: client.empty(128),
        scale_type: scales,
        scale_range: range,
        factor: 1.0,
        zeros: None,
        zero_type: ZeroType::Point,
        gather: None,
    };
    let lift = |range, dtype| weights(ScaleType::F16, range).lift(dtype);
    for [low, high] in [[0.001, 0.02], [6e-8, 3e-5], [0.5, 4000.0]] {
        let lift = lift(Some([low, high]), DType::F16).unwrap();
        assert_eq!(lift.log2().fract(), 0.0, "{lift} is no power of two");
        let (least, most) = (low * lift, 16.0 * high * lift);
        assert!(
            least >= 2f32.powi(-14) && most <= 65504.0,
            "{least} to {most}"
        );
    }
    // 2^32 apart: f16 has 30 powers of two.
    assert_eq!(
        lift(Some([2f32.powi(-20), 2f32.powi(12)]), DType::F16),
        None
    );
    assert_eq!(
        lift(Some([2f32.powi(-20), 2f32.powi(12)]), DType::BF16),
        Some(1.0)
    );
    assert_eq!(lift(Some([2f32.powi(-126), 1.0]), DType::BF16), None);
    assert_eq!(lift(None, DType::F16), None);
    assert_eq!(lift(Some([0.01, 0.02]), DType::F32), None);
    // With minima weights stay as they are, if they are f16 at all.
    let above = |range, dtype| {
        let mut weights = weights(ScaleType::F16, range);
        weights.zeros = Some(client.empty(128));
        weights.zero_type = ZeroType::Minimum;
        weights.lift(dtype)
    };
    assert_eq!(above(Some([6e-8, 2048.0]), DType::F16), Some(1.0));
    assert_eq!(above(Some([6e-8, 2049.0]), DType::F16), None);
    assert_eq!(above(Some([6e-8, 65504.0]), DType::BF16), Some(1.0));
    assert_eq!(above(None, DType::BF16), None);
    // Any E4M3 will do.
    assert!(weights(ScaleType::E4M3, None).lift(DType::F16).is_some());

    assert_eq!(scale_range([0.5, 0.0, -2.0]), Some([0.5, 2.0]));
    assert_eq!(scale_range([0.0, -0.0]), None);
    assert_eq!(scale_range([1.0, f32::INFINITY]), None);
    assert_eq!(scale_range([1.0, f32::NAN]), None);
}
