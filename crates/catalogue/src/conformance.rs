//! Running problems: other people's kernels with [`check`], our own with [`run`].

use cubecl::prelude::Client;
use flashcube::attention::IssueOrder;
use flashcube::{Caps, DType, Error, Policy, RoleSplit, TierName};
use flashcube_reference as reference;
use serde::Serialize;

use crate::catalogue::problems;
use crate::inputs::Inputs;
use crate::launch::{Launched, launch};
use crate::oracle;
use crate::problem::{Kernel, Problem};
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

/// Which problems to run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// Of this kernel only.
    pub kernel: Option<Kernel>,
    /// Of this dtype only.
    pub dtype: Option<DType>,
    /// Whose name contains this.
    pub name: Option<String>,
    /// The reduced set only.
    pub core: bool,
}

impl Filter {
    /// Whether `problem` is wanted.
    pub fn takes(&self, problem: &Problem) -> bool {
        self.kernel.is_none_or(|k| k == problem.kernel())
            && self.dtype.is_none_or(|d| d == problem.dtype)
            && self
                .name
                .as_ref()
                .is_none_or(|n| problem.name.contains(n.as_str()))
            && (problem.core || !self.core)
    }
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
pub fn run(client: &Client, filter: &Filter, seed: u64, mut progress: impl FnMut(&Row)) -> Report {
    let caps = Caps::of(client);
    let backend = BackendName::of(&caps);
    let wanted: Vec<Problem> = problems().into_iter().filter(|p| filter.takes(p)).collect();
    let mut rows = Vec::with_capacity(wanted.len());
    for problem in &wanted {
        let row = run_problem(client, &caps, problem, seed);
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

impl Filter {
    fn narrows(&self) -> bool {
        self.name.is_some() || self.core
    }
}

fn concerns(required: &Required, problem: &Problem) -> bool {
    required.kernel == problem.kernel()
        && required.dtype == problem.dtype
        && required.feature == problem.feature
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
    run_problem(client, &Caps::of(client), problem, seed)
}

fn run_problem(client: &Client, caps: &Caps, problem: &Problem, seed: u64) -> Row {
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
        .or_else(|| differs(&launched, launch(client, problem, &inputs, policy)));
    row.measures = verdict.measures;
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
        Kernel::MergePartials => "merge",
        Kernel::DequantizeInt4 => "dequantize",
        Kernel::HadamardTransform => "hadamard",
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
    (!right || !asked).then(|| format!("{name} ran, not {prefix} with {policy:?}"))
}

fn usual_order(tier: TierName) -> IssueOrder {
    match tier {
        TierName::Unit | TierName::Plane => IssueOrder::Sequential,
        TierName::Hopper => IssueOrder::ScoresAhead,
    }
}

/// Same input, same blueprint, same device: same bits.
fn differs(first: &Launched, second: Result<Launched, Error>) -> Option<String> {
    let second = match second {
        Ok(second) => second,
        Err(error) => return Some(format!("the second run failed: {error}")),
    };
    let bits = |launched: &Launched| -> Vec<(String, Vec<u32>)> {
        let outputs = launched.outputs.values.iter();
        outputs
            .map(|(name, values)| (name.clone(), values.iter().map(|x| x.to_bits()).collect()))
            .collect()
    };
    (bits(first) != bits(&second)).then(|| "two runs gave different bits".into())
}
