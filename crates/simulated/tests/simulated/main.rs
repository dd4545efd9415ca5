//! The library's kernels on simulated GPUs, against the reference and within the catalogue's bounds.
//!
//! Tests need the CUDA toolkit's compilers and are listed as ignored, with the reason, where there are none. With
//! FLASHCUBE_REQUIRE_CUDA_TOOLKIT=1 they run and fail instead. Of the Blackwell tier's problems every run takes those
//! that `conformance` names; `--include-ignored` takes all.

mod accuracy;
mod conformance;
mod faults;
mod instructions;
mod operands;

use std::process::ExitCode;

use flashcube_lowering::Toolkit;
use libtest_mimic::{Arguments, Trial};

/// Name and body of a test.
type Named = (&'static str, fn());

fn main() -> ExitCode {
    let required = std::env::var("FLASHCUBE_REQUIRE_CUDA_TOOLKIT").is_ok_and(|value| value == "1");
    let absent = Toolkit::find().err();
    if let Some(error) = &absent {
        eprintln!("not run: no CUDA toolkit ({error})");
    }
    let skip = absent.is_some() && !required;
    let trial = |name: String, ignored: bool, body: Box<dyn FnOnce() + Send>| {
        let run = move || {
            body();
            Ok(())
        };
        let trial = Trial::test(name, run).with_ignored_flag(skip || ignored);
        if skip {
            trial.with_kind("not run: no CUDA toolkit")
        } else {
            trial
        }
    };
    let mut trials: Vec<Trial> = conformance::TESTS
        .iter()
        .chain(accuracy::TESTS)
        .chain(faults::TESTS)
        .chain(instructions::TESTS)
        .chain(operands::TESTS)
        .map(|&(name, body)| trial(name.to_owned(), false, Box::new(body)))
        .collect();
    trials.extend(conformance::blackwell().into_iter().map(|(name, always)| {
        let problem = name.clone();
        let body = move || conformance::blackwell_passes(&problem);
        trial(name, !always, Box::new(body))
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
