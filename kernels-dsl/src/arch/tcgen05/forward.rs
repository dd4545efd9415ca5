//! Forward on the Blackwell tier.

use core::marker::PhantomData;

use cubecl::prelude::*;

use super::block_scaled;
use super::codes::{LaneCodes, store_codes, store_values};
use super::loads::{load_keys, load_queries, load_values};
use super::operands::{k_major, mn_major};
use super::shape::CHUNK;
use super::store::store_rows;
use super::{
    BlackwellMaps, BlackwellShape, FactorsInShared, FinishedInShared, LaneFragment, OperandStarts,
    ProbsInTensor, STAGE_ROWS, ScoreLane, ScoresInTensor, TensorProbs, ptx,
};
use crate::arch::hopper::ptx as shared;
use crate::arch::hopper::ptx::lane;
use crate::attention::{Exponential, Finished, Roles, Segments, Tier, TileCoords};
use crate::tile::{Layout, Product, ProductMode};

/// Where the units of a cube find the tile, barriers and results.
///
/// Barriers, 8 bytes each from `bars`: q full; k full, k empty, v full and v empty of every ring stage; scores, weights,
/// factors, finished values and outputs of every query stage; v landed.
#[derive(CubeType)]
pub struct BlackwellCtx<'a> {
    /// out, 8 elements at a time.
    pub out: &'a mut [Vector<u32, Const<4>>],
    /// Log-sum-exp.
    pub lse: &'a mut [f32],
    /// Strides of out in units of 8 elements, of lse in elements.
    pub out_layout: &'a Layout,
    /// See `out_layout`.
    pub lse_layout: &'a Layout,
    /// Tensor maps.
    pub maps: BlackwellMaps,
    /// Where the tile's sequence starts in block-scaled operands.
    pub starts: OperandStarts,
    /// Shared addresses of Q, the first K stage, the first V stage, the barriers.
    pub q_smem: u32,
    /// See `q_smem`.
    pub k_smem: u32,
    /// See `q_smem`.
    pub v_smem: u32,
    /// See `q_smem`.
    pub bars: u32,
    /// Number of this cube among those of its tile.
    pub rank: u32,
    /// First column of tensor memory.
    pub tensor: u32,
    /// Factor, inverse and lse of every row of the tile.
    pub rows: &'a mut [f32],
    /// The tile.
    pub tile: TileCoords,
    /// It has no key blocks.
    pub empty: bool,
    /// Query stage of the calling units; all are the loading warp's.
    pub stage: u32,
    /// Blocks of keys and of values that have passed this role.
    pub k_pos: u32,
    /// See `k_pos`.
    pub v_pos: u32,
    /// Blocks of scores, weights or factors that this role has received.
    pub blocks: u32,
    /// Value blocks that the loading warp zeroed rows of.
    pub mended: u32,
    /// Keys of the tensor.
    pub s_kv: u32,
    /// Query heads that share a key head.
    pub group: u32,
    /// -inf.
    pub neg_inf: f32,
    /// What outputs are multiplied by: the own factor of block-scaled values.
    pub factor: f32,
    /// Comptime shape.
    #[cube(comptime)]
    pub shape: BlackwellShape,
}

