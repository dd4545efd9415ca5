//! AWQ: input channels that matter are scaled up before rounding, and the inputs down by as much
//! (Lin et al. 2023).

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use flashcube_formats::IntWeights;
use rayon::prelude::*;

use crate::error::{QuantizeError, check_len};
use crate::grid::{ClipSearch, Grid, GridOptions};
use crate::hessian::Hessian;
use crate::rtn::{int_weights, round_to_nearest};
use crate::weight::Weight;

/// Options of [`search_scales`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct AwqOptions {
    /// Bits, groups, ranges. Its clip search is run after the scales are found, with each group's
    /// own output error as the measure.
    pub grid: GridOptions,
    /// Exponents tried: i / ratios for i = 0 .. ratios - 1, and no scale at all.
    pub ratios: usize,
    /// Divide by the weights' own magnitude, as far as the exponent leaves it.
    pub duo_scaling: bool,
}

impl AwqOptions {
    /// 20 ratios, duo scaling.
    pub fn new(grid: GridOptions) -> Self {
        Self {
            grid,
            ratios: 20,
            duo_scaling: true,
        }
    }
}

/// The scales that serve best.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaleSearch {
    /// `[k]`, positive: weights are multiplied by them, inputs divided. All 1 where nothing helps.
    pub scales: Vec<f32>,
    /// The exponent that gave them, None for no scale.
    pub ratio: Option<f32>,
    /// Mean square of the output error with the scales, before any clip search.
    pub loss: f64,
    /// The same without scales: rounding to nearest.
    pub rtn_loss: f64,
    /// Candidates whose error was not finite; they were passed over.
    pub not_finite: usize,
}

