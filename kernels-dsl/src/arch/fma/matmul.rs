//! Products with packed weights on the unit tier: a unit owns one column of y and a few of its rows.

use core::marker::PhantomData;

use cubecl::prelude::*;

use crate::attention::e4m3_value;
use crate::launch::MatmulBlueprint;
use crate::launch::MatmulFault;
use crate::quant::{
    MatmulRoles, MatmulSizes, MatmulTier, STEP, ScaleType, Scaling, TILE, e8m0_value,
    half_bits_to_f32, multiply_blocks, number_of,
};

/// Where a unit finds its operands.
#[derive(CubeType)]
pub struct UnitMatmul<'a, E: Float> {
    /// x [m, k].
    pub x: &'a [E],
    /// Codes.
    pub words: &'a [u32],
    /// Scales, two or four a word.
    pub scales: &'a [u32],
    /// Zero points, four a word, or minima, two a word.
    pub zeros: &'a ComptimeOption<Box<[u32]>>,
    /// Column of x for every stored row.
    pub gather: &'a ComptimeOption<Box<[u32]>>,
    /// Sizes.
    pub sizes: &'a MatmulSizes,
    /// First row of x and y.
    pub row0: u32,
    /// Column of y.
    pub column: u32,
    /// Comptime choices.
    #[cube(comptime)]
    pub blueprint: MatmulBlueprint,
}

#[cube]
impl<'a, E: Float> UnitMatmul<'a, E> {
    /// Place of the column's scale or zero point of a group of k-block `j`.
    fn place(&self, j: u32, #[comptime] group: usize) -> usize {
        let tiles = comptime!(self.blueprint.tiles);
        let group = self
            .sizes
            .group_of(j, comptime!(group as u32).runtime(), tiles);
        let n = self.column;
        let within = n % 16u32 / 2u32 * 8u32 + n % 64u32 / 16u32 * 2u32 + n % 2u32;
        group as usize * (self.sizes.n_tiles * TILE) as usize + (n / TILE * TILE + within) as usize
    }
    fn scale(&self, j: u32, #[comptime] group: usize) -> f32 {
        let at = self.place(j, group);
        let byte = (self.scales[at / 4] >> ((at % 4) as u32 * 8u32)) & 0xFFu32;
        match comptime!(self.blueprint.tiles.scales) {
            ScaleType::F16 => {
                let shift = (at % 2) as u32 * 16u32;
                half_bits_to_f32((self.scales[at / 2] >> shift) & 0xFFFFu32)
            }
            ScaleType::E4M3 => e4m3_value(byte),
            ScaleType::E8M0 => e8m0_value(byte),
        }
    }
    fn zero(&self, j: u32, #[comptime] group: usize) -> u32 {
        let at = self.place(j, group);
        let mut zero = comptime!(self.blueprint.tiles.middle()).runtime();
        if comptime!(self.blueprint.tiles.points()) {
            #[comptime]
            match &self.zeros {
                ComptimeOption::Some(zeros) => {
                    zero = (zeros[at / 4] >> ((at % 4) as u32 * 8u32)) & 0xFFu32;
                }
                ComptimeOption::None => {}
            }
        }
        if comptime!(self.blueprint.fault == Some(MatmulFault::ZeroPointOffByOne)) {
            zero += 1u32;
        }
        zero
    }
    fn minimum(&self, j: u32, #[comptime] group: usize) -> f32 {
        let at = self.place(j, group);
        #[comptime]
        match &self.zeros {
            ComptimeOption::Some(zeros) => {
                half_bits_to_f32((zeros[at / 2] >> ((at % 2) as u32 * 16u32)) & 0xFFFFu32)
            }
            ComptimeOption::None => 0.0f32.runtime(),
        }
    }
    /// The code of row `row` of a step of k-block `j`.
    fn code(&self, j: u32, #[comptime] step: usize, #[comptime] row: u32) -> u32 {
        let bits = comptime!(self.blueprint.tiles.bits);
        let n = self.column;
        let mut odd = n % 2u32;
        if comptime!(self.blueprint.fault == Some(MatmulFault::ColumnsSwapped)) {
            odd = 1u32 - odd;
        }
        let tile = (n / TILE) as usize * self.sizes.k_tiles as usize + j as usize;
        let lane = n % 64u32 / 16u32 * 32u32 + n % 16u32 / 2u32 * 4u32 + comptime!(row % 8 / 2);
        let field = comptime!(8 * step as u32 + row % 2 * 4 + row / 8 * 2) + odd;
        let bit = lane * comptime!(32 * bits) + field * bits;
        let at = tile * comptime!((128 * bits) as usize) + (bit / 32u32) as usize;
        let shift = bit % 32u32;
        let mut code = self.words[at] >> shift;
        if comptime!(32 % bits != 0) {
            if shift > comptime!(32 - bits) {
                code |= self.words[at + 1] << (32u32 - shift);
            }
        }
        code & comptime!((1u32 << bits) - 1)
    }
    /// Column of x that stored row `row` multiplies; `NO_ROW` or one past the end for none.
    fn source(&self, row: u32) -> u32 {
        if comptime!(self.blueprint.fault == Some(MatmulFault::GatherIgnored)) {
            row
        } else {
            #[comptime]
            match &self.gather {
                ComptimeOption::Some(gather) => gather[row as usize],
                ComptimeOption::None => row,
            }
        }
    }
}

