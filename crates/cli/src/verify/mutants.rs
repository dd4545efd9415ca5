//! Sabotaged kernels on one backend.

use std::collections::BTreeMap;

use flashcube_catalogue::mutants::{self, Mutant};
use serde::Serialize;

use super::VerifyArgs;
use super::suite::{Json, Summary, progress_bar, write_report};
use crate::backend::{BackendName, Device};
use crate::failure::{Failure, Result};
use crate::output::{self, Table};

/// All mutants of a backend.
#[derive(Serialize)]
struct Mutants {
    backend: BackendName,
    device: String,
    seed: u64,
    mutants: Vec<Mutant>,
    /// Faults that no case noticed.
    unnoticed: Vec<String>,
}

pub(super) fn run(args: &VerifyArgs, device: &Device) -> Result<()> {
    let bar = progress_bar(mutants::count());
    let mutants = mutants::run(&device.client, args.seed(), |mutant| {
        bar.inc(1);
        bar.set_message(mutant.fault.clone());
    });
    bar.finish_and_clear();
    let summary = summarize(&mutants);
    let report = Mutants {
        backend: device.backend,
        device: device.adapter().to_owned(),
        seed: args.seed(),
        unnoticed: unnoticed(&mutants),
        mutants,
    };
    write_report(
        args,
        &Json {
            summary,
            report: &report,
        },
    )?;
    if !args.json {
        let title = device.title();
        output::print(format_args!(
            "{title}, seed {}\n{}",
            report.seed,
            table(&report)
        ))?;
        let Summary {
            passed,
            failed,
            not_run,
        } = summary;
        output::print(format_args!(
            "{}: {passed} passed (noticed), {failed} failed, {not_run} not run\n",
            report.backend
        ))?;
    }
    if summary.failed == 0 && report.unnoticed.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{}: {} sabotaged runs passed for right; faults that no case noticed: {}",
        report.backend,
        summary.failed,
        match report.unnoticed.is_empty() {
            true => "none".to_owned(),
            false => report.unnoticed.join(", "),
        }
    )))
}

/// Passed: noticed. Not run: the device could not launch it.
fn summarize(mutants: &[Mutant]) -> Summary {
    let mut summary = Summary::default();
    for mutant in mutants {
        *match (&mutant.caught, &mutant.error) {
            (Some(_), _) => &mut summary.passed,
            (None, Some(_)) => &mut summary.not_run,
            (None, None) => &mut summary.failed,
        } += 1;
    }
    summary
}

/// A fault must be noticed by at least one case, also where others could not run.
fn unnoticed(mutants: &[Mutant]) -> Vec<String> {
    let mut noticed: BTreeMap<&str, bool> = BTreeMap::new();
    for mutant in mutants {
        *noticed.entry(&mutant.fault).or_default() |= mutant.passed();
    }
    noticed
        .into_iter()
        .filter(|(_, noticed)| !noticed)
        .map(|(fault, _)| fault.to_owned())
        .collect()
}

fn table(report: &Mutants) -> Table {
    let mut table = Table::new(&["result", "fault", "case", "noticed by"]);
    for mutant in &report.mutants {
        let (result, what) = match (&mutant.caught, &mutant.error) {
            (Some(caught), _) => ("pass", caught.clone()),
            (None, Some(error)) => ("not run", error.clone()),
            (None, None) => ("FAIL", "nothing: the sabotaged kernel passes".to_owned()),
        };
        table.row([
            result.to_owned(),
            mutant.fault.clone(),
            mutant.case.clone(),
            what,
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(fault: &str, caught: bool, error: bool) -> Mutant {
        Mutant {
            fault: fault.into(),
            case: "case".into(),
            blueprint: None,
            caught: caught.then(|| "out is off".into()),
            error: error.then(|| "no device".into()),
        }
    }

    #[test]
    fn fault_that_no_case_notices_is_named() {
        let mutants = [
            mutant("seen", true, false),
            mutant("seen", false, true),
            mutant("untried", false, true),
            mutant("missed", false, false),
        ];
        let Summary {
            passed,
            failed,
            not_run,
        } = summarize(&mutants);
        assert_eq!((passed, failed, not_run), (1, 1, 2));
        assert_eq!(unnoticed(&mutants), ["missed", "untried"]);
    }
}