#[cube]
impl<'a> BlackwellCtx<'a> {
    pub(super) fn q_full(&self) -> u32 {
        self.bars
    }
    /// Barrier of ring stage `stage`: `kind` 0 k full, 1 k empty, 2 v full, 3 v empty.
    fn ring_bar(&self, #[comptime] kind: u32, stage: u32) -> u32 {
        self.bars + (comptime!(1 + kind * self.shape.stages) + stage) * 8u32
    }
    pub(super) fn k_full(&self, stage: u32) -> u32 {
        self.ring_bar(0u32, stage)
    }
    pub(super) fn k_empty(&self, stage: u32) -> u32 {
        self.ring_bar(1u32, stage)
    }
    pub(super) fn v_full(&self, stage: u32) -> u32 {
        self.ring_bar(2u32, stage)
    }
    pub(super) fn v_empty(&self, stage: u32) -> u32 {
        self.ring_bar(3u32, stage)
    }
    /// Barrier of query stage `stage`.
    fn stage_bar(&self, #[comptime] kind: u32, stage: u32) -> u32 {
        let first = comptime!(1 + 4 * self.shape.stages + kind * self.shape.q_stages);
        self.bars + (first + stage) * 8u32
    }
    pub(super) fn scores_full(&self, stage: u32) -> u32 {
        self.stage_bar(0u32, stage)
    }
    /// Weights are there and the accumulator is rescaled.
    pub(super) fn probs_full(&self, stage: u32) -> u32 {
        self.stage_bar(1u32, stage)
    }
    pub(super) fn factors_full(&self, stage: u32) -> u32 {
        self.stage_bar(2u32, stage)
    }
    pub(super) fn finished_full(&self, stage: u32) -> u32 {
        self.stage_bar(3u32, stage)
    }
    pub(super) fn out_full(&self, stage: u32) -> u32 {
        self.stage_bar(4u32, stage)
    }
    pub(super) fn v_landed(&self) -> u32 {
        self.stage_bar(5u32, 0u32)
    }
    /// The calling warp is done with what `bar` counts: tensor memory and shared memory alike.
    pub(super) fn arrive(&self, bar: u32) {
        ptx::fence_before();
        sync_plane();
        if lane() == 0u32 {
            shared::mbar_arrive(bar);
        }
    }
    /// As [`arrive`](Self::arrive), on the barrier of the cube that multiplies.
    pub(super) fn arrive_for_product(&self, bar: u32) {
        ptx::fence_before();
        sync_plane();
        if lane() == 0u32 {
            self.arrive_once(self.for_product(bar));
        }
    }
    /// The barrier that the cube that multiplies has where this one has `bar`.
    pub(super) fn for_product(&self, bar: u32) -> u32 {
        if comptime!(self.shape.cubes > 1) {
            ptx::in_first_cube(bar)
        } else {
            bar
        }
    }
    /// One arrival on a barrier of either cube.
    pub(super) fn arrive_once(&self, bar: u32) {
        if comptime!(self.shape.cubes > 1) {
            ptx::arrive_in_cluster(bar);
        } else {
            shared::mbar_arrive(bar);
        }
    }
    /// One arrival that expects `bytes` on a barrier of either cube.
    pub(super) fn expect(&self, bar: u32, bytes: u32) {
        if comptime!(self.shape.cubes > 1) {
            ptx::expect_in_cluster(bar, bytes);
        } else {
            shared::mbar_expect(bar, bytes);
        }
    }
    /// Waits for what all cubes of the tile arrive on.
    pub(super) fn wait_all(&self, bar: u32, parity: u32) {
        if comptime!(self.shape.cubes > 1) {
            ptx::wait_in_cluster(bar, parity);
        } else {
            shared::mbar_wait(bar, parity);
        }
    }
    /// Column 0 of this warp's quarter of the lanes.
    pub(super) fn lane_address(&self) -> u32 {
        self.tensor + (UNIT_POS / 32u32 % 4u32) * comptime!(32u32 << 16)
    }
    pub(super) fn scores_column(&self) -> u32 {
        self.stage * comptime!(self.shape.block)
    }
    pub(super) fn probs_column(&self) -> u32 {
        self.scores_column() + comptime!(self.shape.tensor_plan().probs_offset())
    }
    pub(super) fn query_scales_column(&self) -> u32 {
        comptime!(self.shape.tensor_plan().query_scales(0))
            + self.stage * comptime!(2 * self.shape.tensor_plan().score_scales)
    }
    /// Shared address of the scale factors of the weights.
    pub(super) fn weight_scales(&self) -> u32 {
        self.q_smem
            + comptime!(self.shape.q_bytes())
            + self.stage * comptime!(self.shape.weight_scale_bytes())
    }
    pub(super) fn acc_column(&self, stage: u32) -> u32 {
        comptime!(self.shape.tensor_plan().acc(0)) + stage * comptime!(self.shape.width())
    }
    /// Row of the tile that this thread works on in query stage `stage`.
    pub(super) fn stage_row(&self, stage: u32) -> u32 {
        self.rank * comptime!(self.shape.rows()) + self.row_slot(stage) as u32
    }
    /// Its place among the factors.
    pub(super) fn row_slot(&self, stage: u32) -> usize {
        (stage * STAGE_ROWS + UNIT_POS % STAGE_ROWS) as usize
    }
}

/// The accumulator in tensor memory.
#[derive(CubeType)]
pub struct TensorAcc {
    /// 0 until the first product, which replaces whatever is there.
    pub filled: u32,
}

/// S = Q K^T by tcgen05 from shared memory.
pub struct TensorScores<'a>(PhantomData<&'a ()>);
/// O += P V by tcgen05 with P from tensor memory.
pub struct TensorValues<'a>(PhantomData<&'a ()>);

