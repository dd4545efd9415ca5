//! The serial part of GPTQ: the channels of a block, rounded one after another for a few outputs.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::grid::Levels;

/// Outputs of a tile: a block of 128 channels of them stays in the first cache, and any register's
/// lanes divide them.
pub(crate) const OUTPUTS: usize = 64;
/// Registers that gather errors at once: enough to hide an addition's latency.
const GATHERED: usize = 8;

/// The weights of one block for up to [`OUTPUTS`] outputs. A rounded channel's row becomes its
/// error e_i.
pub(crate) struct Tile {
    pub(crate) rows: Vec<[f32; OUTPUTS]>,
    codes: Vec<[u8; OUTPUTS]>,
}

impl Tile {
    /// Copies the outputs `columns` of `w` [block, width]; those that are not there are 0 and stay
    /// 0.
    pub(crate) fn load(w: &[f32], width: usize, columns: Range<usize>) -> Self {
        let load = |from: &[f32]| {
            let mut row = [0.0; OUTPUTS];
            row[..columns.len()].copy_from_slice(&from[columns.clone()]);
            row
        };
        let rows: Vec<_> = w.chunks_exact(width).map(load).collect();
        let codes = vec![[0; OUTPUTS]; rows.len()];
        Self { rows, codes }
    }

    /// Puts errors and codes back, both [block, width].
    pub(crate) fn store(
        &self,
        errors: &mut [f32],
        codes: &mut [u8],
        width: usize,
        columns: Range<usize>,
    ) {
        let rows = errors.chunks_exact_mut(width).zip(&self.rows);
        for (to, row) in rows {
            to[columns.clone()].copy_from_slice(&row[..columns.len()]);
        }
        for (to, row) in codes.chunks_exact_mut(width).zip(&self.codes) {
            to[columns.clone()].copy_from_slice(&row[..columns.len()]);
        }
    }

    /// Rounds the channels `run` of the block, each by its `levels`; the block's later channels
    /// learn of the errors. `upper` begins with U[block, block], its rows `stride` apart.
    pub(crate) fn round(
        &mut self,
        run: Range<usize>,
        levels: &[Levels<'_>],
        upper: &[f32],
        stride: usize,
    ) {
        pulp::Arch::new().dispatch(Round {
            tile: self,
            run,
            levels,
            upper,
            stride,
        });
    }
}

/// One run, compiled for every width of registers.
struct Round<'a> {
    tile: &'a mut Tile,
    run: Range<usize>,
    levels: &'a [Levels<'a>],
    upper: &'a [f32],
    stride: usize,
}

impl WithSimd for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { tile, run, .. } = self;
        for (i, levels) in run.clone().zip(self.levels) {
            let (done, later) = tile.rows.split_at_mut(i + 1);
            let (row, mut restored) = (&mut done[i], [0.0; OUTPUTS]);
            levels.quantize(&*row, &mut tile.codes[i], &mut restored);
            let upper = &self.upper[i * self.stride..];
            for (w, q) in row.iter_mut().zip(restored) {
                *w = (*w - q) / upper[i];
            }
            for (to, &by) in later.iter_mut().zip(&upper[i + 1..run.end]) {
                learn(simd, to, [(by, &*row)].into_iter());
            }
        }
        let (done, later) = tile.rows.split_at_mut(run.end);
        let errors = &done[run.clone()];
        for (to, j) in later.iter_mut().zip(run.end..) {
            let coefficients = self.upper[run.start * self.stride + j..]
                .iter()
                .step_by(self.stride);
            learn(simd, to, coefficients.copied().zip(errors));
        }
    }
}

/// to -= sum of by * error over the pairs of them.
#[inline(always)]
fn learn<'e, S: Simd>(
    simd: S,
    to: &mut [f32; OUTPUTS],
    errors: impl Iterator<Item = (f32, &'e [f32; OUTPUTS])> + Clone,
) {
    let (to, _) = S::as_mut_simd_f32s(to);
    let whole = to.len() / GATHERED * GATHERED;
    let (chunks, rest) = to.as_chunks_mut::<GATHERED>();
    for (at, to) in chunks.iter_mut().enumerate() {
        gather(simd, to, at * GATHERED, errors.clone());
    }
    for (at, to) in rest.as_chunks_mut::<1>().0.iter_mut().enumerate() {
        gather(simd, to, whole + at, errors.clone());
    }
}

/// The same for N registers of a row, from register `first` on.
#[inline(always)]
fn gather<'e, S: Simd, const N: usize>(
    simd: S,
    to: &mut [S::f32s; N],
    first: usize,
    errors: impl Iterator<Item = (f32, &'e [f32; OUTPUTS])>,
) {
    let mut sums = *to;
    for (by, error) in errors {
        let by = simd.splat_f32s(-by);
        let (error, _) = S::as_simd_f32s(error);
        for (sum, &error) in sums.iter_mut().zip(&error[first..first + N]) {
            *sum = simd.mul_add_e_f32s(by, error, *sum);
        }
    }
    *to = sums;
}
