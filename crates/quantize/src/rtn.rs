//! Rounding to nearest: every group by itself, without activations.

use flashcube_formats::IntWeights;
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use crate::error::QuantizeError;
use crate::grid::{Grid, GridOptions};
use crate::weight::Weight;

/// Rounds every weight to the nearest code of its group's grid, ties to even.
///
/// With a clip search, each group takes the range of least squared error; `importance` `[k]`
/// weighs the input channels in it (None: all alike).
///
/// ```
/// use flashcube_quantize::{GridOptions, Weight, round_to_nearest};
///
/// let weight = [0.0, -1.0, 2.0, 0.5]; // [k 4, n 1]
/// let ints = round_to_nearest(Weight::new(&weight, 4, 1)?, None, &GridOptions::new(2, None))?;
/// assert_eq!(ints.dequantize(), [0.0, -1.0, 2.0, 0.0]);
/// # Ok::<(), flashcube_quantize::QuantizeError>(())
/// ```
///
/// # Errors
/// [`QuantizeError::Format`] for bits or a group that do not exist,
/// [`QuantizeError::ScaleOverflow`].
pub fn round_to_nearest(
    weight: Weight<'_>,
    importance: Option<&[f32]>,
    options: &GridOptions,
) -> Result<IntWeights, QuantizeError> {
    let shape = options.shape(weight.k, weight.n)?;
    let importance = match importance {
        Some(importance) => {
            crate::error::check_len("importance", importance.len(), &[weight.k])?;
            importance.to_vec()
        }
        None => vec![1.0; weight.k],
    };
    let group = |g: usize| g * shape.group..((g + 1) * shape.group).min(shape.k);
    let grids: Vec<Grid> = (0..shape.groups)
        .into_par_iter()
        .map(|g| {
            let rows = group(g).map(|row| weight.row(row));
            Grid::fit(rows, &importance[group(g)], shape.n, options)
        })
        .collect::<Result<_, _>>()?;
    let mut codes = vec![0u8; shape.k * shape.n];
    let mut restored = vec![0.0; shape.n];
    for (row, codes) in codes.chunks_exact_mut(shape.n.max(1)).enumerate() {
        grids[row / shape.group].quantize(weight.row(row), codes, &mut restored);
    }
    int_weights(shape, codes, &grids, None)
}

/// Assembles the logical form; every grid's scales are f16 values already.
pub(crate) fn int_weights(
    shape: flashcube_formats::QuantShape,
    codes: Vec<u8>,
    grids: &[Grid],
    g_idx: Option<Vec<u32>>,
) -> Result<IntWeights, QuantizeError> {
    let mut zeros = Vec::with_capacity(shape.groups * shape.n);
    let mut scales = vec![f16::ZERO; shape.groups * shape.n];
    for (grid, scales) in grids.iter().zip(scales.chunks_exact_mut(shape.n.max(1))) {
        zeros.extend(grid.zeros.iter().map(|&zero| zero as u8));
        scales.convert_from_f32_slice(&grid.scales);
    }
    Ok(IntWeights::new(shape, codes, zeros, scales, g_idx)?)
}
