//! Results from a file, and problems to a file.

use std::path::{Path, PathBuf};

use clap::Args;
use flashcube_catalogue::{self as catalogue, FileError, Problem, problems};
use serde::Serialize;

use super::DEFAULT_SEED;
use super::suite::cells;
use crate::failure::{Failure, Result};
use crate::output::{self, Table};

/// Writes the inputs of a catalogue problem as safetensors, for a kernel that runs elsewhere.
///
/// The file holds dense row-major tensors by name and the options as metadata. Write your outputs
/// under the names shown here to another safetensors file and check it with
/// `flashcube verify --against FILE`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube export-problem --list | grep causal
  flashcube export-problem attend_forward/sizes/q37xkv65/f32 in.safetensors
  python my_kernel.py in.safetensors out.safetensors
  flashcube verify --against out.safetensors --problem attend_forward/sizes/q37xkv65/f32")]
pub(crate) struct ExportArgs {
    /// A name of `--list`
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// The file to write
    #[arg(required_unless_present = "list")]
    file: Option<PathBuf>,
    /// List the problems with the outputs each expects
    #[arg(long, conflicts_with_all = ["name", "file"])]
    list: bool,
    /// Seed of the inputs
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SEED)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a problem expects back.
#[derive(Serialize)]
struct Described {
    problem: String,
    kernel: String,
    dtype: String,
    outputs: Vec<(&'static str, Vec<usize>)>,
}

impl From<&Problem> for Described {
    fn from(problem: &Problem) -> Self {
        Self {
            problem: problem.name.clone(),
            kernel: problem.kernel().to_string(),
            dtype: problem.dtype.to_string(),
            outputs: problem.outputs(),
        }
    }
}

impl Described {
    fn outputs(&self) -> String {
        let outputs = self.outputs.iter();
        let texts: Vec<String> = outputs
            .map(|(name, shape)| format!("{name} {shape:?}"))
            .collect();
        texts.join(", ")
    }
}

pub(crate) fn export(args: &ExportArgs) -> Result<()> {
    let (Some(name), Some(file)) = (&args.name, &args.file) else {
        return list(args.json);
    };
    let problem = find(name)?;
    catalogue::export_problem(&problem, args.seed, file).map_err(unusable)?;
    let described = Described::from(&problem);
    if args.json {
        return output::print_json(&described);
    }
    output::print(format_args!(
        "wrote {} (seed {}); expected back: {}\n",
        file.display(),
        args.seed,
        described.outputs()
    ))
}

fn list(json: bool) -> Result<()> {
    let all: Vec<Described> = problems().iter().map(Described::from).collect();
    if json {
        return output::print_json(&all);
    }
    let mut table = Table::new(&["problem", "outputs"]);
    for described in &all {
        table.row([described.problem.clone(), described.outputs()]);
    }
    output::print(table)
}

fn find(name: &str) -> Result<Problem> {
    catalogue::problem(name).ok_or_else(|| {
        Failure::usage(
            format!("unknown problem {name:?}"),
            "`flashcube export-problem --list` shows every name",
        )
    })
}

/// The verdict on a file.
#[derive(Serialize)]
struct Verdict<'a> {
    problem: &'a str,
    seed: u64,
    passed: bool,
    measures: Vec<Measured>,
}

/// How one output compares.
#[derive(Serialize)]
struct Measured {
    output: &'static str,
    max: f64,
    rms: f64,
    bound: f64,
    failure: Option<String>,
}

/// Checks the outputs in `path`. Problem and seed come from the file's metadata unless given.
pub(super) fn check(path: &Path, name: Option<&str>, seed: Option<u64>, json: bool) -> Result<()> {
    let (told_name, told_seed) = catalogue::origin(path).map_err(unusable)?;
    let Some(name) = name.map(str::to_owned).or(told_name) else {
        return Err(Failure::usage(
            format!("{} does not say which problem it answers", path.display()),
            "add --problem NAME",
        ));
    };
    let seed = seed.or(told_seed).unwrap_or(DEFAULT_SEED);
    let verdict = catalogue::check_file(&find(&name)?, seed, path).map_err(unusable)?;
    let passed = verdict.passed();
    if json {
        let measured = |m: &catalogue::Measure| Measured {
            output: m.output,
            max: m.max,
            rms: m.rms,
            bound: m.bound,
            failure: m.failure.clone(),
        };
        output::print_json(&Verdict {
            problem: &name,
            seed,
            passed,
            measures: verdict.measures.iter().map(measured).collect(),
        })?;
    } else {
        output::print(format_args!("{name}, seed {seed}\n"))?;
        for measure in &verdict.measures {
            let (result, reason) = match &measure.failure {
                None => ("pass", ""),
                Some(reason) => ("FAIL", reason.as_str()),
            };
            output::print(format_args!("{result:<7}  {}  {reason}\n", cells(measure)))?;
        }
    }
    if passed {
        return Ok(());
    }
    let reasons: Vec<&str> = verdict.failures().collect();
    Err(Failure::failed(format!("{name}: {}", reasons.join("; "))))
}

/// A file that cannot be judged is a wrong request, not a failed check.
fn unusable(error: FileError) -> Failure {
    let hint = match &error {
        FileError::Origin { .. } => "pass the --problem and --seed it was exported with",
        _ => "the outputs go into a safetensors file under the names that export-problem prints",
    };
    Failure::usage(error, hint)
}
