//! Forward on the plane tier.

use core::marker::PhantomData;

use cubecl::prelude::*;

use super::copies::CopySource;
use super::store::{store_part, store_rows};
use super::{MmaFragment, MmaProbs, MmaRegs, PlaneShape, ScaleSource, block_scaled, ptx};
use crate::arch::hopper::{Bank, Binary, ptx as shared};
use crate::attention::{
    CodeScales, Encode, Finished, KeyPages, Roles, ScaledBy, Segments, Tier, TileCoords,
};
use crate::tile::{Fragment, InPlace, Layout, Product, ProductMode};

/// Where the units of a cube find tiles and results.
#[derive(CubeType)]
pub struct PlaneCtx<'a> {
    /// out, 8 elements at a time.
    pub out: &'a mut [Vector<u32, Const<4>>],
    /// Log-sum-exp.
    pub lse: &'a mut [f32],
    /// Strides of out in units of 8 elements, of lse in elements.
    pub out_layout: &'a Layout,
    /// See `out_layout`.
    pub lse_layout: &'a Layout,
    /// q, 8 elements at a time.
    pub q: &'a [Vector<u32, Const<4>>],
    /// Strides of q in units of 8 elements.
    pub q_layout: &'a Layout,
    /// Copies of K and V.
    pub k: CopySource,
    /// See `k`.
    pub v: CopySource,
    /// Where their rows lie, if they are paged.
    pub pages: ComptimeOption<KeyPages<'a>>,
    /// Scales of K and of V, if they are codes.
    pub k_scales: ComptimeOption<CodeScales<'a>>,
    /// See `k_scales`.
    pub v_scales: ComptimeOption<CodeScales<'a>>,
    /// Where scale factors of block-scaled queries lie, in units of 16 bytes, rows being tiles of 128.
    pub q_scales: &'a Layout,
    /// What O is multiplied by: the inverse of the factor of block-scaled values.
    pub factor: f32,
    /// Scale factors of the tile's keys.
    pub k_scale: ScaleSource,
    /// Those of its values.
    pub v_scale: ScaleSource,
    /// Block that is worked on.
    pub block: u32,
    /// Shared address of the query tile.
    pub smem: u32,
    /// Addresses that this lane gives ldmatrix: rows of Q, 16 keys by 16 columns of K, 16 keys by
    /// 8 columns of K, 16 keys by 16 columns of V.
    pub q_at: u32,
    /// See `q_at`.
    pub k_at: u32,
    /// See `q_at`.
    pub k_half_at: u32,
    /// See `q_at`.
    pub v_at: u32,
    /// First and last block of the tile; blocks run from the last to the first.
    pub start: u32,
    /// See `start`.
    pub first: u32,
    /// Keys of the sequence.
    pub len_kv: u32,
    /// -inf.
    pub neg_inf: f32,
    /// Comptime shape.
    #[cube(comptime)]
    pub shape: PlaneShape,
}

#[cube]
impl<'a> PlaneCtx<'a> {
    /// Which of the planes that share the rows of the tile this is.
    fn plane(&self) -> u32 {
        if comptime!(self.shape.planes() == 1) {
            0u32.runtime()
        } else {
            UNIT_POS / 32u32
        }
    }
    /// Everything that the planes of this part of the tile wrote to shared memory is seen by all of them.
    pub(super) fn meet(&self) {
        if comptime!(self.shape.planes() == 1) {
            sync_plane();
        } else {
            sync_cube();
        }
    }
    /// First row of the tile that this plane works on.
    pub(super) fn plane_row(&self) -> u32 {
        self.plane() * comptime!(self.shape.plane_rows())
    }
    /// Where this plane keeps the place of its tile: 8 words.
    pub(super) fn place(&self) -> u32 {
        self.smem + comptime!(self.shape.place_at()) + self.plane() * 32u32
    }
    /// With the first block the queries have arrived.
    fn keep_queries(&self, j: u32) {
        if j == self.first {
            ptx::keep_queries(self.q_at, comptime!(self.shape));
        }
    }
    /// First row of the tile that this unit holds values of.
    pub(super) fn unit_row(&self) -> u32 {
        self.plane_row() + UNIT_POS % 32u32 / 4u32
    }
}

