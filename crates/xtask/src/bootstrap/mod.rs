//! `cargo xtask bootstrap`: fetches what the machine lacks, and says so where it cannot.

mod apt;
mod cuda;
mod llvm;
mod model;
mod tools;
pub(crate) mod vulkan;

use clap::ValueEnum;

use crate::failure::Failure;
use crate::machine::Machine;
use vulkan::Driver;

/// One thing a machine may lack. The order is that of installation: each needs only earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// python3, pip and g++ (system packages)
    Tools,
    /// LLVM 23.1, which CubeCL's CPU and CUDA backends are built with (92 MB, 400 MB on disk)
    Llvm,
    /// NVRTC, ptxas and cuobjdump of CUDA 13.0, for `flashcube lower` without a GPU (200 MB, 500
    /// MB on disk)
    Cuda,
    /// Mesa's software Vulkan driver (system packages)
    Lavapipe,
    /// Chromium's software Vulkan driver, the strictest one (system package)
    Swiftshader,
    /// The sentence model of the demo, all-MiniLM-L6-v2 (84 MB)
    Model,
    /// The text model to quantize and to generate with, SmolLM2-135M-Instruct (93 MB)
    TextModel,
    /// Texts to calibrate quantization with (2 MB)
    Texts,
}

/// What a successful step found or did, with a place or version for the reader.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    Present(String),
    Installed(String),
}

impl Step {
    pub(crate) const ALL: [Self; 8] = [
        Self::Tools,
        Self::Llvm,
        Self::Cuda,
        Self::Lavapipe,
        Self::Swiftshader,
        Self::Model,
        Self::TextModel,
        Self::Texts,
    ];

    /// The name used on the command line and in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Llvm => "llvm",
            Self::Cuda => "cuda",
            Self::Lavapipe => "lavapipe",
            Self::Swiftshader => "swiftshader",
            Self::Model => "model",
            Self::TextModel => "text-model",
            Self::Texts => "texts",
        }
    }

    fn take(self, machine: &Machine) -> Result<State, Failure> {
        match self {
            Self::Tools => tools::ensure(),
            Self::Llvm => llvm::ensure(machine),
            Self::Cuda => cuda::ensure(machine),
            Self::Lavapipe => vulkan::ensure(Driver::Lavapipe),
            Self::Swiftshader => vulkan::ensure(Driver::Swiftshader),
            Self::Model => model::SENTENCE_MODEL.ensure(machine),
            Self::TextModel => model::TEXT_MODEL.ensure(machine),
            Self::Texts => model::TEXTS.ensure(machine),
        }
    }

    /// What the reader still has when this step fails.
    fn without_it(self) -> &'static str {
        match self {
            Self::Tools => "whatever needs no download: the later steps are tried all the same",
            Self::Llvm => {
                "the build, where it reaches GitHub: it then downloads the same LLVM by itself; \
                 the packages reference and formats need no LLVM"
            }
            Self::Cuda => {
                "everything but PTX, SASS and reports from `flashcube lower`; it prints CUDA C++ \
                 and WGSL without a toolkit"
            }
            Self::Lavapipe | Self::Swiftshader => {
                "every other backend; checks on this one are shown as not run"
            }
            Self::Model => "everything but `cargo xtask demo`",
            Self::TextModel => "quantization of models of your own",
            Self::Texts => "quantization with a text of your own: `--calib FILE`",
        }
    }
}

/// How each step went.
pub(crate) struct Report {
    results: Vec<(Step, Result<State, Failure>)>,
}

impl Report {
    #[cfg(test)]
    pub(crate) fn of(results: Vec<(Step, Result<State, Failure>)>) -> Self {
        Self { results }
    }

    /// True when every step that was asked for is there.
    pub(crate) fn is_complete(&self) -> bool {
        self.results.iter().all(|(_, result)| result.is_ok())
    }

    /// True when the step was taken and its object is there.
    pub(crate) fn has(&self, step: Step) -> bool {
        self.results
            .iter()
            .any(|(taken, result)| *taken == step && result.is_ok())
    }

    /// Why the step's object is not there; `None` when it is.
    pub(crate) fn reason_missing(&self, step: Step) -> Option<String> {
        match self.results.iter().find(|(taken, _)| *taken == step) {
            Some((_, Ok(_))) => None,
            Some((_, Err(failure))) => Some(failure.to_string()),
            None => Some(format!("step {} was not taken", step.name())),
        }
    }
}

/// Takes the steps in order and prints a line for each; a failed one does not stop the others.
pub(crate) fn run(machine: &Machine, steps: &[Step]) -> Report {
    eprintln!("bootstrap, data in {}", machine.data_dir.display());
    let results = steps.iter().map(|step| {
        let result = step.take(machine);
        eprintln!("{}", line(*step, &result));
        (*step, result)
    });
    Report {
        results: results.collect(),
    }
}

/// `  name         state          detail`, with the reason and what still works on failure.
fn line(step: Step, result: &Result<State, Failure>) -> String {
    let (state, detail) = match result {
        Ok(State::Present(detail)) => ("present", detail.clone()),
        Ok(State::Installed(detail)) => ("installed", detail.clone()),
        Err(failure) => ("cannot be had", format!("{failure}")),
    };
    let mut line = format!("  {:11}  {state:13}  {detail}", step.name());
    if result.is_err() {
        line += &format!("\n  {:11}  {:13}  {}", "", "still works", step.without_it());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_names_are_those_of_the_command_line() {
        for step in Step::ALL {
            let value = step.to_possible_value().unwrap();
            assert_eq!(value.get_name(), step.name());
        }
        assert_eq!(Step::value_variants(), Step::ALL);
    }

    #[test]
    fn failed_step_says_why_and_what_still_works() {
        let failed = line(Step::Model, &Err(Failure::NoDataDir));
        for part in [
            "model",
            "cannot be had",
            "no home folder",
            "cargo xtask demo",
        ] {
            assert!(failed.contains(part), "{part} is not in {failed}");
        }
        let present = line(Step::Llvm, &Ok(State::Present("/somewhere".into())));
        assert_eq!(present, "  llvm         present        /somewhere");
    }

    #[test]
    fn report_tells_taken_from_missing_steps() {
        let report = Report::of(vec![
            (Step::Llvm, Ok(State::Installed(String::new()))),
            (Step::Model, Err(Failure::NoDataDir)),
        ]);
        assert!(report.has(Step::Llvm) && !report.has(Step::Model) && !report.has(Step::Cuda));
        assert_eq!(report.reason_missing(Step::Llvm), None);
        assert!(
            report
                .reason_missing(Step::Model)
                .unwrap()
                .contains("no home folder")
        );
        assert!(
            report
                .reason_missing(Step::Cuda)
                .unwrap()
                .contains("cuda was not taken")
        );
        assert!(!report.is_complete());
    }
}
