//! The unit tier with its softmax split off: two roles that meet over shared memory.
//!
//! Half of the cube's units multiply, the other half turns scores into weights; unit `u` of one
//! half serves unit `u` of the other. It is no faster than one role. It exists because the loop
//! must not care who plays which role, and this tier proves that on any device whose barrier may
//! be reached from different places of the code (CPU JIT, CUDA).

use core::marker::PhantomData;

use cubecl::prelude::*;

use super::{FmaCtx, RoleEdges, ScoreRow};
use crate::attention::Finished;
use crate::launch::Fault;
use crate::tile::Edge;

/// Shared words of one pair of units: a block of scores or weights.
pub fn exchange_words(block: usize) -> usize {
    // Factors and the two finished values travel through the same words.
    block.max(2)
}

/// A score or weight row through shared memory: a rendezvous of the two halves.
pub struct RowThroughShared<'a, E, N>(PhantomData<(&'a (), E, N)>);
/// A rescale factor through shared memory.
pub struct FactorThroughShared<'a, E, N>(PhantomData<(&'a (), E, N)>);
/// Normaliser and lse through shared memory.
pub struct FinishedThroughShared<'a, E, N>(PhantomData<(&'a (), E, N)>);

#[cube]
fn put<E: Float, N: Size>(ctx: &mut FmaCtx<'_, E, N>, #[comptime] at: usize, x: f32) {
    let words = comptime!(exchange_words(ctx.shape.block));
    #[comptime]
    match &mut ctx.exchange {
        ComptimeOption::Some(slots) => slots[ctx.row as usize * words + at] = x,
        ComptimeOption::None => {}
    }
}

#[cube]
fn take<E: Float, N: Size>(ctx: &FmaCtx<'_, E, N>, #[comptime] at: usize) -> f32 {
    let words = comptime!(exchange_words(ctx.shape.block));
    #[comptime]
    match &ctx.exchange {
        ComptimeOption::Some(slots) => slots[ctx.row as usize * words + at],
        ComptimeOption::None => 0.0f32,
    }
}

/// The reader is done when it reaches this second barrier, so the words may be reused.
#[cube]
fn row_was_read<E: Float, N: Size>(ctx: &FmaCtx<'_, E, N>) {
    if comptime!(ctx.shape.fault != Some(Fault::BarrierDropped)) {
        sync_cube();
    }
}

#[cube]
impl<'a, E: Float, N: Size> Edge for RowThroughShared<'a, E, N> {
    type Ctx = FmaCtx<'a, E, N>;
    type Value = ScoreRow;

    fn send(ctx: &mut FmaCtx<'a, E, N>, value: &ScoreRow) {
        let block = value.x.len();
        #[unroll]
        for c in 0..block {
            put::<E, N>(ctx, c, value.x[c]);
        }
        sync_cube();
        row_was_read::<E, N>(&*ctx);
    }
    fn receive(ctx: &mut FmaCtx<'a, E, N>, value: &mut ScoreRow) {
        sync_cube();
        let block = value.x.len();
        #[unroll]
        for c in 0..block {
            value.x[c] = take::<E, N>(&*ctx, c);
        }
        row_was_read::<E, N>(&*ctx);
    }
}

#[cube]
impl<'a, E: Float, N: Size> Edge for FactorThroughShared<'a, E, N> {
    type Ctx = FmaCtx<'a, E, N>;
    type Value = Array<f32>;

    fn send(ctx: &mut FmaCtx<'a, E, N>, value: &Array<f32>) {
        put::<E, N>(ctx, 0usize, value[0]);
        sync_cube();
        sync_cube();
    }
    fn receive(ctx: &mut FmaCtx<'a, E, N>, value: &mut Array<f32>) {
        sync_cube();
        value[0] = take::<E, N>(&*ctx, 0usize);
        sync_cube();
    }
}

#[cube]
impl<'a, E: Float, N: Size> Edge for FinishedThroughShared<'a, E, N> {
    type Ctx = FmaCtx<'a, E, N>;
    type Value = Finished;

    fn send(ctx: &mut FmaCtx<'a, E, N>, value: &Finished) {
        put::<E, N>(ctx, 0usize, value.inverse[0]);
        put::<E, N>(ctx, 1usize, value.lse[0]);
        sync_cube();
        sync_cube();
    }
    fn receive(ctx: &mut FmaCtx<'a, E, N>, value: &mut Finished) {
        sync_cube();
        value.inverse[0] = take::<E, N>(&*ctx, 0usize);
        value.lse[0] = take::<E, N>(&*ctx, 1usize);
        sync_cube();
    }
}

/// Products on one half of the cube's units, softmax on the other.
pub struct SplitRoles;

impl<'a, E: Float, N: Size> RoleEdges<'a, E, N> for SplitRoles {
    type Scores = RowThroughShared<'a, E, N>;
    type Probs = RowThroughShared<'a, E, N>;
    type Factors = FactorThroughShared<'a, E, N>;
    type Finished = FinishedThroughShared<'a, E, N>;
}
