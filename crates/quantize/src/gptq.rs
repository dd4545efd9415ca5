//! GPTQ: every channel is rounded in turn, and what that costs is taken over by the channels that
//! still have to be rounded (Frantar, Ashkboos, Hoefler, Alistarh 2022).
//!
//! With U^T U = H^-1 and q_i the rounded row i of W:
//!
//! ```text
//! e_i = (w_i - q_i) / U[i, i]        w_j -= U[i, j] e_i   for j > i
//! ```

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use flashcube_formats::{IntWeights, QuantShape};
use rayon::prelude::*;

use crate::error::{QuantizeError, check_len};
use crate::factor::damped_factor;
use crate::grid::{Grid, GridOptions};
use crate::hessian::Hessian;
use crate::rtn::{int_weights, round_to_nearest};
use crate::weight::Weight;

/// Channels whose updates of the later ones are gathered into one matrix product.
const BLOCK: usize = 128;
/// Outputs that one task quantizes: they do not depend on each other.
const OUTPUTS: usize = 96;

/// Which weights a group's grid is fitted to, where groups are fitted on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize)]
pub enum GroupFit {
    /// The weights as they stand when the group's first channel is reached, every earlier error
    /// taken over: blocks end where groups do.
    #[default]
    Exact,
    /// As the method's published code has it: blocks of 128 whatever the group, and a group that
    /// starts inside a block is fitted without that block's own errors.
    BlockStart,
}

/// Options of [`quantize_gptq`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct GptqOptions {
    /// Bits, groups, ranges.
    pub grid: GridOptions,
    /// Channels in descending order of their mean square, the costly ones first.
    pub act_order: bool,
    /// Fit every group beforehand, to the original weights in their original order: with
    /// `act_order` the checkpoint then needs no g_idx.
    pub static_groups: bool,
    /// Added to the Hessian's diagonal, as a fraction of its mean; grows tenfold while the
    /// factorization fails. Finite, at least 0.
    pub damping: f64,
    /// What groups are fitted to.
    pub group_fit: GroupFit,
}

impl GptqOptions {
    /// Damping 0.01, channels in their own order, exact groups.
    pub fn new(grid: GridOptions) -> Self {
        Self {
            grid,
            act_order: false,
            static_groups: false,
            damping: 0.01,
            group_fit: GroupFit::default(),
        }
    }
}

/// A layer quantized by [`quantize_gptq`].
#[derive(Debug, Clone)]
pub struct GptqLayer {
    /// The better of GPTQ's weights and those rounded to nearest.
    pub weights: IntWeights,
    /// Mean square of the output error on the calibration inputs.
    pub loss: f64,
    /// The same, rounded to nearest on the same grid options.
    pub rtn_loss: f64,
    /// Rounding to nearest was better, and was taken.
    pub took_rtn: bool,
    /// The damping that the factorization needed.
    pub damping: f64,
    /// Input channels that were 0 in all of the calibration.
    pub dead: usize,
}

/// Quantizes a layer by GPTQ, never worse than rounding to nearest on its own calibration inputs.
///
/// A dead channel (0 in every calibration input) is rounded to nearest and takes part in nothing:
/// another text may use it, so that its weights are not dropped. Fewer tokens than channels leave
/// the Hessian singular; damping then stands in for what was not seen.
///
/// # Errors
/// [`QuantizeError::WrongLength`] for a Hessian of another k, [`QuantizeError::Unsupported`] for a
/// negative or infinite damping, [`QuantizeError::NotPositiveDefinite`] for a Hessian with NaN,
/// those of [`round_to_nearest`].
pub fn quantize_gptq(
    weight: Weight<'_>,
    hessian: &Hessian,
    options: &GptqOptions,
) -> Result<GptqLayer, QuantizeError> {
    check_len("hessian", hessian.matrix.len(), &[weight.k, weight.k])?;
    if !(options.damping.is_finite() && options.damping >= 0.0) {
        let limit = "finite, at least 0";
        return Err(QuantizeError::unsupported(
            "damping",
            options.damping,
            limit,
        ));
    }
    let shape = options.grid.shape(weight.k, weight.n)?;
    let rtn = round_to_nearest(weight, None, &options.grid)?;
    let rtn_loss = hessian.loss(weight, &rtn.dequantize());

    let order = Order::of(hessian, options);
    let (factor, dead) = order.factor(hessian, options.damping)?;
    let solver = Solver {
        shape,
        options,
        order: &order,
        upper: &factor.upper,
        importance: order.sorted(&hessian.diagonal()),
        fixed: order.static_grids(weight, &shape, hessian, options)?,
    };
    let weights = solver.solve(weight)?;
    let loss = hessian.loss(weight, &weights.dequantize());
    // Written so that a NaN takes the safe side.
    let took_rtn = !(loss <= rtn_loss);
    Ok(GptqLayer {
        weights: if took_rtn { rtn } else { weights },
        loss: if took_rtn { rtn_loss } else { loss },
        rtn_loss,
        took_rtn,
        damping: factor.damping,
        dead,
    })
}

