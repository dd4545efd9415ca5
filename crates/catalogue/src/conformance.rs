//! Running problems: other people's kernels with [`check`], our own with [`run`].

use std::thread;

use cubecl::prelude::Client;
use flashcube::attention::IssueOrder;
use flashcube::{Caps, Error, MatmulPolicy, OperandFormat, Policy, RoleSplit, TierName};
use flashcube_reference as reference;
use serde::Serialize;

use crate::bounds;
use crate::filter::Filter;
use crate::inputs::Inputs;
use crate::launch::{Launched, launch, launch_into};
use crate::oracle;
use crate::pressure::Pressure;
use crate::problem::{Kernel, Problem, Task};
use crate::required::{BackendName, Required, required};
use crate::verdict::{Measure, Outputs, Verdict};

/// Runs `kernel` on the inputs of `problem` and compares its outputs with the reference.
///
/// `kernel` receives strided host arrays and returns dense ones, by the names of
/// [`Problem::outputs`]. An output that it leaves out fails.
///
/// # Errors
/// [`reference::Error`] when the problem contradicts itself; those of the catalogue do not.
///
/// ```
/// use flashcube_catalogue::{Inputs, Outputs, Values, check, problem};
///
/// // A kernel of one's own: one key only, so that softmax is 1 and out is v.
/// let problem = problem("attend_forward/sizes/q37xkv1/f32").expect("a catalogue problem");
/// let a = problem.attend().expect("an attention problem").clone();
/// let verdict = check(&problem, 42, |inputs: &Inputs| {
///     let [q, k, v] = ["q", "k", "v"].map(|name| inputs.get(name).expect("an input"));
///     let (mut out, mut lse) = (Vec::new(), Vec::new());
///     for (b, h, i) in (0..a.b * a.h_q * a.s_q)
///         .map(|row| (row / a.s_q / a.h_q, row / a.s_q % a.h_q, row % a.s_q))
///     {
///         let kv = h / (a.h_q / a.h_kv);
///         let dot: f32 = (0..a.d).map(|c| q.at(&[b, h, i, c]) * k.at(&[b, kv, 0, c])).sum();
///         out.extend((0..a.d_v).map(|c| v.at(&[b, kv, 0, c])));
///         lse.push(dot * a.scale());
///     }
///     Outputs::default().with("out", out).with("lse", lse)
/// })?;
/// assert!(verdict.passed(), "{:?}", verdict.failures().collect::<Vec<_>>());
/// # Ok::<(), flashcube_reference::Error>(())
/// ```
pub fn check(
    problem: &Problem,
    seed: u64,
    kernel: impl FnOnce(&Inputs) -> Outputs,
) -> Result<Verdict, reference::Error> {
    problem.validate()?;
    let inputs = Inputs::generate(problem, seed);
    let expected = oracle::expected(problem, &inputs)?;
    Ok(Verdict::of(&expected, &kernel(&inputs)))
}

/// How a row ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "result", content = "reason", rename_all = "snake_case")]
pub enum Outcome {
    /// Within every bound, twice with the same bits.
    Passed,
    /// What is wrong.
    Failed(String),
    /// Why the device could not run it.
    NotRun(String),
}

/// One problem on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the problem.
    pub case: String,
    /// Its kernel.
    pub kernel: String,
    /// Its feature.
    pub feature: &'static str,
    /// Its dtype.
    pub dtype: String,
    /// What ran; `None` when there was nothing to launch.
    pub blueprint: Option<String>,
    /// Errors and bounds of every output.
    pub measures: Vec<Measure>,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A whole conformance run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The backend.
    pub backend: BackendName,
    /// The device.
    pub device: String,
    /// Seed of the inputs.
    pub seed: u64,
    /// Every problem, in the catalogue's order.
    pub rows: Vec<Row>,
    /// Number of required rows within the filter.
    pub required: usize,
    /// Required rows that did not execute.
    pub missing: Vec<String>,
}

impl Report {
    /// Whether nothing failed and every required row executed.
    pub fn passed(&self) -> bool {
        self.missing.is_empty() && self.failures().next().is_none()
    }

