//! Choosing among the valid blueprints of a problem by timing them, when the policy asks for it.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use cubecl::prelude::Client;

use super::{AttendBlueprint, AttendDims, AttendKey, Caps, Policy, TierName, select_attend};
use crate::error::{Error, NotAvailable, RuntimeFailure};

/// Query rows x keys of a tile that tiers may be asked for; selection refuses those that a tier
/// has no kernel for or the device no shared memory.
const TILES: [(usize, usize); 12] = [
    (64, 64),
    (64, 128),
    (64, 176),
    (128, 32),
    (128, 48),
    (128, 64),
    (128, 80),
    (128, 112),
    (128, 128),
    (128, 176),
    (192, 80),
    (192, 128),
];

/// Every blueprint worth timing for a problem, without repetition. The first is the one that
/// [`select_attend`] picks. The unit tier stands in only where no other tier takes the problem:
/// beside matrix units it never wins. What `policy` names is kept.
///
/// # Errors
/// [`NotAvailable`] as [`select_attend`], when there is none.
pub fn candidates(
    key: &AttendKey,
    caps: &Caps,
    policy: &Policy,
) -> Result<Vec<AttendBlueprint>, NotAvailable> {
    let picked = select_attend(key, caps, policy)?;
    let mut found = vec![picked];
    let mut add = |policy: &Policy| {
        if let Ok(blueprint) = select_attend(key, caps, policy)
            && !found.contains(&blueprint)
        {
            found.push(blueprint);
        }
    };
    let tiers = TierName::ALL.into_iter().filter(|&tier| {
        let unit = tier == TierName::Unit;
        unit == (picked.tier == TierName::Unit) && policy.tier.is_none_or(|only| only == tier)
    });
    for tier in tiers {
        let policy = Policy {
            tier: Some(tier),
            ..*policy
        };
        add(&policy);
        if policy.tile.is_none() {
            for tile in TILES {
                add(&Policy {
                    tile: Some(tile),
                    ..policy
                });
            }
        }
        if policy.segmented.is_none() {
            add(&Policy {
                segmented: Some(!picked.segmented),
                ..policy
            });
        }
    }
    Ok(found)
}

/// What a choice depends on. Lengths count by their power of two, so that a caller whose lengths
/// vary does not time anew for each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TuneKey {
    device: String,
    key: AttendKey,
    policy: Policy,
    /// b * h_q, h_q / h_kv and s_kv.
    sizes: [usize; 3],
}

impl TuneKey {
    fn new(key: &AttendKey, caps: &Caps, policy: &Policy, dims: &AttendDims) -> Self {
        let lanes = dims.b * dims.h_q;
        Self {
            device: caps.device.clone(),
            key: AttendKey {
                s_q: key.s_q.next_power_of_two(),
                // Selection asks of the reach only whether it is narrow.
                reach: usize::from(key.reach > super::NARROW_REACH),
                ..*key
            },
            policy: *policy,
            sizes: [
                lanes.next_power_of_two(),
                dims.h_q / dims.h_kv.max(1),
                dims.s_kv.next_power_of_two(),
            ],
        }
    }
}

/// Choices made in this process.
static CHOICES: LazyLock<Mutex<HashMap<TuneKey, AttendBlueprint>>> = LazyLock::new(Mutex::default);

/// The fastest candidate: from an earlier call with the same key on the same device, or else by
/// launching each of them, which waits for the device. A candidate that fails is passed over.
///
/// # Errors
/// [`NotAvailable`] when there is no candidate; the first one's failure when all of them fail.
pub(crate) fn autotune(
    client: &Client,
    caps: &Caps,
    (key, dims): (&AttendKey, &AttendDims),
    policy: &Policy,
    launch: &mut (impl FnMut(AttendBlueprint) -> Result<(), Error> + Send),
) -> Result<AttendBlueprint, Error> {
    let tune_key = TuneKey::new(key, caps, policy, dims);
    let choices = || CHOICES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&known) = choices().get(&tune_key) {
        return Ok(known);
    }
    let candidates = candidates(key, caps, policy)?;
    let fastest = fastest(&candidates, |blueprint| {
        seconds(client, caps, blueprint, launch)
    })?;
    choices().insert(tune_key, fastest);
    Ok(fastest)
}