/// The order in which channels are rounded.
struct Order {
    /// Position -> channel.
    channels: Vec<usize>,
    /// Whether positions are channels.
    plain: bool,
}

impl Order {
    fn of(hessian: &Hessian, options: &GptqOptions) -> Self {
        let diagonal = hessian.diagonal();
        let mut channels: Vec<usize> = (0..hessian.k).collect();
        if options.act_order {
            channels.sort_by(|&a, &b| diagonal[b].total_cmp(&diagonal[a]));
        }
        let plain = channels
            .iter()
            .enumerate()
            .all(|(at, &channel)| at == channel);
        Self { channels, plain }
    }

    fn sorted(&self, diagonal: &[f64]) -> Vec<f32> {
        self.channels.iter().map(|&c| diagonal[c] as f32).collect()
    }

    /// The factor of the Hessian in this order, and the number of dead channels, whose diagonal
    /// becomes the mean so that they are ordinary to the factorization.
    fn factor(
        &self,
        hessian: &Hessian,
        damping: f64,
    ) -> Result<(crate::factor::InverseFactor, usize), QuantizeError> {
        let k = hessian.k;
        let diagonal = hessian.diagonal();
        let live = diagonal.iter().filter(|&&value| value != 0.0).count();
        let mean = match live {
            0 => 1.0,
            _ => diagonal.iter().sum::<f64>() / live as f64,
        };
        let mut sorted = Vec::with_capacity(k * k);
        for &row in &self.channels {
            let values = &hessian.matrix[row * k..(row + 1) * k];
            sorted.extend(self.channels.iter().map(|&column| values[column]));
        }
        for (at, &channel) in self.channels.iter().enumerate() {
            if diagonal[channel] == 0.0 {
                sorted[at * k + at] = mean;
            }
        }
        Ok((damped_factor(&sorted, k, damping)?, k - live))
    }

    /// The grids of all groups, fitted beforehand; None where they are fitted on the way.
    fn static_grids(
        &self,
        weight: Weight<'_>,
        shape: &QuantShape,
        hessian: &Hessian,
        options: &GptqOptions,
    ) -> Result<Option<Vec<Grid>>, QuantizeError> {
        if !options.static_groups {
            return Ok(None);
        }
        let importance: Vec<f32> = hessian.diagonal().iter().map(|&v| v as f32).collect();
        let fit = |g: usize| {
            let rows = g * shape.group..((g + 1) * shape.group).min(shape.k);
            let values = rows.clone().map(|row| weight.row(row));
            Grid::fit(values, &importance[rows], shape.n, &options.grid)
        };
        (0..shape.groups)
            .map(fit)
            .collect::<Result<_, _>>()
            .map(Some)
    }
}

/// Everything that the outputs share.
struct Solver<'a> {
    shape: QuantShape,
    options: &'a GptqOptions,
    order: &'a Order,
    /// [k, k]
    upper: &'a [f32],
    /// `[k]`, mean squares in the order of rounding.
    importance: Vec<f32>,
    /// Grids fitted beforehand, by group of the original order.
    fixed: Option<Vec<Grid>>,
}

/// Some outputs, rounded: codes [k, width] in the order of rounding, and the grids of the groups.
struct Solved {
    width: usize,
    codes: Vec<u8>,
    grids: Vec<Grid>,
}

