//! Selection is pure: what every GPU would run, asked on a machine without any.

mod blackwell;
mod packing;
mod plane;

use flashcube::attention::{IssueOrder, LogitFeatures, MaskWidth};
use flashcube::{
    AttendBlueprint, AttendKey, AttendOp, Caps, DType, Family, Fault, NARROW_REACH, NotAvailable,
    Policy, RoleSplit, TierName, select_attend,
};

fn cuda(device: &str, sm: u32, shared_memory: usize) -> Caps {
    Caps {
        device: device.into(),
        family: Family::Cuda,
        sm: Some(sm),
        plane: (32, 32),
        units_per_cube: 1024,
        shared_memory,
        multiprocessors: Some(132),
        bindings: 1024,
        cube_count: (i32::MAX as u32, 65_535, 65_535),
        vector: 4,
        address_64: true,
        divergent_barriers: true,
        dtypes: DType::ALL.to_vec(),
    }
}

pub(crate) fn gpus() -> [Caps; 7] {
    [
        cuda("A100", 80, 163 << 10),
        cuda("RTX 4090", 89, 99 << 10),
        cuda("H100", 90, 227 << 10),
        cuda("H200", 90, 227 << 10),
        cuda("B200", 100, 227 << 10),
        cuda("B300", 103, 227 << 10),
        cuda("RTX 5090", 120, 99 << 10),
    ]
}

fn wgpu(device: &str, units: u32, bindings: u32, dtypes: &[DType]) -> Caps {
    Caps {
        device: device.into(),
        family: Family::Wgpu,
        sm: None,
        plane: (4, 64),
        units_per_cube: units,
        shared_memory: 16 << 10,
        multiprocessors: None,
        bindings,
        cube_count: (65_535, 65_535, 65_535),
        vector: 4,
        address_64: false,
        divergent_barriers: false,
        dtypes: dtypes.to_vec(),
    }
}

pub(crate) fn lavapipe() -> Caps {
    wgpu("llvmpipe (wgpu<wgsl>)", 1024, 33, &[DType::F32, DType::F16])
}

fn swiftshader() -> Caps {
    wgpu("SwiftShader Device (wgpu<wgsl>)", 256, 9, &[DType::F32])
}

pub(crate) fn apple() -> Caps {
    wgpu("Apple M3 (wgpu<wgsl>)", 1024, 31, &[DType::F32, DType::F16])
}

pub(crate) fn cpu(cores: u32) -> Caps {
    Caps {
        device: "CPU (cpu)".into(),
        family: Family::Cpu,
        plane: (1, 1),
        units_per_cube: cores,
        divergent_barriers: true,
        address_64: true,
        dtypes: DType::ALL.to_vec(),
        ..wgpu("", cores, 1024, &[])
    }
}

fn key(d: usize, s_q: usize) -> AttendKey {
    AttendKey {
        op: AttendOp::Forward,
        dtype: DType::F32,
        d,
        d_v: d,
        s_q,
        group: 1,
        vector: 4,
        chunks: false,
        tma: false,
        positive_scale: true,
        reach: 1 << 20,
        features: LogitFeatures::default(),
    }
}

fn select(key: &AttendKey, caps: &Caps, policy: Policy) -> Result<AttendBlueprint, NotAvailable> {
    select_attend(key, caps, &policy)
}

fn limit_of(result: Result<AttendBlueprint, NotAvailable>) -> (&'static str, String, String) {
    let error = result.expect_err("NotAvailable");
    (error.limit, error.needed, error.available)
}

#[test]
fn every_device_gets_a_blueprint_within_its_limits() {
    let devices = [lavapipe(), swiftshader(), apple(), cpu(1), cpu(2), cpu(64)];
    for caps in gpus().into_iter().chain(devices) {
        for op in [AttendOp::Forward, AttendOp::Backward] {
            for (d, s_q) in [(1, 1), (64, 7), (128, 4096), (256, 33)] {
                let wanted = AttendKey { op, ..key(d, s_q) };
                let blueprint = select(&wanted, &caps, Policy::default()).unwrap();
                assert_eq!(blueprint.tier, TierName::Unit, "{}", caps.device);
                assert_eq!(blueprint.roles, RoleSplit::None);
                assert!(
                    blueprint.units() <= caps.units_per_cube as usize,
                    "{blueprint}"
                );
                assert!(blueprint.units() >= 1 && !blueprint.wide);
            }
        }
    }
}

#[test]
fn cpu_cubes_are_no_larger_than_the_cores() {
    for cores in [1, 2, 16] {
        let blueprint = select(&key(64, 4096), &cpu(cores), Policy::default()).unwrap();
        assert_eq!(blueprint.units(), cores as usize);
    }
}

#[test]
fn short_problems_get_short_tiles_on_gpus() {
    for caps in gpus() {
        let rows = |s_q| {
            select(&key(64, s_q), &caps, Policy::default())
                .unwrap()
                .rows
        };
        assert_eq!(
            [rows(1), rows(5), rows(4096)],
            [1, 8, 64],
            "{}",
            caps.device
        );
    }
}

