//! The `flashcube` command.

mod attention;
mod backend;
mod bench;
mod compare;
mod convert;
mod decoder;
mod demo;
mod doctor;
mod drift;
mod driver;
mod elements;
mod failure;
mod generate;
mod inspect;
mod lower;
mod output;
mod perplexity;
mod probe;
mod quantize;
mod sanitize;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Attention and quantization kernels, written once in CubeCL: verify, lower, measure; quantize and
/// run models.
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
    Quantize(quantize::QuantizeArgs),
    Inspect(inspect::InspectArgs),
    Convert(convert::ConvertArgs),
    Perplexity(perplexity::PerplexityArgs),
    Drift(drift::DriftArgs),
    Generate(generate::GenerateArgs),
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
        Command::Quantize(args) => quantize::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Perplexity(args) => perplexity::run(args),
        Command::Drift(args) => drift::run(args),
        Command::Generate(args) => generate::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
