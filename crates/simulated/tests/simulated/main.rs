//! The library's kernels on simulated GPUs, against the reference and within the catalogue's bounds.
//!
//! Tests need the CUDA toolkit's compilers and are listed as ignored, with the reason, where there are none. With
//! FLASHCUBE_REQUIRE_CUDA_TOOLKIT=1 they run and fail instead.

mod conformance;

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
    let trials = conformance::TESTS.iter().map(|&(name, body)| {
        let run = move || {
            body();
            Ok(())
        };
        let trial = Trial::test(name, run).with_ignored_flag(skip);
        if skip {
            trial.with_kind("not run: no CUDA toolkit")
        } else {
            trial
        }
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
