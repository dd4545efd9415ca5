//! `cargo xtask demo`: what the demo needs, then the demo itself.

use std::ffi::OsString;
use std::process::Command;

use crate::bootstrap::{self, Step};
use crate::cargo;
use crate::checks::RuntimeDir;
use crate::command;
use crate::failure::Failure;
use crate::machine::Machine;

/// Lavapipe gives the demo a second backend to time. SwiftShader would too, but installing a
/// browser for it is left to `test` and `bootstrap`.
const STEPS: [Step; 4] = [Step::Tools, Step::Llvm, Step::Lavapipe, Step::Model];

/// Runs `flashcube demo` with the given arguments, in the folder the user is in.
pub(crate) fn run(machine: &Machine, arguments: &[OsString]) -> Result<bool, Failure> {
    let report = bootstrap::run(machine, &STEPS);
    if report.reason_missing(Step::Model).is_some() {
        eprintln!("error: the demo needs the model, which could not be had (see above)");
        return Ok(false);
    }
    cargo::build_binaries(machine)?;
    let runtime = RuntimeDir::ensure()?;
    let mut demo = Command::new(machine.flashcube_binary()?);
    demo.arg("demo").args(arguments).envs(runtime.variable());
    command::stream(&mut demo)?;
    Ok(true)
}
