use std::path::PathBuf;

use safetensors::Dtype;

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
    /// The file is not a complete safetensors file: damaged header, or truncated data.
    #[error("{}: not a complete safetensors file ({bytes} bytes): {detail}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// What the header reader found wrong.
        detail: String,
    },
    /// The checkpoint holds no tensor of this name.
    #[error("{}: no tensor named {tensor}", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The name looked for.
        tensor: String,
    },
    /// The tensor has another shape than the configuration asks for.
    #[error("tensor {tensor}: shape {found:?}, expected {expected:?}")]
    WrongShape {
        /// The tensor.
        tensor: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// The shape that the configuration implies.
        expected: Vec<usize>,
    },
    /// The tensor has an element type that this model does not read.
    #[error("tensor {tensor}: dtype {found:?}, expected {expected:?}")]
    WrongDtype {
        /// The tensor.
        tensor: String,
        /// Its dtype in the file.
        found: Dtype,
        /// The dtype that is read.
        expected: Dtype,
    },
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
}
