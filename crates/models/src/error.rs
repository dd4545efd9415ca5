use std::path::{Path, PathBuf};

use flashcube_formats::FormatError;

/// What can go wrong while loading or running a model. Each variant names the thing, the value
/// that was found and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file cannot be opened or read.
    #[error("{}: cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A checkpoint is damaged or truncated, or lacks a tensor, or holds it in another shape or
    /// type.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A field of the configuration has a value that this model cannot run with.
    #[error("config {field}: {value}, expected {expected}")]
    Config {
        /// The field of `config.json`.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        expected: String,
    },
    /// `config.json` or `tokenizer.json` cannot be parsed.
    #[error("{}: cannot be parsed: {detail}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What the parser said, with the line where it knows one.
        detail: String,
    },
    /// The tokenizer refused a sentence.
    #[error("sentence {sentence}: cannot be tokenized: {detail}")]
    Tokenize {
        /// Index of the sentence.
        sentence: usize,
        /// What the tokenizer said.
        detail: String,
    },
    /// A batch holds a value that the model cannot take.
    #[error("{what}: {value}, limit {limit}")]
    InvalidInput {
        /// Which value.
        what: &'static str,
        /// What it is.
        value: usize,
        /// The largest (or the only) value accepted.
        limit: usize,
    },
    /// A device or kernel refused what the model asked of it.
    #[error("{what}: {detail}")]
    Device {
        /// What was asked.
        what: &'static str,
        /// What it said.
        detail: String,
    },
}

impl ModelError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        |source| Self::Io { path, source }
    }

    pub(crate) fn parse<E: ToString>(path: &Path) -> impl FnOnce(E) -> Self {
        let path = path.to_path_buf();
        |error| Self::Parse {
            path,
            detail: error.to_string(),
        }
    }

    pub(crate) fn invalid(what: &'static str, value: usize, limit: usize) -> Self {
        Self::InvalidInput { what, value, limit }
    }
}
