//! `flashcube sanitize`: kernels under NVIDIA's compute-sanitizer.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use clap::{Args, ValueEnum};
use flashcube::Fault;
use flashcube_catalogue::mutants;
use serde::Serialize;

use crate::backend::{self, BackendName};
use crate::failure::{Failure, Result};
use crate::output::{self, Table};
use crate::probe;
use crate::verify::DEFAULT_SEED;

/// Runs small cases under compute-sanitizer, which must first report a race planted in a kernel.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube sanitize                          memcheck and racecheck on a few small cases of each tier
  flashcube sanitize --tool memcheck --case attend_forward/hopper/
  flashcube sanitize --json

racecheck is shown a kernel without one of its barriers first: a tool that does not report it proves
nothing by its silence. Exit 1: something was reported, a case failed, or the planted race was not
reported. Exit 2: there is no compute-sanitizer. Everything runs on CUDA, some 10 times slower.")]
pub(crate) struct SanitizeArgs {
    /// Only this tool (repeatable)
    #[arg(long = "tool", value_enum, value_name = "T")]
    tools: Vec<Tool>,
    /// Cases whose name contains this (repeatable); small ones of each tier when absent
    #[arg(long = "case", value_name = "PATTERN")]
    cases: Vec<String>,
    /// The program; looked for in CUDA_PATH, /usr/local/cuda and PATH when absent
    #[arg(long, value_name = "EXE")]
    compute_sanitizer: Option<OsString>,
    /// Launch the kernel with the planted race, and nothing else
    #[arg(long, hide = true)]
    planted: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A tool of compute-sanitizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Tool {
    /// Accesses outside of allocations, and misaligned ones.
    Memcheck,
    /// Accesses of shared memory that no barrier orders.
    Racecheck,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Tool::Memcheck => "memcheck",
            Tool::Racecheck => "racecheck",
        })
    }
}

/// Cases of every tier and kernel that end within seconds under the tools.
const SMALL: [&str; 10] = [
    "attend_forward/sizes/q37xkv65/f32",
    "attend_forward/split_roles/",
    "attend_forward/hopper/q129xkv130/bf16",
    "attend_forward/hopper/causal_bottom_right_q129xkv300/bf16",
    "attend_forward/hopper/lengths_both/bf16",
    "attend_forward/hopper_varlen/mixed/bf16",
    "attend_backward/sizes/",
    "merge_partials/partials/",
    "dequantize_int4/gptq_v2/",
    "hadamard_transform/sizes/",
];

/// One run of a tool.
#[derive(Debug, Serialize)]
struct Run {
    tool: Tool,
    case: String,
    /// What the tool counts in its summary; `None` where it printed none.
    findings: Option<u64>,
    /// What is wrong.
    failure: Option<String>,
}

