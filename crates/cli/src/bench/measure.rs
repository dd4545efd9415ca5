//! Timing a launch, and making a row of it.

use std::time::{Duration, Instant};

use cubecl::client::Graph;
use cubecl::prelude::Client;
use cubecl::profile::ProfileDuration;
use cubecl::server::Handle;

use super::flush::Flush;
use super::report::BenchRow;
use super::report::OURS;
use super::{Bench, Case};
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
    wait(client)?;
    let started = Instant::now();
    let mut seconds = Vec::new();
    let mut clock = String::new();
    while seconds.len() < REPEATS.0 || (seconds.len() < REPEATS.1 && started.elapsed() < BUDGET) {
        let window = window(client, &mut launch)?;
        clock = window.timing_method().to_string();
        seconds.push(resolve(window)?);
    }
    Ok(Times::of(seconds, clock))
}

/// Rest before a round, so that what ran before it leaves the card as warm for all.
const SETTLE: Duration = Duration::from_millis(100);
/// Launches of a round that do not count, and those that do, by the time they take.
const WARM_UP: Duration = Duration::from_millis(25);
const MEASURED: Duration = Duration::from_millis(100);
/// Bounds of a round's launches, whatever they take.
const ROUND: (f64, f64) = (3.0, 1000.0);

/// One round of the protocol that peers are timed with as well (`benches/peers/peers.py`), which is
/// that of triton's `do_bench`: 25 ms of launches to warm up, then 100 ms of launches, each between
/// two device events with the L2 cache flushed before the first of them. Nothing waits before the
/// last launch, so that the host runs ahead and its own work stays out of the events.
///
/// # Errors
/// As [`time`].
pub(super) fn round(
    client: &Client,
    flush: &Flush,
    mut launch: impl FnMut() -> Result<()> + Send,
) -> Result<Times> {
    std::thread::sleep(SETTLE);
    launch()?;
    let (trial, _) = windows(client, flush, &mut launch, 3)?;
    let each = trial.iter().sum::<f64>() / trial.len() as f64;
    let launches = |time: Duration| (time.as_secs_f64() / each).clamp(ROUND.0, ROUND.1) as usize;
    for _ in 0..launches(WARM_UP) {
        launch()?;
    }
    let (seconds, clock) = windows(client, flush, &mut launch, launches(MEASURED))?;
    Ok(Times::of(seconds, clock))
}

/// Seconds of `n` launches, and whose clock counted them.
fn windows(
    client: &Client,
    flush: &Flush,
    launch: &mut (impl FnMut() -> Result<()> + Send),
    n: usize,
) -> Result<(Vec<f64>, String)> {
    let mut open = Vec::with_capacity(n);
    for _ in 0..n {
        flush.run();
        open.push(window(client, launch)?);
    }
    let clock = open[0].timing_method().to_string();
    let seconds = open.into_iter().map(resolve).collect::<Result<_>>()?;
    Ok((seconds, clock))
}

/// Queues a launch between two stamps of the clock.
fn window(
    client: &Client,
    launch: &mut (impl FnMut() -> Result<()> + Send),
) -> Result<ProfileDuration> {
    let profiled = client.profile(launch, "bench");
    let (launched, duration) = profiled.map_err(|e| Failure::failed(format!("{e:?}")))?;
    launched?;
    Ok(duration)
}

/// Waits for the window's end.
fn resolve(window: ProfileDuration) -> Result<f64> {
    let ticks = cubecl::future::block_on(window.resolve())
        .ok_or_else(|| Failure::failed("the device gave no time"))?;
    Ok(ticks.duration().as_secs_f64())
}

/// Captures what `launch` launches, after a run that leaves it the memory it asks for.
///
/// # Errors
/// Those of `launch`; [`Failure::Failed`] where the device has no graphs or refuses this one.
pub(super) fn capture(client: &Client, launch: impl Fn() -> Result<()>) -> Result<Graph> {
    let failed = |e| Failure::failed(format!("capturing a graph: {e:?}"));
    client.graph_prepare().map_err(failed)?;
    launch()?;
    client.start_capture().map_err(failed)?;
    let launched = launch();
    let graph = client.stop_capture().map_err(failed)?;
    launched?;
    Ok(graph)
}

/// Launches what was captured again.
///
/// # Safety
/// Every buffer that the graph reads or writes still exists.
///
/// # Errors
/// [`Failure::Failed`] with the driver's words.
pub(super) unsafe fn replay(graph: &Graph) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { graph.replay() }.map_err(|e| Failure::failed(format!("replaying a graph: {e:?}")))
}

/// Waits for everything that was launched.
///
/// # Errors
/// [`Failure::Failed`] with the driver's words.
pub(super) fn wait(client: &Client) -> Result<()> {
    cubecl::future::block_on(client.sync())
        .map_err(|e| Failure::failed(format!("waiting for the device: {e:?}")))
}

impl Times {
    /// Of one launch, where each of these is of `n`.
    pub(super) fn shared(self, n: usize) -> Self {
        Self {
            median: self.median / n as f64,
            fastest: self.fastest / n as f64,
            repeats: self.repeats * n,
            clock: self.clock,
        }
    }

    /// Of at least one time.
    fn of(mut seconds: Vec<f64>, clock: String) -> Self {
        Self {
            median: median(&mut seconds),
            fastest: seconds[0],
            repeats: seconds.len(),
            clock,
        }
    }
}

/// The upper median; sorts. NaN when there is nothing.
pub(super) fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN)
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
        let least = case.bytes as f64 / self.ceilings.copy;
        let mut row = BenchRow {
            name: case.name,
            implementation: OURS.to_owned(),
            blueprint: String::new(),
            median_seconds: 0.0,
            fastest_seconds: 0.0,
            repeats: 0,
            clock: String::new(),
            bytes: case.bytes,
            flops: case.flops,
            ceiling: "copy".to_owned(),
            fraction_of_ceiling: 0.0,
            worst_share_of_bound: 0.0,
            failure: None,
            cell: None,
        };
        let outcome = check().and_then(|checked| {
            row.blueprint = checked.blueprint;
            row.worst_share_of_bound = checked.worst;
            judge(&row, Some(&case.tier))?;
            time(&self.device.client, launch)
        });
        // JSON has no infinity.
        row.worst_share_of_bound = finite(row.worst_share_of_bound);
        match outcome {
            Ok(times) => {
                row.fraction_of_ceiling = least / times.median;
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

/// The value, or the largest number where it is infinite or none: JSON has neither.
pub(super) fn finite(x: f64) -> f64 {
    if x.is_nan() {
        f64::MAX
    } else {
        x.clamp(f64::MIN, f64::MAX)
    }
}

/// The tier that ran is the one the row is about, if it is about one, and the result is right.
pub(super) fn judge(row: &BenchRow, tier: Option<&str>) -> Result<()> {
    if let Some(tier) = tier
        && row.blueprint.split('/').nth(1) != Some(tier)
    {
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
            implementation: OURS.into(),
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
            cell: None,
        }
    }

    #[test]
    fn another_tier_or_a_wrong_result_fails() {
        let unit = "attn_fwd/unit/f32/d64";
        assert!(judge(&row(unit, 0.5), Some("unit")).is_ok());
        assert!(judge(&row(unit, 0.5), Some("hopper")).is_err());
        assert!(judge(&row(unit, 1.5), Some("unit")).is_err());
        assert!(judge(&row(unit, f64::NAN), Some("unit")).is_err());
        assert!(judge(&row(unit, 0.5), None).is_ok());
        assert!(judge(&row(unit, 1.5), None).is_err());
    }
}
