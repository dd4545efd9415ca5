//! The conformance table of one backend.

use std::fs;

use cubecl::prelude::Client;
use flashcube_catalogue::{
    self as catalogue, Filter, Measure, Outcome, Relative, Repeats, Report, Row,
};
use indicatif::ProgressBar;
use serde::Serialize;

use super::VerifyArgs;
use crate::failure::{Failure, Result};
use crate::output;

/// The JSON of a run.
#[derive(Serialize)]
pub(super) struct Json<'a, T> {
    pub(super) summary: Summary,
    #[serde(flatten)]
    pub(super) report: &'a T,
}

/// How many rows ended how.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Summary {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) not_run: usize,
}

pub(super) fn run(args: &VerifyArgs, title: &str, client: &Client) -> Result<()> {
    let filter = Filter {
        kernel: args.kernel,
        dtype: None,
        name: args.case.clone(),
        core: args.core,
        shard: args.shard,
    };
    let wanted = filter.problems();
    if wanted.is_empty() {
        return Err(Failure::usage(
            "no case matches",
            "`flashcube export-problem --list` shows every name",
        ));
    }
    let width = wanted.iter().map(|p| p.name.len()).max().unwrap_or(0);
    let quiet = args.json;
    if !quiet {
        let seed = args.seed();
        output::print(format_args!("{title}, seed {seed}\n{}\n", header(width)))?;
    }
    let bar = progress_bar(wanted.len());
    // A closed pipe must not end the run before its verdict: the first failure to print is kept.
    let mut printed = Ok(());
    let repeats = Repeats {
        runs: args.repeat as usize,
        streams: args.streams as usize,
    };
    let report = catalogue::run_repeatedly(client, &filter, args.seed(), repeats, |row| {
        bar.inc(1);
        bar.set_message(row.case.clone());
        if !quiet && printed.is_ok() {
            printed = bar.suspend(|| output::print(lines(row, width)));
        }
    });
    bar.finish_and_clear();
    printed?;
    conclude(args, &report)
}

/// A bar on stderr, invisible where that is no terminal.
pub(super) fn progress_bar(len: usize) -> ProgressBar {
    let bar = ProgressBar::new(len as u64);
    let style = indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn conclude(args: &VerifyArgs, report: &Report) -> Result<()> {
    let [passed, failed, not_run] = report.counts();
    let summary = Summary {
        passed,
        failed,
        not_run,
    };
    write_report(args, &Json { summary, report })?;
    if !args.json {
        for row in &report.missing {
            output::print(format_args!("required but not run: {row}\n"))?;
        }
        output::print(format_args!("{}\n", report.summary()))?;
    }
    if report.passed() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{}: {failed} of {} cases failed, {} required rows did not run",
        report.backend,
        report.rows.len(),
        report.missing.len()
    )))
}

/// JSON to stdout and to the file, as far as asked for.
pub(super) fn write_report(args: &VerifyArgs, json: &impl Serialize) -> Result<()> {
    if let Some(path) = &args.report {
        let text = serde_json::to_string(json).map_err(Failure::failed)?;
        fs::write(path, text)
            .map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))?;
    }
    if args.json {
        output::print_json(json)?;
    }
    Ok(())
}

fn header(width: usize) -> String {
    format!(
        "{:<7}  {:<width$}  {:<10}  {:>9}  {:>9}  {:>9}  blueprint, or what is wrong",
        "result", "case", "output", "max", "rms", "bound"
    )
}

/// One line for each output of a row.
fn lines(row: &Row, width: usize) -> String {
    let (result, reason) = match &row.outcome {
        Outcome::Passed => ("pass", None),
        Outcome::Failed(reason) => ("FAIL", Some(reason)),
        Outcome::NotRun(reason) => ("not run", Some(reason)),
    };
    let blueprint = row.blueprint.as_deref().unwrap_or("nothing to launch");
    let tail = reason.map_or(blueprint, String::as_str);
    let case = &row.case;
    if row.measures.is_empty() {
        let gap = "";
        return format!("{result:<7}  {case:<width$}  {gap:<43}  {tail}\n");
    }
    row.measures
        .iter()
        .map(|m| {
            let relative = m
                .relative
                .map_or(String::new(), |Relative { largest, eps }| {
                    format!("{largest:.2e} of sum |a b|, eps {eps:.2e}: ")
                });
            format!(
                "{result:<7}  {case:<width$}  {}  {relative}{tail}\n",
                cells(m)
            )
        })
        .collect()
}

/// Name, largest and RMS error of an output, and the bound of its worst element.
pub(super) fn cells(measure: &Measure) -> String {
    let Measure {
        output,
        max,
        rms,
        bound,
        ..
    } = measure;
    format!("{output:<10}  {max:>9.2e}  {rms:>9.2e}  {bound:>9.2e}")
}
