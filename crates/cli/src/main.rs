//! The `flashcube` command.

mod backend;
mod bench;
mod compare;
mod demo;
mod doctor;
mod driver;
mod failure;
mod lower;
mod output;
mod probe;
mod sanitize;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Attention, merge, dequantize and Hadamard kernels, written once in CubeCL: inspect, verify, lower, measure.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Exit codes: 0 all is well; 1 something ran and is wrong, or a required check did not run;
2 a backend or tool that was asked for is not there, or the request makes no sense. Anything else
is a crash of the program or of a driver.

Start with `flashcube doctor`."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Doctor(doctor::DoctorArgs),
    Demo(demo::SentenceArgs),
    Verify(verify::VerifyArgs),
    ExportProblem(verify::ExportArgs),
    Lower(lower::LowerArgs),
    Bench(bench::BenchArgs),
    Compare(compare::CompareArgs),
    Sanitize(sanitize::SanitizeArgs),
}

fn main() -> ExitCode {
    let result = match &Cli::parse().command {
        Command::Doctor(args) => doctor::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Verify(args) => verify::run(args),
        Command::ExportProblem(args) => verify::export(args),
        Command::Lower(args) => lower::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Sanitize(args) => sanitize::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
