//! `cargo xtask`: the commands that prepare a machine, show the main job, and check everything.
//!
//! This package is compiled before anything else, so it needs clap and the standard library only;
//! above all it must not need LLVM, because it is what installs LLVM for the other packages.

mod bench;
mod bootstrap;
mod cargo;
mod checks;
mod command;
mod demo;
mod failure;
mod machine;
mod staging;
mod summary;
mod wheels;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use bootstrap::Step;
use failure::Failure;
use machine::Machine;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Prepare a machine, run the demo, check everything",
    after_help = "On a fresh clone two commands are enough:\n  \
        cargo xtask demo    the main job on real input\n  \
        cargo xtask test    every check, with a summary table\n\n\
        The first build compiles CubeCL and its LLVM and wgpu backends: about ten minutes on two \
        cores, once. All commands share one profile and one set of features, so that this is \
        paid only once."
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Encode sentences with MiniLM, every attention computed by our kernel and checked
    Demo(DemoArgs),
    /// Run every test, then verify each backend and the sabotaged kernels
    Test,
    /// Time the kernels with criterion, after checking their results
    Bench(BenchArgs),
    /// Fetch what this machine lacks: compilers, LLVM, CUDA compilers, software Vulkan, the model
    Bootstrap(BootstrapArgs),
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask demo\n  \
    cargo xtask demo \"A cat sleeps.\" \"A kitten naps.\" \"Stocks fell.\"\n\n\
    Fetches the model (84 MB) the first time. Everything after `demo` goes to `flashcube demo`, \
    whose options `cargo xtask demo -- --help` lists.")]
struct DemoArgs {
    /// Sentences to compare instead of the built-in ones, and options of `flashcube demo`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    sentences: Vec<OsString>,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask bench                      every benchmark\n  \
    cargo xtask bench --bench kernels      the kernels, or `host`: reference, number formats, packings\n  \
    cargo xtask bench -- --quick d128      options and filter of criterion")]
struct BenchArgs {
    /// Run this binary of benches/ only (repeatable)
    #[arg(long, value_name = "NAME")]
    bench: Vec<String>,
    /// Options and filter passed on to criterion
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    criterion: Vec<OsString>,
}

#[derive(Args)]
#[command(
    after_help = "Every step looks first and does nothing when all is there, so running it \
    again is cheap. Downloads go to the user's data folder ($XDG_DATA_HOME, else ~/.local/share); \
    system packages are installed with apt-get, and only as root. The exit status is 1 when a \
    step could not be completed; its lines say why and what works without it."
)]
struct BootstrapArgs {
    /// Steps to take; all of them when none is named
    #[arg(value_enum, value_name = "STEP")]
    steps: Vec<Step>,
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one task; `false` when it ran to its end and something in it failed.
fn run(task: Task) -> Result<bool, Failure> {
    let machine = Machine::detect()?;
    match task {
        Task::Demo(args) => demo::run(&machine, &args.sentences),
        Task::Test => checks::run(&machine),
        Task::Bench(args) => bench::run(&machine, &args.bench, &args.criterion),
        Task::Bootstrap(args) => {
            let steps = if args.steps.is_empty() {
                &Step::ALL[..]
            } else {
                &args.steps[..]
            };
            let report = bootstrap::run(&machine, steps);
            Ok(report.is_complete())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn demo_forwards_sentences_and_options() {
        let parsed = Cli::try_parse_from(["xtask", "demo", "one", "--backend", "cpu", "two"]);
        let Ok(Cli {
            task: Task::Demo(args),
        }) = parsed
        else {
            panic!("demo was not parsed")
        };
        assert_eq!(args.sentences, ["one", "--backend", "cpu", "two"]);
    }

    #[test]
    fn bench_separates_file_names_from_criterion_options() {
        let parsed = Cli::try_parse_from(["xtask", "bench", "--bench", "codecs", "--", "--quick"]);
        let Ok(Cli {
            task: Task::Bench(args),
        }) = parsed
        else {
            panic!("bench was not parsed")
        };
        assert_eq!(args.bench, ["codecs"]);
        assert_eq!(args.criterion, ["--quick"]);
    }

    #[test]
    fn bootstrap_takes_step_names_and_refuses_others() {
        let parsed = Cli::try_parse_from(["xtask", "bootstrap", "llvm", "model"]);
        let Ok(Cli {
            task: Task::Bootstrap(args),
        }) = parsed
        else {
            panic!("not parsed")
        };
        assert_eq!(args.steps, [Step::Llvm, Step::Model]);
        assert!(Cli::try_parse_from(["xtask", "bootstrap", "everything"]).is_err());
    }
}
