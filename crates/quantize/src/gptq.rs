//! GPTQ: every channel is rounded in turn, and what that costs is taken over by the channels that
//! still have to be rounded (Frantar, Ashkboos, Hoefler, Alistarh 2022).
//!
//! With U^T U = H^-1 and q_i the rounded row i of W:
//!
//! ```text
//! e_i = (w_i - q_i) / U[i, i]        w_j -= U[i, j] e_i   for j > i
//! ```

use std::ops::Range;

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use flashcube_formats::{IntWeights, QuantShape};
use rayon::prelude::*;

use crate::error::{QuantizeError, check_len};
use crate::grid::{Grid, GridOptions};
use crate::hessian::Hessian;
use crate::order::Order;
use crate::rtn::{int_weights, round_to_nearest};
use crate::weight::Weight;

/// Channels whose updates of the later ones are gathered into one matrix product.
const BLOCK: usize = 128;
/// Channels of a block that learn of each other's errors one by one, the rest of it by a product.
const RUN: usize = 16;
/// Least and most outputs that one task quantizes; they do not depend on each other.
const OUTPUTS: [usize; 2] = [64, 384];

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

    /// Refuses what no layer can be quantized with.
    pub(crate) fn check(&self) -> Result<(), QuantizeError> {
        if self.damping.is_finite() && self.damping >= 0.0 {
            return Ok(());
        }
        let limit = "finite, at least 0";
        Err(QuantizeError::unsupported("damping", self.damping, limit))
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
    options.check()?;
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
    let took_rtn = loss.is_nan() || loss > rtn_loss;
    Ok(GptqLayer {
        weights: if took_rtn { rtn } else { weights },
        loss: if took_rtn { rtn_loss } else { loss },
        rtn_loss,
        took_rtn,
        damping: factor.damping,
        dead,
    })
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
        let [least, most] = OUTPUTS;
        let outputs = n.div_ceil(rayon::current_num_threads()).clamp(least, most);
        let parts: Vec<Solved> = (0..n.div_ceil(outputs))
            .into_par_iter()
            .map(|part| {
                let first = part * outputs;
                let columns = first..(first + outputs).min(n);
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
                let start = self.order.channels[position] * n + part * outputs;
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
        columns: Range<usize>,
    ) -> Result<Solved, QuantizeError> {
        let (k, width) = (self.shape.k, columns.len());
        let mut solved = Solved {
            width,
            codes: vec![0; k * width],
            grids: self.own_grids(columns),
        };
        let mut errors = vec![0.0f32; BLOCK * width];
        for block in self.blocks() {
            let at_start = match self.options.group_fit {
                GroupFit::Exact => Vec::new(),
                GroupFit::BlockStart => w[block.start * width..].to_vec(),
            };
            for run in self.runs(&block) {
                if self.fixed.is_none() && run.start % self.shape.group == 0 {
                    let rows = match self.options.group_fit {
                        GroupFit::Exact => &w[run.start * width..],
                        GroupFit::BlockStart => &at_start[(run.start - block.start) * width..],
                    };
                    solved.grids.push(self.fit(run.start, rows, width)?);
                }
                let errors = &mut errors[(run.start - block.start) * width..][..run.len() * width];
                self.round_run(&mut w, &run, errors, &mut solved);
                self.propagate(&mut w, &run, run.end..block.end, errors);
            }
            self.propagate(&mut w, &block, block.end..k, &errors[..block.len() * width]);
        }
        Ok(solved)
    }

    /// The channels `to` learn of the errors [from, width]: w_to -= U[from, to]^T errors.
    fn propagate(&self, w: &mut [f32], from: &Range<usize>, to: Range<usize>, errors: &[f32]) {
        if to.is_empty() {
            return;
        }
        let (k, width) = (self.shape.k, errors.len() / from.len());
        let upper = MatRef::from_row_major_slice(self.upper, k, k);
        let coefficients = upper.submatrix(from.start, to.start, from.len(), to.len());
        let rows = &mut w[to.start * width..to.end * width];
        matmul(
            MatMut::from_row_major_slice_mut(rows, to.len(), width),
            Accum::Add,
            coefficients.transpose(),
            MatRef::from_row_major_slice(errors, from.len(), width),
            -1.0,
            Par::Seq,
        );
    }

    /// The part of the fixed grids that belongs to these outputs; nothing where grids are fitted
    /// on the way.
    fn own_grids(&self, columns: Range<usize>) -> Vec<Grid> {
        let own = |grid: &Grid| {
            let mut part = Grid::empty(0, self.shape.bits);
            part.scales.extend(&grid.scales[columns.clone()]);
            part.zeros.extend(&grid.zeros[columns.clone()]);
            part
        };
        self.fixed.iter().flatten().map(own).collect()
    }

    /// Ranges of channels whose errors the channels after them learn of at once.
    fn blocks(&self) -> Vec<Range<usize>> {
        let QuantShape { k, group, .. } = self.shape;
        let exact = self.options.group_fit == GroupFit::Exact && self.fixed.is_none();
        ranges(0..k, |start| match exact {
            false => BLOCK,
            // As many whole groups as fit, or a part of one group.
            true if group <= BLOCK => BLOCK / group * group,
            true => BLOCK.min(group - start % group),
        })
    }

    /// Ranges of a block's channels that learn of each other one by one; groups start with one.
    fn runs(&self, block: &Range<usize>) -> Vec<Range<usize>> {
        let group = self.shape.group;
        ranges(block.clone(), |start| RUN.min(group - start % group))
    }

    /// Rounds the channels of a run; leaves e_i [run, width] in `errors`.
    fn round_run(
        &self,
        w: &mut [f32],
        run: &Range<usize>,
        errors: &mut [f32],
        solved: &mut Solved,
    ) {
        let (k, width) = (self.shape.k, solved.width);
        let mut restored = vec![0.0f32; width];
        for (i, error) in run.clone().zip(errors.chunks_exact_mut(width)) {
            let channel = match self.fixed {
                Some(_) => self.order.channels[i],
                None => i,
            };
            let (done, later) = w[..run.end * width].split_at_mut((i + 1) * width);
            let row = &done[i * width..];
            let codes = &mut solved.codes[i * width..(i + 1) * width];
            solved.grids[channel / self.shape.group].quantize(row, codes, &mut restored);
            let upper = &self.upper[i * k..(i + 1) * k];
            for ((error, &w), &q) in error.iter_mut().zip(row).zip(&restored) {
                *error = (w - q) / upper[i];
            }
            for (row, &by) in later.chunks_exact_mut(width).zip(&upper[i + 1..]) {
                for (w, &error) in row.iter_mut().zip(&*error) {
                    *w -= by * error;
                }
            }
        }
    }

    /// The grid of the group that starts at position `first`, whose rows begin `rows`.
    fn fit(&self, first: usize, rows: &[f32], width: usize) -> Result<Grid, QuantizeError> {
        let last = (first + self.shape.group).min(self.shape.k);
        let rows = rows.chunks_exact(width).take(last - first);
        Grid::fit(
            rows,
            &self.importance[first..last],
            width,
            &self.options.grid,
        )
    }
}

/// Cuts a range into consecutive ones of the lengths that `length` gives for their starts.
fn ranges(whole: Range<usize>, length: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
    let mut cut = Vec::new();
    let mut start = whole.start;
    while start < whole.end {
        let end = (start + length(start)).min(whole.end);
        cut.push(start..end);
        start = end;
    }
    cut
}
