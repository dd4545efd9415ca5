//! FlashAttention backward: one loop for both of its passes, over the forward's products,
//! fragments and logits.
//!
//! ```text
//! p_ij  = e^(x_ij - lse_i)                    weights, recomputed from the forward's lse
//! dp_ij = d_out_i . v_j
//! ds_ij = p_ij (dp_ij - delta_i) dx_ij/ds_ij   delta_i = d_out_i . out_i
//! dV_j  = sum_i p_ij d_out_i    dK_j = sum_i ds_ij q_i    dQ_i = sum_j ds_ij k_j
//! ```
//! A pass owns one side (a tile of keys, or of queries) and walks the other in blocks: "own" and
//! "other" below. Neither pass uses atomics, so the gradients are the same from run to run.
//! Source: Dao 2023, FlashAttention-2, algorithm 2.

use cubecl::prelude::*;

use super::*;
use crate::tile::{Fragment, Product, ProductMode};

/// Which gradients a pass computes.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub enum Side {
    /// Own tile of keys, blocks of queries: dK and dV.
    Keys,
    /// Own tile of queries, blocks of keys: dQ.
    Queries,
}

/// What an architecture offers the backward loop.
#[cube]
pub trait BackwardTier {
    /// Where this unit finds its tiles.
    type Ctx: CubeType;
    /// Base of the exponentials.
    type Exp: Exponential;
    /// View of a block of scores: own rows, other columns.
    type Scores: Fragment;
    /// Weights or score gradients as left operand.
    type Probs: CubeType;
    /// Gradient accumulators along d.
    type Acc: CubeType;
    /// Gradient accumulators along d_v.
    type AccV: CubeType;
    /// S = own first operand x other first operand (q and k).
    type ScoreProduct: Product<Ctx = Self::Ctx, Lhs = (), Acc = <Self::Scores as Fragment>::Regs>;
    /// dP = own second operand x other second operand (d_out and v).
    type UpstreamProduct: Product<Ctx = Self::Ctx, Lhs = (), Acc = <Self::Scores as Fragment>::Regs>;
    /// Gradient += dS x other first operand.
    type FirstProduct: Product<Ctx = Self::Ctx, Lhs = Self::Probs, Acc = Self::Acc>;
    /// Gradient += P x other second operand.
    type SecondProduct: Product<Ctx = Self::Ctx, Lhs = Self::Probs, Acc = Self::AccV>;

    /// Room for a block of scores.
    fn scores(ctx: &Self::Ctx) -> <Self::Scores as Fragment>::Regs;
    /// Room for an encoded block.
    fn probs(ctx: &Self::Ctx) -> Self::Probs;
    /// lse of query `i` of the current head, in the base of `Exp`, and whether it saw any key.
    fn lse(ctx: &Self::Ctx, i: u32) -> f32;
    /// delta of query `i` of the current head.
    fn delta(ctx: &Self::Ctx, i: u32) -> f32;
    /// Values -> left operand.
    fn encode(ctx: &mut Self::Ctx, s: &<Self::Scores as Fragment>::Regs, p: &mut Self::Probs);
}

/// The accumulators of a pass, kept over all blocks and, for keys, over the query heads of a
/// group.
#[derive(CubeType)]
pub struct GradientAcc<T: BackwardTier> {
    /// dK or dQ, before the scale.
    pub first: T::Acc,
    /// dV; untouched by the queries' pass.
    pub second: T::AccV,
}

#[cube]
impl<T: BackwardTier> GradientAcc<T> {
    /// From zeroed accumulators.
    pub fn new(first: T::Acc, second: T::AccV) -> GradientAcc<T> {
        GradientAcc::<T> { first, second }
    }
}

/// Adds the gradients of the own tile at `at.row0` from blocks `[start, end)` of the other side.
#[cube]
pub fn differentiate_tile<T: BackwardTier>(
    ctx: &mut T::Ctx,
    acc: &mut GradientAcc<T>,
    at: &TileCoords,
    start: u32,
    end: u32,
    inputs: &LogitInputs<'_>,
    #[comptime] side: Side,
    #[comptime] plan: LoopPlan,
) {
    let product = comptime!(ProductMode {
        accumulate: false,
        hidden: false,
    });
    let gradient = comptime!(ProductMode {
        accumulate: true,
        hidden: true,
    });
    let mut p = T::scores(&*ctx);
    let mut dp = T::scores(&*ctx);
    let mut operand = T::probs(&*ctx);
    for j in start..end {
        T::ScoreProduct::issue(ctx, &(), j, &mut p, product);
        T::UpstreamProduct::issue(ctx, &(), j, &mut dp, product);
        T::ScoreProduct::wait(ctx, &(), &mut p, j, 1u32);
        T::UpstreamProduct::wait(ctx, &(), &mut dp, j, 0u32);
        weigh::<T>(ctx, &mut p, &mut dp, at, inputs, j, side, plan);
        if comptime!(side == Side::Keys) {
            T::encode(ctx, &p, &mut operand);
            T::SecondProduct::issue(ctx, &operand, j, &mut acc.second, gradient);
            T::SecondProduct::wait(ctx, &operand, &mut acc.second, j, 0u32);
        }
        T::encode(ctx, &dp, &mut operand);
        T::FirstProduct::issue(ctx, &operand, j, &mut acc.first, gradient);
        T::FirstProduct::wait(ctx, &operand, &mut acc.first, j, 0u32);
    }
}

/// (S, dP) -> (P, dS), elementwise.
#[cube]
fn weigh<T: BackwardTier>(
    ctx: &mut T::Ctx,
    p: &mut <T::Scores as Fragment>::Regs,
    dp: &mut <T::Scores as Fragment>::Regs,
    at: &TileCoords,
    inputs: &LogitInputs<'_>,
    j: u32,
    #[comptime] side: Side,
    #[comptime] plan: LoopPlan,
) {
    let features = comptime!(plan.features);
    let rows = T::Scores::rows(&*p);
    let cols = T::Scores::cols(&*p);
    #[unroll]
    for r in 0..rows {
        let own = at.row0 + T::Scores::row(&*p, r);
        #[unroll]
        for c in 0..cols {
            let step = T::Scores::col_step(&*p, c);
            let other = j * comptime!(plan.block) + T::Scores::first_col(&*p) + step;
            let (i, key) = match comptime!(side) {
                Side::Keys => (other, own),
                Side::Queries => (own, other),
            };
            let score = T::Scores::get(&*p, r, c);
            let mut x = logit::<T::Exp>(score, i, key, at, inputs, features);
            let band = band(i, at, inputs, features);
            let mut seen = key as i32 >= band.lo && (key as i32) < band.hi;
            if comptime!(features.irregular()) {
                seen = seen && admitted(i, key, at, inputs, features);
            }
            x = select(seen, x, inputs.scalars.neg_inf);
            let w = weight::<T::Exp>(x, T::lse(&*ctx, i));
            let slope = logit_slope(score, inputs, features);
            let ds = w * (T::Scores::get(&*dp, r, c) - T::delta(&*ctx, i)) * slope;
            // A weight of exactly 0 is a hidden pair: NaN in its operands stays out.
            T::Scores::set(p, r, c, w);
            T::Scores::set(dp, r, c, select(w == 0.0f32, 0.0f32, ds));
        }
    }
}