/// The unit tier.
pub struct UnitTier<'a, E>(PhantomData<(&'a (), E)>);

#[cube]
impl<'a, E: Float> MatmulTier for UnitTier<'a, E> {
    type Ctx = UnitMatmul<'a, E>;
    type Block = u32;
    type Weights = Array<f32>;
    type Sums = Array<f32>;
    type Acc = Array<f32>;

    fn parts(_ctx: &UnitMatmul<'a, E>) -> comptime_type!(usize) {
        1usize
    }
    fn begin(_ctx: &mut UnitMatmul<'a, E>, _start: u32, _end: u32) {}
    fn load(_ctx: &mut UnitMatmul<'a, E>, _j: u32, _end: u32) {}
    fn receive(_ctx: &mut UnitMatmul<'a, E>, _j: u32) {}
    fn open(_ctx: &mut UnitMatmul<'a, E>, j: u32, #[comptime] _part: usize) -> u32 {
        j
    }
    fn claim(_ctx: &mut UnitMatmul<'a, E>) {}
    fn unpack(
        ctx: &UnitMatmul<'a, E>,
        block: &u32,
        #[comptime] step: usize,
        #[comptime] group: usize,
    ) -> Array<f32> {
        let zero = ctx.zero(*block, group);
        let codes = comptime!(ctx.blueprint.tiles.codes);
        let mut weights = Array::<f32>::new(comptime!(STEP as usize));
        #[unroll]
        for row in 0..STEP {
            weights[row as usize] = number_of(ctx.code(*block, step, row), zero, codes);
        }
        if comptime!(ctx.blueprint.tiles.minima()) {
            let (scale, minimum) = (ctx.scale(*block, group), ctx.minimum(*block, group));
            #[unroll]
            for row in 0..STEP {
                weights[row as usize] = fma(weights[row as usize], scale, minimum);
            }
        }
        weights
    }
    fn issue(
        ctx: &mut UnitMatmul<'a, E>,
        weights: &Array<f32>,
        sums: &mut Array<f32>,
        j: u32,
        #[comptime] _part: usize,
        #[comptime] step: usize,
        #[comptime] accumulate: bool,
    ) {
        let rows = comptime!(ctx.blueprint.rows);
        if comptime!(!accumulate) {
            #[unroll]
            for r in 0..rows {
                sums[r] = 0.0f32;
            }
        }
        let first = j * TILE + comptime!(step as u32 * STEP);
        #[unroll]
        for i in 0..STEP {
            let source = ctx.source(first + i);
            if source < ctx.sizes.k {
                #[unroll]
                for r in 0..rows {
                    let row = ctx.row0 + comptime!(r as u32);
                    if row < ctx.sizes.m {
                        let at =
                            ctx.sizes.x_offset + row as usize * ctx.sizes.x_row + source as usize;
                        sums[r] = fma(weights[i as usize], f32::cast_from(ctx.x[at]), sums[r]);
                    }
                }
            }
        }
    }
    fn commit(_ctx: &mut UnitMatmul<'a, E>) {}
    fn rescale(
        ctx: &mut UnitMatmul<'a, E>,
        block: &u32,
        sums: &mut Array<f32>,
        acc: &mut Array<f32>,
        #[comptime] _part: usize,
        #[comptime] group: usize,
    ) {
        let scale = ctx.scale(*block, group);
        #[unroll]
        for r in 0..comptime!(ctx.blueprint.rows) {
            acc[r] = fma(sums[r], scale, acc[r]);
        }
    }
    fn release(_ctx: &mut UnitMatmul<'a, E>, _j: u32) {}
    fn settle(_ctx: &mut UnitMatmul<'a, E>) {}
}

/// y [m, n] = x [m, k] W (+ bias `[n]`) on the unit tier; see [`tiles`](crate::quant) for how W lies.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn matmul_quantized_fma<E: Float>(
    x: &[E],
    words: &[u32],
    scales: &[u32],
    zeros: &ComptimeOption<Box<[u32]>>,
    gather: &ComptimeOption<Box<[u32]>>,
    bias: &ComptimeOption<Box<[E]>>,
    y: &mut [E],
    sizes: &MatmulSizes,
    #[comptime] blueprint: MatmulBlueprint,
    #[define(E)] _dtype: ElemType,
) {
    run_unit::<E>(x, words, scales, zeros, gather, bias, y, sizes, blueprint);
}

#[cube]
fn run_unit<'a, E: Float>(
    x: &'a [E],
    words: &'a [u32],
    scales: &'a [u32],
    zeros: &'a ComptimeOption<Box<[u32]>>,
    gather: &'a ComptimeOption<Box<[u32]>>,
    bias: &ComptimeOption<Box<[E]>>,
    y: &mut [E],
    sizes: &'a MatmulSizes,
    #[comptime] blueprint: MatmulBlueprint,
) {
    let n = sizes.n as usize;
    let column = (ABSOLUTE_POS % n) as u32;
    let m_block = ABSOLUTE_POS / n;
    if m_block < sizes.m_blocks as usize {
        let rows = comptime!(blueprint.rows);
        let row0 = m_block as u32 * comptime!(rows as u32);
        let mut ctx = UnitMatmul::<'a, E> {
            x,
            words,
            scales,
            zeros,
            gather,
            sizes,
            row0,
            column,
            blueprint,
        };
        let mut sums = Array::<f32>::new(rows);
        let mut acc = Array::<f32>::new(rows);
        #[unroll]
        for r in 0..rows {
            sums[r] = 0.0f32;
            acc[r] = 0.0f32;
        }
        let mut blocks = sizes.k_tiles;
        if comptime!(blueprint.fault == Some(MatmulFault::LastTileDropped)) {
            blocks -= 1u32;
        }
        let tiles = comptime!(blueprint.tiles);
        let all = comptime!(MatmulRoles::ALL);
        multiply_blocks::<UnitTier<'a, E>>(
            &mut ctx,
            &mut sums,
            &mut acc,
            0u32.runtime(),
            blocks,
            tiles,
            comptime!(blueprint.scaling),
            all,
        );
        let added = bias_of::<E>(bias, sizes.bias_offset + column as usize);
        #[unroll]
        for r in 0..rows {
            let row = row0 + comptime!(r as u32);
            let sum = match comptime!(blueprint.scaling) {
                Scaling::Sums => acc[r],
                Scaling::Weights => sums[r],
            };
            if row < sizes.m {
                let at = sizes.y_offset + row as usize * sizes.y_row + column as usize;
                y[at] = E::cast_from(fma(sum, sizes.factor, added));
            }
        }
    }
}

/// Element `at` of the bias, 0 where there is none.
#[cube]
pub(in crate::arch) fn bias_of<E: Float>(bias: &ComptimeOption<Box<[E]>>, at: usize) -> f32 {
    #[comptime]
    match bias {
        ComptimeOption::Some(bias) => f32::cast_from(bias[at]),
        ComptimeOption::None => 0.0f32,
    }
}
