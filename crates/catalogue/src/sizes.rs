//! What the problems of each operation but the forward and the backward consist of.

use std::ops::Range;

use flashcube::attention::{RopePairs, ScaledBy};
use flashcube::{
    GroupAxis, MatmulPolicy, OperandFormat, PackFormat, ScaleRule, ScaleType, WeightCodes, ZeroType,
};
use flashcube_reference as reference;
use flashcube_reference::quant::{direct, e8m0, operand};

use crate::problem::Attend;

/// A decode: attention whose keys lie in a cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Decode {
    /// Sizes and hooks; s_kv is what a sequence can have.
    pub attend: Attend,
    /// Rows of a page; `None` for a cache in one piece. Pages lie in disorder among free ones, and
    /// whatever no key lies in is NaN.
    pub page: Option<usize>,
    /// Parts of the keys; the plan's when absent.
    pub splits: Option<usize>,
    /// So many first keys are those of batch entry 0 in every entry, and attended to as one cascade;
    /// every length is at least as long.
    pub prefix: usize,
    /// Lengths and pages are known to the device alone.
    pub device_tables: bool,
    /// K and V are E4M3 codes, scaled by powers of two that differ from neighbour to neighbour.
    pub codes: Option<ScaledBy>,
}

impl Decode {
    /// Scale of a key's codes (and, of another head, of its value's): exact in every dtype, so that
    /// codes times scale is what the reference gets.
    pub fn scale(&self, sequence: usize, head: usize, key: usize) -> f32 {
        let step = match (self.codes, self.page) {
            (None, _) => return 1.0,
            (Some(ScaledBy::Page), Some(page)) => sequence + 3 * head + 5 * (key / page),
            (Some(_), _) => 3 * head + 1,
        };
        (-((step % 4) as f32)).exp2()
    }
}

/// Attention over operands of block-scaled products.
#[derive(Debug, Clone, PartialEq)]
pub struct Operands {
    /// Sizes and hooks.
    pub attend: Attend,
    /// Format of q and k.
    pub scores: OperandFormat,
    /// Format of v, and P in it.
    pub values: OperandFormat,
}

impl Operands {
    /// What weights become.
    pub(crate) fn weights(&self) -> direct::WeightFormat {
        match self.values {
            OperandFormat::Nvfp4 { .. } => direct::WeightFormat::Nvfp4,
            OperandFormat::Mxfp4(rule) => direct::WeightFormat::Mxfp4(scale_rule(rule)),
            OperandFormat::Mxfp8(_) | OperandFormat::Fp8 { .. } => direct::WeightFormat::E4m3,
        }
    }

    /// The sequences of every batch entry.
    pub(crate) fn sequences(&self) -> Vec<Vec<Range<usize>>> {
        let Attend { b, s_kv, .. } = self.attend;
        if let Some((_, cu)) = &self.attend.cu_seqlens {
            return vec![cu.windows(2).map(|w| w[0]..w[1]).collect()];
        }
        let length = |b| self.attend.lengths_kv.as_ref().map_or(s_kv, |l| l[b]);
        (0..b)
            .map(|b| std::iter::once(0..length(b)).collect())
            .collect()
    }
}

/// A tensor that becomes codes and scales.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizeSizes {
    /// [b, h, s, d].
    pub shape: [usize; 4],
    /// Element and scale.
    pub format: OperandFormat,
    /// Direction of groups.
    pub axis: GroupAxis,
    /// Keys of every batch entry.
    pub lengths: Option<Vec<usize>>,
    /// Cumulative lengths of packed sequences.
    pub cu_seqlens: Option<Vec<usize>>,
    /// Heads whose rows alternate in tiles of scales.
    pub pack: usize,
}

impl QuantizeSizes {
    /// The operand of a head, as the reference has it.
    pub(crate) fn operand(
        &self,
        x: &reference::Tensor4,
        (b, h): (usize, usize),
    ) -> Result<operand::Operand, reference::Error> {
        let format = operand_format(self.format);
        match self.axis {
            GroupAxis::D => operand::Operand::of_rows(x, (b, h), format),
            GroupAxis::S => operand::Operand::of_columns(x, (b, h), &self.sequences(b), format),
        }
    }

    fn sequences(&self, b: usize) -> Vec<Range<usize>> {
        match (&self.cu_seqlens, &self.lengths) {
            (Some(cu), _) => cu.windows(2).map(|w| w[0]..w[1]).collect(),
            (None, Some(lengths)) => std::iter::once(0..lengths[b]).collect(),
            (None, None) => std::iter::once(0..self.shape[2]).collect(),
        }
    }

    /// [b, h, rows, columns] of the codes, columns padded.
    pub(crate) fn codes(&self) -> [usize; 4] {
        let [b, h, s, d] = self.shape;
        let quad = self.format.quad();
        let padded = |n: usize| n.next_multiple_of(quad);
        match self.axis {
            GroupAxis::D => [b, h, s, padded(d)],
            GroupAxis::S => {
                let of = |b| self.sequences(b).iter().map(|x| padded(x.len())).sum();
                [b, h, d, (0..b).map(of).max().unwrap_or(0)]
            }
        }
    }

    /// What starts a tile of scales: rows of the operand of a head.
    pub(crate) fn row_spans(&self) -> Vec<Range<usize>> {
        let [_, _, rows, _] = self.codes();
        let Some(cu) = self
            .cu_seqlens
            .as_ref()
            .filter(|_| self.axis == GroupAxis::D)
        else {
            return std::iter::once(0..rows).collect();
        };
        let ends = cu.iter().copied().chain([rows]).collect::<Vec<_>>();
        ends.windows(2).map(|w| w[0]..w[1]).collect()
    }