/// Searches the scales of linears that read the same input.
///
/// s = x^r / w^(1-r) with duo scaling, x^r without, where x is the channel's mean magnitude in the
/// calibration and w its mean weight as a part of its group's largest; normalised to
/// sqrt(max s * min s) = 1. The error is that of the layers' outputs, exact on the calibration
/// inputs.
///
/// `ties` names the scale of each channel where channels must share one: the query heads of one
/// key head, whose values a fold goes into. Their statistics are averaged.
///
/// # Errors
/// [`QuantizeError::WrongLength`] for a weight or ties of another k, those of
/// [`round_to_nearest`].
pub fn search_scales(
    linears: &[Weight<'_>],
    hessian: &Hessian,
    ties: Option<&[usize]>,
    options: &AwqOptions,
) -> Result<ScaleSearch, QuantizeError> {
    let k = hessian.k();
    for linear in linears {
        check_len("weight", linear.values.len(), &[k, linear.n])?;
    }
    if let Some(ties) = ties {
        check_len("ties", ties.len(), &[k])?;
    }
    let grid = GridOptions {
        clip: None,
        ..options.grid
    };
    let plain = vec![1.0; k];
    let rtn_loss = scaled_loss(linears, hessian, &plain, &grid)?;
    let mut best = ScaleSearch {
        scales: plain,
        ratio: None,
        loss: rtn_loss,
        rtn_loss,
        not_finite: usize::from(!rtn_loss.is_finite()),
    };
    let x = tied(hessian.magnitudes().to_vec(), ties);
    let w = options
        .duo_scaling
        .then(|| Ok::<_, QuantizeError>(tied(weight_parts(linears, k, &grid)?, ties)))
        .transpose()?;
    for i in 0..options.ratios {
        let ratio = i as f32 / options.ratios as f32;
        let scales = candidate(&x, w.as_deref(), ratio);
        let usable = scales.iter().all(|s| s.is_finite() && *s > 0.0);
        // A scale may push a group past what f16 can hold: that candidate is no use, others are.
        let loss = match usable {
            true => scaled_loss(linears, hessian, &scales, &grid).unwrap_or(f64::NAN),
            false => f64::NAN,
        };
        best.not_finite += usize::from(!loss.is_finite());
        if loss < best.loss || (loss.is_finite() && !best.loss.is_finite()) {
            best = ScaleSearch {
                scales,
                ratio: Some(ratio),
                loss,
                ..best
            };
        }
    }
    Ok(best)
}

/// s = x^r / w^(1-r), normalised; a channel without activations or weights counts as 1e-4.
fn candidate(x: &[f32], w: Option<&[f32]>, ratio: f32) -> Vec<f32> {
    const FLOOR: f32 = 1e-4;
    let raw = |i: usize| {
        let x = x[i].max(FLOOR).powf(ratio);
        let w = w.map_or(1.0, |w| w[i].max(FLOOR).powf(1.0 - ratio));
        (x / w).max(FLOOR)
    };
    let scales: Vec<f32> = (0..x.len()).map(raw).collect();
    let least = scales.iter().copied().fold(f32::INFINITY, f32::min);
    let most = scales.iter().copied().fold(0.0, f32::max);
    let middle = least.sqrt() * most.sqrt();
    scales.into_iter().map(|s| s / middle).collect()
}

/// Mean over all outputs of |w| as a part of its group's largest, `[k]`.
fn weight_parts(
    linears: &[Weight<'_>],
    k: usize,
    grid: &GridOptions,
) -> Result<Vec<f32>, QuantizeError> {
    let group = grid.shape(k, 0)?.group;
    let mut sums = vec![0.0f64; k];
    let outputs: usize = linears.iter().map(|linear| linear.n).sum();
    for linear in linears {
        for first in (0..k).step_by(group) {
            let rows = first..(first + group).min(k);
            let mut largest = vec![0.0f32; linear.n];
            for row in rows.clone() {
                for (largest, w) in largest.iter_mut().zip(linear.row(row)) {
                    *largest = largest.max(w.abs());
                }
            }
            for row in rows {
                let parts = linear.row(row).iter().zip(&largest);
                let part = |(w, &largest): (&f32, &f32)| f64::from(w.abs() / largest.max(1e-12));
                sums[row] += parts.map(part).sum::<f64>();
            }
        }
    }
    let mean = |sum: f64| (sum / outputs.max(1) as f64) as f32;
    Ok(sums.into_iter().map(mean).collect())
}

/// The mean over the channels that share a scale, given to each of them.
fn tied(values: Vec<f32>, ties: Option<&[usize]>) -> Vec<f32> {
    let Some(ties) = ties else { return values };
    let count = ties.iter().copied().max().map_or(0, |last| last + 1);
    let mut sums = vec![(0.0f32, 0usize); count];
    for (&tie, value) in ties.iter().zip(&values) {
        sums[tie].0 += value;
        sums[tie].1 += 1;
    }
    ties.iter()
        .map(|&tie| sums[tie].0 / sums[tie].1 as f32)
        .collect()
}

/// Output error of all linears with W -> Q(s W) / s.
fn scaled_loss(
    linears: &[Weight<'_>],
    hessian: &Hessian,
    scales: &[f32],
    grid: &GridOptions,
) -> Result<f64, QuantizeError> {
    let mut total = 0.0;
    for linear in linears {
        let scaled = multiply_inputs(linear.values, scales, linear.n);
        let mut restored =
            round_to_nearest(Weight::new(&scaled, linear.k, linear.n)?, None, grid)?.dequantize();
        divide_inputs(&mut restored, scales, linear.n);
        total += hessian.loss(*linear, &restored);
    }
    Ok(total)
}

/// diag(s) W of W [k, n].
pub fn multiply_inputs(weight: &[f32], scales: &[f32], n: usize) -> Vec<f32> {
    let rows = weight.chunks_exact(n.max(1)).zip(scales);
    rows.flat_map(|(row, &s)| row.iter().map(move |w| w * s))
        .collect()
}

/// diag(1/s) W of W [k, n], in place.
pub fn divide_inputs(weight: &mut [f32], scales: &[f32], n: usize) {
    for (row, &s) in weight.chunks_exact_mut(n.max(1)).zip(scales) {
        row.iter_mut().for_each(|w| *w /= s);
    }
}

/// Rounds to nearest with each group's range clipped to what its own part of the output error
/// likes best: d^T H_g d for the group's block H_g of the Hessian.
///
/// Without a clip search in the options this is [`round_to_nearest`].
///
/// # Errors
/// [`QuantizeError::WrongLength`] for a Hessian of another k, those of [`round_to_nearest`].
pub fn round_clipped(
    weight: Weight<'_>,
    hessian: &Hessian,
    options: &GridOptions,
) -> Result<IntWeights, QuantizeError> {
    check_len("hessian", hessian.matrix.len(), &[weight.k, weight.k])?;
    let Some(_) = options.clip else {
        return round_to_nearest(weight, None, options);
    };
    let shape = options.shape(weight.k, weight.n)?;
    let plain = GridOptions {
        clip: None,
        ..*options
    };
    let fitted: Vec<(Grid, Vec<u8>)> = (0..shape.groups)
        .into_par_iter()
        .map(|g| {
            let rows = g * shape.group..((g + 1) * shape.group).min(shape.k);
            clipped_group(weight, rows, hessian, options, &plain)
        })
        .collect::<Result<_, _>>()?;
    let codes = fitted
        .iter()
        .flat_map(|(_, codes)| codes)
        .copied()
        .collect();
    let grids: Vec<Grid> = fitted.into_iter().map(|(grid, _)| grid).collect();
    int_weights(shape, codes, &grids, None)
}

/// The grid and the codes of one group, each output with the part of its range that serves best.
fn clipped_group(
    weight: Weight<'_>,
    rows: std::ops::Range<usize>,
    hessian: &Hessian,
    options: &GridOptions,
    plain: &GridOptions,
) -> Result<(Grid, Vec<u8>), QuantizeError> {
    let (g, n) = (rows.len(), weight.n);
    let block: Vec<f32> = rows
        .clone()
        .flat_map(|i| rows.clone().map(move |j| (i, j)))
        .map(|(i, j)| hessian.matrix[i * hessian.k + j] as f32)
        .collect();
    let mut best = Grid::empty(n, options.bits);
    let mut best_loss = vec![f32::INFINITY; n];
    let (mut codes, mut off, mut product) = (vec![0; n], vec![0.0f32; g * n], vec![0.0f32; g * n]);
    for part in ClipSearch::parts(options.clip) {
        let shrunk: Vec<f32> = rows
            .clone()
            .flat_map(|i| weight.row(i))
            .map(|w| w * part)
            .collect();
        let grid = Grid::fit(shrunk.chunks_exact(n.max(1)), &[], n, plain)?;
        for (row, off) in rows.clone().zip(off.chunks_exact_mut(n.max(1))) {
            grid.quantize(weight.row(row), &mut codes, off);
            off.iter_mut()
                .zip(weight.row(row))
                .for_each(|(off, w)| *off -= w);
        }
        matmul(
            MatMut::from_row_major_slice_mut(&mut product, g, n),
            Accum::Replace,
            MatRef::from_row_major_slice(&block, g, g),
            MatRef::from_row_major_slice(&off, g, n),
            1.0,
            Par::Seq,
        );
        let mut loss = vec![0.0f32; n];
        for (product, off) in product
            .chunks_exact(n.max(1))
            .zip(off.chunks_exact(n.max(1)))
        {
            loss.iter_mut()
                .zip(product.iter().zip(off))
                .for_each(|(l, (p, o))| *l += p * o);
        }
        for column in 0..n {
            if loss[column] < best_loss[column] {
                best_loss[column] = loss[column];
                best.scales[column] = grid.scales[column];
                best.zeros[column] = grid.zeros[column];
            }
        }
    }
    let (mut all, mut restored) = (vec![0u8; g * n], vec![0.0; n]);
    for (row, codes) in rows.zip(all.chunks_exact_mut(n.max(1))) {
        best.quantize(weight.row(row), codes, &mut restored);
    }
    Ok((best, all))
}
