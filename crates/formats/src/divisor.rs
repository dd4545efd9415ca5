//! The divisor of a linear's input: y = (x / s) W, for scales that nothing before the linear could
//! take in. Only checkpoints of our own method hold it, so that no other reader misses it.

use crate::checkpoint::Checkpoint;
use crate::error::FormatError;
use crate::write::TensorData;

const NAME: &str = "input_divisor";

/// `{prefix}.input_divisor` `[k]`, F32, where there is one.
///
/// # Errors
/// [`FormatError::WrongShape`], [`FormatError::WrongDtype`], [`FormatError::NotFinite`] for a value
/// that is not finite and positive.
pub fn input_divisor(
    checkpoint: &Checkpoint,
    prefix: &str,
    k: usize,
) -> Result<Option<Vec<f32>>, FormatError> {
    let name = format!("{prefix}.{NAME}");
    let Some(view) = checkpoint.optional(&name)? else {
        return Ok(None);
    };
    let divisor: Vec<f32> = view.with_shape(&[k])?.to_vec()?;
    match divisor
        .iter()
        .position(|value| !(value.is_finite() && *value > 0.0))
    {
        None => Ok(Some(divisor)),
        Some(index) => Err(FormatError::NotFinite {
            tensor: name,
            index,
            value: divisor[index],
        }),
    }
}

/// The tensor that [`input_divisor`] reads.
///
/// # Errors
/// None for values that fit in memory.
pub fn input_divisor_tensor(
    prefix: &str,
    divisor: &[f32],
) -> Result<(String, TensorData), FormatError> {
    let tensor = TensorData::new(&[divisor.len()], divisor)?;
    Ok((format!("{prefix}.{NAME}"), tensor))
}
