//! What can go wrong, told so that the reader can act on it.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// One failure of a task. `Display` is what the user reads.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command could not be started at all.
    NotStarted { command: String, source: io::Error },
    /// The command ran and failed; `tail` is the end of what it printed.
    Command {
        command: String,
        status: String,
        tail: String,
    },
    /// A file operation failed.
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A downloaded file is not the file we know.
    Checksum {
        path: PathBuf,
        expected: &'static str,
        found: String,
    },
    /// A package was unpacked and lacks a file it should hold.
    Missing {
        path: PathBuf,
        package: &'static str,
    },
    /// A system package is needed and cannot be installed from here.
    SystemPackages { packages: String, reason: String },
    /// This step knows how to serve Linux only.
    LinuxOnly {
        what: &'static str,
        instead: &'static str,
    },
    /// Neither the environment nor the account names a home folder.
    NoDataDir,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted { command, source } => {
                write!(f, "`{command}` could not be started: {source}")
            }
            Self::Command {
                command,
                status,
                tail,
            } if tail.is_empty() => {
                write!(f, "`{command}` failed ({status})")
            }
            Self::Command {
                command,
                status,
                tail,
            } => {
                write!(f, "`{command}` failed ({status}):\n{tail}")
            }
            Self::Io {
                action,
                path,
                source,
            } => {
                write!(f, "cannot {action} {}: {source}", path.display())
            }
            Self::Checksum {
                path,
                expected,
                found,
            } => write!(
                f,
                "{} has sha256 {found}, expected {expected}: the download is damaged or replaced",
                path.display()
            ),
            Self::Missing { path, package } => {
                write!(f, "{package} was unpacked but holds no {}", path.display())
            }
            Self::SystemPackages { packages, reason } => {
                write!(f, "system packages {packages} are missing and {reason}")
            }
            Self::LinuxOnly { what, instead } => {
                write!(f, "{what} is prepared on Linux only; {instead}")
            }
            Self::NoDataDir => {
                write!(
                    f,
                    "no home folder found: set XDG_DATA_HOME (or HOME) to an absolute path"
                )
            }
        }
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// For `map_err` on file operations.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
