//! Forward on the unit tier.

use core::marker::PhantomData;

use cubecl::prelude::*;

use super::{
    AccRow, BlockView, RowFragment, RowView, ScoreRow, row_times_transposed, weights_times_block,
};
use crate::attention::{AsValues, Exponential, Finished, Roles, Segments, Tier, TileCoords};
use crate::launch::Fault;
use crate::tile::{Edge, InPlace, Product, ProductMode};

/// Where a unit finds its row of q, the blocks of k and v, and its place in the results.
#[derive(CubeType)]
pub struct FmaCtx<'a, E: Float, N: Size> {
    /// This unit's query row.
    pub q: RowView<'a, E, N>,
    /// Key blocks.
    pub k: BlockView<'a, E, N>,
    /// Value blocks.
    pub v: BlockView<'a, E, N>,
    /// Output rows.
    pub out: &'a mut [Vector<E, N>],
    /// Rows of partial results, which take the place of `out` where tiles are split.
    pub parts: &'a mut ComptimeOption<Box<[Vector<f32, N>]>>,
    /// Log-sum-exp.
    pub lse: &'a mut [f32],
    /// First vector of this unit's output row.
    pub out_at: usize,
    /// This unit's place in lse.
    pub lse_at: usize,
    /// Row of the tile this unit owns.
    pub row: u32,
    /// The row stands for a query of the sequence's part of the tensor.
    pub exists: bool,
    /// That query lies before len_q.
    pub alive: bool,
    /// The row stands for the sequence's last query.
    pub last: bool,
    /// -inf.
    pub neg_inf: f32,
    /// Shared words the roles of a split tier exchange values through.
    pub exchange: ComptimeOption<Shared<[f32]>>,
    /// Comptime shape.
    #[cube(comptime)]
    pub shape: FmaShape,
}

/// Comptime shape of the unit tier's loop.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct FmaShape {
    /// Keys of a block.
    pub block: usize,
    /// d in vectors.
    pub len: usize,
    /// d_v in vectors.
    pub len_v: usize,
    /// Units that own a row.
    pub units: usize,
    /// Sabotage for the conformance suite's own test.
    pub fault: Option<Fault>,
}

/// S = q K^T on the unit tier.
pub struct FmaScores<'a, E, N>(PhantomData<(&'a (), E, N)>);
/// O += P V on the unit tier.
pub struct FmaValues<'a, E, N>(PhantomData<(&'a (), E, N)>);

#[cube]
impl<'a, E: Float, N: Size> Product for FmaScores<'a, E, N> {
    type Ctx = FmaCtx<'a, E, N>;
    type Lhs = ();
    type Acc = ScoreRow;

    fn issue(
        ctx: &mut FmaCtx<'a, E, N>,
        _lhs: &(),
        j: u32,
        acc: &mut ScoreRow,
        #[comptime] _mode: ProductMode,
    ) {
        row_times_transposed::<E, N>(&ctx.q, &ctx.k, j, acc);
    }
    fn wait(
        _ctx: &mut FmaCtx<'a, E, N>,
        _lhs: &(),
        _acc: &mut ScoreRow,
        _j: u32,
        #[comptime] _in_flight: u32,
    ) {
    }
}

#[cube]
impl<'a, E: Float, N: Size> Product for FmaValues<'a, E, N> {
    type Ctx = FmaCtx<'a, E, N>;
    type Lhs = ScoreRow;
    type Acc = AccRow<N>;

    fn issue(
        ctx: &mut FmaCtx<'a, E, N>,
        p: &ScoreRow,
        j: u32,
        acc: &mut AccRow<N>,
        #[comptime] mode: ProductMode,
    ) {
        let fault = comptime!(ctx.shape.fault);
        let hidden = comptime!(mode.hidden && fault != Some(Fault::HiddenValuesLeak));
        weights_times_block::<E, N>(p, &ctx.v, j, acc, hidden);
        if comptime!(fault == Some(Fault::F16Accumulate)) {
            let len = acc.x.len();
            for i in 0..len {
                acc.x[i] = Vector::<f32, N>::cast_from(Vector::<half::f16, N>::cast_from(acc.x[i]));
            }
        }
    }
    fn wait(
        _ctx: &mut FmaCtx<'a, E, N>,
        _lhs: &ScoreRow,
        _acc: &mut AccRow<N>,
        _j: u32,
        #[comptime] _in_flight: u32,
    ) {
    }
}

/// How values cross between the roles of the unit tier.
pub trait RoleEdges<'a, E: Float, N: Size> {
    /// Scores, multiply to softmax.
    type Scores: Edge<Ctx = FmaCtx<'a, E, N>, Value = ScoreRow>;
    /// P, softmax to multiply.
    type Probs: Edge<Ctx = FmaCtx<'a, E, N>, Value = ScoreRow>;
    /// Rescale factors, softmax to correct.
    type Factors: Edge<Ctx = FmaCtx<'a, E, N>, Value = Array<f32>>;
    /// Normaliser and lse, softmax to store.
    type Finished: Edge<Ctx = FmaCtx<'a, E, N>, Value = Finished>;
}

/// One unit plays every role of its row.
pub struct OneRole;

