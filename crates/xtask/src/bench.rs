//! `cargo xtask bench`: criterion over benches/.

use std::ffi::OsString;

use crate::bootstrap::{self, Step};
use crate::cargo;
use crate::command;
use crate::failure::Failure;
use crate::machine::Machine;

/// Runs the named benchmarks (all when none is named) and hands `criterion` on.
///
/// The profile is the one of tests and demo, and the workspace is selected rather than the
/// package, so that nothing is compiled again (see [`cargo::build_binaries`]).
pub(crate) fn run(
    machine: &Machine,
    names: &[String],
    criterion: &[OsString],
) -> Result<bool, Failure> {
    bootstrap::run(machine, &[Step::Tools, Step::Llvm]);
    let mut bench = cargo::cargo(machine, "bench");
    bench
        .args(["--profile", "release", "--workspace"])
        .args(targets(names));
    if !criterion.is_empty() {
        bench.arg("--").args(criterion);
    }
    command::stream(&mut bench)?;
    Ok(true)
}

/// Benchmarks only: the test harness of a library would refuse criterion's options.
fn targets(names: &[String]) -> Vec<String> {
    let all = ["*".to_owned()];
    let names = if names.is_empty() { &all } else { names };
    names
        .iter()
        .flat_map(|name| ["--bench".to_owned(), name.clone()])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_benchmarks_are_selected_when_none_is_named() {
        assert_eq!(targets(&[]), ["--bench", "*"]);
    }

    #[test]
    fn each_named_benchmark_is_selected() {
        let names = ["host".to_owned(), "kernels".to_owned()];
        assert_eq!(targets(&names), ["--bench", "host", "--bench", "kernels"]);
    }
}