/// S = Q K^T by mma.sync from shared memory.
pub struct MmaScores<'a, NS>(PhantomData<(&'a (), NS)>);
/// O += P V by mma.sync with P from registers.
pub struct MmaValues<'a, NP>(PhantomData<(&'a (), NP)>);

#[cube]
impl<'a, NS: Size> Product for MmaScores<'a, NS> {
    type Ctx = PlaneCtx<'a>;
    type Lhs = ();
    type Acc = MmaRegs<NS>;

    fn issue(
        ctx: &mut PlaneCtx<'a>,
        _lhs: &(),
        j: u32,
        acc: &mut MmaRegs<NS>,
        #[comptime] _mode: ProductMode,
    ) {
        let shape = comptime!(ctx.shape);
        let stage = ctx.stage(j) * comptime!(shape.k_bytes());
        if comptime!(shape.operands.is_some()) {
            acc.v = block_scaled::scores::<NS>(&*ctx, j);
        } else {
            acc.v = ptx::scores::<NS>(ctx.q_at, ctx.k_at + stage, ctx.k_half_at + stage, shape);
        }
        if comptime!(shape.codes.is_some()) {
            scale_columns::<NS>(&*ctx, &ctx.k_scales, j, acc);
        }
    }
    fn wait(
        ctx: &mut PlaneCtx<'a>,
        _lhs: &(),
        _acc: &mut MmaRegs<NS>,
        j: u32,
        #[comptime] _in_flight: u32,
    ) {
        if comptime!(ctx.shape.stages == 1) {
            // V has arrived, and every plane is done with K: the next block of it may come, while
            // this one's weights and values are computed.
            ptx::copies_wait(0u32);
            ctx.meet();
            if j > ctx.start {
                ctx.copy_keys(j - 1u32, false);
                ptx::copies_commit();
            }
        }
    }
}

#[cube]
impl<'a, NP: Size> Product for MmaValues<'a, NP> {
    type Ctx = PlaneCtx<'a>;
    type Lhs = MmaProbs<NP>;
    type Acc = Bank;

    fn issue(
        ctx: &mut PlaneCtx<'a>,
        p: &MmaProbs<NP>,
        j: u32,
        _acc: &mut Bank,
        #[comptime] _mode: ProductMode,
    ) {
        let shape = comptime!(ctx.shape);
        let stage = ctx.stage(j) * comptime!(shape.v_bytes());
        if comptime!(shape.operands.is_some()) {
            block_scaled::values::<NP>(&*ctx, p.v, j);
        } else {
            ptx::values::<NP>(p.v, ctx.v_at + stage, shape);
        }
    }
    fn wait(
        _ctx: &mut PlaneCtx<'a>,
        _lhs: &MmaProbs<NP>,
        _acc: &mut Bank,
        _j: u32,
        #[comptime] _in_flight: u32,
    ) {
    }
}

/// Columns of a block of scores or weights times the scales of their keys.
#[cube]
fn scale_columns<NS: Size>(
    ctx: &PlaneCtx<'_>,
    scales: &ComptimeOption<CodeScales<'_>>,
    j: u32,
    s: &mut MmaRegs<NS>,
) {
    let shape = comptime!(ctx.shape);
    let page = comptime!(shape.page.filter(|_| shape.codes == Some(ScaledBy::Page)));
    let first = j * comptime!(shape.block);
    let apart = comptime!(page.is_some_and(|page| page % shape.block != 0));
    let one = scale_of(scales, &ctx.pages, first, comptime!(page.is_some()));
    let cols = MmaFragment::<NS>::cols(&*s);
    let rows = MmaFragment::<NS>::rows(&*s);
    #[unroll]
    for c in 0..cols {
        let mut scale = one;
        if comptime!(apart) {
            let step = MmaFragment::<NS>::col_step(&*s, c);
            // Keys past the sequence have no page; whatever they are scaled by is masked.
            let key = (first + s.col + step).min(ctx.len_kv - 1u32);
            scale = scale_of(scales, &ctx.pages, key, true);
        }
        #[unroll]
        for r in 0..rows {
            let x = MmaFragment::<NS>::get(&*s, r, c) * scale;
            MmaFragment::<NS>::set(s, r, c, x);
        }
    }
}