#[test]
fn dtypes_that_a_device_lacks_are_not_available() {
    let half = AttendKey {
        dtype: DType::F16,
        ..key(64, 64)
    };
    let (limit, needed, available) = limit_of(select(&half, &swiftshader(), Policy::default()));
    assert_eq!(
        (limit, needed.as_str(), available.as_str()),
        ("dtypes", "f16", "f32")
    );
    assert!(select(&half, &lavapipe(), Policy::default()).is_ok());
    let brain = AttendKey {
        dtype: DType::BF16,
        ..half
    };
    assert_eq!(
        limit_of(select(&brain, &apple(), Policy::default())).0,
        "dtypes"
    );
    assert!(select(&brain, &gpus()[0], Policy::default()).is_ok());
}

#[test]
fn offsets_past_32_bits_need_a_64_bit_device() {
    let at = |reach| AttendKey {
        reach,
        ..key(64, 64)
    };
    assert!(
        !select(&at(NARROW_REACH), &apple(), Policy::default())
            .unwrap()
            .wide
    );
    let far = at(NARROW_REACH + 1);
    let (limit, needed, _) = limit_of(select(&far, &apple(), Policy::default()));
    assert_eq!(
        (limit, needed.as_str()),
        ("elements of a tensor", "2147483649")
    );
    assert!(select(&far, &gpus()[3], Policy::default()).unwrap().wide);
    assert!(select(&far, &cpu(2), Policy::default()).unwrap().wide);
}

#[test]
fn hooks_past_the_bindings_of_a_device_are_not_available() {
    let every_hook = AttendKey {
        features: LogitFeatures {
            mask: Some(MaskWidth::U8),
            bias: true,
            lengths: true,
            ..LogitFeatures::default()
        },
        ..key(64, 64)
    };
    let eight = wgpu("WebGPU's minimum", 256, 8, &[DType::F32]);
    let (limit, needed, available) = limit_of(select(&every_hook, &eight, Policy::default()));
    assert_eq!(
        (limit, needed.as_str(), available.as_str()),
        ("storage buffers", "9", "8")
    );
    assert!(select(&every_hook, &swiftshader(), Policy::default()).is_ok());
}

#[test]
fn split_roles_need_divergent_barriers_and_room_for_both_halves() {
    let split = Policy {
        roles: Some(RoleSplit::Softmax),
        order: Some(IssueOrder::ScoresAhead),
        ..Policy::default()
    };
    for caps in [lavapipe(), swiftshader(), apple()] {
        let limit = limit_of(select(&key(64, 64), &caps, split)).0;
        assert_eq!(limit, "barriers in divergent code");
    }
    let blueprint = select(&key(64, 64), &gpus()[2], split).unwrap();
    assert_eq!(blueprint.units(), 2 * blueprint.rows);
    assert_eq!(blueprint.order, IssueOrder::ScoresAhead);
    let (limit, needed, available) = limit_of(select(&key(64, 64), &cpu(1), split));
    assert_eq!(
        (limit, needed.as_str(), available.as_str()),
        ("units per cube", "2", "1")
    );
    assert!(select(&key(64, 64), &cpu(2), split).is_ok());
}

#[test]
fn vectors_are_no_wider_than_the_device_loads() {
    let narrow = Caps {
        vector: 1,
        ..apple()
    };
    assert_eq!(
        select(&key(64, 64), &narrow, Policy::default())
            .unwrap()
            .vector,
        1
    );
    assert_eq!(
        select(&key(64, 64), &apple(), Policy::default())
            .unwrap()
            .vector,
        4
    );
}

#[test]
fn a_blueprint_prints_as_one_line() {
    let masked = AttendKey {
        dtype: DType::BF16,
        d_v: 32,
        features: LogitFeatures {
            band_right: true,
            softcap: true,
            ..LogitFeatures::default()
        },
        ..key(64, 4096)
    };
    let blueprint = select(&masked, &gpus()[3], Policy::default()).unwrap();
    let line = "attn_fwd/unit/bf16/d64v32/q64xkv8/vec4/segmented/softcap/right";
    assert_eq!(blueprint.to_string(), line);
}

/// bf16, dense rows.
fn half_key(d: usize, d_v: usize) -> AttendKey {
    AttendKey {
        dtype: DType::BF16,
        d_v,
        chunks: true,
        tma: true,
        ..key(d, 4096)
    }
}

fn forced(tier: TierName) -> Policy {
    Policy {
        tier: Some(tier),
        ..Policy::default()
    }
}

fn forced_hopper() -> Policy {
    forced(TierName::Hopper)
}

