//! How values cross between the roles: scores and weights through tensor memory, what belongs to a
//! row through shared memory, each announced on an mbarrier of its query stage.
//!
//! No edge has a barrier the other way. Scores of a block are issued after the product that reads the
//! weights of the one before, which waits for both the weights and the correction: whoever sees scores
//! knows that everything of the block before has been taken.

use core::marker::PhantomData;

use cubecl::prelude::*;

use super::{BlackwellCtx, ScoreLane, ptx};
use crate::arch::hopper::ptx as shared;
use crate::attention::Finished;
use crate::tile::Edge;

/// S: written by the matrix unit, whose commit is the announcement.
pub struct ScoresInTensor<'a>(PhantomData<&'a ()>);
/// P: written by the softmax warps, read by the matrix unit.
pub struct ProbsInTensor<'a>(PhantomData<&'a ()>);
/// Rescale factors.
pub struct FactorsInShared<'a>(PhantomData<&'a ()>);
/// Normalisers and lse.
pub struct FinishedInShared<'a>(PhantomData<&'a ()>);

/// P, which lives in tensor memory.
#[derive(CubeType)]
pub struct TensorProbs {}

#[cube]
impl<'a> Edge for ScoresInTensor<'a> {
    type Ctx = BlackwellCtx<'a>;
    type Value = ScoreLane;

    fn send(_ctx: &mut BlackwellCtx<'a>, _value: &ScoreLane) {}
    fn receive(ctx: &mut BlackwellCtx<'a>, value: &mut ScoreLane) {
        shared::mbar_wait(ctx.scores_full(ctx.stage), ctx.blocks % 2u32);
        ptx::fence_after();
        let size!(N) = comptime!(value.n as usize);
        let row = ptx::load_row::<N>(ctx.lane_address() + ctx.scores_column(), comptime!(value.n));
        #[unroll]
        for c in 0..comptime!(value.n as usize) {
            value.v[c] = row.extract(c);
        }
        ctx.blocks += 1u32;
    }
}

#[cube]
impl<'a> Edge for ProbsInTensor<'a> {
    type Ctx = BlackwellCtx<'a>;
    type Value = TensorProbs;

    fn send(ctx: &mut BlackwellCtx<'a>, _value: &TensorProbs) {
        ptx::store_wait();
        ctx.arrive_for_product(ctx.probs_full(ctx.stage));
    }
    fn receive(ctx: &mut BlackwellCtx<'a>, _value: &mut TensorProbs) {
        ctx.wait_all(ctx.probs_full(ctx.stage), ctx.blocks % 2u32);
        ptx::fence_after();
        ctx.blocks += 1u32;
    }
}

#[cube]
impl<'a> Edge for FactorsInShared<'a> {
    type Ctx = BlackwellCtx<'a>;
    type Value = Array<f32>;

    fn send(ctx: &mut BlackwellCtx<'a>, value: &Array<f32>) {
        let at = ctx.row_slot(ctx.stage);
        ctx.rows[at] = value[0];
        ctx.arrive(ctx.factors_full(ctx.stage));
    }
    /// Whoever sent them has seen scores of this block, so the products of the one before are done.
    fn receive(ctx: &mut BlackwellCtx<'a>, value: &mut Array<f32>) {
        shared::mbar_wait(ctx.factors_full(ctx.stage), ctx.blocks % 2u32);
        ptx::fence_after();
        value[0] = ctx.rows[ctx.row_slot(ctx.stage)];
        ctx.blocks += 1u32;
    }
}

#[cube]
impl<'a> Edge for FinishedInShared<'a> {
    type Ctx = BlackwellCtx<'a>;
    type Value = Finished;

    fn send(ctx: &mut BlackwellCtx<'a>, value: &Finished) {
        let at = ctx.row_slot(ctx.stage);
        ctx.rows[at + comptime!(ctx.shape.rows() as usize)] = value.inverse[0];
        ctx.rows[at + comptime!(2 * ctx.shape.rows() as usize)] = value.lse[0];
        ctx.arrive(ctx.finished_full(ctx.stage));
    }
    fn receive(ctx: &mut BlackwellCtx<'a>, value: &mut Finished) {
        shared::mbar_wait(ctx.finished_full(ctx.stage), 0u32);
        let at = ctx.row_slot(ctx.stage);
        value.inverse[0] = ctx.rows[at + comptime!(ctx.shape.rows() as usize)];
        value.lse[0] = ctx.rows[at + comptime!(2 * ctx.shape.rows() as usize)];
    }
}
