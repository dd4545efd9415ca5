//! The serial part of GPTQ: the channels of a run, rounded one after another.

use pulp::{Simd, WithSimd};

use crate::gptq::OUTPUTS;
use crate::grid::Levels;

/// Rounds the channels of a run, each by its `levels`. `rows` and `codes` are [run, width],
/// width at most [`OUTPUTS`]; a
/// rounded channel's row becomes its error e_i, of which the run's later channels learn. `upper`
/// begins with U[run, run], its rows `stride` apart.
pub(crate) fn round(
    rows: &mut [f32],
    codes: &mut [u8],
    levels: &[Levels<'_>],
    upper: &[f32],
    stride: usize,
) {
    pulp::Arch::new().dispatch(Round {
        rows,
        codes,
        levels,
        upper,
        stride,
    });
}

/// One run, compiled for every width of registers.
struct Round<'a> {
    rows: &'a mut [f32],
    codes: &'a mut [u8],
    levels: &'a [Levels<'a>],
    upper: &'a [f32],
    stride: usize,
}

impl WithSimd for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let width = self.rows.len() / self.levels.len().max(1);
        let mut restored = [0.0; OUTPUTS];
        let restored = &mut restored[..width];
        for (i, levels) in self.levels.iter().enumerate() {
            let (errors, later) = self.rows.split_at_mut(i * width);
            let row = &mut later[..width];
            let by = self.upper[i..].iter().step_by(self.stride);
            learn(simd, row, by.copied().zip(errors.chunks_exact(width)));
            levels.quantize(row, &mut self.codes[i * width..][..width], restored);
            let per_pivot = 1.0 / self.upper[i * self.stride + i];
            for (w, q) in row.iter_mut().zip(&*restored) {
                *w = (*w - q) * per_pivot;
            }
        }
    }
}

/// Registers that gather errors at once: enough to hide an addition's latency.
const GATHERED: usize = 6;

/// to -= sum of by * error over the pairs of them.
#[inline(always)]
fn learn<'e, S: Simd>(
    simd: S,
    to: &mut [f32],
    errors: impl Iterator<Item = (f32, &'e [f32])> + Clone,
) {
    let (registers, rest) = S::as_mut_simd_f32s(to);
    let first_of_rest = registers.len() * S::F32_LANES;
    let (chunks, single) = registers.as_chunks_mut::<GATHERED>();
    let first_single = chunks.len() * GATHERED;
    for (at, to) in chunks.iter_mut().enumerate() {
        gather(simd, to, at * GATHERED, errors.clone());
    }
    for (at, to) in single.as_chunks_mut::<1>().0.iter_mut().enumerate() {
        gather(simd, to, first_single + at, errors.clone());
    }
    for (at, to) in rest.iter_mut().enumerate() {
        let errors = errors.clone();
        *to -= errors
            .map(|(by, error)| by * error[first_of_rest + at])
            .sum::<f32>();
    }
}

/// The same for N registers of a row, from register `first` on.
#[inline(always)]
fn gather<'e, S: Simd, const N: usize>(
    simd: S,
    to: &mut [S::f32s; N],
    first: usize,
    errors: impl Iterator<Item = (f32, &'e [f32])>,
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