impl Solver<'_> {
    fn solve(&self, weight: Weight<'_>) -> Result<IntWeights, QuantizeError> {
        let QuantShape { k, n, groups, .. } = self.shape;
        let ordered = weight.reordered(&self.order.channels);
        let parts: Vec<Solved> = (0..n.div_ceil(OUTPUTS))
            .into_par_iter()
            .map(|part| {
                let first = part * OUTPUTS;
                let columns = first..(first + OUTPUTS).min(n);
                let rows = ordered.chunks_exact(n);
                let own = rows
                    .flat_map(|row| &row[columns.clone()])
                    .copied()
                    .collect();
                self.solve_outputs(own, columns)
            })
            .collect::<Result<_, _>>()?;
        let mut codes = vec![0u8; k * n];
        let mut grids = vec![Grid::empty(0, self.shape.bits); groups];
        for (part, solved) in parts.iter().enumerate() {
            for (position, own) in solved.codes.chunks_exact(solved.width).enumerate() {
                let start = self.order.channels[position] * n + part * OUTPUTS;
                codes[start..start + solved.width].copy_from_slice(own);
            }
            for (grid, own) in grids.iter_mut().zip(&solved.grids) {
                grid.scales.extend(&own.scales);
                grid.zeros.extend(&own.zeros);
            }
        }
        let moving = !self.order.plain && self.fixed.is_none() && groups > 1;
        let g_idx = moving.then(|| {
            let mut g_idx = vec![0; k];
            for (position, &channel) in self.order.channels.iter().enumerate() {
                g_idx[channel] = (position / self.shape.group) as u32;
            }
            g_idx
        });
        int_weights(self.shape, codes, &grids, g_idx)
    }

    /// `w` [k, width]: the outputs `columns`, channels in the order of rounding.
    fn solve_outputs(
        &self,
        mut w: Vec<f32>,
        columns: std::ops::Range<usize>,
    ) -> Result<Solved, QuantizeError> {
        let (k, width) = (self.shape.k, columns.len());
        let mut solved = Solved {
            width,
            codes: vec![0; k * width],
            grids: self.own_grids(columns),
        };
        let mut errors = vec![0.0f32; BLOCK * width];
        for block in self.blocks() {
            let (head, tail) = w.split_at_mut(block.end * width);
            self.round_block(head, tail, &block, &mut errors, &mut solved)?;
            if tail.is_empty() {
                break;
            }
            // tail [k - end, width] -= U[block, end..]^T errors [block, width]
            let upper = MatRef::from_row_major_slice(self.upper, k, k);
            let coefficients = upper.submatrix(block.start, block.end, block.len(), k - block.end);
            let errors = &errors[..block.len() * width];
            matmul(
                MatMut::from_row_major_slice_mut(tail, k - block.end, width),
                Accum::Add,
                coefficients.transpose(),
                MatRef::from_row_major_slice(errors, block.len(), width),
                -1.0,
                Par::Seq,
            );
        }
        Ok(solved)
    }

    /// The part of the fixed grids that belongs to these outputs; nothing where grids are fitted
    /// on the way.
    fn own_grids(&self, columns: std::ops::Range<usize>) -> Vec<Grid> {
        let own = |grid: &Grid| {
            let mut part = Grid::empty(0, self.shape.bits);
            part.scales.extend(&grid.scales[columns.clone()]);
            part.zeros.extend(&grid.zeros[columns.clone()]);
            part
        };
        self.fixed.iter().flatten().map(own).collect()
    }

    /// Ranges of channels that are rounded one by one before the later ones learn of it.
    fn blocks(&self) -> Vec<std::ops::Range<usize>> {
        let QuantShape { k, group, .. } = self.shape;
        let exact = self.options.group_fit == GroupFit::Exact && self.fixed.is_none();
        let mut blocks = Vec::new();
        let mut start = 0;
        while start < k {
            let length = match exact {
                false => BLOCK,
                // As many whole groups as fit, or a part of one group.
                true if group <= BLOCK => BLOCK / group * group,
                true => BLOCK.min(group - start % group),
            };
            let end = (start + length).min(k);
            blocks.push(start..end);
            start = end;
        }
        blocks
    }

    /// Rounds the channels of a block. `head` [end, width] ends with the block, `tail` follows it;
    /// leaves e_i in `errors`.
    fn round_block(
        &self,
        head: &mut [f32],
        tail: &[f32],
        block: &std::ops::Range<usize>,
        errors: &mut [f32],
        solved: &mut Solved,
    ) -> Result<(), QuantizeError> {
        let (k, width) = (self.shape.k, solved.width);
        let at_start = match self.options.group_fit {
            GroupFit::Exact => Vec::new(),
            GroupFit::BlockStart => head[block.start * width..].to_vec(),
        };
        let mut restored = vec![0.0f32; width];
        for i in block.clone() {
            if self.fixed.is_none() && i % self.shape.group == 0 {
                let current = match self.options.group_fit {
                    GroupFit::Exact => &head[i * width..],
                    GroupFit::BlockStart => &at_start[(i - block.start) * width..],
                };
                solved.grids.push(self.fit(i, current, tail, width)?);
            }
            let codes = &mut solved.codes[i * width..(i + 1) * width];
            let (done, later) = head.split_at_mut((i + 1) * width);
            let row = &done[i * width..];
            let grid = match self.fixed {
                Some(_) => &solved.grids[self.order.channels[i] / self.shape.group],
                None => &solved.grids[i / self.shape.group],
            };
            grid.quantize(row, codes, &mut restored);
            let upper = &self.upper[i * k..(i + 1) * k];
            let error = &mut errors[(i - block.start) * width..][..width];
            for ((error, &w), &q) in error.iter_mut().zip(row).zip(&restored) {
                *error = (w - q) / upper[i];
            }
            for (row, &by) in later.chunks_exact_mut(width).zip(&upper[i + 1..]) {
                for (w, &error) in row.iter_mut().zip(&*error) {
                    *w -= by * error;
                }
            }
        }
        Ok(())
    }

    /// The grid of the group that starts at position `first`, whose rows begin in `current` and may
    /// go on in `tail`.
    fn fit(
        &self,
        first: usize,
        current: &[f32],
        tail: &[f32],
        width: usize,
    ) -> Result<Grid, QuantizeError> {
        let last = (first + self.shape.group).min(self.shape.k);
        let rows = current.chunks_exact(width).chain(tail.chunks_exact(width));
        let rows = rows.take(last - first);
        Grid::fit(
            rows,
            &self.importance[first..last],
            width,
            &self.options.grid,
        )
    }
}