impl<'a, E: Float, N: Size> RoleEdges<'a, E, N> for OneRole {
    type Scores = InPlace<FmaCtx<'a, E, N>, ScoreRow>;
    type Probs = InPlace<FmaCtx<'a, E, N>, ScoreRow>;
    type Factors = InPlace<FmaCtx<'a, E, N>, Array<f32>>;
    type Finished = InPlace<FmaCtx<'a, E, N>, Finished>;
}

/// The unit tier with the edges `R` and exponentials `X`.
pub struct Fma<'a, E, N, R, X>(PhantomData<(&'a (), E, N, R, X)>);

#[cube]
impl<'a, E: Float, N: Size, R: RoleEdges<'a, E, N>, X: Exponential> Tier for Fma<'a, E, N, R, X> {
    type Ctx = FmaCtx<'a, E, N>;
    type Exp = X;
    type Scores = RowFragment;
    type Encode = AsValues<RowFragment>;
    type Probs = ScoreRow;
    type Acc = AccRow<N>;
    type ScoreProduct = FmaScores<'a, E, N>;
    type ValueProduct = FmaValues<'a, E, N>;
    type ScoresEdge = R::Scores;
    type ProbsEdge = R::Probs;
    type FactorsEdge = R::Factors;
    type FinishedEdge = R::Finished;

    fn rows(_ctx: &FmaCtx<'a, E, N>) -> comptime_type!(usize) {
        1usize
    }
    fn scores(ctx: &FmaCtx<'a, E, N>) -> ScoreRow {
        ScoreRow::new(ctx.row, comptime!(ctx.shape.block))
    }
    fn probs(ctx: &FmaCtx<'a, E, N>) -> ScoreRow {
        ScoreRow::new(ctx.row, comptime!(ctx.shape.block))
    }
    fn acc(ctx: &FmaCtx<'a, E, N>, #[comptime] _roles: Roles) -> AccRow<N> {
        AccRow::<N>::zeroed(comptime!(ctx.shape.len_v))
    }
    fn begin(
        _ctx: &mut FmaCtx<'a, E, N>,
        _at: &TileCoords,
        _range: &Segments,
        #[comptime] _roles: Roles,
    ) {
    }
    fn scores_done(_ctx: &mut FmaCtx<'a, E, N>) {}
    fn turn_begin(_ctx: &mut FmaCtx<'a, E, N>) {}
    fn turn_end(_ctx: &mut FmaCtx<'a, E, N>) {}
    fn after(t: u32) -> u32 {
        t + 1u32
    }
    fn load_keys(_ctx: &mut FmaCtx<'a, E, N>, _at: &TileCoords, _j: u32) {}
    fn load_values(_ctx: &mut FmaCtx<'a, E, N>, _at: &TileCoords, _j: u32) {}
    /// P stays f32: FMA multiplies what the sum was taken over.
    fn encode(ctx: &mut FmaCtx<'a, E, N>, s: &mut ScoreRow, p: &mut ScoreRow) {
        let block = s.x.len();
        #[unroll]
        for c in 0..block {
            p.x[c] = faulty_weight(s.x[c], comptime!(ctx.shape.fault));
        }
    }
    fn rescale(ctx: &mut FmaCtx<'a, E, N>, acc: &mut AccRow<N>, factors: &Array<f32>) {
        if comptime!(ctx.shape.fault != Some(Fault::RescaleSkipped)) {
            let len = acc.x.len();
            for i in 0..len {
                acc.x[i] *= Vector::<f32, N>::new(factors[0]);
            }
        }
    }
    fn store(ctx: &mut FmaCtx<'a, E, N>, acc: &AccRow<N>, done: &Finished) {
        store_row::<E, N>(ctx, acc, done);
    }
}

/// Sabotage of P: rounded to bf16 although the product takes f32.
#[cube]
fn faulty_weight(p: f32, #[comptime] fault: Option<Fault>) -> f32 {
    if comptime!(fault == Some(Fault::WeightsRounded)) {
        f32::cast_from(half::bf16::cast_from(p))
    } else {
        p
    }
}

/// out row and lse; rows past len_q give 0 and -inf, rows past the tensor nothing.
#[cube]
fn store_row<E: Float, N: Size>(ctx: &mut FmaCtx<'_, E, N>, acc: &AccRow<N>, done: &Finished) {
    let fault = comptime!(ctx.shape.fault);
    let mut exists = ctx.exists;
    if comptime!(fault == Some(Fault::LastRowNotStored)) {
        exists = exists && !ctx.last;
    }
    if exists {
        let len = acc.x.len();
        for i in 0..len {
            let o = acc.x[i] * Vector::<f32, N>::new(done.inverse[0]);
            let kept = select(ctx.alive, o, Vector::<f32, N>::zeroed());
            #[comptime]
            match &mut ctx.parts {
                ComptimeOption::Some(parts) => parts[ctx.out_at + i] = kept,
                ComptimeOption::None => ctx.out[ctx.out_at + i] = Vector::<E, N>::cast_from(kept),
            }
        }
        let mut lse = done.lse[0];
        if comptime!(fault == Some(Fault::LseBase2)) {
            lse *= core::f32::consts::LOG2_E;
        }
        ctx.lse[ctx.lse_at] = select(ctx.alive, lse, ctx.neg_inf);
    }
}