/// The candidate with the smallest time, the earlier one of two that are equal.
fn fastest(
    candidates: &[AttendBlueprint],
    mut seconds: impl FnMut(AttendBlueprint) -> Result<f64, Error>,
) -> Result<AttendBlueprint, Error> {
    if let [only] = candidates {
        return Ok(*only);
    }
    let mut best: Option<(f64, AttendBlueprint)> = None;
    let mut failure = None;
    for &candidate in candidates {
        match seconds(candidate) {
            Ok(time) if best.is_none_or(|(least, _)| time < least) => {
                best = Some((time, candidate));
            }
            Ok(_) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match (best, failure) {
        (Some((_, blueprint)), _) => Ok(blueprint),
        (None, Some(error)) => Err(error),
        (None, None) => Err(Error::Runtime(RuntimeFailure {
            blueprint: "none".to_owned(),
            device: String::new(),
            message: "no candidate to time".to_owned(),
        })),
    }
}

/// Launches timed for a candidate, after one that compiles it.
const REPEATS: usize = 5;

/// Median of the device's times of a candidate.
fn seconds(
    client: &Client,
    caps: &Caps,
    blueprint: AttendBlueprint,
    launch: &mut (impl FnMut(AttendBlueprint) -> Result<(), Error> + Send),
) -> Result<f64, Error> {
    launch(blueprint)?;
    let failed = |message: String| {
        Error::Runtime(RuntimeFailure {
            blueprint: blueprint.to_string(),
            device: caps.device.clone(),
            message,
        })
    };
    let mut times = Vec::with_capacity(REPEATS);
    for _ in 0..REPEATS {
        let profiled = client.profile(|| launch(blueprint), "autotune");
        let (launched, window) = profiled.map_err(|e| failed(format!("{e:?}")))?;
        launched?;
        let ticks = cubecl::future::block_on(window.resolve())
            .ok_or_else(|| failed("the device gave no time".to_owned()))?;
        times.push(ticks.duration().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[REPEATS / 2])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::LogitFeatures;
    use crate::launch::{AttendOp, DType, Family};

    fn two() -> [AttendBlueprint; 2] {
        let caps = Caps {
            device: "CPU".into(),
            family: Family::Cpu,
            sm: None,
            plane: (1, 1),
            units_per_cube: 2,
            shared_memory: 1 << 14,
            multiprocessors: None,
            bindings: 64,
            cube_count: (1 << 16, 1 << 16, 1 << 16),
            vector: 4,
            address_64: true,
            divergent_barriers: true,
            dtypes: DType::ALL.to_vec(),
        };
        let key = AttendKey {
            op: AttendOp::Forward,
            dtype: DType::F32,
            d: 64,
            d_v: 64,
            s_q: 8,
            vector: 4,
            tma: false,
            chunks: false,
            positive_scale: true,
            reach: 1,
            features: LogitFeatures::default(),
            group: 1,
        };
        let found = candidates(&key, &caps, &Policy::default()).unwrap();
        found.try_into().unwrap()
    }

    fn broken() -> Error {
        Error::Runtime(RuntimeFailure {
            blueprint: String::new(),
            device: String::new(),
            message: "broken".into(),
        })
    }

    #[test]
    fn fastest_is_the_least_time_and_the_first_of_equals() {
        let [a, b] = two();
        let pick = |times: [f64; 2]| fastest(&[a, b], |x| Ok(times[usize::from(x == b)])).unwrap();
        assert_eq!(pick([1.0, 2.0]), a);
        assert_eq!(pick([2.0, 1.0]), b);
        assert_eq!(pick([1.0, 1.0]), a);
    }

    #[test]
    fn a_candidate_that_fails_is_passed_over() {
        let [a, b] = two();
        let found = fastest(&[a, b], |x| if x == a { Err(broken()) } else { Ok(1.0) });
        assert_eq!(found.unwrap(), b);
        let none = fastest(&[a, b], |_| Err(broken()));
        assert!(none.unwrap_err().to_string().contains("broken"));
    }

    #[test]
    fn a_single_candidate_is_not_timed() {
        let [a, _] = two();
        assert_eq!(fastest(&[a], |_| panic!("timed")).unwrap(), a);
    }
}
