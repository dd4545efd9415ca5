//! Several backends: each in a child process, since a process can hold one Vulkan driver.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{self, Stdio};

use serde::Serialize;
use serde_json::Value;

use super::VerifyArgs;
use crate::backend::BackendName;
use crate::failure::{Failure, Result};
use crate::output;
use crate::probe::{self, BackendReport, State};

/// How a backend's run ended.
#[derive(Serialize)]
struct Ended {
    backend: BackendName,
    /// Its exit code; none when a signal ended it or it was not started.
    code: Option<i32>,
    /// Why it was not run.
    not_run: Option<String>,
    /// Its own report.
    report: Option<Value>,
}

pub(super) fn run(args: &VerifyArgs) -> Result<()> {
    let backends = match &args.backends[..] {
        [] => &BackendName::ALL[..],
        asked => asked,
    };
    let mut ended = Vec::new();
    for &backend in backends {
        ended.push(match absence(backend, args.backends.is_empty())? {
            Some(reason) => Ended {
                backend,
                code: None,
                not_run: Some(reason),
                report: None,
            },
            None => verify(args, backend)?,
        });
        if !args.json {
            output::print("\n")?;
        }
    }
    if args.json {
        output::print_json(&ended)?;
    } else {
        summarize(&ended)?;
    }
    verdict(args, &ended)
}

/// Why the backend is not run; none when it is.
fn absence(backend: BackendName, all: bool) -> Result<Option<String>> {
    let report = BackendReport::elsewhere(backend)?;
    Ok(match report.state {
        State::Missing { reason, install } => Some(format!("{reason}; {install}")),
        // Among all backends the software drivers have rows of their own.
        State::Present(device) if all && backend == BackendName::Wgpu && device.software => Some(
            format!("its first adapter is a software one, {}", device.device),
        ),
        State::Present(_) => None,
    })
}

fn verify(args: &VerifyArgs, backend: BackendName) -> Result<Ended> {
    let file = ReportFile::new(backend);
    let mut command = probe::own_command()?;
    command
        .args(["verify", "--backend", &backend.to_string()])
        .args(["--seed", &args.seed().to_string()])
        .arg("--report")
        .arg(&file.path);
    if let Some(kernel) = args.kernel {
        command.args(["--kernel", &kernel.to_string()]);
    }
    if let Some(case) = &args.case {
        command.args(["--case", case]);
    }
    if let Some(shard) = args.shard {
        command.args(["--shard", &shard.to_string()]);
    }
    if !args.mutants {
        command.args(["--repeat", &args.repeat.to_string()]);
        command.args(["--streams", &args.streams.to_string()]);
    }
    for (flag, on) in [("--core", args.core), ("--mutants", args.mutants)] {
        if on {
            command.arg(flag);
        }
    }
    if args.json {
        command.stdout(Stdio::null());
    }
    let status = command
        .status()
        .map_err(|e| Failure::failed(format!("cannot start a process of itself: {e}")))?;
    Ok(Ended {
        backend,
        code: status.code(),
        not_run: None,
        report: file.read(),
    })
}

/// A file for the child's report, removed when done.
struct ReportFile {
    path: PathBuf,
}

impl ReportFile {
    fn new(backend: BackendName) -> Self {
        let name = format!("flashcube-verify-{}-{backend}.json", process::id());
        Self {
            path: env::temp_dir().join(name),
        }
    }

    fn read(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(&self.path).ok()?).ok()
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        // It does not exist when the child did not get as far as writing it.
        let _ = fs::remove_file(&self.path);
    }
}

impl Ended {
    fn counts(&self) -> [u64; 3] {
        let summary = self.report.as_ref().map(|report| &report["summary"]);
        ["passed", "failed", "not_run"]
            .map(|key| summary.and_then(|s| s[key].as_u64()).unwrap_or(0))
    }

    fn line(&self) -> String {
        if let Some(reason) = &self.not_run {
            return format!("{:<12} not run: {reason}\n", self.backend);
        }
        let [passed, failed, not_run] = self.counts();
        let end = match (self.code, &self.report) {
            (Some(0), _) => "",
            (Some(_), Some(_)) => "  FAIL",
            _ => "  FAIL: the process ended early",
        };
        format!(
            "{:<12} {passed} passed, {failed} failed, {not_run} not run{end}\n",
            self.backend
        )
    }
}

fn summarize(ended: &[Ended]) -> Result<()> {
    let mut total = [0; 3];
    for end in ended {
        output::print(end.line())?;
        for (sum, count) in total.iter_mut().zip(end.counts()) {
            *sum += count;
        }
    }
    let [passed, failed, not_run] = total;
    output::print(format_args!(
        "{passed} passed, {failed} failed, {not_run} not run\n"
    ))
}

fn verdict(args: &VerifyArgs, ended: &[Ended]) -> Result<()> {
    let wrong = |end: &&Ended| end.not_run.is_none() && end.code != Some(0);
    let failed: Vec<String> = ended
        .iter()
        .filter(wrong)
        .map(|end| end.backend.to_string())
        .collect();
    if !failed.is_empty() {
        return Err(Failure::failed(format!("failed on {}", failed.join(", "))));
    }
    let absent = |end: &&Ended| args.backends.contains(&end.backend) && end.not_run.is_some();
    match ended.iter().find(absent) {
        Some(end) => Err(Failure::missing(
            format!("backend {} is not there", end.backend),
            end.backend.install_hint(),
        )),
        None => Ok(()),
    }
}
