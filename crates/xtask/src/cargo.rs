//! Calling cargo for the other packages.

use std::env;
use std::process::Command;

use crate::command;
use crate::failure::Failure;
use crate::machine::Machine;

/// `cargo SUBCOMMAND --locked` at the root of the checkout.
pub(crate) fn cargo(machine: &Machine, subcommand: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo
        .args([subcommand, "--locked"])
        .current_dir(&machine.root);
    // `cargo run` describes this package in the environment; some build scripts watch those
    // variables and would run again.
    let ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in env::vars_os().filter(|(name, _)| ours(&name.to_string_lossy())) {
        cargo.env_remove(name);
    }
    cargo
}

/// Builds the command line tools.
///
/// The whole workspace and `--examples` are selected because they decide the features of shared
/// dependencies (examples bring in those of the dev-dependencies): with the same set as
/// `cargo test --workspace`, CubeCL and LLVM's bindings are compiled once, not once per command.
pub(crate) fn build_binaries(machine: &Machine) -> Result<(), Failure> {
    let mut build = cargo(machine, "build");
    build.args(["--release", "--workspace", "--bins", "--examples"]);
    command::stream(&mut build)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_runs_locked_at_the_root_without_this_package_in_its_environment() {
        let machine = Machine::detect().unwrap();
        let command = cargo(&machine, "test");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["test", "--locked"]);
        assert_eq!(command.get_current_dir(), Some(machine.root.as_path()));
        // Tests run under cargo, which sets this one.
        let removed = command
            .get_envs()
            .any(|(name, value)| name == "CARGO_PKG_NAME" && value.is_none());
        assert!(removed);
    }
}
