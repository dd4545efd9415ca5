//! attend_forward against the peers: problem by problem, round by round, in turns.

mod accuracy;
mod ours;
mod problem;

use std::time::Instant;

use flashcube::DType;
use serde_json::Value;

use super::measure::{Times, finite, judge, median, round, wait};
use super::peers::Implementation;
use super::report::{BenchRow, Cell, OURS};
use super::{Bench, flush::Flush};
use crate::failure::{Failure, Result};
use ours::{Inputs, Layout, Ours};

pub(super) use problem::AttendProblem;

/// Rounds of each problem: A B A B A B.
const ROUNDS: usize = 3;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    run_suite(bench, problems, accuracy::run)
}

/// The suite `decode`: one query for each head against a cache, in one piece and paged.
pub(super) fn run_decode(bench: &mut Bench<'_>) -> Result<()> {
    run_suite(bench, decode_problems, |_, _| Ok(()))
}

/// The suite `attention_limits`: sizes past the reach of a grid and of 32 bits, which only a GPU's memory holds.
pub(super) fn run_limits(bench: &mut Bench<'_>) -> Result<()> {
    let limits = |bench: &Bench<'_>, dtype| match bench.device.is_software() {
        true => Vec::new(),
        false => problem::limits(dtype),
    };
    run_suite(bench, limits, |_, _| Ok(()))
}

