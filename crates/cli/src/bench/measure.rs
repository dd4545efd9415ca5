//! Timing a launch, and making a row of it.

use std::time::{Duration, Instant};

use cubecl::prelude::Client;
use cubecl::server::Handle;

use super::report::BenchRow;
use super::{Bench, Case, Limit};
use crate::failure::{Failure, Result};

/// Repeats of a row, whatever they take, and at most.
const REPEATS: (usize, usize) = (5, 50);
/// Time after which no further repeat starts.
const BUDGET: Duration = Duration::from_millis(1500);

/// Times of a launch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Times {
    pub(super) median: f64,
    pub(super) fastest: f64,
    pub(super) repeats: usize,
    pub(super) clock: String,
}

/// What the check before the timing found.
pub(super) struct Checked {
    /// The blueprint that ran.
    pub(super) blueprint: String,
    /// Largest share of its bound that an element's error takes.
    pub(super) worst: f64,
}

/// Median over repeated launches after two that do not count. CubeCL's profile takes the device's
/// clock where the device has timestamps, else the host's between two synchronisations.
///
/// # Errors
/// [`Failure::Failed`] when the launch or the clock fails.
pub(super) fn time(
    client: &Client,
    mut launch: impl FnMut() -> Result<()> + Send,
) -> Result<Times> {
    for _ in 0..2 {
        launch()?;
    }
    let synced = cubecl::future::block_on(client.sync());
    synced.map_err(|e| Failure::failed(format!("waiting for the device: {e:?}")))?;
    let started = Instant::now();
    let mut seconds = Vec::new();
    let mut clock = String::new();
    while seconds.len() < REPEATS.0 || (seconds.len() < REPEATS.1 && started.elapsed() < BUDGET) {
        let profiled = client.profile(&mut launch, "bench");
        let (launched, duration) = profiled.map_err(|e| Failure::failed(format!("{e:?}")))?;
        launched?;
        clock = duration.timing_method().to_string();
        let ticks = cubecl::future::block_on(duration.resolve())
            .ok_or_else(|| Failure::failed("the device gave no time"))?;
        seconds.push(ticks.duration().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(Times {
        median: seconds[seconds.len() / 2],
        fastest: seconds[0],
        repeats: seconds.len(),
        clock,
    })
}

/// The bytes of a device buffer.
///
/// # Errors
/// [`Failure::Failed`] with the driver's words.
pub(super) fn read(client: &Client, handle: &Handle) -> Result<Vec<u8>> {
    match client.read_one(handle.clone()) {
        Ok(bytes) => Ok(bytes.to_vec()),
        Err(e) => Err(Failure::failed(format!("reading a result: {e:?}"))),
    }
}

impl Bench<'_> {
    /// Checks, then times `launch`, and keeps the row; what goes wrong is in the row.
    pub(super) fn row(
        &mut self,
        case: Case,
        check: impl FnOnce() -> Result<Checked>,
        launch: impl FnMut() -> Result<()> + Send,
    ) {
        let limit = match case.limit {
            Limit::Memory => ("copy", case.bytes as f64 / self.ceilings.copy),
            Limit::Arithmetic => ("fma", case.flops as f64 / self.ceilings.fma),
        };
        let mut row = BenchRow {
            name: case.name,
            blueprint: String::new(),
            median_seconds: 0.0,
            fastest_seconds: 0.0,
            repeats: 0,
            clock: String::new(),
            bytes: case.bytes,
            flops: case.flops,
            ceiling: limit.0.to_owned(),
            fraction_of_ceiling: 0.0,
            worst_share_of_bound: 0.0,
            failure: None,
        };
        let outcome = check().and_then(|checked| {
            row.blueprint = checked.blueprint;
            row.worst_share_of_bound = checked.worst;
            judge(&row, &case.tier)?;
            time(&self.device.client, launch)
        });
        match outcome {
            Ok(times) => {
                row.fraction_of_ceiling = limit.1 / times.median;
                row.median_seconds = times.median;
                row.fastest_seconds = times.fastest;
                row.repeats = times.repeats;
                row.clock = times.clock;
            }
            Err(failure) => row.failure = Some(failure.to_string()),
        }
        self.rows.push(row);
    }
}

/// The tier that ran is the one the row is about, and the result is right.
fn judge(row: &BenchRow, tier: &str) -> Result<()> {
    if row.blueprint.split('/').nth(1) != Some(tier) {
        return Err(Failure::failed(format!("the tier {tier} did not run")));
    }
    // Written so that a NaN does not pass.
    if row.worst_share_of_bound <= 1.0 {
        Ok(())
    } else {
        let share = row.worst_share_of_bound;
        Err(Failure::failed(format!(
            "wrong result: an error is {share:.2} times its bound"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(blueprint: &str, worst: f64) -> BenchRow {
        BenchRow {
            name: "row".into(),
            blueprint: blueprint.into(),
            median_seconds: 1.0,
            fastest_seconds: 1.0,
            repeats: 1,
            clock: "system".into(),
            bytes: 1,
            flops: 1,
            ceiling: "copy".into(),
            fraction_of_ceiling: 1.0,
            worst_share_of_bound: worst,
            failure: None,
        }
    }

    #[test]
    fn another_tier_or_a_wrong_result_fails() {
        let unit = "attn_fwd/unit/f32/d64";
        assert!(judge(&row(unit, 0.5), "unit").is_ok());
        assert!(judge(&row(unit, 0.5), "hopper").is_err());
        assert!(judge(&row(unit, 1.5), "unit").is_err());
        assert!(judge(&row(unit, f64::NAN), "unit").is_err());
    }
}
