//! One error type: every variant names the tensor, the value found and what was expected.

use std::path::{Path, PathBuf};

/// Why a checkpoint could not be read, written, packed or unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The operating system refused a file operation.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is damaged, cut short, or of another kind.
    #[error("{} is not a valid {kind}: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What it should be.
        kind: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A checkpoint lacks a tensor.
    #[error("{} has no tensor `{tensor}`", path.display())]
    MissingTensor {
        /// The tensor asked for.
        tensor: String,
        /// The checkpoint.
        path: PathBuf,
    },
    /// A tensor has another element type than its reader takes.
    #[error("tensor `{tensor}` has dtype {found}, expected {expected}")]
    WrongDtype {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        found: String,
        /// The dtypes accepted.
        expected: String,
    },
    /// A tensor has another shape than its reader takes.
    #[error("tensor `{tensor}` has shape {found:?}, expected {expected:?}")]
    WrongShape {
        /// The tensor.
        tensor: String,
        /// Its shape; a plain buffer counts as one axis.
        found: Vec<usize>,
        /// The shape that the other sizes ask for.
        expected: Vec<usize>,
    },
    /// An integer lies outside its range.
    #[error("tensor `{tensor}`, element {index}: {value} is not in 0..{limit}")]
    OutOfRange {
        /// The tensor.
        tensor: String,
        /// Flat position of the element.
        index: usize,
        /// The value found.
        value: i64,
        /// The first value too large.
        limit: u64,
    },
    /// A scale is NaN or infinite.
    #[error("tensor `{tensor}`, element {index}: {value} is not finite")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Flat position of the element.
        index: usize,
        /// The value found.
        value: f32,
    },
    /// A number has no exact f16 twin; rounding it would change every weight of its group.
    #[error("tensor `{tensor}`, element {index}: {value:e} is not exact in f16")]
    Inexact {
        /// The tensor.
        tensor: String,
        /// Flat position of the element.
        index: usize,
        /// The value found.
        value: f32,
    },
    /// A format cannot hold this weight.
    #[error("{format} cannot hold {what} = {value}: {limit}")]
    Unsupported {
        /// The format.
        format: String,
        /// The property that does not fit.
        what: &'static str,
        /// Its value.
        value: String,
        /// What the format takes.
        limit: &'static str,
    },
    /// A symmetric checkpoint stores the zero points of the other GPTQ version.
    #[error(
        "`{tensor}` holds {found} in every field, which is {sniffed} for symmetric {bits}-bit \
         weights, but the checkpoint declares {declared}"
    )]
    ZeroPointVersion {
        /// The tensor.
        tensor: String,
        /// The value in every field.
        found: u8,
        /// Bits per field.
        bits: u32,
        /// The version that this value means.
        sniffed: &'static str,
        /// The version declared.
        declared: &'static str,
    },
    /// GPTQ v1 has two readings of a zero point of 0, and none was chosen.
    #[error(
        "`{tensor}`, element {index}: zero point 0 is ambiguous in GPTQ v1 (word-wise or \
         field-wise); choose one or use GPTQ v2"
    )]
    AmbiguousZero {
        /// The tensor.
        tensor: String,
        /// Flat position of the zero point in [groups, n].
        index: usize,
    },
    /// A configuration field is missing or has a value not understood.
    #[error("quantization config field `{field}` is {found}, expected {expected}")]
    Config {
        /// The field.
        field: String,
        /// Its value as JSON, or `missing`.
        found: String,
        /// The values accepted.
        expected: &'static str,
    },
    /// A product of sizes exceeds what this machine can address.
    #[error("{what}: {sizes:?} multiply past the address space")]
    TooLarge {
        /// The buffer.
        what: String,
        /// The sizes multiplied.
        sizes: Vec<usize>,
    },
}

impl FormatError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Io { path, source }
    }

    pub(crate) fn corrupt(path: &Path, kind: &'static str, reason: impl ToString) -> Self {
        Self::Corrupt {
            path: path.to_owned(),
            kind,
            reason: reason.to_string(),
        }
    }

    pub(crate) fn unsupported(
        format: impl ToString,
        what: &'static str,
        value: impl ToString,
        limit: &'static str,
    ) -> Self {
        Self::Unsupported {
            format: format.to_string(),
            what,
            value: value.to_string(),
            limit,
        }
    }
}

/// Checks that a plain buffer has the length of `shape`.
pub(crate) fn check_len(tensor: &str, found: usize, shape: &[usize]) -> Result<(), FormatError> {
    let expected = product(tensor, shape)?;
    if found == expected {
        return Ok(());
    }
    Err(FormatError::WrongShape {
        tensor: tensor.to_owned(),
        found: vec![found],
        expected: shape.to_vec(),
    })
}

/// The number of elements of a shape, or [`FormatError::TooLarge`].
pub(crate) fn product(what: &str, sizes: &[usize]) -> Result<usize, FormatError> {
    sizes
        .iter()
        .try_fold(1usize, |total, &size| total.checked_mul(size))
        .ok_or_else(|| FormatError::TooLarge {
            what: what.to_owned(),
            sizes: sizes.to_vec(),
        })
}
