//! Lowers small kernels for every architecture, without a GPU, and plants each kind of fault.
//!
//! Tests that need the CUDA toolkit are listed as ignored, with the reason, where there is none. With
//! FLASHCUBE_REQUIRE_CUDA_TOOLKIT=1 they run and fail instead.

mod kernels;
mod library;
mod model;
mod seam;
mod toolkit;

use std::process::ExitCode;

use flashcube_lowering::{Cache, Toolkit};
use libtest_mimic::{Arguments, Trial};

/// Bytes of results that are kept: those of two commits or so.
const CACHED: u64 = 2 << 30;

/// Name and body of a test.
type Named = (&'static str, fn());

fn main() -> ExitCode {
    // Kernels printed by another process are compared with ours; see `seam::source_is_the_same_in_every_process`.
    if std::env::var_os(seam::PRINT_HASH).is_some() {
        println!("{}", seam::hash_of_every_kernel());
        return ExitCode::SUCCESS;
    }
    let required = std::env::var("FLASHCUBE_REQUIRE_CUDA_TOOLKIT").is_ok_and(|value| value == "1");
    let absent = Toolkit::find().err();
    if let Some(error) = &absent {
        eprintln!("not run: no CUDA toolkit ({error})");
    }
    let skip = absent.is_some() && !required;
    let mut trials: Vec<Trial> = seam::TESTS
        .iter()
        .chain(library::WITHOUT_TOOLKIT)
        .chain(model::WITHOUT_TOOLKIT)
        .map(|&(name, body)| Trial::test(name, move || passed(body)))
        .collect();
    let with_toolkit = toolkit::TESTS.iter().chain(library::WITH_TOOLKIT);
    let with_toolkit = with_toolkit.chain(model::WITH_TOOLKIT);
    trials.extend(with_toolkit.map(|&(name, body)| {
        let trial = Trial::test(name, move || passed(body)).with_ignored_flag(skip);
        if skip {
            trial.with_kind("not run: no CUDA toolkit")
        } else {
            trial
        }
    }));
    let exit = libtest_mimic::run(&Arguments::from_args(), trials).exit_code();
    Cache::user().trim(CACHED);
    exit
}

fn passed(body: fn()) -> Result<(), libtest_mimic::Failed> {
    body();
    Ok(())
}