pub(crate) fn run(args: &SanitizeArgs) -> Result<()> {
    if args.planted {
        return launch_planted();
    }
    let program = program(args)?;
    let tools = match &args.tools[..] {
        [] => Tool::value_variants(),
        some => some,
    };
    let cases: Vec<&str> = match &args.cases[..] {
        [] => SMALL.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    let mut runs = Vec::new();
    for &tool in tools {
        if tool == Tool::Racecheck {
            runs.push(planted_race(&program)?);
        }
        for &case in &cases {
            runs.push(clean(&program, tool, case)?);
        }
    }
    publish(args, &runs)?;
    let failed = runs.iter().filter(|run| run.failure.is_some()).count();
    match failed {
        0 => Ok(()),
        _ => Err(Failure::failed(format!(
            "{failed} of {} runs failed",
            runs.len()
        ))),
    }
}

/// The kernel that racecheck must report. Its result does not matter.
fn launch_planted() -> Result<()> {
    backend::prepare(&[BackendName::Cuda])?;
    let device = BackendName::Cuda.open()?;
    for mutant in mutants::plant(&device.client, Fault::BarrierDropped, DEFAULT_SEED) {
        if let Some(error) = mutant.error {
            return Err(Failure::failed(format!("{}: {error}", mutant.case)));
        }
    }
    Ok(())
}

fn program(args: &SanitizeArgs) -> Result<OsString> {
    if let Some(program) = &args.compute_sanitizer {
        return Ok(program.clone());
    }
    let toolkits = env::var_os("CUDA_PATH").map(PathBuf::from);
    let toolkits = toolkits
        .into_iter()
        .chain([PathBuf::from("/usr/local/cuda")]);
    let folders = toolkits.map(|toolkit| toolkit.join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let found = folders
        .chain(env::split_paths(&path))
        .map(|folder| folder.join("compute-sanitizer"))
        .find(|file| file.is_file());
    found.map(PathBuf::into_os_string).ok_or_else(|| {
        let hint = "it comes with the CUDA toolkit; --compute-sanitizer says where it is";
        Failure::missing("no compute-sanitizer", hint)
    })
}

/// Exit status of the tools when they report something.
const REPORTED: i32 = 86;

/// What the tool and the command under it printed, and whether both ended well.
fn under(program: &OsString, tool: Tool, command: &[&str]) -> Result<(String, bool)> {
    let own = probe::own_command()?;
    let output = Command::new(program)
        .args([
            "--tool",
            &tool.to_string(),
            "--error-exitcode",
            &REPORTED.to_string(),
        ])
        .arg(own.get_program())
        .args(command)
        .output()
        .map_err(|e| {
            let what = format!("cannot start {}: {e}", program.display());
            Failure::missing(what, "it comes with the CUDA toolkit")
        })?;
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok((text.concat(), output.status.success()))
}

/// The number in the tool's last summary line, such as `ERROR SUMMARY: 2 errors`.
fn findings(text: &str) -> Option<u64> {
    let mut summaries = text.lines().filter_map(|line| line.split_once("SUMMARY: "));
    let digits = |rest: &str| {
        rest.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
    };
    summaries
        .next_back()
        .and_then(|(_, rest)| digits(rest).parse().ok())
}

fn planted_race(program: &OsString) -> Result<Run> {
    let (text, _) = under(program, Tool::Racecheck, &["sanitize", "--planted"])?;
    let findings = findings(&text);
    let reported = findings.is_some_and(|count| count > 0);
    Ok(Run {
        tool: Tool::Racecheck,
        case: format!("planted: {}", Fault::BarrierDropped),
        findings,
        failure: (!reported).then(|| format!("the planted race is not reported\n{}", tail(&text))),
    })
}

fn clean(program: &OsString, tool: Tool, case: &str) -> Result<Run> {
    let command = ["verify", "--backend", "cuda", "--case", case];
    let (text, ended_well) = under(program, tool, &command)?;
    let findings = findings(&text);
    Ok(Run {
        tool,
        case: case.to_owned(),
        findings,
        failure: (findings != Some(0) || !ended_well).then(|| tail(&text)),
    })
}

/// The last lines, where tools and commands say what is wrong.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

fn publish(args: &SanitizeArgs, runs: &[Run]) -> Result<()> {
    if args.json {
        return output::print_json(&runs);
    }
    let mut table = Table::new(&["tool", "case", ">findings", "result"]);
    for run in runs {
        table.row([
            run.tool.to_string(),
            run.case.clone(),
            run.findings
                .map_or("-".to_owned(), |count| count.to_string()),
            if run.failure.is_some() {
                "FAIL"
            } else {
                "as expected"
            }
            .to_owned(),
        ]);
    }
    output::print(table)?;
    for run in runs.iter().filter(|run| run.failure.is_some()) {
        let why = run.failure.as_deref().unwrap_or_default();
        output::print(format_args!("\n{} {}:\n{why}\n", run.tool, run.case))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcube_catalogue::problems;

    #[test]
    fn the_last_summary_counts() {
        let race = "========= RACECHECK SUMMARY: 4 hazards displayed (4 errors, 0 warnings)\n";
        assert_eq!(findings(race), Some(4));
        let memory = "x\n========= ERROR SUMMARY: 0 errors\n";
        assert_eq!(findings(memory), Some(0));
        assert_eq!(findings(&[race, memory].concat()), Some(0));
        assert_eq!(findings("no summary"), None);
    }

    #[test]
    fn every_small_case_is_in_the_catalogue() {
        let names: Vec<String> = problems().into_iter().map(|problem| problem.name).collect();
        for case in SMALL {
            assert!(names.iter().any(|name| name.contains(case)), "{case}");
        }
    }
}