    /// Bytes of the scales of all heads, in tiles.
    pub(crate) fn scales(&self) -> usize {
        let [b, h, _, columns] = self.codes();
        let tiled = |rows: &Range<usize>| {
            let rows = rows.len() * self.pack;
            rows.next_multiple_of(operand::TILE_ROWS)
        };
        let rows: usize = self.row_spans().iter().map(tiled).sum();
        b * (h / self.pack) * rows * columns / self.format.group()
    }
}

/// The reference's name for a format.
pub(crate) fn operand_format(format: OperandFormat) -> operand::OperandFormat {
    match format {
        OperandFormat::Nvfp4 { exponent } => operand::OperandFormat::Nvfp4 { exponent },
        OperandFormat::Mxfp4(rule) => operand::OperandFormat::Mxfp4(scale_rule(rule)),
        OperandFormat::Mxfp8(rule) => operand::OperandFormat::Mxfp8(scale_rule(rule)),
        OperandFormat::Fp8 { exponent } => operand::OperandFormat::Fp8 { exponent },
    }
}

fn scale_rule(rule: ScaleRule) -> e8m0::ScaleRule {
    match rule {
        ScaleRule::Floor => e8m0::ScaleRule::Floor,
        ScaleRule::Ceil => e8m0::ScaleRule::Ceil,
        ScaleRule::RoundEven => e8m0::ScaleRule::RoundEven,
    }
}

/// Rows that come behind those of a cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Append {
    /// Key heads.
    pub h: usize,
    /// New rows of every sequence, some of them not used.
    pub s: usize,
    /// Keys that a sequence can have.
    pub s_kv: usize,
    /// Head dimensions of k and v.
    pub d: (usize, usize),
    /// Keys of every sequence before.
    pub lengths: Vec<usize>,
    /// (first, count) of the new rows of every sequence; all of them when absent.
    pub rows: Option<Vec<(usize, usize)>>,
    /// Rows of a page, as in [`Decode`].
    pub page: Option<usize>,
    /// Pairs and columns of the rotation.
    pub rope: Option<(RopePairs, usize)>,
    /// Lengths and pages are known to the device alone, which counts the new rows.
    pub device_tables: bool,
}

impl Append {
    /// First new row, and number of new rows, of a sequence.
    pub fn rows_of(&self, sequence: usize) -> (usize, usize) {
        self.rows
            .as_ref()
            .map_or((0, self.s), |rows| rows[sequence])
    }

    /// Keys of a sequence afterwards.
    pub fn end(&self, sequence: usize) -> usize {
        self.lengths[sequence] + self.rows_of(sequence).1
    }
}

/// Sizes of a merge: n partials of [b, h, s, d_v].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergeSizes {
    /// Partials.
    pub n: usize,
    /// Batch entries.
    pub b: usize,
    /// Heads.
    pub h: usize,
    /// Rows.
    pub s: usize,
    /// Head dimension of v.
    pub d_v: usize,
    /// Every n-th partial of a row is empty (lse -inf); 0 for none, 1 for all.
    pub empty: usize,
}

/// Sizes of a packed weight W [k, n].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedSizes {
    /// Layout.
    pub format: PackFormat,
    /// Bits of a code.
    pub bits: u32,
    /// Rows of W.
    pub k: usize,
    /// Columns of W.
    pub n: usize,
    /// Rows that share a scale.
    pub group: usize,
    /// Random group index for every row (act-order).
    pub act_order: bool,
}

/// Sizes of a product y [m, n] = x [m, k] W.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearSizes {
    /// Rows of x.
    pub m: usize,
    /// Columns of W.
    pub n: usize,
    /// Columns of x.
    pub k: usize,
    /// Bits of a code.
    pub bits: u32,
    /// What codes stand for.
    pub codes: WeightCodes,
    /// How scales are stored.
    pub scales: ScaleType,
    /// Stored rows that share a scale: 16, 32 or a multiple of 64.
    pub group: usize,
    /// Random zero points or minima, else the middle zero point.
    pub zeros: Option<ZeroType>,
    /// Rows are stored in random order, with holes.
    pub gathered: bool,
    /// A random bias.
    pub bias: bool,
    /// What selection is asked for.
    pub policy: MatmulPolicy,
}

impl LinearSizes {
    /// Stored rows.
    pub fn rows(&self) -> usize {
        let holes = if self.gathered { 5 } else { 0 };
        (self.k + holes).next_multiple_of(64)
    }

    /// The scale of all weights: only formats of small floats have one.
    pub fn factor(&self) -> f32 {
        match self.codes {
            WeightCodes::Int => 1.0,
            WeightCodes::E2M1 | WeightCodes::E4M3 | WeightCodes::Nf4 => 0.7,
        }
    }

    /// Whether weights have minima.
    pub fn minima(&self) -> bool {
        self.zeros == Some(ZeroType::Minimum)
    }

    /// Scales, and zero points or minima if there are any.
    pub fn places(&self) -> usize {
        self.rows().div_ceil(self.group) * self.n.next_multiple_of(64)
    }
}

/// Sizes of a Hadamard transform of rows of n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HadamardSizes {
    /// Rows.
    pub rows: usize,
    /// Length of a row, a power of two.
    pub n: usize,
    /// Random signs.
    pub signs: bool,
    /// The inverse transform.
    pub inverse: bool,
}
