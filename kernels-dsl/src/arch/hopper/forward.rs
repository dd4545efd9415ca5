//! Forward on the Hopper tier.

use core::marker::PhantomData;

use cubecl::prelude::*;

use super::loads::{load_keys, load_queries, load_values};
use super::operands::{descriptor_k_major, descriptor_mn_major};
use super::ptx::lane;
use super::slots::{await_tile, read_tile};
use super::source::{TileSource, draw_tile};
use super::store::{store_part, store_rows};
use super::{Binary, HopperShape, WgmmaFragment, WgmmaRegs, ptx};
use crate::attention::{
    AsValues, Finished, LogitInputs, LogitTensors, Roles, Segments, Stream, StreamTile,
    TableOffsets, Tier, TileCoords,
};
use crate::tile::{InPlace, Layout, Product, ProductMode};

/// Where the units of a cube find tiles, barriers and results.
///
/// Barriers, 8 bytes each from `bars`: q full and empty of every query stage, k full, k empty, v
/// full and v empty of every ring stage, v landed.
#[derive(CubeType)]
pub struct HopperCtx<'a> {
    /// out, 8 elements at a time.
    pub out: &'a mut [Vector<u32, Const<4>>],
    /// Log-sum-exp.
    pub lse: &'a mut [f32],
    /// Strides of out in units of 8 elements, of lse in elements.
    pub out_layout: &'a Layout,
    /// See `out_layout`.
    pub lse_layout: &'a Layout,
    /// Tensor maps of q, k and v.
    pub q_map: u64,
    /// See `q_map`.
    pub k_map: u64,
    /// See `q_map`.
    pub v_map: u64,
    /// Shared addresses of the first Q stage, the first K stage, the first V stage, the barriers.
    pub q_smem: u32,
    /// See `q_smem`.
    pub k_smem: u32,
    /// See `q_smem`.
    pub v_smem: u32,
    /// See `q_smem`.
    pub bars: u32,
    /// Page tables.
    pub tensors: &'a LogitTensors,
    /// See `tensors`.
    pub offsets: &'a TableOffsets,
    /// Where the producer finds its tiles.
    pub source: TileSource<'a>,
    /// Tiles in shared memory, one beside every query stage.
    pub slots: &'a mut [u32],
    /// Blocks of keys and of values that have passed this role.
    pub k_pos: u32,
    /// See `k_pos`.
    pub v_pos: u32,
    /// Tiles begun, and the query stage of the last one.
    pub tiles: u32,
    /// See `tiles`.
    pub q_stage: u32,
    /// Tiles stored.
    pub stored: u32,
    /// Value blocks that the producer zeroed rows of.
    pub mended: u32,
    /// Consumer warpgroup.
    pub wg: u32,
    /// Queries and keys of the tensor.
    pub s_q: u32,
    /// See `s_q`.
    pub s_kv: u32,
    /// Query heads that share a key head.
    pub group: u32,
    /// -inf.
    pub neg_inf: f32,
    /// Comptime shape.
    #[cube(comptime)]
    pub shape: HopperShape,
}

#[cube]
impl<'a> HopperCtx<'a> {
    fn bar(&self, index: u32) -> u32 {
        self.bars + index * 8u32
    }
    /// Query stage of the tile to come.
    pub(super) fn next_q_stage(&self) -> u32 {
        self.tiles % comptime!(self.shape.q_stages())
    }
    /// Parity of its pass over that stage.
    pub(super) fn next_q_parity(&self) -> u32 {
        self.tiles / comptime!(self.shape.q_stages()) % 2u32
    }
    pub(super) fn q_full(&self, stage: u32) -> u32 {
        self.bar(stage)
    }
    pub(super) fn q_empty(&self, stage: u32) -> u32 {
        self.bar(comptime!(self.shape.q_stages()) + stage)
    }
    /// Barrier of ring stage `stage`: `kind` 0 k full, 1 k empty, 2 v full, 3 v empty.
    fn ring_bar(&self, #[comptime] kind: u32, stage: u32) -> u32 {
        self.bar(comptime!(2 * self.shape.q_stages() + kind * self.shape.stages) + stage)
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
    pub(super) fn v_landed(&self) -> u32 {
        self.bar(comptime!(2 * self.shape.q_stages() + 4 * self.shape.stages).runtime())
    }
    /// Each warp of the consumers frees the stage for itself: a warpgroup's first thread may be
    /// ahead of its other warps.
    fn release(&self, bar: u32) {
        if lane() == 0u32 {
            ptx::mbar_arrive(bar);
        }
    }
    /// The same for a stage of K or V, in every cube that loads into it.
    fn release_shared(&self, bar: u32) {
        if comptime!(self.shape.cluster == 1) {
            self.release(bar);
        } else if lane() < comptime!(self.shape.cluster) {
            ptx::mbar_arrive_at(bar, lane());
        }
    }
    /// Row of the tile that this thread's upper half works on.
    pub(super) fn thread_row(&self) -> u32 {
        let t = UNIT_POS % 128u32;
        self.wg * 64u32 + t / 32u32 * 16u32 + UNIT_POS % 32u32 / 4u32
    }
}

/// P in the registers of wgmma's left operand, two elements each.
#[derive(CubeType)]
pub struct PackedProbs<NP: Size> {
    /// [block / 4] words; NP is the power of two above.
    pub v: Vector<u32, NP>,
}

/// The accumulator, in the named PTX registers of the bank.
#[derive(CubeType)]
pub struct Bank {
    /// Registers of a thread.
    #[cube(comptime)]
    pub n: u32,
}

/// S = Q K^T by wgmma from shared memory.
pub struct WgmmaScores<'a, NS>(PhantomData<(&'a (), NS)>);
/// O += P V by wgmma with P from registers.
pub struct WgmmaValues<'a, NP>(PhantomData<(&'a (), NP)>);

