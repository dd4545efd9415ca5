//! The integer grid of a group: how a scale and a zero point follow from the weights.

use std::ops::Range;

use flashcube_formats::QuantShape;
use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::error::QuantizeError;

/// Which range of an asymmetric group its codes span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize)]
pub enum RangeRule {
    /// Smallest to largest weight and 0, as GPTQ has it.
    #[default]
    IncludeZero,
    /// Smallest to largest weight, as AutoAWQ has it. A zero point lies in 0..2^bits, so that a
    /// group of one sign far from 0 collapses: all weights in [5, 6] come back as at most 1.
    AsFound,
}

/// A search for a range smaller than the weights': clipping the largest may serve the others.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct ClipSearch {
    /// Candidates, the whole range included; at least 1.
    pub steps: usize,
    /// Part of the range that the smallest candidate keeps, in (0, 1].
    pub smallest: f32,
}

impl ClipSearch {
    /// 20 steps down to half of the range.
    pub const DEFAULT: Self = Self {
        steps: 20,
        smallest: 0.5,
    };

    /// Parts of the range to try, 1 first.
    pub(crate) fn parts(search: Option<Self>) -> impl Iterator<Item = f32> {
        let Self { steps, smallest } = search.unwrap_or(Self {
            steps: 1,
            smallest: 1.0,
        });
        let step = (1.0 - smallest) / steps.saturating_sub(1).max(1) as f32;
        (0..steps.max(1)).map(move |i| 1.0 - i as f32 * step)
    }
}

/// The integer grid of a weight.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct GridOptions {
    /// Bits of a code: 2, 3, 4 or 8.
    pub bits: u32,
    /// Input channels that share a scale, None for all of them; the last group may be short.
    pub group: Option<usize>,
    /// Zero points are 2^(bits-1), the range is +-max|w|.
    pub symmetric: bool,
    /// The range of an asymmetric group.
    pub range: RangeRule,
    /// Try smaller ranges.
    pub clip: Option<ClipSearch>,
}

impl GridOptions {
    /// Asymmetric groups of `group` over their whole range.
    pub fn new(bits: u32, group: Option<usize>) -> Self {
        Self {
            bits,
            group,
            symmetric: false,
            range: RangeRule::default(),
            clip: None,
        }
    }

    pub(crate) fn shape(&self, k: usize, n: usize) -> Result<QuantShape, QuantizeError> {
        if let Some(ClipSearch { steps, smallest }) = self.clip
            && !(steps > 0 && smallest > 0.0 && smallest <= 1.0)
        {
            let value = format!("{steps} steps down to {smallest}");
            let limit = "at least 1 step, down to a part in (0, 1]";
            return Err(QuantizeError::unsupported("clip search", value, limit));
        }
        Ok(QuantShape::new(k, n, self.bits, self.group)?)
    }
}

/// Scales and zero points of one group for every output, both `[n]`. Scales are f16 values: a
/// weight is quantized to what the checkpoint will hold.
#[derive(Debug, Clone)]
pub(crate) struct Grid {
    pub(crate) scales: Vec<f32>,
    pub(crate) zeros: Vec<f32>,
    max_code: f32,
}

/// Adding and subtracting 1.5 * 2^23 rounds |x| < 2^22 to the nearest whole number, ties to even,
/// on every CPU's plain adder.
const ROUNDER: f32 = 12_582_912.0;

/// The nearest whole number, ties to even, of |x| < 2^22.
#[inline(always)]
fn round(x: f32) -> f32 {
    (x + ROUNDER) - ROUNDER
}