/// Scale of a key of the sequence.
#[cube]
pub(super) fn scale_of(
    scales: &ComptimeOption<CodeScales<'_>>,
    pages: &ComptimeOption<KeyPages<'_>>,
    key: u32,
    #[comptime] by_page: bool,
) -> f32 {
    let mut page = 0u32;
    if comptime!(by_page) {
        #[comptime]
        match pages {
            ComptimeOption::Some(pages) => page = pages.page_of(key),
            ComptimeOption::None => {}
        }
    }
    #[comptime]
    match scales {
        ComptimeOption::Some(scales) => scales.of(page),
        ComptimeOption::None => 1.0f32,
    }
}

/// The plane tier; NS and NP are the powers of two above a unit's scores and words of P, E says where weights go that are
/// encoded.
pub struct Plane<'a, NS, NP, E>(PhantomData<(&'a (), NS, NP, E)>);

#[cube]
impl<'a, NS: Size, NP: Size, E: Encode<Scores = MmaFragment<NS>>> Tier for Plane<'a, NS, NP, E> {
    type Ctx = PlaneCtx<'a>;
    type Exp = Binary;
    type Scores = MmaFragment<NS>;
    type Encode = E;
    type Probs = MmaProbs<NP>;
    type Acc = Bank;
    type ScoreProduct = MmaScores<'a, NS>;
    type ValueProduct = MmaValues<'a, NP>;
    type ScoresEdge = InPlace<PlaneCtx<'a>, MmaRegs<NS>>;
    type ProbsEdge = InPlace<PlaneCtx<'a>, MmaProbs<NP>>;
    type FactorsEdge = InPlace<PlaneCtx<'a>, Array<f32>>;
    type FinishedEdge = InPlace<PlaneCtx<'a>, Finished>;

    fn rows(ctx: &PlaneCtx<'a>) -> comptime_type!(usize) {
        comptime!(2 * ctx.shape.m_tiles() as usize)
    }
    fn scores(ctx: &PlaneCtx<'a>) -> MmaRegs<NS> {
        MmaRegs::<NS> {
            v: Vector::<f32, NS>::zeroed(),
            row: ctx.unit_row(),
            col: UNIT_POS % 4u32 * comptime!(ctx.shape.apart()),
            m_tiles: comptime!(ctx.shape.m_tiles()),
            n_tiles: comptime!(ctx.shape.block / 8),
            apart: comptime!(ctx.shape.apart()),
        }
    }
    fn probs(_ctx: &PlaneCtx<'a>) -> MmaProbs<NP> {
        MmaProbs::<NP> {
            v: Vector::<u32, NP>::zeroed(),
        }
    }
    fn acc(ctx: &PlaneCtx<'a>, #[comptime] _roles: Roles) -> Bank {
        let n = comptime!(ctx.shape.acc_registers());
        shared::bank_zero(n);
        Bank { n }
    }