#[cube]
impl<'a, NS: Size> Product for WgmmaScores<'a, NS> {
    type Ctx = HopperCtx<'a>;
    type Lhs = ();
    type Acc = WgmmaRegs<NS>;

    fn issue(
        ctx: &mut HopperCtx<'a>,
        _lhs: &(),
        _j: u32,
        acc: &mut WgmmaRegs<NS>,
        #[comptime] _mode: ProductMode,
    ) {
        let shape = comptime!(ctx.shape);
        let stages = comptime!(shape.stages);
        let stage = ctx.k_pos % stages;
        let q = descriptor_k_major(
            ctx.q_smem + ctx.q_stage * comptime!(shape.q_bytes()) + ctx.wg * 8192u32,
        );
        let k = descriptor_k_major(ctx.k_smem + stage * comptime!(shape.k_bytes()));
        let width = NS::value();
        let text = comptime!(ptx::scores_text(
            shape.block / 2,
            width,
            shape.ty,
            &shape.score_steps()
        ));
        acc.issued = ptx::issue_scores::<NS>(q, k, text);
    }
    fn wait(
        ctx: &mut HopperCtx<'a>,
        _lhs: &(),
        acc: &mut WgmmaRegs<NS>,
        _j: u32,
        #[comptime] in_flight: u32,
    ) {
        let stages = comptime!(ctx.shape.stages);
        let done = ptx::wait_scores::<NS>(acc.issued, comptime!(acc.n), in_flight);
        #[unroll]
        for i in 0..comptime!(acc.n as usize) {
            acc.v[i] = done.extract(i);
        }
        ctx.release_shared(ctx.k_empty(ctx.k_pos % stages));
        ctx.k_pos += 1u32;
    }
}

#[cube]
impl<'a, NP: Size> Product for WgmmaValues<'a, NP> {
    type Ctx = HopperCtx<'a>;
    type Lhs = PackedProbs<NP>;
    type Acc = Bank;

    fn issue(
        ctx: &mut HopperCtx<'a>,
        p: &PackedProbs<NP>,
        _j: u32,
        acc: &mut Bank,
        #[comptime] _mode: ProductMode,
    ) {
        let shape = comptime!(ctx.shape);
        let stages = comptime!(shape.stages);
        let stage = ctx.v_pos % stages;
        ptx::mbar_wait(ctx.v_full(stage), ctx.v_pos / stages % 2u32);
        let v = descriptor_mn_major(
            ctx.v_smem + stage * comptime!(shape.v_bytes()),
            comptime!(shape.block),
        );
        let width = NP::value();
        let text = comptime!(ptx::values_text(
            acc.n,
            width,
            shape.ty,
            &shape.value_steps()
        ));
        ptx::issue_values::<NP>(p.v, v, text);
    }
    fn wait(
        ctx: &mut HopperCtx<'a>,
        p: &PackedProbs<NP>,
        _acc: &mut Bank,
        _j: u32,
        #[comptime] in_flight: u32,
    ) {
        let stages = comptime!(ctx.shape.stages);
        ptx::wait_values::<NP>(p.v, in_flight);
        ctx.release_shared(ctx.v_empty(ctx.v_pos % stages));
        ctx.v_pos += 1u32;
    }
}

/// Producer and consumers of the Hopper tier; NS >= block / 2, NP >= block / 4.
pub struct Hopper<'a, NS, NP>(PhantomData<(&'a (), NS, NP)>);

