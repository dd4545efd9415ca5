//! `cargo xtask test`: every check of the project, and a table of how each went.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{self, Command};

use crate::bootstrap::vulkan::Driver;
use crate::bootstrap::{self, Report, Step};
use crate::cargo;
use crate::command;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::summary::Summary;

/// What the checks are told through the environment.
type Variables = Vec<(&'static str, OsString)>;

/// Runs everything; `false` when a step failed.
pub(crate) fn run(machine: &Machine) -> Result<bool, Failure> {
    let mut summary = Summary::default();
    let report = bootstrap_all(machine, &mut summary);
    let runtime = RuntimeDir::ensure()?;
    let mut variables = variables(&report, |name| env::var_os(name));
    variables.extend(runtime.variable());

    // Everything is built by one command first: the steps after it show what they take themselves.
    let built = summary.take("build", || {
        let mut build = cargo::cargo(machine, "build");
        build.args(["--release", "--workspace", "--all-targets"]);
        command::stream(&mut build)
    });
    if built {
        summary.take("tests", || {
            let mut test = cargo::cargo(machine, "test");
            test.args(["--release", "--workspace", "--no-fail-fast"])
                .envs(variables.clone());
            command::stream(&mut test)
        });
    } else {
        summary.skip("tests", "the build failed");
    }
    for (step, backend, arguments) in VERIFICATIONS {
        if !built {
            summary.skip(step, "the build failed");
        } else if let Some(reason) = backend.and_then(|needed| report.reason_missing(needed)) {
            summary.skip(step, reason);
        } else {
            summary.take(step, || verify(machine, arguments, &variables));
        }
    }
    println!("\n{summary}");
    Ok(summary.passed())
}

/// The runs of `flashcube verify`: name, the step that provides the backend, arguments.
const VERIFICATIONS: [(&str, Option<Step>, &[&str]); 4] = [
    ("verify cpu", None, &["--backend", "cpu"]),
    (
        "verify lavapipe",
        Some(Step::Lavapipe),
        &["--backend", "lavapipe"],
    ),
    (
        "verify swiftshader",
        Some(Step::Swiftshader),
        &["--backend", "swiftshader"],
    ),
    ("verify mutants", None, &["--mutants", "--backend", "cpu"]),
];

/// A step that cannot be had is told in the table, but fails nothing by itself: the checks that
/// need it do.
fn bootstrap_all(machine: &Machine, summary: &mut Summary) -> Report {
    let report = bootstrap::run(machine, &Step::ALL);
    for step in Step::ALL {
        if let Some(reason) = report.reason_missing(step) {
            summary.skip(&format!("bootstrap {}", step.name()), reason);
        }
    }
    report
}

/// The conformance table of one backend. The binary finds the driver of the backend it is asked
/// for by itself, so it must not inherit a choice of drivers.
fn verify(machine: &Machine, arguments: &[&str], variables: &Variables) -> Result<(), Failure> {
    let mut verify = Command::new(machine.flashcube_binary()?);
    verify
        .arg("verify")
        .args(arguments)
        .envs(variables.iter().cloned());
    verify.env_remove(DRIVERS);
    command::stream(&mut verify)
}

/// The Vulkan loader's list of driver manifests.
const DRIVERS: &str = "VK_ICD_FILENAMES";

/// Names the software drivers, and what must have run for the tests to pass. A choice of drivers
/// the user made already stays.
fn variables(report: &Report, inherited: impl Fn(&str) -> Option<OsString>) -> Variables {
    let mut backends = vec!["cpu"];
    let mut manifests: Vec<PathBuf> = Vec::new();
    for (step, driver) in [
        (Step::Lavapipe, Driver::Lavapipe),
        (Step::Swiftshader, Driver::Swiftshader),
    ] {
        if report.has(step) {
            backends.push(step.name());
            manifests.extend(driver.manifest());
        }
    }
    let mut variables: Variables = vec![("FLASHCUBE_REQUIRE_BACKENDS", backends.join(",").into())];
    for (step, requirement) in [
        (Step::Cuda, "FLASHCUBE_REQUIRE_CUDA_TOOLKIT"),
        (Step::Model, "FLASHCUBE_REQUIRE_MODEL"),
        (Step::TextModel, "FLASHCUBE_REQUIRE_TEXT_MODEL"),
        (Step::Texts, "FLASHCUBE_REQUIRE_TEXTS"),
    ] {
        if report.has(step) {
            variables.push((requirement, "1".into()));
        }
    }
    if inherited(DRIVERS).is_none()
        && !manifests.is_empty()
        && let Ok(joined) = env::join_paths(manifests)
    {
        variables.push((DRIVERS, joined));
    }
    variables
}

/// The folder XDG_RUNTIME_DIR names: Mesa complains on every start without one.
pub(crate) struct RuntimeDir {
    /// Set when the folder is ours, made for this run.
    own: Option<PathBuf>,
}

impl RuntimeDir {
    /// Makes a folder unless the environment names one.
    pub(crate) fn ensure() -> Result<Self, Failure> {
        if env::var_os("XDG_RUNTIME_DIR").is_some() {
            return Ok(Self { own: None });
        }
        let folder = env::temp_dir().join(format!("flashcube-runtime-{}", process::id()));
        fs::create_dir_all(&folder).map_err(Failure::io("create", &folder))?;
        Ok(Self { own: Some(folder) })
    }

    /// What to add to a child's environment.
    pub(crate) fn variable(&self) -> Option<(&'static str, OsString)> {
        self.own
            .as_ref()
            .map(|folder| ("XDG_RUNTIME_DIR", folder.clone().into()))
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        if let Some(folder) = &self.own {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::State;

    fn report(present: &[Step]) -> Report {
        let result = |step: &Step| {
            if present.contains(step) {
                Ok(State::Present(String::new()))
            } else {
                Err(Failure::NoDataDir)
            }
        };
        Report::of(Step::ALL.iter().map(|step| (*step, result(step))).collect())
    }

    fn value(variables: &Variables, name: &str) -> Option<String> {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.to_string_lossy().into_owned())
    }

    #[test]
    fn only_backends_that_are_there_are_required() {
        let none = variables(&report(&[]), |_| None);
        assert_eq!(
            value(&none, "FLASHCUBE_REQUIRE_BACKENDS").as_deref(),
            Some("cpu")
        );
        assert_eq!(value(&none, "FLASHCUBE_REQUIRE_CUDA_TOOLKIT"), None);
        assert_eq!(value(&none, DRIVERS), None);

        let all = variables(&report(&Step::ALL), |_| None);
        let required = value(&all, "FLASHCUBE_REQUIRE_BACKENDS");
        assert_eq!(required.as_deref(), Some("cpu,lavapipe,swiftshader"));
        assert_eq!(
            value(&all, "FLASHCUBE_REQUIRE_CUDA_TOOLKIT").as_deref(),
            Some("1")
        );
    }

    #[test]
    fn drivers_chosen_by_the_user_stay() {
        let chosen = variables(&report(&Step::ALL), |name| {
            (name == DRIVERS).then(|| "x".into())
        });
        assert_eq!(value(&chosen, DRIVERS), None);
    }
}
