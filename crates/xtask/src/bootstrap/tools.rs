//! The programs the other steps and the LLVM bindings call.

use std::process::Command;

use super::{State, apt};
use crate::command;
use crate::failure::Failure;

/// A program: how to see that it runs, and the Debian package that brings it.
struct Tool {
    name: &'static str,
    check: &'static [&'static str],
    package: &'static str,
}

/// python3 also runs the script `llvm-config` during the build; g++ compiles LLVM's wrappers.
const TOOLS: [Tool; 3] = [
    Tool {
        name: "python3",
        check: &["python3", "--version"],
        package: "python3",
    },
    Tool {
        name: "pip",
        check: &["python3", "-m", "pip", "--version"],
        package: "python3-pip",
    },
    Tool {
        name: "g++",
        check: &["g++", "--version"],
        package: "g++",
    },
];

impl Tool {
    fn runs(&self) -> bool {
        let [program, arguments @ ..] = self.check else {
            return false;
        };
        command::capture(Command::new(program).args(arguments)).is_ok()
    }
}

/// Checks each tool and installs the missing ones together.
pub(super) fn ensure() -> Result<State, Failure> {
    let names = TOOLS.map(|tool| tool.name).join(", ");
    let missing: Vec<&Tool> = TOOLS.iter().filter(|tool| !tool.runs()).collect();
    if missing.is_empty() {
        return Ok(State::Present(names));
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    apt::install(&packages)?;
    match missing.iter().find(|tool| !tool.runs()) {
        None => Ok(State::Installed(packages.join(", "))),
        Some(tool) => Err(Failure::Missing {
            path: tool.name.into(),
            package: tool.package,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_program_does_not_run() {
        let absent = Tool {
            name: "x",
            check: &["flashcube-no-such-program"],
            package: "x",
        };
        assert!(!absent.runs());
    }
}
