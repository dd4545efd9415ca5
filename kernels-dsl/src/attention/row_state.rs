//! The online-softmax state: running maximum and sum of every row, and the one place where
//! -inf is handled.
//!
//! WGSL has no literal for an infinity, so kernels receive -inf as a scalar argument and
//! recognise it as everything below [`LOWEST`].

use cubecl::prelude::*;

use super::{Exponential, WeightFormat};
use crate::tile::Fragment;

/// The smallest finite f32.
pub const LOWEST: f32 = f32::MIN;

/// Maximum and sum of the rows a unit works on, in the base of the tier's [`Exponential`].
///
/// After logits x_1..x_n: `max = max x_i` (or up to the slack less), `sum = sum base^(x_i - max)`. A row that saw no key
/// has max -inf and sum 0. While the loop runs `sum` is this unit's part; [`Finished`] holds the
/// row's.
#[derive(CubeType)]
pub struct RowState {
    /// `[rows]` f32: largest logit so far, or up to the slack less.
    pub max: Array<f32>,
    /// `[rows]` f32: sum of base^(x - max) so far.
    pub sum: Array<f32>,
}

/// What the epilogue needs of every row.
#[derive(CubeType)]
pub struct Finished {
    /// `[rows]` f32: 1 / sum, 0 for a row that saw no key.
    pub inverse: Array<f32>,
    /// `[rows]` f32: natural log-sum-exp, -inf for a row that saw no key.
    pub lse: Array<f32>,
}

#[cube]
impl RowState {
    /// The state of rows that saw nothing.
    pub fn new(neg_inf: f32, #[comptime] rows: usize) -> RowState {
        let mut max = Array::<f32>::new(rows);
        let mut sum = Array::<f32>::new(rows);
        #[unroll]
        for r in 0..rows {
            max[r] = neg_inf;
            sum[r] = 0.0f32;
        }
        RowState { max, sum }
    }

    /// Row `r` as if it had seen a key of this logit (base of the tier's exponential) whose value is
    /// 0. Of the units that share the row, `first` is set in one.
    pub fn sink(&mut self, #[comptime] r: usize, logit: f32, first: bool) {
        self.max[r] = logit;
        self.sum[r] = select(first, 1.0f32, 0.0f32);
    }

    /// Back to rows that saw nothing.
    pub fn restart(&mut self, neg_inf: f32) {
        #[unroll]
        for r in 0..self.max.len() {
            self.max[r] = neg_inf;
            self.sum[r] = 0.0f32;
        }
    }
}

#[cube]
impl Finished {
    /// Room for `rows` rows.
    pub fn new(#[comptime] rows: usize) -> Finished {
        Finished {
            inverse: Array::<f32>::new(rows),
            lse: Array::<f32>::new(rows),
        }
    }
}

/// base^(x - max), exactly 0 for x = -inf whatever max is (-inf - -inf would be NaN, and some
/// drivers' exp(-inf) is a denormal).
#[cube]
pub fn weight<X: Exponential>(x: f32, max: f32) -> f32 {
    let hidden = x < LOWEST;
    // The argument must not be NaN even where its result is thrown away: fast-math drivers may
    // assume that no NaN exists.
    let shift = select(max < LOWEST, 0.0f32, max);
    let e = X::exp(x - shift);
    select(hidden, 0.0f32, e)
}