    /// Queries and the first block start on their way.
    fn begin(ctx: &mut PlaneCtx<'a>, at: &TileCoords, range: &Segments, #[comptime] _roles: Roles) {
        let shape = comptime!(ctx.shape);
        ctx.start = range.start;
        ctx.first = range.end.max(1u32) - 1u32;
        ctx.len_kv = at.len_kv;
        // What the epilogue alone needs waits in shared memory: registers are for the loop.
        if UNIT_POS % 32u32 == 0u32 {
            ptx::store_words(ctx.place(), at.entry, at.head, at.row0, at.first_q);
            let cube = if comptime!(ctx.shape.split) {
                CUBE_POS as u32
            } else {
                0u32.runtime()
            };
            ptx::store_words(ctx.place() + 16u32, at.len_q, at.rows_q, cube, 0u32);
        }
        if range.start < range.end {
            if comptime!(shape.operands.is_some()) {
                block_scaled::load_query_scales(&*ctx, at);
            }
            ctx.copy_keys(ctx.first, true);
            if comptime!(shape.stages > 1) {
                ctx.copy_values(ctx.first, true);
            }
            // After them: more addresses to find, and fewer bytes.
            ctx.copy_queries(at);
            ptx::copies_commit();
            #[unroll]
            for ahead in 1..comptime!(shape.stages.max(2) - 1) {
                if ctx.first >= ctx.start + ahead {
                    ctx.copy_keys(ctx.first - ahead, false);
                    ctx.copy_values(ctx.first - ahead, false);
                }
                ptx::copies_commit();
            }
        }
    }
    /// With scores ahead no load follows that would wait for the last values.
    fn scores_done(ctx: &mut PlaneCtx<'a>) {
        if comptime!(ctx.shape.ahead) {
            ptx::copies_wait(0u32);
            ctx.meet();
        }
    }
    fn turn_begin(_ctx: &mut PlaneCtx<'a>) {}
    fn turn_end(_ctx: &mut PlaneCtx<'a>) {}

    fn after(t: u32) -> u32 {
        t + 1u32
    }
    /// What this step reads has arrived; what the next one reads starts on its way into the
    /// stages that the step before has left.
    fn load_keys(ctx: &mut PlaneCtx<'a>, _at: &TileCoords, j: u32) {
        let shape = comptime!(ctx.shape);
        let ahead = comptime!(shape.stages.max(2) - 1);
        ctx.block = j;
        ptx::copies_wait(comptime!(ahead - 1));
        ctx.meet();
        if comptime!(shape.query_registers() > 0) {
            ctx.keep_queries(j);
        }
        if comptime!(shape.ahead) {
            if j < ctx.first {
                ctx.copy_values(j, false);
            }
            if j > ctx.start {
                ctx.copy_keys(j - 1u32, false);
            }
        } else if comptime!(shape.stages > 1) {
            if j >= ctx.start + ahead {
                ctx.copy_keys(j - ahead, false);
                ctx.copy_values(j - ahead, false);
            }
        } else if j == ctx.first {
            ctx.copy_values(j, true);
        } else {
            ctx.copy_values(j, false);
        }
        ptx::copies_commit();
    }

    /// They start with the keys.
    fn load_values(_ctx: &mut PlaneCtx<'a>, _at: &TileCoords, _j: u32) {}

    fn encode(ctx: &mut PlaneCtx<'a>, s: &mut MmaRegs<NS>, p: &mut MmaProbs<NP>) {
        if comptime!(ctx.shape.codes == Some(ScaledBy::Page)) {
            // Those of heads wait for the epilogue: P keeps its range.
            scale_columns::<NS>(&*ctx, &ctx.v_scales, ctx.block, s);
        }
        if comptime!(ctx.shape.operands.is_some()) {
            block_scaled::pack::<NS, NP>(&*s, p, comptime!(ctx.shape));
        } else {
            #[unroll]
            for w in 0..comptime!(ctx.shape.score_registers() as usize / 2) {
                let lo = s.v.extract(comptime!(2 * w));
                let hi = s.v.extract(comptime!(2 * w + 1));
                p.v.insert(w, shared::pack2(lo, hi, comptime!(ctx.shape.ty)));
            }
        }
    }
    fn rescale(ctx: &mut PlaneCtx<'a>, _acc: &mut Bank, factors: &Array<f32>) {
        let shape = comptime!(ctx.shape);
        let mut f = Vector::<f32, Const<4>>::zeroed();
        #[unroll]
        for r in 0..comptime!(2 * shape.m_tiles() as usize) {
            f.insert(r, factors[r]);
        }
        ptx::bank_scale(f, shape);
    }
    fn store(ctx: &mut PlaneCtx<'a>, _acc: &Bank, done: &Finished) {
        if comptime!(ctx.shape.split) {
            store_part(ctx, done);
        } else {
            store_rows(ctx, done);
        }
    }
}
