//! Backward on the unit tier.

use core::marker::PhantomData;

use cubecl::prelude::*;

use super::{
    AccRow, BlockView, RowFragment, RowView, ScoreRow, row_times_transposed, weights_times_block,
};
use crate::attention::{BackwardTier, Natural};
use crate::tile::{Product, ProductMode};

/// Where a unit finds its own rows and the blocks of the other side.
#[derive(CubeType)]
pub struct FmaGradCtx<'a, E: Float, N: Size> {
    /// Own row of q or k.
    pub own_first: RowView<'a, E, N>,
    /// Own row of d_out or v.
    pub own_second: RowView<'a, E, N>,
    /// Blocks of k or q.
    pub other_first: BlockView<'a, E, N>,
    /// Blocks of v or d_out.
    pub other_second: BlockView<'a, E, N>,
    /// lse [b, h_q, s_q].
    pub lse: &'a [f32],
    /// Query 0 of the current head in lse.
    pub lse_at: usize,
    /// Stride of lse along s_q.
    pub lse_row: usize,
    /// delta [b, h_q, s_q], dense.
    pub delta: &'a [f32],
    /// Query 0 of the current head in delta.
    pub delta_at: usize,
    /// Queries.
    pub s_q: u32,
    /// Row of the tile this unit owns.
    pub row: u32,
    /// Rows of a block.
    #[cube(comptime)]
    pub block: usize,
}

/// S or dP: own row times the other side's block.
pub struct GradScores<'a, E, N, const SECOND: bool>(PhantomData<(&'a (), E, N)>);
/// Gradient += weights times the other side's block.
pub struct GradValues<'a, E, N, const SECOND: bool>(PhantomData<(&'a (), E, N)>);

#[cube]
impl<'a, E: Float, N: Size, const SECOND: bool> Product for GradScores<'a, E, N, SECOND> {
    type Ctx = FmaGradCtx<'a, E, N>;
    type Lhs = ();
    type Acc = ScoreRow;

    fn issue(
        ctx: &mut FmaGradCtx<'a, E, N>,
        _lhs: &(),
        j: u32,
        acc: &mut ScoreRow,
        #[comptime] _mode: ProductMode,
    ) {
        if comptime!(SECOND) {
            row_times_transposed::<E, N>(&ctx.own_second, &ctx.other_second, j, acc);
        } else {
            row_times_transposed::<E, N>(&ctx.own_first, &ctx.other_first, j, acc);
        }
    }
    fn wait(
        _ctx: &mut FmaGradCtx<'a, E, N>,
        _lhs: &(),
        _acc: &mut ScoreRow,
        _j: u32,
        #[comptime] _in_flight: u32,
    ) {
    }
}

#[cube]
impl<'a, E: Float, N: Size, const SECOND: bool> Product for GradValues<'a, E, N, SECOND> {
    type Ctx = FmaGradCtx<'a, E, N>;
    type Lhs = ScoreRow;
    type Acc = AccRow<N>;

    fn issue(
        ctx: &mut FmaGradCtx<'a, E, N>,
        lhs: &ScoreRow,
        j: u32,
        acc: &mut AccRow<N>,
        #[comptime] mode: ProductMode,
    ) {
        if comptime!(SECOND) {
            weights_times_block::<E, N>(lhs, &ctx.other_second, j, acc, comptime!(mode.hidden));
        } else {
            weights_times_block::<E, N>(lhs, &ctx.other_first, j, acc, comptime!(mode.hidden));
        }
    }
    fn wait(
        _ctx: &mut FmaGradCtx<'a, E, N>,
        _lhs: &ScoreRow,
        _acc: &mut AccRow<N>,
        _j: u32,
        #[comptime] _in_flight: u32,
    ) {
    }
}

/// The unit tier's backward.
pub struct FmaGrad<'a, E, N>(PhantomData<(&'a (), E, N)>);

#[cube]
impl<'a, E: Float, N: Size> BackwardTier for FmaGrad<'a, E, N> {
    type Ctx = FmaGradCtx<'a, E, N>;
    type Exp = Natural;
    type Scores = RowFragment;
    type Probs = ScoreRow;
    type Acc = AccRow<N>;
    type AccV = AccRow<N>;
    type ScoreProduct = GradScores<'a, E, N, false>;
    type UpstreamProduct = GradScores<'a, E, N, true>;
    type FirstProduct = GradValues<'a, E, N, false>;
    type SecondProduct = GradValues<'a, E, N, true>;

    fn scores(ctx: &FmaGradCtx<'a, E, N>) -> ScoreRow {
        ScoreRow::new(ctx.row, comptime!(ctx.block))
    }
    fn probs(ctx: &FmaGradCtx<'a, E, N>) -> ScoreRow {
        ScoreRow::new(ctx.row, comptime!(ctx.block))
    }
    fn lse(ctx: &FmaGradCtx<'a, E, N>, i: u32) -> f32 {
        ctx.lse[ctx.lse_at + i.min(ctx.s_q - 1u32) as usize * ctx.lse_row]
    }
    fn delta(ctx: &FmaGradCtx<'a, E, N>, i: u32) -> f32 {
        ctx.delta[ctx.delta_at + i.min(ctx.s_q - 1u32) as usize]
    }
    fn encode(_ctx: &mut FmaGradCtx<'a, E, N>, s: &ScoreRow, p: &mut ScoreRow) {
        let block = s.x.len();
        #[unroll]
        for c in 0..block {
            p.x[c] = s.x[c];
        }
    }
}