    /// The rows that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Row> {
        let failed = |row: &&Row| matches!(row.outcome, Outcome::Failed(_));
        self.rows.iter().filter(failed)
    }

    /// Rows passed, failed, not run.
    pub fn counts(&self) -> [usize; 3] {
        let count = |wanted: fn(&Outcome) -> bool| {
            self.rows.iter().filter(|row| wanted(&row.outcome)).count()
        };
        [
            count(|o| matches!(o, Outcome::Passed)),
            count(|o| matches!(o, Outcome::Failed(_))),
            count(|o| matches!(o, Outcome::NotRun(_))),
        ]
    }

    /// One line: counts and whether all required rows executed.
    pub fn summary(&self) -> String {
        let [passed, failed, not_run] = self.counts();
        let executed = self.required - self.missing.len();
        format!(
            "{}: {passed} passed, {failed} failed, {not_run} not run; {executed} of {} required rows executed",
            self.backend, self.required
        )
    }
}

/// Runs our kernels on the problems that `filter` takes; `progress` sees each row as it ends.
pub fn run(client: &Client, filter: &Filter, seed: u64, progress: impl FnMut(&Row)) -> Report {
    run_repeatedly(client, filter, seed, Repeats::default(), progress)
}

/// How often a problem is launched, each time with the same bits as result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeats {
    /// Launches, the first included. More than two run under pressure: outputs in poisoned memory,
    /// other buffers coming and going between.
    pub runs: usize,
    /// Threads that launches after the first are shared out to, each with a stream of the device of
    /// its own; at least 1.
    pub streams: usize,
}

impl Default for Repeats {
    fn default() -> Self {
        Self {
            runs: 2,
            streams: 1,
        }
    }
}

/// [`run`] with each problem launched as often as `repeats` says.
pub fn run_repeatedly(
    client: &Client,
    filter: &Filter,
    seed: u64,
    repeats: Repeats,
    mut progress: impl FnMut(&Row),
) -> Report {
    let caps = Caps::of(client);
    let backend = BackendName::of(&caps);
    let wanted = filter.problems();
    let mut rows = Vec::with_capacity(wanted.len());
    for problem in &wanted {
        let row = run_problem(client, &caps, problem, seed, repeats);
        progress(&row);
        rows.push(row);
    }
    // A filter by name or size takes some problems of a feature; only what it takes is required.
    let required: Vec<Required> = required(backend)
        .into_iter()
        .filter(|r| !filter.narrows() || wanted.iter().any(|p| concerns(r, p)))
        .filter(|r| r.applies_to(&caps))
        .filter(|r| filter.kernel.is_none_or(|k| k == r.kernel))
        .filter(|r| filter.dtype.is_none_or(|d| d == r.dtype))
        .collect();
    let missing = required.iter().filter(|r| !executed(r, &wanted, &rows));
    Report {
        backend,
        device: caps.device,
        seed,
        missing: missing.map(Required::to_string).collect(),
        rows,
        required: required.len(),
    }
}

fn concerns(required: &Required, problem: &Problem) -> bool {
    required.kernel == problem.kernel()
        && required.dtype == problem.dtype
        && required.feature == problem.feature
        && required.backend.spared(problem).is_none()
}

/// A required row executed if it has problems and each of them ran.
fn executed(required: &Required, problems: &[Problem], rows: &[Row]) -> bool {
    let mut of_row = problems
        .iter()
        .zip(rows)
        .filter(|(p, _)| concerns(required, p))
        .peekable();
    let some = of_row.peek().is_some();
    some && of_row.all(|(_, row)| !matches!(row.outcome, Outcome::NotRun(_)))
}

/// Runs our kernel on one problem, of the catalogue or not.
pub fn run_one(client: &Client, problem: &Problem, seed: u64) -> Row {
    run_problem(client, &Caps::of(client), problem, seed, Repeats::default())
}

