//! What can go wrong between a kernel and its machine code.

use std::path::PathBuf;

use crate::Arch;

/// What to do when there is no toolkit; part of the error's text.
const INSTALL: &str = "run `cargo xtask bootstrap` (fetches it into the user's data folder, no GPU needed), \
install the CUDA toolkit 13.0, or point FLASHCUBE_CUDA at a folder holding bin/, lib/ and include/";

/// Result of this crate.
pub type Result<T> = std::result::Result<T, LoweringError>;

/// A kernel could not be lowered.
#[derive(Debug, thiserror::Error)]
pub enum LoweringError {
    /// No folder on the search list holds a CUDA toolkit.
    #[error("no CUDA toolkit found; searched: {}. To get one: {INSTALL}", searched.join("; "))]
    ToolkitNotFound {
        /// Every folder looked at, with what it lacks.
        searched: Vec<String>,
    },
    /// FLASHCUBE_CUDA names a folder that is not a whole toolkit.
    #[error("{variable} = {}: not a CUDA toolkit, missing {}. To get one: {INSTALL}", root.display(), missing.join(", "))]
    ToolkitIncomplete {
        /// The environment variable that named the folder.
        variable: &'static str,
        /// The folder.
        root: PathBuf,
        /// The files it lacks.
        missing: Vec<String>,
    },
    /// A string is not the name of an architecture.
    #[error("unknown architecture {given:?}: expected one of {}", Arch::ALL.map(|arch| arch.to_string()).join(", "))]
    UnknownArch {
        /// The string.
        given: String,
    },
    /// A name is not that of a listed kernel.
    #[error("unknown kernel {given:?}: {}", hint(close))]
    UnknownKernel {
        /// The name.
        given: String,
        /// Listed names that contain it.
        close: Vec<String>,
    },
    /// The target lacks what a listed kernel needs.
    #[error("kernel {kernel}: {source}")]
    NotAvailable {
        /// The kernel's name.
        kernel: String,
        /// The limit.
        source: Box<flashcube_kernels::NotAvailable>,
    },
    /// A shared library could not be loaded or lacks a function.
    #[error("cannot load {}: {reason}", path.display())]
    Library {
        /// The library.
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// CubeCL refused to compile a kernel.
    #[error("kernel {kernel}: CubeCL cannot emit {target}: {reason}")]
    Kernel {
        /// The kernel's name.
        kernel: String,
        /// The language asked for.
        target: &'static str,
        /// CubeCL's message.
        reason: String,
    },
    /// NVRTC refused the CUDA C++ of a kernel.
    #[error("kernel {kernel}, {arch}: NVRTC refused the CUDA C++:\n{log}")]
    Cuda {
        /// The kernel's name.
        kernel: String,
        /// The architecture compiled for.
        arch: Arch,
        /// NVRTC's log, whole.
        log: String,
    },
    /// ptxas refused the PTX of a kernel.
    #[error("kernel {kernel}, {arch}: ptxas refused the PTX:\n{log}")]
    Ptx {
        /// The kernel's name.
        kernel: String,
        /// The architecture assembled for.
        arch: Arch,
        /// What ptxas printed.
        log: String,
    },
    /// An NVRTC function failed for another reason than the source.
    #[error("{call} failed: {reason}")]
    Nvrtc {
        /// The function.
        call: &'static str,
        /// NVRTC's name for the status.
        reason: String,
    },
    /// A program of the toolkit could not be run, or failed.
    #[error("{}: {reason}", program.display())]
    Tool {
        /// The program.
        program: PathBuf,
        /// Its message or the system's.
        reason: String,
    },
    /// A program of the toolkit printed something this crate does not understand.
    #[error("cannot read the output of {tool}: {reason}")]
    Output {
        /// The program.
        tool: &'static str,
        /// What was looked for.
        reason: String,
    },
}

fn hint(close: &[String]) -> String {
    if close.is_empty() {
        "no listed name contains it".to_owned()
    } else {
        format!("did you mean {}?", close.join(", "))
    }
}
