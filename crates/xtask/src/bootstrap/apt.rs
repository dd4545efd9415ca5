//! System packages, where apt-get exists and we are root. Nothing asks for a password.

use std::process::Command;
use std::time::Duration;

use crate::command;
use crate::failure::Failure;
use crate::machine;

/// Installs the packages, or says who can and how.
pub(super) fn install(packages: &[&str]) -> Result<(), Failure> {
    let missing = |reason: String| Failure::SystemPackages {
        packages: packages.join(" "),
        reason,
    };
    if !machine::is_linux() || command::capture(Command::new("apt-get").arg("--version")).is_err() {
        let reason = "there is no apt-get here; install them with this system's package manager";
        return Err(missing(reason.to_owned()));
    }
    if !is_root() {
        let by_hand = format!(
            "sudo apt-get install --no-install-recommends {}",
            packages.join(" ")
        );
        return Err(missing(format!(
            "only root may install them; run `{by_hand}`"
        )));
    }
    eprintln!("      installing system packages {}", packages.join(" "));
    if command::capture(&mut apt_get(packages)).is_ok() {
        return Ok(());
    }
    // The package lists may be absent (containers) or too old to name files that still exist.
    let pause = Duration::from_secs(2);
    command::capture_with_retries(pause, || {
        let mut update = Command::new("apt-get");
        update.arg("update");
        update
    })?;
    command::capture_with_retries(pause, || apt_get(packages)).map(drop)
}

fn apt_get(packages: &[&str]) -> Command {
    let mut install = Command::new("apt-get");
    install
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive");
    install
}

fn is_root() -> bool {
    command::capture(Command::new("id").arg("-u")).is_ok_and(|user| user.trim() == "0")
}