fn run_problem(
    client: &Client,
    caps: &Caps,
    problem: &Problem,
    seed: u64,
    repeats: Repeats,
) -> Row {
    let mut row = Row {
        case: problem.name.clone(),
        kernel: problem.kernel().to_string(),
        feature: problem.feature,
        dtype: problem.dtype.to_string(),
        blueprint: None,
        measures: Vec::new(),
        outcome: Outcome::Passed,
    };
    if let Err(error) = problem.validate() {
        row.outcome = Outcome::Failed(error.to_string());
        return row;
    }
    if let Some(reason) = BackendName::of(caps).spared(problem) {
        row.outcome = Outcome::NotRun(reason.into());
        return row;
    }
    let policy = Policy {
        tier: Some(problem.tier()),
        ..problem.attend().map(|a| a.policy).unwrap_or_default()
    };
    let inputs = Inputs::generate(problem, seed);
    let first = launch(client, problem, &inputs, policy);
    // Split roles meet at barriers in different places of the code, which WGSL forbids.
    let must_refuse = policy.roles == Some(RoleSplit::Softmax) && !caps.divergent_barriers;
    let launched = match first {
        Ok(launched) => launched,
        Err(Error::NotAvailable(_)) if must_refuse => return row,
        Err(Error::NotAvailable(reason)) => {
            row.outcome = Outcome::NotRun(reason.to_string());
            return row;
        }
        Err(error) => {
            row.outcome = Outcome::Failed(error.to_string());
            return row;
        }
    };
    row.blueprint = launched.blueprint.clone();
    let verdict = match oracle::expected(problem, &inputs) {
        Ok(expected) => Verdict::of(&expected, &launched.outputs),
        Err(error) => {
            row.outcome = Outcome::Failed(error.to_string());
            return row;
        }
    };
    let reason = verdict
        .failures()
        .next()
        .map(str::to_owned)
        .or_else(|| launched.disturbed.clone())
        .or_else(|| wrong_blueprint(problem, policy, &launched))
        .or_else(|| must_refuse.then(|| "ran although the device cannot split roles".into()))
        .or_else(|| repeat(client, (problem, &inputs, policy), repeats, &launched));
    let eps = bounds::instruction_eps(problem);
    let measures = verdict.measures.into_iter();
    row.measures = measures.map(|m| m.relative_to(eps)).collect();
    row.outcome = reason.map_or(Outcome::Passed, Outcome::Failed);
    row
}

/// Another kernel, tier, role split or order than the row is about.
fn wrong_blueprint(problem: &Problem, policy: Policy, launched: &Launched) -> Option<String> {
    let empty = problem
        .outputs()
        .iter()
        .all(|(_, shape)| shape.iter().product::<usize>() == 0);
    let Some(name) = &launched.blueprint else {
        return (!empty).then(|| "no kernel ran although the result is not empty".into());
    };
    let kernel = match problem.kernel() {
        Kernel::AttendForward => "attn_fwd",
        Kernel::AttendBackward => "attn_bwd",
        Kernel::AttendDecode => "attn_dec",
        Kernel::AttendOperands => "attn_fwd",
        Kernel::QuantizeOperand => "quantize_operand",
        Kernel::Append => "append",
        Kernel::MergePartials => "merge",
        Kernel::DequantizeInt4 => "dequantize",
        Kernel::W4a16 => "w4a16",
        Kernel::HadamardTransform => "hadamard",
        Kernel::MatrixInstruction => "matrix_instruction",
    };
    let prefix = format!("{kernel}/{}/", problem.tier());
    let right = name.starts_with(&prefix) && name.contains(&format!("/{}", problem.dtype));
    let asked = launched.attend.is_none_or(|ran| {
        ran.tier == problem.tier()
            && ran.roles == policy.roles.unwrap_or(RoleSplit::None)
            && ran.order == policy.order.unwrap_or(usual_order(ran.tier))
            && policy.pack.is_none_or(|pack| pack == (ran.pack > 1))
            && policy.tile.is_none_or(|tile| tile == (ran.rows, ran.block))
    });
    let asked = asked && linear_as_asked(problem, name) && weights_as_asked(problem, name);
    (!right || !asked).then(|| format!("{name} ran, not {prefix} with {policy:?}"))
}

/// Rows and parts of a product are those that the problem asks for.
fn linear_as_asked(problem: &Problem, name: &str) -> bool {
    let Task::Linear(sizes) = &problem.task else {
        return true;
    };
    let MatmulPolicy { rows, splits, .. } = sizes.policy;
    rows.is_none_or(|rows| name.contains(&format!("/m{rows}x")))
        && splits.is_none_or(|splits| name.contains("/split") == (splits > 1))
}