fn run_suite(
    bench: &mut Bench<'_>,
    problems: impl Fn(&Bench<'_>, DType) -> Vec<AttendProblem>,
    accuracy: impl Fn(&mut Bench<'_>, DType) -> Result<()>,
) -> Result<()> {
    let flush = Flush::new(bench.device);
    let started = Instant::now();
    let mut skipped = 0;
    for dtype in dtypes(bench) {
        for problem in problems(bench, dtype) {
            if !bench.wants(&problem.name()) {
                continue;
            }
            if bench
                .budget
                .is_some_and(|budget| started.elapsed() > budget)
            {
                skipped += 1;
                continue;
            }
            measure(bench, &problem, &flush)?;
            // Nothing of this problem stays behind for the next one to make do with.
            let cleaned = bench.device.client.memory_cleanup();
            cleaned.map_err(|e| Failure::failed(format!("freeing memory: {e:?}")))?;
        }
        accuracy(bench, dtype)?;
    }
    match skipped {
        0 => Ok(()),
        _ => Err(Failure::failed(format!(
            "{skipped} problems were not started within the budget"
        ))),
    }
}

/// Every problem that the device's size of suite holds.
pub(super) fn problems(bench: &Bench<'_>, dtype: DType) -> Vec<AttendProblem> {
    bench.scaled(problem::small(dtype), problem::large(dtype, bench.seed))
}

fn decode_problems(bench: &Bench<'_>, dtype: DType) -> Vec<AttendProblem> {
    match bench.device.is_software() {
        true => problem::decode_small(dtype),
        // Graphs are CUDA's.
        false => problem::decode_large(dtype),
    }
}

/// The problems of `decode` on a GPU as JSON.
pub(super) fn list_decode() -> Vec<Value> {
    [DType::BF16, DType::F16]
        .into_iter()
        .flat_map(problem::decode_large)
        .map(|problem| problem.to_json())
        .collect()
}

/// The suite's problems on a GPU as JSON, as the peers' script takes them.
pub(super) fn list(seed: u64) -> Vec<Value> {
    [DType::BF16, DType::F16]
        .into_iter()
        .flat_map(|dtype| problem::large(dtype, seed))
        .map(|problem| problem.to_json())
        .collect()
}

/// What the device has; on a GPU the dtypes that peers have too.
fn dtypes(bench: &Bench<'_>) -> Vec<DType> {
    let all = bench.dtypes();
    let half: Vec<DType> = all.iter().copied().filter(|&d| d != DType::F32).collect();
    if bench.device.is_software() || half.is_empty() {
        all
    } else {
        // bf16 first: it has the most peers.
        half.into_iter().rev().collect()
    }
}

/// One layout of a problem under way.
struct Lane<'a> {
    ours: Ours<'a>,
    /// Medians of the rounds.
    rounds: Vec<Times>,
    first_call_seconds: Option<f64>,
    failure: Option<String>,
}

/// All rounds of one problem, ours and the peers' in turns, then the checks.
fn measure(bench: &mut Bench<'_>, problem: &AttendProblem, flush: &Flush) -> Result<()> {
    let client = &bench.device.client.clone();
    let inputs = Inputs::draw(client, problem, bench.seed);
    let tier = bench.tier;
    let mut lanes: Vec<Lane<'_>> = layouts(bench, problem)
        .into_iter()
        .map(|layout| Lane {
            ours: Ours::new(client, problem, &inputs, layout, tier),
            rounds: Vec::new(),
            first_call_seconds: None,
            failure: None,
        })
        .collect();
    for lane in &mut lanes {
        let first = first_call(&mut lane.ours, client);
        match first {
            Ok(seconds) => lane.first_call_seconds = Some(seconds),
            Err(failure) => lane.failure = Some(failure.to_string()),
        }
    }
    let asked = problem.to_json();
    let mut refused: Vec<String> = Vec::new();
    for _ in 0..ROUNDS {
        for lane in &mut lanes {
            if lane.failure.is_none() {
                match round(client, flush, || lane.ours.repeat()) {
                    Ok(times) => lane.rounds.push(times),
                    Err(failure) => lane.failure = Some(failure.to_string()),
                }
            }
            wait(client)?;
            peers_round(bench, lane.ours.layout, &asked, &mut refused)?;
        }
    }
    if let Some(peers) = &mut bench.peers {
        peers.finish(&asked)?;
    }
    for lane in lanes {
        let row = row(bench, problem, lane);
        eprintln!("{}", progress(&row));
        bench.rows.push(row);
    }
    Ok(())
}

/// The usual layout, and the other one where a peer is timed in it: a row is compared with peers
/// of its own layout. Packed sequences have one layout, [s, h, d].
fn layouts(bench: &Bench<'_>, problem: &AttendProblem) -> Vec<Layout> {
    let peers = problem.dtype == DType::BF16 && problem.has_peers();
    if problem.mask().starts_with("varlen") {
        vec![Layout::Bshd]
    } else if peers && !bench.device.is_software() {
        Layout::ALL.to_vec()
    } else {
        vec![Layout::Bhsd]
    }
}

/// A round of every peer that reads this layout and takes the problem.
fn peers_round(
    bench: &mut Bench<'_>,
    layout: Layout,
    problem: &Value,
    refused: &mut Vec<String>,
) -> Result<()> {
    let Some(peers) = &mut bench.peers else {
        return Ok(());
    };
    let same = |peer: &&Implementation| peer.layout == layout.to_string();
    let names: Vec<String> = peers
        .implementations
        .iter()
        .filter(same)
        .map(|peer| peer.name.clone())
        .filter(|name| !refused.contains(name))
        .collect();
    for name in names {
        let answer = peers.measure(&name, problem)?;
        match answer.median_seconds {
            Some(seconds) => eprintln!("    {name} {:.1} us", 1e6 * seconds),
            None => {
                eprintln!("    {name}: {}", answer.refused.unwrap_or_default());
                refused.push(name);
            }
        }
    }
    Ok(())
}

/// Seconds of the first call: where its blueprint is new to the process, mostly the compiler's. A
/// graph is captured after it.
fn first_call(ours: &mut Ours<'_>, client: &cubecl::prelude::Client) -> Result<f64> {
    wait(client)?;
    let started = Instant::now();
    ours.launch()?;
    wait(client)?;
    let seconds = started.elapsed().as_secs_f64();
    ours.capture()?;
    Ok(seconds)
}

fn row(bench: &mut Bench<'_>, problem: &AttendProblem, lane: Lane<'_>) -> BenchRow {
    let mut medians: Vec<f64> = lane.rounds.iter().map(|times| times.median).collect();
    let round_seconds = medians.clone();
    let seconds = median(&mut medians);
    let mut row = BenchRow {
        name: lane.ours.name(),
        implementation: OURS.to_owned(),
        blueprint: String::new(),
        median_seconds: seconds,
        fastest_seconds: lane
            .rounds
            .iter()
            .map(|t| t.fastest)
            .fold(seconds, f64::min),
        repeats: lane.rounds.iter().map(|times| times.repeats).sum(),
        clock: lane
            .rounds
            .last()
            .map(|t| t.clock.clone())
            .unwrap_or_default(),
        bytes: problem.bytes(),
        flops: problem.flops(),
        ceiling: String::new(),
        fraction_of_ceiling: 0.0,
        worst_share_of_bound: 0.0,
        failure: lane.failure,
        cell: None,
    };
    let (ceiling, least) = match problem.s_q {
        // A decode reads the cache and writes next to nothing.
        _ if problem.is_decode() => ("read", row.bytes as f64 / bench.ceilings.read),
        // One query reads every key for two operations a value.
        1 => ("copy", row.bytes as f64 / bench.ceilings.copy),
        _ => ("fma", row.flops as f64 / bench.ceilings.fma),
    };
    row.ceiling = ceiling.to_owned();
    row.fraction_of_ceiling = least / seconds;
    if row.failure.is_none() {
        let checked = lane.ours.check().and_then(|checked| {
            row.blueprint = checked.blueprint;
            row.worst_share_of_bound = checked.worst;
            judge(&row, bench.tier.map(|tier| tier.to_string()).as_deref())
        });
        row.failure = checked.err().map(|failure| failure.to_string());
        row.worst_share_of_bound = finite(row.worst_share_of_bound);
    }
    if row.failure.is_some() {
        // JSON has no NaN; what failed has no times.
        (
            row.median_seconds,
            row.fastest_seconds,
            row.fraction_of_ceiling,
        ) = (0.0, 0.0, 0.0);
    }
    // A later problem with the same blueprint finds it compiled.
    let first = *bench
        .first_calls
        .entry(row.blueprint.clone())
        .or_insert(lane.first_call_seconds.unwrap_or_default());
    row.cell = Some(Cell {
        problem: problem.name(),
        dtype: problem.dtype.to_string(),
        mask: problem.mask().to_owned(),
        layout: lane.ours.layout.to_string(),
        round_seconds,
        tflop_per_s: match row.failure {
            None => row.flops as f64 / seconds / 1e12,
            Some(_) => 0.0,
        },
        first_call_seconds: lane.first_call_seconds.map(|_| first),
        goal: problem.goal(),
        expected_tflop_per_s: None,
        void: None,
    });
    row
}

/// What happens, for who watches a long run.
fn progress(row: &BenchRow) -> String {
    let tflops = row.cell.as_ref().map_or(0.0, |cell| cell.tflop_per_s);
    match &row.failure {
        Some(failure) => format!("{}: {failure}", row.name),
        None => format!(
            "{}: {:.1} us, {tflops:.1} TFLOP/s, {:.0} GB/s",
            row.name,
            1e6 * row.median_seconds,
            row.bytes as f64 / row.median_seconds / 1e9
        ),
    }
}