impl Grid {
    /// Fits the grid to the rows of a group, each `[n]`. `importance` weighs the rows in a clip
    /// search.
    ///
    /// An all-zero group spans [-1, 1], so that its scale is an ordinary number; a scale below f16
    /// becomes its smallest.
    pub(crate) fn fit<'a>(
        rows: impl Iterator<Item = &'a [f32]> + Clone,
        importance: &[f32],
        n: usize,
        options: &GridOptions,
    ) -> Result<Self, QuantizeError> {
        let (low, high) = ranges(rows.clone(), n, options);
        let mut best = Self::empty(n, options.bits);
        let mut best_error = vec![f32::INFINITY; n];
        for part in ClipSearch::parts(options.clip) {
            let candidate = Self::of_ranges(&low, &high, part, options)?;
            if options.clip.is_none() {
                return Ok(candidate);
            }
            let mut error = vec![0.0f32; n];
            for (row, &importance) in rows.clone().zip(importance) {
                candidate.add_error(row, importance, &mut error);
            }
            for column in 0..n {
                if error[column] < best_error[column] {
                    best_error[column] = error[column];
                    best.scales[column] = candidate.scales[column];
                    best.zeros[column] = candidate.zeros[column];
                }
            }
        }
        Ok(best)
    }

    /// Scales 1 and zero points 0.
    pub(crate) fn empty(n: usize, bits: u32) -> Self {
        Self {
            scales: vec![1.0; n],
            zeros: vec![0.0; n],
            max_code: ((1u32 << bits) - 1) as f32,
        }
    }

    /// The grids of the ranges `part` * low..high, which hold low <= high; all `[n]`.
    fn of_ranges(
        low: &[f32],
        high: &[f32],
        part: f32,
        options: &GridOptions,
    ) -> Result<Self, QuantizeError> {
        let mut grid = Self::empty(low.len(), options.bits);
        let max_code = grid.max_code;
        let range = |low: f32, high: f32| match low == 0.0 && high == 0.0 {
            true => (-1.0, 1.0),
            false => (low * part, high * part),
        };
        let pairs = || low.iter().zip(high).map(|(&low, &high)| range(low, high));
        for (scale, (low, high)) in grid.scales.iter_mut().zip(pairs()) {
            // Halves first: a range of the whole of f32 must not overflow.
            *scale = 2.0 * (high / 2.0 - low / 2.0) / max_code;
        }
        // As slices: a conversion by itself would cost more than all else here.
        let mut halves = vec![f16::ZERO; low.len()];
        halves.convert_from_f32_slice(&grid.scales);
        if let Some(column) = halves.iter().position(|scale| !scale.is_finite()) {
            let (low, high) = range(low[column], high[column]);
            return Err(QuantizeError::ScaleOverflow {
                tensor: "weight".to_owned(),
                range: high - low,
                scale: grid.scales[column],
            });
        }
        for scale in &mut halves {
            *scale = f16::from_bits(scale.to_bits().max(1));
        }
        halves.convert_to_f32_slice(&mut grid.scales);
        for ((zero, scale), (low, _)) in grid.zeros.iter_mut().zip(&grid.scales).zip(pairs()) {
            *zero = match options.symmetric {
                true => (max_code + 1.0) / 2.0,
                false => round((-low / scale).clamp(-1.0, max_code + 1.0)).clamp(0.0, max_code),
            };
        }
        Ok(grid)
    }

    /// The part of the outputs `columns`.
    pub(crate) fn columns(&self, columns: Range<usize>) -> Self {
        Self {
            scales: self.scales[columns.clone()].to_vec(),
            zeros: self.zeros[columns].to_vec(),
            max_code: self.max_code,
        }
    }

    /// What the outputs `columns` are rounded with.
    pub(crate) fn levels(&self, columns: Range<usize>) -> Levels<'_> {
        Levels {
            scales: &self.scales[columns.clone()],
            zeros: &self.zeros[columns],
            max_code: self.max_code,
        }
    }

    /// Codes and restored weights of a row `[n]`.
    pub(crate) fn quantize(&self, row: &[f32], codes: &mut [u8], restored: &mut [f32]) {
        self.levels(0..row.len()).quantize(row, codes, restored);
    }

    fn add_error(&self, row: &[f32], importance: f32, error: &mut [f32]) {
        let levels = self.levels(0..row.len());
        for (column, &weight) in row.iter().enumerate() {
            let off = weight - levels.value(column, levels.code(column, weight));
            error[column] += importance * off * off;
        }
    }
}

/// Scales and zero points of some outputs in one group.
#[derive(Clone, Copy)]
pub(crate) struct Levels<'a> {
    scales: &'a [f32],
    zeros: &'a [f32],
    max_code: f32,
}

impl Levels<'_> {
    /// The code of a weight.
    #[inline(always)]
    fn code(&self, column: usize, weight: f32) -> f32 {
        let bound = 2.0 * self.max_code + 2.0;
        let steps = round((weight / self.scales[column]).clamp(-bound, bound));
        (steps + self.zeros[column]).clamp(0.0, self.max_code)
    }

    /// The weight of a code.
    #[inline(always)]
    fn value(&self, column: usize, code: f32) -> f32 {
        self.scales[column] * (code - self.zeros[column])
    }

    /// Codes and restored weights of a row of these outputs.
    #[inline(always)]
    pub(crate) fn quantize(&self, row: &[f32], codes: &mut [u8], restored: &mut [f32]) {
        let outputs = self.scales.len();
        let (zeros, row) = (&self.zeros[..outputs], &row[..outputs]);
        let (codes, restored) = (&mut codes[..outputs], &mut restored[..outputs]);
        let levels = Levels { zeros, ..*self };
        for column in 0..outputs {
            let code = levels.code(column, row[column]);
            // 2^23 + code has the code in its low bits: a cast by plain SIMD.
            codes[column] = (code + 8_388_608.0).to_bits() as u8;
            restored[column] = levels.value(column, code);
        }
    }
}

/// Smallest and largest weight of every output, both `[n]`, by the rule of the options.
fn ranges<'a>(
    rows: impl Iterator<Item = &'a [f32]>,
    n: usize,
    options: &GridOptions,
) -> (Vec<f32>, Vec<f32>) {
    let start = match options.range {
        RangeRule::AsFound if !options.symmetric => (f32::INFINITY, f32::NEG_INFINITY),
        _ => (0.0, 0.0),
    };
    let (mut low, mut high) = (vec![start.0; n], vec![start.1; n]);
    // With the registers of this CPU.
    pulp::Arch::new().dispatch(|| {
        for row in rows {
            for ((low, high), &weight) in low.iter_mut().zip(&mut high).zip(row) {
                *low = low.min(weight);
                *high = high.max(weight);
            }
        }
    });
    if options.symmetric {
        for (low, high) in low.iter_mut().zip(&mut high) {
            *high = high.max(-*low);
            *low = -*high;
        }
    }
    (low, high)
}
