//! The loop's operations on the Hopper tier: the producer's loads, the consumers' products.

use core::marker::PhantomData;

use cubecl::prelude::*;

use super::shape::PRODUCERS;
use super::{HopperMatmulShape, ptx};
use crate::arch::hopper::operands::descriptor_k_major;
use crate::arch::hopper::ptx as hopper;
use crate::arch::plane::{load_word, pairs};
use crate::quant::{MatmulSizes, MatmulTier, Scaling, TILE, WorkUnit, fragment_of};

/// Where the units of a cube find their operands.
#[derive(CubeType)]
pub struct HopperMatmul<'a> {
    /// Sizes.
    pub sizes: &'a MatmulSizes,
    /// Tensor map of x.
    pub x_map: u64,
    /// Global addresses of the codes, scales and zero points.
    pub words_from: u64,
    /// See `words_from`.
    pub scales_from: u64,
    /// See `words_from`.
    pub zeros_from: u64,
    /// Shared address of the first stage.
    pub smem: u32,
    /// k-blocks that have passed this role.
    pub pos: u32,
    /// 1 where the stage of the last of them is still held, since products of it may be under way.
    pub held: u32,
    /// First row of x and y of the block, and its first column block.
    pub row0: u32,
    /// See `row0`.
    pub n_tile: u32,
    /// Consumer warpgroup.
    pub wg: u32,
    /// Comptime shape.
    #[cube(comptime)]
    pub shape: HopperMatmulShape,
}

#[cube]
impl<'a> HopperMatmul<'a> {
    /// Goes to the next block.
    pub(super) fn visit(&mut self, unit: &WorkUnit) {
        self.row0 = unit.m_block * comptime!(self.shape.rows);
        self.n_tile = unit.n_block * comptime!(self.shape.tiles_n());
    }
    fn slot(&self) -> u32 {
        self.pos % comptime!(self.shape.stages)
    }
    fn parity(&self) -> u32 {
        self.pos / comptime!(self.shape.stages) % 2u32
    }
    fn stage(&self) -> u32 {
        self.smem + self.slot() * comptime!(self.shape.stage_bytes())
    }
    fn full(&self) -> u32 {
        self.smem + comptime!(self.shape.bars_at()) + self.slot() * 8u32
    }
    fn empty(&self) -> u32 {
        self.full() + comptime!(8 * self.shape.stages)
    }
    /// A warp gives a stage back for itself, once all its lanes have read their codes.
    fn give_back(&self, empty: u32) {
        sync_plane();
        if hopper::lane() == 0u32 {
            hopper::mbar_arrive(empty);
        }
    }
    /// Gives the stage before this one back, if it is held.
    fn give_back_last(&self) {
        if self.held == 1u32 {
            let slot = (self.pos + comptime!(self.shape.stages - 1)) % comptime!(self.shape.stages);
            let empties = comptime!(self.shape.bars_at() + 8 * self.shape.stages);
            self.give_back(self.smem + empties + slot * 8u32);
        }
    }

    /// Whether bringing the next k-block in is this warp's turn.
    fn loads_next(&self) -> bool {
        self.pos % PRODUCERS == UNIT_POS / 32u32
    }

    /// K-block `j` into the next stage, by one thread, once the consumers are done with what was in
    /// it. For column blocks past the last comes the last one's again, which nobody stores: products in a
    /// branch would wait for one another. For tiles past the last along k comes that one, which multiplies zeros.
    fn load_block(&self, j: u32) {
        let shape = comptime!(self.shape);
        let (stage, full) = (self.stage(), self.full());
        hopper::mbar_wait(self.empty(), self.parity() ^ 1u32);
        hopper::mbar_expect(full, comptime!(shape.arrival()).runtime());
        let last = self.sizes.n_tiles - 1u32;
        let k_tile = j * comptime!(shape.depth);
        if k_tile + comptime!(shape.depth) <= self.sizes.k_tiles {
            self.load_words(k_tile, 0u32, comptime!(shape.depth));
        } else {
            #[unroll]
            for d in 0..comptime!(shape.depth) {
                self.load_words((k_tile + d).min(self.sizes.k_tiles - 1u32), d, 1u32);
            }
        }
        if self.n_tile + comptime!(shape.tiles_n() - 1) <= last {
            self.load_scales(j, self.n_tile, 0u32, comptime!(shape.tiles_n()));
        } else {
            #[unroll]
            for t in 0..comptime!(shape.tiles_n()) {
                self.load_scales(j, (self.n_tile + t).min(last), t, 1u32);
            }
        }
        #[unroll]
        for d in 0..comptime!(shape.depth) {
            let to = stage + comptime!(d * shape.x_tile_bytes());
            let column = ((k_tile + d) * TILE) as i32;
            ptx::tma_load_2d(to, self.x_map, column, self.row0 as i32, full);
        }
    }
}

