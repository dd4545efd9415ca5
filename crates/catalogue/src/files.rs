//! Problems and results as safetensors files, for kernels that do not run in this process.

use std::collections::BTreeMap;
use std::path::Path;

use flashcube::DType;
use flashcube_formats::{Checkpoint, FormatError, TensorData, save};
use flashcube_reference as reference;
use half::{bf16, f16};

use crate::array::{Array, Data, encode};
use crate::inputs::Inputs;
use crate::oracle;
use crate::problem::Problem;
use crate::verdict::{Outputs, Verdict};

/// Why a problem could not be written or results not be checked.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file is missing, damaged, or lacks a tensor, or a tensor has another shape or dtype.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The problem contradicts itself.
    #[error("problem: {0}")]
    Problem(reference::Error),
    /// The file names another problem or seed than the one it is checked against.
    #[error("{key} of the file is {found}, checked against {expected}")]
    Origin {
        /// Metadata key.
        key: &'static str,
        /// Value in the file.
        found: String,
        /// Value asked for.
        expected: String,
    },
}

impl From<reference::Error> for FileError {
    fn from(error: reference::Error) -> Self {
        Self::Problem(error)
    }
}

/// Writes the inputs of `problem` for `seed`: every array dense and row-major under its own name
/// (bytes for flags, words for ids), the options as metadata.
///
/// # Errors
/// [`FileError`]; the target is then as it was before.
pub fn export_problem(
    problem: &Problem,
    seed: u64,
    path: impl AsRef<Path>,
) -> Result<(), FileError> {
    problem.validate()?;
    let inputs = Inputs::generate(problem, seed);
    let mut tensors = BTreeMap::new();
    for (name, array) in &inputs.arrays {
        tensors.insert((*name).to_owned(), tensor(array)?);
    }
    save(path, &tensors, &metadata(problem, seed))?;
    Ok(())
}

/// Checks the outputs in `path`, tensors named as [`Problem::outputs`], against the reference.
/// Floating-point tensors of any width are taken; "problem" and "seed" in the file's metadata, if
/// there, must agree.
///
/// # Errors
/// [`FileError`].
pub fn check_file(
    problem: &Problem,
    seed: u64,
    path: impl AsRef<Path>,
) -> Result<Verdict, FileError> {
    problem.validate()?;
    let file = Checkpoint::open(path)?;
    for (key, expected) in [
        ("problem", problem.name.clone()),
        ("seed", seed.to_string()),
    ] {
        if let Some(found) = file.metadata().get(key).filter(|found| **found != expected) {
            return Err(FileError::Origin {
                key,
                found: found.clone(),
                expected,
            });
        }
    }
    let mut outputs = Outputs::default();
    for (name, shape) in problem.outputs() {
        let tensor = file.tensor(name)?.with_shape(&shape)?;
        outputs = outputs.with(name, tensor.to_f32()?);
    }
    let inputs = Inputs::generate(problem, seed);
    let expected = oracle::expected(problem, &inputs)?;
    Ok(Verdict::of(&expected, &outputs))
}

/// Problem and seed that a file says it belongs to.
///
/// # Errors
/// [`FileError::Format`] when the file cannot be read.
pub fn origin(path: impl AsRef<Path>) -> Result<(Option<String>, Option<u64>), FileError> {
    let file = Checkpoint::open(path)?;
    let value = |key: &str| file.metadata().get(key).cloned();
    Ok((value("problem"), value("seed").and_then(|s| s.parse().ok())))
}

fn tensor(array: &Array) -> Result<TensorData, FormatError> {
    let shape = &array.shape;
    match &array.data {
        Data::Float(dtype, _) => {
            let values = array.values();
            match dtype {
                DType::F32 => TensorData::new(shape, &values),
                DType::F16 => TensorData::new(shape, &map(&values, f16::from_f32)),
                DType::BF16 => TensorData::new(shape, &map(&values, bf16::from_f32)),
                DType::E4M3 => TensorData::new(shape, &encode(DType::E4M3, &values)),
            }
        }
        Data::U32(words) => TensorData::new(shape, words),
        Data::U8(bytes) => TensorData::new(shape, bytes),
    }
}

fn map<T>(values: &[f32], convert: fn(f32) -> T) -> Vec<T> {
    values.iter().copied().map(convert).collect()
}

/// What the arrays do not say.
fn metadata(problem: &Problem, seed: u64) -> BTreeMap<String, String> {
    let mut entries = vec![
        ("problem", problem.name.clone()),
        ("seed", seed.to_string()),
        ("kernel", problem.kernel().to_string()),
        ("dtype", problem.dtype.to_string()),
        ("task", format!("{:?}", problem.task)),
    ];
    if let Some(a) = problem.attend() {
        let number = |x: Option<usize>| x.map_or("none".into(), |x| x.to_string());
        entries.extend([
            ("scale", a.scale().to_string()),
            (
                "softcap",
                a.softcap.map_or("none".into(), |x| x.to_string()),
            ),
            ("causal", a.causal.to_string()),
            ("alignment", format!("{:?}", a.alignment)),
            ("window_left", number(a.window_left)),
            ("window_right", number(a.window_right)),
        ]);
    }
    entries
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}
