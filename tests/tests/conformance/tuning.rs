//! The autotune option: candidates on devices not at hand, and a choice made on the host's cores.

use std::collections::HashSet;

use flashcube::attention::LogitFeatures;
use flashcube::{
    AttendKey, AttendOp, AttendOptions, Attended, Backend, Caps, DType, Policy, Tensor, TierName,
    attend_forward, candidates, select_attend,
};

use crate::selection::{cpu, gpus, lavapipe};

fn key(dtype: DType, d: usize) -> AttendKey {
    AttendKey {
        op: AttendOp::Forward,
        dtype,
        d,
        d_v: d,
        s_q: 4096,
        group: 1,
        vector: 4,
        tma: true,
        chunks: true,
        positive_scale: true,
        reach: 1 << 20,
        features: LogitFeatures::default(),
    }
}

#[test]
fn candidates_are_valid_distinct_and_led_by_what_selection_picks() {
    let policy = Policy::default();
    for caps in gpus().into_iter().chain([lavapipe(), cpu(2)]) {
        for dtype in [DType::F32, DType::F16] {
            for d in [64, 128, 256] {
                let key = key(dtype, d);
                let found = candidates(&key, &caps, &policy).unwrap();
                assert_eq!(found[0], select_attend(&key, &caps, &policy).unwrap());
                assert_eq!(found.iter().collect::<HashSet<_>>().len(), found.len());
                assert!(found.len() > 1, "{}: {}", caps.device, found[0]);
                for blueprint in &found {
                    assert!(blueprint.units() <= caps.units_per_cube as usize);
                    let unit = found[0].tier == TierName::Unit;
                    assert_eq!(blueprint.tier == TierName::Unit, unit, "{blueprint}");
                }
            }
        }
    }
}

#[test]
fn hopper_candidates_differ_in_tiles_that_fit() {
    let hopper = &gpus()[3];
    let wide = candidates(&key(DType::BF16, 256), hopper, &Policy::default()).unwrap();
    let narrow = candidates(&key(DType::BF16, 64), hopper, &Policy::default()).unwrap();
    assert!(narrow.len() > wide.len() && wide.len() > 1);
    let tile = Policy {
        tile: Some((128, 64)),
        tier: Some(TierName::Hopper),
        ..Policy::default()
    };
    let forced = candidates(&key(DType::BF16, 128), hopper, &tile).unwrap();
    assert!(forced.iter().all(|x| (x.rows, x.block) == (128, 64)));
}

#[test]
fn candidates_fail_as_selection_does() {
    let policy = Policy {
        tier: Some(TierName::Hopper),
        ..Policy::default()
    };
    let error = candidates(&key(DType::F32, 64), &cpu(2), &policy).unwrap_err();
    assert_eq!(error.limit, "compute capability");
}

/// Tuned, the result is that of the blueprint it names, and later calls keep to it.
#[test]
fn a_tuned_call_gives_what_its_blueprint_gives() {
    let client = Backend::Cpu.open().expect("the CPU backend");
    let shape = [1, 2, 33, 16];
    let values: Vec<u8> = (0..2 * 33 * 16u32)
        .flat_map(|i| ((i * 37 % 101) as f32 / 50.0 - 1.0).to_le_bytes())
        .collect();
    let x = Tensor::contiguous(client.create_from_slice(&values), shape, DType::F32);
    let attend = |policy: Policy| {
        let options = AttendOptions {
            causal: true,
            policy,
            ..AttendOptions::default()
        };
        attend_forward(&client, &x, &x, &x, &options).unwrap()
    };
    let bytes = |attended: &Attended| client.read_one(attended.out.handle.clone()).unwrap();
    let tuned = Policy {
        autotune: true,
        ..Policy::default()
    };
    let first = attend(tuned);
    let chosen = first.blueprint.unwrap();
    let caps = Caps::of(&client);
    let features = chosen.features;
    let asked = AttendKey {
        features,
        s_q: 33,
        tma: false,
        chunks: false,
        ..key(DType::F32, 16)
    };
    let possible = candidates(&asked, &caps, &Policy::default()).unwrap();
    assert!(possible.len() > 1 && possible.contains(&chosen), "{chosen}");
    for _ in 0..3 {
        assert_eq!(attend(tuned).blueprint, Some(chosen));
    }
    let same = attend(Policy {
        segmented: Some(chosen.segmented),
        ..Policy::default()
    });
    assert_eq!(same.blueprint, Some(chosen));
    assert_eq!(bytes(&first), bytes(&same));
}