#[cube]
impl<'a, NS: Size, NP: Size> Tier for Hopper<'a, NS, NP> {
    type Ctx = HopperCtx<'a>;
    type Exp = Binary;
    type Scores = WgmmaFragment<NS>;
    type Encode = AsValues<WgmmaFragment<NS>>;
    type Probs = PackedProbs<NP>;
    type Acc = Bank;
    type ScoreProduct = WgmmaScores<'a, NS>;
    type ValueProduct = WgmmaValues<'a, NP>;
    type ScoresEdge = InPlace<HopperCtx<'a>, WgmmaRegs<NS>>;
    type ProbsEdge = InPlace<HopperCtx<'a>, PackedProbs<NP>>;
    type FactorsEdge = InPlace<HopperCtx<'a>, Array<f32>>;
    type FinishedEdge = InPlace<HopperCtx<'a>, Finished>;

    fn rows(_ctx: &HopperCtx<'a>) -> comptime_type!(usize) {
        2usize
    }
    fn scores(ctx: &HopperCtx<'a>) -> WgmmaRegs<NS> {
        WgmmaRegs::<NS> {
            issued: Vector::<f32, NS>::zeroed(),
            v: Array::<f32>::new(comptime!(ctx.shape.block as usize / 2)),
            row: ctx.thread_row(),
            col: UNIT_POS % 4u32 * 2u32,
            n: comptime!(ctx.shape.block / 2),
        }
    }
    fn probs(_ctx: &HopperCtx<'a>) -> PackedProbs<NP> {
        PackedProbs::<NP> {
            v: Vector::<u32, NP>::zeroed(),
        }
    }
    fn acc(ctx: &HopperCtx<'a>, #[comptime] roles: Roles) -> Bank {
        let n = comptime!(ctx.shape.d_v / 2);
        if comptime!(roles.multiply) {
            ptx::bank_zero(n);
        }
        Bank { n }
    }

    fn begin(ctx: &mut HopperCtx<'a>, at: &TileCoords, range: &Segments, #[comptime] roles: Roles) {
        if comptime!(roles.load) {
            if UNIT_POS == 0u32 {
                load_queries(ctx, at, range);
            }
        }
        ctx.q_stage = ctx.next_q_stage();
        ctx.tiles += 1u32;
    }
    fn scores_done(ctx: &mut HopperCtx<'a>) {
        // All lanes have read the slots that the producer may now write.
        sync_plane();
        ctx.release(ctx.q_empty(ctx.q_stage));
    }
    fn turn_begin(ctx: &mut HopperCtx<'a>) {
        let stages = comptime!(ctx.shape.stages);
        ptx::mbar_wait(ctx.k_full(ctx.k_pos % stages), ctx.k_pos / stages % 2u32);
        if comptime!(ctx.shape.consumers > 1) {
            ptx::named_sync(1u32 + ctx.wg, 256u32);
        }
    }
    fn turn_end(ctx: &mut HopperCtx<'a>) {
        if comptime!(ctx.shape.consumers > 1) {
            ptx::named_arrive(
                1u32 + (ctx.wg + 1u32) % comptime!(ctx.shape.consumers),
                256u32,
            );
        }
    }
    fn after(t: u32) -> u32 {
        ptx::opaque(t + 1u32)
    }
    fn load_keys(ctx: &mut HopperCtx<'a>, at: &TileCoords, j: u32) {
        if UNIT_POS == 0u32 {
            load_keys(ctx, at, j);
        }
        ctx.k_pos += 1u32;
    }
    fn load_values(ctx: &mut HopperCtx<'a>, at: &TileCoords, j: u32) {
        load_values(ctx, at, j);
        ctx.v_pos += 1u32;
    }

    fn encode(ctx: &mut HopperCtx<'a>, s: &mut WgmmaRegs<NS>, p: &mut PackedProbs<NP>) {
        #[unroll]
        for w in 0..comptime!(ctx.shape.block as usize / 4) {
            let lo = s.v[comptime!(2 * w)];
            let hi = s.v[comptime!(2 * w + 1)];
            p.v.insert(w, ptx::pack2(lo, hi, comptime!(ctx.shape.ty)));
        }
    }
    fn rescale(_ctx: &mut HopperCtx<'a>, acc: &mut Bank, factors: &Array<f32>) {
        ptx::bank_scale(factors[0], factors[1], comptime!(acc.n));
    }
    fn store(ctx: &mut HopperCtx<'a>, _acc: &Bank, done: &Finished) {
        let tile = read_tile(&*ctx, ctx.stored);
        if comptime!(ctx.shape.features.split) {
            store_part(ctx, &tile, done);
        } else {
            store_rows(ctx, &tile, done);
        }
        ctx.stored += 1u32;
    }
}

#[cube]
impl<'a, NS: Size, NP: Size> Stream for Hopper<'a, NS, NP> {
    fn next(
        ctx: &mut HopperCtx<'a>,
        inputs: &LogitInputs<'_>,
        #[comptime] roles: Roles,
    ) -> StreamTile {
        if comptime!(roles.load) {
            draw_tile(ctx, inputs)
        } else {
            await_tile(&*ctx)
        }
    }
    fn clear(acc: &mut Bank) {
        ptx::bank_zero(comptime!(acc.n));
    }
}