#[cube]
impl<'a> HopperMatmul<'a> {
    /// Codes of `tiles` tiles along k of every column block from `k_tile` on, to the places of a stage from
    /// those of its tile `d` on.
    fn load_words(&self, k_tile: u32, #[comptime] d: u32, #[comptime] tiles: u32) {
        let shape = comptime!(self.shape);
        let full = self.full();
        let words = self.stage() + comptime!(shape.words_at() + d * shape.tiles.tile_bytes());
        let tile_bytes = comptime!(shape.tiles.tile_bytes());
        let last = self.sizes.n_tiles - 1u32;
        #[unroll]
        for t in 0..comptime!(shape.tiles_n()) {
            let column = (self.n_tile + t).min(last);
            let tile = column as u64 * self.sizes.k_tiles as u64 + k_tile as u64;
            let from = self.words_from + tile * tile_bytes as u64;
            let to = words + comptime!(t * shape.run_bytes());
            ptx::bulk_load(to, from, comptime!(tiles * tile_bytes), full);
        }
    }

    /// Scales and zero points of `tiles` column blocks from `column` on, to the places of a stage from that of its
    /// block `t` on.
    fn load_scales(&self, j: u32, column: u32, #[comptime] t: u32, #[comptime] tiles: u32) {
        let shape = comptime!(self.shape);
        let (stage, full) = (self.stage(), self.full());
        let size = comptime!(shape.tiles.scales.bytes());
        #[unroll]
        for part in 0..comptime!(shape.scale_rows()) {
            let k_tile = j * comptime!(shape.depth) + comptime!(part / shape.tiles.groups);
            let within = comptime!(part % shape.tiles.groups).runtime();
            let group = self.sizes.group_of(k_tile, within, comptime!(shape.tiles));
            let row = group as u64 * (self.sizes.n_tiles * TILE) as u64 + (column * TILE) as u64;
            let at = comptime!(shape.scales_at() + part * shape.scale_row() + t * TILE * size);
            let from = self.scales_from + row * size as u64;
            ptx::bulk_load(stage + at, from, comptime!(tiles * TILE * size), full);
            let size = comptime!(shape.tiles.zero_bytes());
            if comptime!(size > 0) {
                let at = comptime!(shape.zeros_at() + part * shape.zero_row() + t * TILE * size);
                let from = self.zeros_from + row * size as u64;
                ptx::bulk_load(stage + at, from, comptime!(tiles * TILE * size), full);
            }
        }
    }
}

/// A lane's part of a column block.
#[derive(CubeType)]
pub struct HopperBlock {
    /// `[bits]`.
    pub words: Array<u32>,
    /// `[groups]`: scales of the even and the odd column.
    pub scales: Array<u32>,
    /// `[groups]`: the same as weights take them, where they do ([`pairs::column_factors()`]).
    pub factors: Array<Vector<u32, Const<4>>>,
    /// `[groups]`: zero points or minima of the even and the odd column.
    pub zeros: Array<u32>,
}

/// Sums in named registers.
#[derive(CubeType)]
pub struct NamedSums {}

/// The Hopper tier.
pub struct HopperMatmulTier<'a>(PhantomData<&'a ()>);

#[cube]
impl<'a> MatmulTier for HopperMatmulTier<'a> {
    type Ctx = HopperMatmul<'a>;
    type Block = HopperBlock;
    type Weights = Vector<u32, Const<4>>;
    type Sums = NamedSums;
    type Acc = NamedSums;

