//! Why a command did not succeed, what would help, and the exit code that says which kind it was.

use std::process::ExitCode;

use flashcube_formats::FormatError;
use flashcube_lowering::LoweringError;
use flashcube_models::ModelError;
use flashcube_quantize::QuantizeError;

/// A command that did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Something ran and is wrong.
    #[error("{0}")]
    Failed(String),
    /// A backend, tool or file that was asked for is not there.
    #[error("{what}")]
    Missing {
        /// What is not there.
        what: String,
        /// How to get it.
        hint: String,
    },
    /// The request contradicts itself.
    #[error("{what}")]
    Usage {
        /// What is wrong with it.
        what: String,
        /// What to write instead.
        hint: String,
    },
    /// Nobody reads what is printed any more.
    #[error("the reader of the output went away")]
    Unread,
}

/// Result of a command.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn failed(text: impl ToString) -> Self {
        Failure::Failed(text.to_string())
    }

    pub(crate) fn missing(what: impl ToString, hint: impl ToString) -> Self {
        Failure::Missing {
            what: what.to_string(),
            hint: hint.to_string(),
        }
    }

    pub(crate) fn usage(what: impl ToString, hint: impl ToString) -> Self {
        Failure::Usage {
            what: what.to_string(),
            hint: hint.to_string(),
        }
    }

    /// 1 for a failure, 2 for something missing or a wrong request.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Failed(_) => 1,
            Failure::Missing { .. } | Failure::Usage { .. } => 2,
            Failure::Unread => 0,
        }
    }

    /// Prints the failure and its hint on stderr.
    pub(crate) fn report(&self) -> ExitCode {
        if let Failure::Unread = self {
            return ExitCode::SUCCESS;
        }
        eprintln!("error: {self}");
        if let Failure::Missing { hint, .. } | Failure::Usage { hint, .. } = self
            && !hint.is_empty()
        {
            eprintln!("hint: {hint}");
        }
        ExitCode::from(self.code())
    }
}

impl From<LoweringError> for Failure {
    fn from(error: LoweringError) -> Self {
        match &error {
            // The text of these two already says what to install.
            LoweringError::ToolkitNotFound { .. } | LoweringError::ToolkitIncomplete { .. } => {
                Failure::missing(error, "")
            }
            LoweringError::UnknownArch { .. } => Failure::usage(error, ""),
            LoweringError::UnknownKernel { .. } => {
                Failure::usage(error, "`flashcube lower --list` shows every name")
            }
            _ => Failure::failed(error),
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        match &error {
            ModelError::Device { .. } => Failure::failed(error),
            // A file, a text or an option cannot be used: nothing ran.
            _ => Failure::usage(error, ""),
        }
    }
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Self {
        Failure::usage(error, "")
    }
}

impl From<QuantizeError> for Failure {
    fn from(error: QuantizeError) -> Self {
        let hint = match &error {
            QuantizeError::Model(ModelError::Device { .. }) => return Failure::failed(error),
            QuantizeError::CannotFold { .. } => {
                "`--format flashcube` keeps divisors; `--unfoldable skip` rounds such linears plainly"
            }
            QuantizeError::OtherRun { .. } => {
                "finish that run with its own options, or remove the folder"
            }
            _ => "",
        };
        Failure::usage(error, hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_tell_failures_from_missing_things() {
        assert_eq!(Failure::failed("wrong").code(), 1);
        assert_eq!(Failure::missing("no GPU", "buy one").code(), 2);
        assert_eq!(Failure::usage("what?", "").code(), 2);
        let unknown = LoweringError::UnknownKernel {
            given: "x".into(),
            close: vec![],
        };
        let failure = Failure::from(unknown);
        assert_eq!(failure.code(), 2);
        assert!(matches!(failure, Failure::Usage { hint, .. } if hint.contains("--list")));
    }
}