// The products' commits reach those who wait for them: nothing is left to wait for here.

#[cube]
impl<'a> Product for TensorScores<'a> {
    type Ctx = BlackwellCtx<'a>;
    type Lhs = ();
    type Acc = ScoreLane;

    fn issue(
        ctx: &mut BlackwellCtx<'a>,
        _lhs: &(),
        j: u32,
        _acc: &mut ScoreLane,
        #[comptime] _mode: ProductMode,
    ) {
        let shape = comptime!(ctx.shape);
        let stages = comptime!(shape.stages);
        let ring = ctx.k_pos % stages;
        ctx.wait_all(ctx.k_full(ring), ctx.k_pos / stages % 2u32);
        if lane() == 0u32 {
            if comptime!(shape.features.operands.is_some()) {
                block_scaled::issue_scores(&*ctx, ring, j);
            } else {
                let q = k_major(ctx.q_smem + ctx.stage * comptime!(STAGE_ROWS * 128));
                let k = k_major(ctx.k_smem + ring * comptime!(shape.k_stage()));
                let text = comptime!(ptx::scores_text(
                    shape.instruction(shape.block, false),
                    &shape.score_steps(),
                    shape.cubes
                ));
                ptx::issue_scores(ctx.tensor + ctx.scores_column(), q, k, text);
            }
            ptx::commit(ctx.scores_full(ctx.stage), comptime!(shape.cubes));
            ptx::commit(ctx.k_empty(ring), comptime!(shape.cubes));
        }
        ctx.k_pos += 1u32;
    }
    fn wait(
        _ctx: &mut BlackwellCtx<'a>,
        _lhs: &(),
        _acc: &mut ScoreLane,
        _j: u32,
        #[comptime] _in_flight: u32,
    ) {
    }
}

#[cube]
impl<'a> Product for TensorValues<'a> {
    type Ctx = BlackwellCtx<'a>;
    type Lhs = TensorProbs;
    type Acc = TensorAcc;

    fn issue(
        ctx: &mut BlackwellCtx<'a>,
        _p: &TensorProbs,
        j: u32,
        acc: &mut TensorAcc,
        #[comptime] _mode: ProductMode,
    ) {
        let shape = comptime!(ctx.shape);
        let stages = comptime!(shape.stages);
        let ring = ctx.v_pos % stages;
        ctx.wait_all(ctx.v_full(ring), ctx.v_pos / stages % 2u32);
        if lane() == 0u32 {
            if comptime!(shape.features.operands.is_some()) {
                block_scaled::issue_values(&*ctx, ring, j, &*acc);
            } else {
                let v = mn_major(
                    ctx.v_smem + ring * comptime!(shape.v_stage()),
                    comptime!(shape.block),
                );
                let text = comptime!(ptx::values_text(
                    shape.instruction(shape.width(), true),
                    &shape.value_steps(),
                    shape.cubes
                ));
                let o = ctx.tensor + ctx.acc_column(ctx.stage);
                ptx::issue_values(o, ctx.tensor + ctx.probs_column(), v, acc.filled, text);
            }
            ptx::commit(ctx.v_empty(ring), comptime!(shape.cubes));
        }
        acc.filled = 1u32;
        ctx.v_pos += 1u32;
    }
    fn wait(
        _ctx: &mut BlackwellCtx<'a>,
        _lhs: &TensorProbs,
        _acc: &mut TensorAcc,
        _j: u32,
        #[comptime] _in_flight: u32,
    ) {
    }
}

/// A row of weights over the upper half of its scores, 32 at a time: all of them packed beside all of them unpacked
/// would not fit.
#[cube]
fn store_weights(ctx: &BlackwellCtx<'_>, weights: &Array<f32>) {
    let to = ctx.lane_address() + ctx.probs_column();
    let ty = comptime!(ctx.shape.ty);
    #[unroll]
    for chunk in 0..comptime!(ctx.shape.block / 32) {
        let mut words = Vector::<u32, Const<16>>::zeroed();
        #[unroll]
        for w in 0..16usize {
            let c = comptime!(32 * chunk as usize + 2 * w);
            words.insert(w, shared::pack2(weights[c], weights[comptime!(c + 1)], ty));
        }
        ptx::store_row::<Const<16>>(to + comptime!(16 * chunk), words, 16u32);
    }
}