    fn parts(ctx: &HopperMatmul<'a>) -> comptime_type!(usize) {
        comptime!(ctx.shape.turns() as usize)
    }
    fn begin(_ctx: &mut HopperMatmul<'a>, _start: u32, _end: u32) {}
    fn load(ctx: &mut HopperMatmul<'a>, j: u32, _end: u32) {
        if ctx.loads_next() {
            ctx.load_block(j);
        }
        ctx.pos += 1u32;
    }
    fn receive(ctx: &mut HopperMatmul<'a>, _j: u32) {
        hopper::mbar_wait(ctx.full(), ctx.parity());
    }
    fn open(ctx: &mut HopperMatmul<'a>, _j: u32, #[comptime] part: usize) -> HopperBlock {
        let shape = comptime!(ctx.shape);
        let (groups, bits) = comptime!((shape.tiles.groups as usize, shape.tiles.bits as usize));
        let (lane, warp) = (UNIT_POS % 32u32, UNIT_POS % 128u32 / 32u32);
        let (depth, part) = comptime!(shape.turn(part));
        let tile = ctx.wg * comptime!(shape.parts()) + part;
        let stage = ctx.stage();
        let words_at = stage
            + comptime!(shape.words_at())
            + tile * comptime!(shape.run_bytes())
            + comptime!(depth * shape.tiles.tile_bytes())
            + warp * comptime!(shape.tiles.strip_bytes())
            + lane * comptime!(4 * shape.tiles.bits);
        let mut words = Array::<u32>::new(bits);
        crate::arch::plane::lane_words(&mut words, words_at, 0usize, bits);
        let column = tile * 64u32 + lane / 4u32 * 8u32 + warp * 2u32;
        let mut scales = Array::<u32>::new(groups);
        let mut factors = Array::<Vector<u32, Const<4>>>::new(groups);
        let mut zeros = Array::<u32>::new(groups);
        #[unroll]
        for g in 0..groups {
            let row = comptime!(depth * shape.tiles.groups + g as u32);
            let scale_row = stage + comptime!(row * shape.scale_row() + shape.scales_at());
            let size = comptime!(shape.tiles.scales.bytes());
            scales[g] = column_pair(scale_row, column, warp, size);
            if comptime!(shape.scaling == Scaling::Weights && !shape.tiles.minima()) {
                let scale = pairs::scales(scales[g], comptime!(shape.tiles.scales));
                let lift = ctx.sizes.lift;
                factors[g] = pairs::column_factors(
                    scale.extract(0usize) * lift,
                    scale.extract(1usize) * lift,
                    comptime!(shape.ty),
                );
            }
            let size = comptime!(shape.tiles.zero_bytes());
            if comptime!(size > 0) {
                let zero_row = stage + comptime!(row * shape.zero_row() + shape.zeros_at());
                zeros[g] = column_pair(zero_row, column, warp, size);
            }
        }
        HopperBlock {
            words,
            scales,
            factors,
            zeros,
        }
    }

    /// Of two turns or more the last one's products may be under way.
    fn claim(ctx: &mut HopperMatmul<'a>) {
        if comptime!(ctx.shape.scaling == Scaling::Weights) {
            ptx::wait(comptime!(u32::from(ctx.shape.turns() > 1)));
        }
    }

    fn unpack(
        ctx: &HopperMatmul<'a>,
        block: &HopperBlock,
        #[comptime] step: usize,
        #[comptime] group: usize,
    ) -> Vector<u32, Const<4>> {
        let tiles = comptime!(ctx.shape.tiles);
        let ty = comptime!(ctx.shape.ty);
        let zeros = crate::arch::plane::column_zeros(&block.zeros, group, tiles, ty);
        let numbers = fragment_of(&block.words, &zeros, 0usize, step, tiles, ty);
        if comptime!(tiles.minima()) {
            pairs::above_minima(numbers, block.scales[group], block.zeros[group], ty)
        } else {
            match comptime!(ctx.shape.scaling) {
                Scaling::Sums => numbers,
                Scaling::Weights => pairs::scaled(numbers, block.factors[group], ty),
            }
        }
    }

    fn issue(
        ctx: &mut HopperMatmul<'a>,
        weights: &Vector<u32, Const<4>>,
        _sums: &mut NamedSums,
        _j: u32,
        #[comptime] part: usize,
        #[comptime] step: usize,
        #[comptime] accumulate: bool,
    ) {
        let shape = comptime!(ctx.shape);
        let (depth, part) = comptime!(shape.turn(part));
        // The address is the descriptor's lowest field, in units of 16 bytes.
        let x_at = comptime!(u64::from(depth * shape.x_tile_bytes() + 32 * step as u32) / 16);
        let x = descriptor_k_major(ctx.stage()) + x_at;
        ptx::issue(*weights, x, part, step, accumulate, shape);
    }
    fn commit(ctx: &mut HopperMatmul<'a>) {
        if comptime!(ctx.shape.scaling == Scaling::Weights) {
            ptx::commit();
        }
    }

    fn rescale(
        ctx: &mut HopperMatmul<'a>,
        block: &HopperBlock,
        _sums: &mut NamedSums,
        _acc: &mut NamedSums,
        #[comptime] part: usize,
        #[comptime] group: usize,
    ) {
        let scale = pairs::scales(block.scales[group], comptime!(ctx.shape.tiles.scales));
        ptx::commit();
        ptx::wait(0u32);
        ptx::rescale(
            scale.extract(0usize),
            scale.extract(1usize),
            comptime!(ctx.shape.turn(part).1),
            comptime!(ctx.shape),
        );
    }
    fn release(ctx: &mut HopperMatmul<'a>, _j: u32) {
        match comptime!(ctx.shape.scaling) {
            Scaling::Sums => ctx.give_back(ctx.empty()),
            Scaling::Weights => {
                ctx.give_back_last();
                ctx.held = 1u32.runtime();
            }
        }
        ctx.pos += 1u32;
    }
    fn settle(ctx: &mut HopperMatmul<'a>) {
        if comptime!(ctx.shape.scaling == Scaling::Weights) {
            ptx::wait(0u32);
            ctx.give_back_last();
            ctx.held = 0u32.runtime();
        }
    }
}

/// `size` bytes of each of the lane's columns, the first of which is `column` of the row at `row`: a word holds the
/// single bytes of two warps.
#[cube]
fn column_pair(row: u32, column: u32, warp: u32, #[comptime] size: u32) -> u32 {
    let from = row + column * size;
    if comptime!(size == 1) {
        load_word(from & 0xFFFF_FFFCu32) >> (warp % 2u32 * 16u32)
    } else {
        load_word(from)
    }
}