/// Weights are encoded where operands are attended to, in the format of v, and nowhere else.
fn weights_as_asked(problem: &Problem, name: &str) -> bool {
    let Task::Operands(sizes) = &problem.task else {
        return !name.contains("/p-");
    };
    match sizes.values {
        OperandFormat::Nvfp4 { .. } => name.contains("/p-nvfp4"),
        OperandFormat::Mxfp4(_) => name.contains("/p-mxfp4"),
        OperandFormat::Mxfp8(_) | OperandFormat::Fp8 { .. } => name.contains("/p-e4m3"),
    }
}

fn usual_order(tier: TierName) -> IssueOrder {
    match tier {
        TierName::Unit | TierName::Plane | TierName::Blackwell => IssueOrder::Sequential,
        TierName::Hopper => IssueOrder::ScoresAhead,
    }
}

/// What the second run and those after it do otherwise than the first.
fn repeat(
    client: &Client,
    (problem, inputs, policy): (&Problem, &Inputs, Policy),
    repeats: Repeats,
    first: &Launched,
) -> Option<String> {
    let Repeats { runs, streams } = repeats;
    if runs <= 2 {
        let second = launch(client, problem, inputs, policy);
        return (runs == 2).then(|| differs(first, second, 2)).flatten();
    }
    let share = |stream: usize| {
        let mut pressure = Pressure::new(client);
        (2 + stream..=runs).step_by(streams).find_map(|number| {
            pressure.turn();
            let again = launch_into(client, problem, inputs, policy, true);
            differs(first, again, number)
        })
    };
    if streams <= 1 {
        return share(0);
    }
    // CubeCL gives every thread a stream of its own.
    thread::scope(|scope| {
        let threads: Vec<_> = (0..streams)
            .map(|stream| scope.spawn(move || share(stream)))
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|found| found.unwrap_or_else(|_| Some("a launch on a stream panicked".into())))
            .fold(None, Option::or)
    })
}

/// Same input, same blueprint, same device: same bits.
fn differs(first: &Launched, again: Result<Launched, Error>, number: usize) -> Option<String> {
    let again = match again {
        Ok(again) => again,
        Err(error) => return Some(format!("run {number} failed: {error}")),
    };
    if again.disturbed.is_some() {
        return again.disturbed;
    }
    let bits = |launched: &Launched| -> Vec<(String, Vec<u32>)> {
        let outputs = launched.outputs.values.iter();
        outputs
            .map(|(name, values)| (name.clone(), values.iter().map(|x| x.to_bits()).collect()))
            .collect()
    };
    (bits(first) != bits(&again)).then(|| format!("runs 1 and {number} gave different bits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcube::RuntimeFailure;

    fn launched(values: &[f32]) -> Launched {
        Launched {
            outputs: Outputs::default().with("out", values.to_vec()),
            blueprint: None,
            attend: None,
            disturbed: None,
        }
    }

    #[test]
    fn runs_differ_by_a_bit_a_failure_or_memory_that_is_not_theirs() {
        let first = launched(&[1.0, f32::NAN]);
        assert_eq!(differs(&first, Ok(first.clone()), 2), None);
        let other = Ok(launched(&[1.0 + f32::EPSILON, f32::NAN]));
        let told = differs(&first, other, 7).unwrap();
        assert_eq!(told, "runs 1 and 7 gave different bits");
        // 0 and -0 are equal numbers of different bits.
        assert!(differs(&launched(&[0.0]), Ok(launched(&[-0.0])), 2).is_some());
        let wild = Launched {
            disturbed: Some("outside".into()),
            ..first.clone()
        };
        assert_eq!(differs(&first, Ok(wild), 2), Some("outside".into()));
        let broken = Error::Runtime(RuntimeFailure {
            blueprint: String::new(),
            device: String::new(),
            message: "lost".into(),
        });
        assert!(
            differs(&first, Err(broken), 3)
                .unwrap()
                .starts_with("run 3")
        );
    }
}
