//! One error type: every variant names the tensor, the value found and the limit.

use std::path::{Path, PathBuf};

use flashcube_formats::FormatError;
use flashcube_models::ModelError;

/// Why something could not be quantized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// A weight or an activation is NaN or infinite.
    #[error("tensor `{tensor}`, element {index}: {value} is not finite")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Flat position of the element.
        index: usize,
        /// The value found.
        value: f64,
    },
    /// A buffer holds another number of elements than its shape asks for.
    #[error("tensor `{tensor}` has {found} elements, expected {expected:?}")]
    WrongLength {
        /// The tensor.
        tensor: String,
        /// Elements it holds.
        found: usize,
        /// The shape that the other sizes ask for.
        expected: Vec<usize>,
    },
    /// An option or a size lies outside what the method takes.
    #[error("{what} is {value}, limit: {limit}")]
    Unsupported {
        /// The option or size.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is taken.
        limit: &'static str,
    },
    /// A matrix that has to be factorized is not positive definite.
    #[error("a {size} x {size} Hessian is not positive definite at damping {damping:e}")]
    NotPositiveDefinite {
        /// Rows and columns.
        size: usize,
        /// What was added to its diagonal, as a fraction of the diagonal's mean.
        damping: f64,
    },
    /// A group needs a scale that f16 cannot hold.
    #[error("tensor `{tensor}`: a group spans {range:e}, its scale {scale:e} exceeds f16's 65504")]
    ScaleOverflow {
        /// The tensor.
        tensor: String,
        /// Largest minus smallest weight of the group.
        range: f32,
        /// The scale it would need.
        scale: f32,
    },
    /// AWQ found a scale for a linear whose input nothing before it can absorb.
    #[error(
        "`{linear}`: its AWQ scale cannot be folded into anything before it (residual or \
         activation in between), and {format} has no place for a divisor"
    )]
    CannotFold {
        /// The linear.
        linear: String,
        /// The format asked for.
        format: String,
    },
    /// The work folder belongs to another run.
    #[error(
        "{}: holds the unfinished run of other options or another input ({field} differs)",
        path.display()
    )]
    OtherRun {
        /// The work folder.
        path: PathBuf,
        /// What differs.
        field: String,
    },
    /// The operating system refused a file operation.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A checkpoint cannot be read or written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The model cannot be built or run.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl QuantizeError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Io { path, source }
    }

    pub(crate) fn unsupported(
        what: &'static str,
        value: impl ToString,
        limit: &'static str,
    ) -> Self {
        let value = value.to_string();
        Self::Unsupported { what, value, limit }
    }
}

/// Checks a buffer against its shape.
pub(crate) fn check_len(
    tensor: &str,
    found: usize,
    expected: &[usize],
) -> Result<(), QuantizeError> {
    let wanted = expected.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
    if wanted == Some(found) {
        return Ok(());
    }
    Err(QuantizeError::WrongLength {
        tensor: tensor.to_owned(),
        found,
        expected: expected.to_vec(),
    })
}

/// Refuses NaN and infinities.
pub(crate) fn check_finite(tensor: &str, values: &[f32]) -> Result<(), QuantizeError> {
    // Without a way out of the loop it runs on whole registers.
    let good = |values: &[f32]| values.iter().fold(true, |good, v| good & v.is_finite());
    if values.chunks(4096).all(good) {
        return Ok(());
    }
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(QuantizeError::NotFinite {
            tensor: tensor.to_owned(),
            index,
            value: values[index].into(),
        }),
    }
}