#[test]
fn cuda_gpus_run_16_bit_forward_on_matrix_units() {
    for caps in gpus() {
        for dtype in [DType::F16, DType::BF16] {
            for (d, d_v) in [
                (8, 8),
                (40, 72),
                (64, 64),
                (128, 128),
                (192, 128),
                (256, 256),
            ] {
                let wanted = AttendKey {
                    dtype,
                    ..half_key(d, d_v)
                };
                let blueprint = select(&wanted, &caps, Policy::default()).unwrap();
                let (tier, order) = match caps.sm {
                    Some(90) => (TierName::Hopper, IssueOrder::ScoresAhead),
                    Some(100 | 103) => (TierName::Blackwell, IssueOrder::Sequential),
                    _ => (TierName::Plane, IssueOrder::Sequential),
                };
                assert_eq!(blueprint.tier, tier, "{}: {blueprint}", caps.device);
                assert_eq!(blueprint.order, order);
                assert!(blueprint.units() <= caps.units_per_cube as usize);
                assert!(blueprint.folded, "{blueprint}");
                let plane = select(&wanted, &caps, forced(TierName::Plane)).unwrap();
                assert_eq!(plane.tier, TierName::Plane, "{}: {plane}", caps.device);
            }
        }
    }
}

#[test]
fn forcing_the_hopper_tier_elsewhere_names_the_compute_capability() {
    let others = gpus().into_iter().filter(|caps| caps.sm != Some(90));
    let devices = [cpu(2), lavapipe(), apple()];
    for caps in others.chain(devices) {
        let wanted = AttendKey {
            dtype: DType::F16,
            ..half_key(64, 64)
        };
        let (limit, needed, available) = limit_of(select(&wanted, &caps, forced_hopper()));
        let have = caps.sm.map_or("none".into(), |sm| sm.to_string());
        assert_eq!(
            (limit, needed, available),
            ("compute capability", "90".into(), have),
            "{}",
            caps.device
        );
    }
}

#[test]
fn hopper_tiles_follow_the_head_dimension_and_the_band() {
    let h100 = &gpus()[2];
    let tile = |d, d_v, banded| {
        let features = LogitFeatures {
            band_right: banded,
            ..LogitFeatures::default()
        };
        let wanted = AttendKey {
            features,
            ..half_key(d, d_v)
        };
        let blueprint = select(&wanted, h100, Policy::default()).unwrap();
        (blueprint.rows, blueprint.block)
    };
    assert_eq!(tile(64, 64, false), (192, 128));
    assert_eq!(tile(96, 96, false), (128, 128));
    assert_eq!(tile(128, 128, true), (128, 128));
    assert_eq!(tile(192, 128, true), (128, 128));
    assert_eq!(tile(192, 192, false), (128, 112));
    assert_eq!(tile(256, 256, true), (128, 80));
    // Hooks that read memory for every score get shorter blocks.
    let mut features = LogitFeatures {
        bias: true,
        ..LogitFeatures::default()
    };
    for block in [64, 32] {
        let wanted = AttendKey {
            features,
            ..half_key(128, 128)
        };
        let blueprint = select(&wanted, h100, Policy::default()).unwrap();
        assert_eq!((blueprint.rows, blueprint.block), (128, block));
        features.documents = true;
    }
    // Cubes share keys on request, and only where all tiles see all keys.
    let shared = |banded| {
        let features = LogitFeatures {
            band_right: banded,
            ..LogitFeatures::default()
        };
        let wanted = AttendKey {
            features,
            ..half_key(128, 128)
        };
        let policy = Policy {
            cluster: Some(2),
            ..forced_hopper()
        };
        select(&wanted, h100, policy)
    };
    assert_eq!(shared(false).unwrap().cluster, 2);
    assert_eq!(limit_of(shared(true)).0, "cubes that share keys");
    for (tile, limit) in [
        ((96, 128), "hopper tier's tiles"),
        ((128, 24), "hopper tier's tiles"),
        ((128, 272), "hopper tier's tiles"),
        ((192, 256), "shared memory (bytes)"),
    ] {
        let policy = Policy {
            tile: Some(tile),
            ..forced_hopper()
        };
        let refused = select(&half_key(128, 128), h100, policy);
        assert_eq!(limit_of(refused).0, limit, "{tile:?}");
    }
}

#[test]
fn a_scale_that_is_not_positive_is_not_folded() {
    let wanted = AttendKey {
        positive_scale: false,
        ..half_key(64, 64)
    };
    let blueprint = select(&wanted, &gpus()[3], Policy::default()).unwrap();
    assert_eq!(
        (blueprint.tier, blueprint.folded),
        (TierName::Hopper, false)
    );
}

#[test]
fn faults_and_split_roles_stay_on_the_unit_tier() {
    for policy in [
        Policy {
            fault: Some(Fault::LseBase2),
            ..Policy::default()
        },
        Policy {
            roles: Some(RoleSplit::Softmax),
            ..Policy::default()
        },
    ] {
        let blueprint = select(&half_key(64, 64), &gpus()[3], policy).unwrap();
        assert_eq!(blueprint.tier, TierName::Unit);
    }
}