/// Row maxima over this block and those before it, and the factors `[rows]` by which everything
/// summed earlier must be scaled.
///
/// With `folded` the fragment holds raw scores and the logit is `scale * score`; `max` is then that
/// rounded product. `slack` (in the base's logarithm) is how far a logit may exceed `max` before
/// `max` follows: weights then reach base^slack, every factor between is exactly 1, and the result,
/// a quotient of sums of such weights, is the same. With `whole` maxima are rounded up to integers.
#[cube]
pub fn raise_maxima<F: Fragment, X: Exponential>(
    s: &F::Regs,
    st: &mut RowState,
    factors: &mut Array<f32>,
    scale: f32,
    #[comptime] folded: bool,
    #[comptime] slack: u32,
    #[comptime] whole: bool,
) {
    let rows = F::rows(s);
    let cols = F::cols(s);
    #[unroll]
    for r in 0..rows {
        // Units of one or two rows take the maximum in two chains, so that half as many maxima wait for
        // one another; more rows are chains enough, and have no registers to spare.
        let mut block_max = if comptime!(rows > 2 || cols < 2) {
            chain_max::<F>(s, r, 0usize, 1usize)
        } else {
            chain_max::<F>(s, r, 0usize, 2usize).max(chain_max::<F>(s, r, 1usize, 2usize))
        };
        block_max = F::reduce_max(block_max);
        if comptime!(folded) {
            block_max *= scale;
        }
        if comptime!(whole) {
            // Not of -inf: some drivers assume that there is none.
            let hidden = block_max < LOWEST;
            let up = select(hidden, 0.0f32, block_max).ceil();
            block_max = select(hidden, block_max, up);
        }
        let max = if comptime!(slack > 0) {
            let limit = st.max[r] + comptime!(slack as f32);
            select(block_max > limit, block_max, st.max[r])
        } else {
            st.max[r].max(block_max)
        };
        factors[r] = weight::<X>(st.max[r], max);
        st.max[r] = max;
    }
}

/// Largest of columns first, first + step, ... of row r.
#[cube]
fn chain_max<F: Fragment>(
    s: &F::Regs,
    #[comptime] r: usize,
    #[comptime] first: usize,
    #[comptime] step: usize,
) -> f32 {
    let cols = F::cols(s);
    let mut max = F::get(s, r, first);
    #[unroll]
    for i in 1..comptime!((cols - first).div_ceil(step)) {
        max = max.max(F::get(s, r, comptime!(first + i * step)));
    }
    max
}

/// Logits -> base^(logit - max), in place, and the row sums of this unit's part.
///
/// With `folded` weights are base^(fma(score, scale, -max)), with the same rounded `max` that the
/// factors and the log-sum-exp use. `may_hide` is set when a score of the block can be -inf; the
/// interior of an unmasked problem saves the comparison.
#[cube]
pub fn weights<F: Fragment, X: Exponential>(
    s: &mut F::Regs,
    st: &mut RowState,
    factors: &Array<f32>,
    scale: f32,
    #[comptime] folded: bool,
    #[comptime] may_hide: bool,
) {
    let rows = F::rows(&*s);
    let cols = F::cols(&*s);
    #[unroll]
    for r in 0..rows {
        let max = st.max[r];
        // Rows that have seen nothing subtract 0, not -inf.
        let shift = if comptime!(may_hide) {
            select(max < LOWEST, 0.0f32, max)
        } else {
            max
        };
        let mut sum = st.sum[r] * factors[r];
        #[unroll]
        for c in 0..cols {
            let x = F::get(&*s, r, c);
            let e = if comptime!(folded) {
                X::exp_at(fma(x, scale, -shift), c)
            } else {
                X::exp_at(x - shift, c)
            };
            let p = if comptime!(may_hide) {
                select(x < LOWEST, 0.0f32, e)
            } else {
                e
            };
            sum += p;
            F::set(s, r, c, p);
        }
        st.sum[r] = sum;
    }
}

/// Row sums over all units, the normaliser and the natural log-sum-exp.
///
/// `lse = (max + log(sum)) / per_nat`: the same rounded maximum that the weights used, less what
/// encoded weights are `raised` by.
#[cube]
pub fn finish<F: Fragment, X: Exponential>(
    st: &RowState,
    done: &mut Finished,
    neg_inf: f32,
    #[comptime] format: WeightFormat,
) {
    let rows = st.max.len();
    let nat = comptime!(1.0f32 / X::per_nat());
    #[unroll]
    for r in 0..rows {
        let sum = F::reduce_sum(st.sum[r]);
        // A row that sees a key has sum >= 1 (its largest logit weighs 1), or NaN.
        let empty = sum == 0.0f32;
        let safe = select(empty, 1.0f32, sum);
        done.inverse[r] = select(empty, 0.0f32, 1.0f32 / safe);
        let mut max = st.max[r];
        if comptime!(format.raised() > 0.0) {
            max -= comptime!(format.raised());
        }
        let lse = (max + X::log(safe)) * nat;
        done.lse[r] = select(empty, neg_inf, lse);
    }
}