/// The five roles of the Blackwell tier, with exponentials of `X`.
pub struct Blackwell<'a, X>(PhantomData<(&'a (), X)>);

#[cube]
impl<'a, X: Exponential> Tier for Blackwell<'a, X> {
    type Ctx = BlackwellCtx<'a>;
    type Exp = X;
    type Scores = LaneFragment;
    type Encode = LaneCodes;
    type Probs = TensorProbs;
    type Acc = TensorAcc;
    type ScoreProduct = TensorScores<'a>;
    type ValueProduct = TensorValues<'a>;
    type ScoresEdge = ScoresInTensor<'a>;
    type ProbsEdge = ProbsInTensor<'a>;
    type FactorsEdge = FactorsInShared<'a>;
    type FinishedEdge = FinishedInShared<'a>;

    fn rows(_ctx: &BlackwellCtx<'a>) -> comptime_type!(usize) {
        1usize
    }
    fn scores(ctx: &BlackwellCtx<'a>) -> ScoreLane {
        ScoreLane {
            v: Array::<f32>::new(comptime!(ctx.shape.block as usize)),
            codes: Array::<u32>::new(comptime!(ctx.shape.block as usize / 8)),
            scales: Array::<u32>::new(comptime!((ctx.shape.block as usize).div_ceil(64))),
            row: ctx.stage_row(ctx.stage),
            n: comptime!(ctx.shape.block),
        }
    }
    fn probs(_ctx: &BlackwellCtx<'a>) -> TensorProbs {
        TensorProbs {}
    }
    fn acc(_ctx: &BlackwellCtx<'a>, #[comptime] _roles: Roles) -> TensorAcc {
        TensorAcc {
            filled: 0u32.runtime(),
        }
    }

    fn begin(
        ctx: &mut BlackwellCtx<'a>,
        at: &TileCoords,
        range: &Segments,
        #[comptime] roles: Roles,
    ) {
        // Nobody waits for queries that no key meets.
        if comptime!(roles.load) {
            if !range.is_empty() && lane() == 0u32 {
                load_queries(&*ctx, at);
            }
        }
        if comptime!(roles.multiply) {
            if !range.is_empty() {
                ctx.wait_all(ctx.q_full(), 0u32);
                if comptime!(ctx.shape.features.operands.is_some()) {
                    if lane() == 0u32 {
                        block_scaled::place_query_scales(&*ctx);
                    }
                }
            }
        }
    }
    /// The last values have been issued as well. Nobody waits for those of a tile without keys.
    fn scores_done(ctx: &mut BlackwellCtx<'a>) {
        if lane() == 0u32 && !ctx.empty {
            ptx::commit(ctx.out_full(ctx.stage), comptime!(ctx.shape.cubes));
        }
    }
    fn turn_begin(_ctx: &mut BlackwellCtx<'a>) {}
    fn turn_end(_ctx: &mut BlackwellCtx<'a>) {}
    fn after(t: u32) -> u32 {
        shared::opaque(t + 1u32)
    }
    fn load_keys(ctx: &mut BlackwellCtx<'a>, at: &TileCoords, j: u32) {
        if lane() == 0u32 {
            load_keys(&*ctx, at, j);
        }
        ctx.k_pos += 1u32;
    }
    fn load_values(ctx: &mut BlackwellCtx<'a>, at: &TileCoords, j: u32) {
        load_values(ctx, at, j);
        ctx.v_pos += 1u32;
    }

    fn encode(ctx: &mut BlackwellCtx<'a>, s: &mut ScoreLane, _p: &mut TensorProbs) {
        if comptime!(ctx.shape.weights_scaled()) {
            store_codes(&*ctx, &*s);
        } else if comptime!(ctx.shape.features.operands.is_some()) {
            store_values(&*ctx, &s.v);
        } else {
            store_weights(&*ctx, &s.v);
        }
    }
    /// Before the first product there is nothing to rescale.
    fn rescale(ctx: &mut BlackwellCtx<'a>, _acc: &mut TensorAcc, factors: &Array<f32>) {
        if ctx.blocks > 1u32 {
            let o = ctx.lane_address() + ctx.acc_column(ctx.stage);
            ptx::scale_row(o, factors[0], comptime!(ctx.shape.width()), CHUNK);
        }
        ctx.arrive_for_product(ctx.probs_full(ctx.stage));
    }
    fn store(ctx: &mut BlackwellCtx<'a>, _acc: &TensorAcc, done: &Finished) {
        store_rows(ctx, done);
    }
}
