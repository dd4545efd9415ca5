//! GPTQ: every channel is rounded in turn, and what that costs is taken over by the channels that
//! still have to be rounded (Frantar, Ashkboos, Hoefler, Alistarh 2022).
//!
//! With U^T U = H^-1 and q_i the rounded row i of W:
//!
//! ```text
//! e_i = (w_i - q_i) / U[i, i]        w_j -= U[i, j] e_i   for j > i
//! ```

use std::ops::Range;
use std::time::{Duration, Instant};

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use flashcube_formats::{IntWeights, QuantShape};
use rayon::prelude::*;

use crate::error::{QuantizeError, check_len};
use crate::grid::{Grid, GridOptions, Levels};
use crate::hessian::Hessian;
use crate::order::Order;
use crate::rtn::{int_weights, round_to_nearest};
use crate::serial;
use crate::weight::Weight;

/// Channels whose updates of the later ones are gathered into one matrix product.
const BLOCK: usize = 128;
/// Channels that learn of each other's errors one by one; those of a block's other runs come as
/// matrix products.
const RUN: usize = 16;
/// Outputs that one task quantizes, since they do not depend on each other: as many as the matrix
/// kernels take at once, and few enough for the weights of some thousand channels to stay in the
/// second cache.
pub(crate) const OUTPUTS: usize = 96;
/// Bytes that a register of any CPU is aligned to.
const ALIGNMENT: usize = 64;

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
    /// What the factorization took.
    pub factor_time: Duration,
    /// What rounding and updating the channels took.
    pub update_time: Duration,
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

    let start = Instant::now();
    let order = Order::of(hessian, options);
    let (factor, dead) = order.factor(hessian, options.damping)?;
    let factored = Instant::now();
    let solver = Solver {
        shape,
        options,
        order: &order,
        upper: &factor.upper,
        importance: order.sorted(&hessian.diagonal()),
        fixed: order.static_grids(weight, &shape, hessian, options)?,
    };
    let weights = solver.solve(weight)?;
    let update_time = factored.elapsed();
    let loss = hessian.loss(weight, &weights.dequantize());
    let took_rtn = loss.is_nan() || loss > rtn_loss;
    Ok(GptqLayer {
        weights: if took_rtn { rtn } else { weights },
        loss: if took_rtn { rtn_loss } else { loss },
        rtn_loss,
        took_rtn,
        damping: factor.damping,
        dead,
        factor_time: factored - start,
        update_time,
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
        let parts: Vec<Solved> = (0..n.div_ceil(OUTPUTS))
            .into_par_iter()
            .map_init(Vec::new, |memory, part| {
                let columns = part * OUTPUTS..((part + 1) * OUTPUTS).min(n);
                memory.resize(k * columns.len() + ALIGNMENT, 0.0f32);
                let aligned = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
                let w = &mut memory[aligned..][..k * columns.len()];
                let rows = w.chunks_exact_mut(columns.len());
                for (row, &channel) in rows.zip(&self.order.channels) {
                    row.copy_from_slice(&weight.row(channel)[columns.clone()]);
                }
                self.solve_outputs(w, columns)
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

    /// `w` [k, width]: the outputs `columns`, channels in the order of rounding. Rows become the
    /// errors e_i.
    fn solve_outputs(&self, w: &mut [f32], columns: Range<usize>) -> Result<Solved, QuantizeError> {
        let QuantShape { k, group, .. } = self.shape;
        let width = columns.len();
        let mut solved = Solved {
            width,
            codes: vec![0; k * width],
            grids: self.own_grids(columns),
        };
        for block in self.blocks() {
            if self.fits() && self.options.group_fit == GroupFit::BlockStart {
                let mut starts = block.clone().filter(|channel| channel % group == 0);
                starts.try_for_each(|start| self.fit(w, start, &mut solved))?;
            }
            self.round_runs(w, &self.runs(&block), &mut solved)?;
            self.learn(w, &block, &(block.end..k), width);
        }
        Ok(solved)
    }

    /// Rounds the channels of `runs`. Later ones learn of all that earlier ones got wrong before
    /// they are looked at: cut in two where a group starts, if one does, so that a group's channels
    /// know alike when it is fitted.
    fn round_runs(
        &self,
        w: &mut [f32],
        runs: &[Range<usize>],
        solved: &mut Solved,
    ) -> Result<(), QuantizeError> {
        match runs {
            [] => Ok(()),
            [run] => self.round_run(w, run, solved),
            [first, .., last] => {
                let group_starts = |&at: &usize| runs[at].start.is_multiple_of(self.shape.group);
                let cuts: Vec<usize> = (1..runs.len()).filter(group_starts).collect();
                let middle = cuts.get(cuts.len() / 2).copied();
                let middle = middle.unwrap_or(runs.len() / 2);
                let (earlier, later) = runs.split_at(middle);
                let cut = later[0].start;
                self.round_runs(w, earlier, solved)?;
                self.learn(w, &(first.start..cut), &(cut..last.end), solved.width);
                self.round_runs(w, later, solved)
            }
        }
    }

    fn round_run(
        &self,
        w: &mut [f32],
        run: &Range<usize>,
        solved: &mut Solved,
    ) -> Result<(), QuantizeError> {
        let QuantShape { k, group, .. } = self.shape;
        let exact = self.options.group_fit == GroupFit::Exact;
        if self.fits() && exact && run.start.is_multiple_of(group) {
            self.fit(w, run.start, solved)?;
        }
        let group_of = |i: usize| match self.fixed {
            Some(_) => self.order.channels[i] / group,
            None => i / group,
        };
        let Solved {
            width,
            codes,
            grids,
        } = solved;
        let levels: Vec<Levels<'_>> = run
            .clone()
            .map(|i| grids[group_of(i)].levels(0..*width))
            .collect();
        let rows = run.start * *width..run.end * *width;
        let upper = &self.upper[run.start * k + run.start..];
        serial::round(&mut w[rows.clone()], &mut codes[rows], &levels, upper, k);
        Ok(())
    }

    /// The channels `later` learn of the errors of the channels `done`, which lie before them:
    /// w_later -= U[done, later]^T e_done.
    fn learn(&self, w: &mut [f32], done: &Range<usize>, later: &Range<usize>, width: usize) {
        if later.is_empty() {
            return;
        }
        let k = self.shape.k;
        let upper = MatRef::from_row_major_slice(self.upper, k, k);
        let coefficients = upper.submatrix(done.start, later.start, done.len(), later.len());
        let (errors, rows) = w[..later.end * width].split_at_mut(later.start * width);
        let errors = &errors[done.start * width..done.end * width];
        matmul(
            MatMut::from_row_major_slice_mut(rows, later.len(), width),
            Accum::Add,
            coefficients.transpose(),
            MatRef::from_row_major_slice(errors, done.len(), width),
            -1.0,
            Par::Seq,
        );
    }

    /// Whether grids are fitted on the way.
    fn fits(&self) -> bool {
        self.fixed.is_none()
    }

    /// The grids of these outputs: the part of the fixed ones, or room for those fitted on the way.
    fn own_grids(&self, columns: Range<usize>) -> Vec<Grid> {
        match &self.fixed {
            Some(fixed) => fixed
                .iter()
                .map(|grid| grid.columns(columns.clone()))
                .collect(),
            None => vec![Grid::empty(columns.len(), self.shape.bits); self.shape.groups],
        }
    }

    /// Ranges of channels whose errors the channels after them learn of at once.
    fn blocks(&self) -> Vec<Range<usize>> {
        let QuantShape { k, group, .. } = self.shape;
        let exact = self.options.group_fit == GroupFit::Exact && self.fits();
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

    /// Fits the grid of the group that starts at `start` to the weights as they stand.
    fn fit(&self, w: &[f32], start: usize, solved: &mut Solved) -> Result<(), QuantizeError> {
        let QuantShape { k, group, .. } = self.shape;
        let (channels, width) = (start..(start + group).min(k), solved.width);
        let rows = w[start * width..channels.end * width].chunks_exact(width);
        let importance = &self.importance[channels];
        solved.grids[start / group] = Grid::fit(rows, importance, width, &self.options.grid)?;
        Ok(())
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
