//! The loop's operations on the plane tier.

use core::marker::PhantomData;

use cubecl::prelude::*;

use super::{PlaneMatmulShape, ptx};
use crate::arch::plane::{pairs, ptx as plane};
use crate::quant::{ColumnZeros, MatmulSizes, MatmulTier, fragment_of, zeros_of};

/// Where the units of a cube find their operands.
#[derive(CubeType)]
pub struct PlaneMatmul<'a> {
    /// x [m, k], two bytes an element.
    pub x: &'a [u16],
    /// Column of x for every stored row.
    pub gather: &'a ComptimeOption<Box<[u32]>>,
    /// Sizes.
    pub sizes: &'a MatmulSizes,
    /// Global addresses of the codes, scales and zero points.
    pub words_from: u64,
    /// See `words_from`.
    pub scales_from: u64,
    /// See `words_from`.
    pub zeros_from: u64,
    /// k-blocks before this one have all their tiles and columns of x.
    pub whole: u32,
    /// Shared address of the first stage.
    pub smem: u32,
    /// First row of x and y.
    pub row0: u32,
    /// First column block.
    pub n_tile: u32,
    /// First strip of this plane in the block, and its place along k.
    pub strip: u32,
    /// See `strip`.
    pub plane_k: u32,
    /// Bytes from a stage to the chunk of x that this lane gives ldmatrix.
    pub x_at: u32,
    /// Comptime shape.
    #[cube(comptime)]
    pub shape: PlaneMatmulShape,
}

#[cube]
impl<'a> PlaneMatmul<'a> {
    /// Shared address of the stage of k-block `j`.
    pub(super) fn stage(&self, j: u32) -> u32 {
        self.smem + j % comptime!(self.shape.stages) * comptime!(self.shape.stage_bytes())
    }
}

/// A lane's part of a k-block.
#[derive(CubeType)]
pub struct PlaneBlock {
    /// [strips, bits].
    pub words: Array<u32>,
    /// [groups, strips]: scales of the even and the odd column.
    pub scales: Array<u32>,
    /// [groups, strips]: zero points or minima of the even and the odd column.
    pub zeros: Array<u32>,
}

/// The plane tier.
pub struct PlaneMatmulTier<'a>(PhantomData<&'a ()>);

#[cube]
impl<'a> MatmulTier for PlaneMatmulTier<'a> {
    type Ctx = PlaneMatmul<'a>;
    type Block = PlaneBlock;
    type Weights = Array<Vector<u32, Const<4>>>;
    type Sums = Array<Vector<f32, Const<4>>>;
    type Acc = Array<Vector<f32, Const<4>>>;

    fn parts(_ctx: &PlaneMatmul<'a>) -> comptime_type!(usize) {
        1usize
    }
    fn begin(ctx: &mut PlaneMatmul<'a>, start: u32, end: u32) {
        for ahead in 0..comptime!(ctx.shape.stages - 1) {
            ctx.copy_block(start + ahead, end);
            plane::copies_commit();
        }
    }
    /// What the team multiplies of block `j` has arrived, and the stage of the block before it is free for one that
    /// runs ahead.
    fn load(ctx: &mut PlaneMatmul<'a>, j: u32, end: u32) {
        plane::copies_wait(comptime!(ctx.shape.stages - 2));
        if comptime!(ctx.shape.team() == 32) {
            sync_plane();
        } else {
            sync_cube();
        }
        ctx.copy_block(j + comptime!(ctx.shape.stages - 1), end);
        plane::copies_commit();
    }
    fn receive(_ctx: &mut PlaneMatmul<'a>, _j: u32) {}

    fn open(ctx: &mut PlaneMatmul<'a>, j: u32, #[comptime] _part: usize) -> PlaneBlock {
        let shape = comptime!(ctx.shape);
        let (strips, groups) = comptime!((shape.strips() as usize, shape.tiles.groups as usize));
        let bits = comptime!(shape.tiles.bits as usize);
        let stage = ctx.stage(j);
        let lane = UNIT_POS % 32u32;
        let tile_n = ctx.strip / 4u32;
        let strip = ctx.strip % 4u32;
        let words_at = stage
            + comptime!(shape.words_at())
            + tile_n * comptime!(shape.run_bytes())
            + ctx.plane_k * comptime!(shape.tiles.tile_bytes())
            + strip * comptime!(shape.tiles.strip_bytes())
            + lane * comptime!(4 * shape.tiles.bits);
        let mut words = Array::<u32>::new(comptime!(strips * bits));
        #[unroll]
        for s in 0..strips {
            let at = words_at + comptime!(s as u32 * shape.tiles.strip_bytes());
            lane_words(&mut words, at, comptime!(s * bits), bits);
        }
        let mut scales = Array::<u32>::new(comptime!(groups * strips));
        let mut zeros = Array::<u32>::new(comptime!(groups * strips));
        #[unroll]
        for g in 0..groups {
            let row = ctx.plane_k * comptime!(groups as u32) + comptime!(g as u32);
            let column =
                row * comptime!(shape.columns) + tile_n * 64u32 + lane / 4u32 * 8u32 + strip * 2u32;
            let size = comptime!(shape.tiles.scales.bytes());
            let scales_at = stage + comptime!(shape.scales_at()) + column * size;
            let first = comptime!(g * strips);
            column_pairs(&mut scales, scales_at, first, strips, size);
            let size = comptime!(shape.tiles.zero_bytes());
            if comptime!(size > 0) {
                let zeros_at = stage + comptime!(shape.zeros_at()) + column * size;
                column_pairs(&mut zeros, zeros_at, first, strips, size);
            }
        }
        PlaneBlock {
            words,
            scales,
            zeros,
        }
    }

    fn claim(_ctx: &mut PlaneMatmul<'a>) {}
    fn unpack(
        ctx: &PlaneMatmul<'a>,
        block: &PlaneBlock,
        #[comptime] step: usize,
        #[comptime] group: usize,
    ) -> Array<Vector<u32, Const<4>>> {
        let tiles = comptime!(ctx.shape.tiles);
        let strips = comptime!(ctx.shape.strips() as usize);
        let ty = comptime!(ctx.shape.ty);
        let mut weights = Array::<Vector<u32, Const<4>>>::new(strips);
        #[unroll]
        for s in 0..strips {
            let at = comptime!(group * strips + s);
            let zeros = column_zeros(&block.zeros, at, tiles, ty);
            let first = comptime!(s * tiles.bits as usize);
            let numbers = fragment_of(&block.words, &zeros, first, step, tiles, ty);
            weights[s] = if comptime!(tiles.minima()) {
                pairs::above_minima(numbers, block.scales[at], block.zeros[at], ty)
            } else {
                numbers
            };
        }
        weights
    }

    fn issue(
        ctx: &mut PlaneMatmul<'a>,
        weights: &Array<Vector<u32, Const<4>>>,
        sums: &mut Array<Vector<f32, Const<4>>>,
        j: u32,
        #[comptime] _part: usize,
        #[comptime] step: usize,
        #[comptime] accumulate: bool,
    ) {
        let shape = comptime!(ctx.shape);
        let row_tiles = comptime!(shape.row_tiles() as usize);
        // Two chunks further is a flip of address bits: steps never leave a line.
        let x_at = (ctx.stage(j) + ctx.x_at) ^ comptime!(32 * step as u32);
        if comptime!(row_tiles == 1) {
            let b = ptx::ldmatrix(x_at, 2u32, false);
            let (b0, b1) = (b.extract(0usize), b.extract(1usize));
            multiply_strips(weights, sums, b0, b1, 0usize, accumulate, shape);
        } else {
            #[unroll]
            for pair in 0..comptime!(row_tiles / 2) {
                let b = ptx::ldmatrix(x_at + comptime!(pair as u32 * 16 * 128), 4u32, false);
                #[unroll]
                for half in 0..2usize {
                    let b0 = b.extract(comptime!(2 * half));
                    let b1 = b.extract(comptime!(2 * half + 1));
                    let tile = comptime!(2 * pair + half);
                    multiply_strips(weights, sums, b0, b1, tile, accumulate, shape);
                }
            }
        }
    }

    fn commit(_ctx: &mut PlaneMatmul<'a>) {}

    fn rescale(
        ctx: &mut PlaneMatmul<'a>,
        block: &PlaneBlock,
        sums: &mut Array<Vector<f32, Const<4>>>,
        acc: &mut Array<Vector<f32, Const<4>>>,
        #[comptime] _part: usize,
        #[comptime] group: usize,
    ) {
        let strips = comptime!(ctx.shape.strips() as usize);
        let row_tiles = comptime!(ctx.shape.row_tiles() as usize);
        #[unroll]
        for s in 0..strips {
            let pair = block.scales[comptime!(group * strips + s)];
            let scale = pairs::scales(pair, comptime!(ctx.shape.tiles.scales));
            let (even, odd) = (scale.extract(0usize), scale.extract(1usize));
            #[unroll]
            for tile in 0..row_tiles {
                let i = comptime!(s * row_tiles + tile);
                let (x, a) = (sums[i], acc[i]);
                let mut out = Vector::<f32, Const<4>>::zeroed();
                out.insert(0usize, fma(x.extract(0usize), even, a.extract(0usize)));
                out.insert(1usize, fma(x.extract(1usize), even, a.extract(1usize)));
                out.insert(2usize, fma(x.extract(2usize), odd, a.extract(2usize)));
                out.insert(3usize, fma(x.extract(3usize), odd, a.extract(3usize)));
                acc[i] = out;
            }
        }
    }
    fn release(_ctx: &mut PlaneMatmul<'a>, _j: u32) {}
    fn settle(_ctx: &mut PlaneMatmul<'a>) {}
}

/// Constants of the zero points at `at`, or of the middle where none are stored.
#[cube]
pub(in crate::arch) fn column_zeros(
    zeros: &Array<u32>,
    #[comptime] at: usize,
    #[comptime] tiles: crate::quant::WeightTiles,
    #[comptime] ty: &'static str,
) -> ColumnZeros {
    if comptime!(tiles.points()) {
        let pair = zeros[at];
        zeros_of(pair & 0xFFu32, (pair >> 8u32) & 0xFFu32, tiles, ty)
    } else {
        let middle = comptime!(tiles.middle()).runtime();
        zeros_of(middle, middle, tiles, ty)
    }
}

/// `size` bytes of the even and as many of the odd column of every strip from `from` on: strips start even, and
/// a word holds the single bytes of two.
#[cube]
fn column_pairs(
    to: &mut Array<u32>,
    from: u32,
    #[comptime] first: usize,
    #[comptime] strips: usize,
    #[comptime] size: u32,
) {
    #[unroll]
    for s in 0..strips {
        let at = comptime!(first + s);
        if comptime!(size == 2) {
            to[at] = ptx::load_word(from + comptime!(4 * s as u32));
        } else if comptime!(s % 2 == 0) {
            to[at] = ptx::load_word(from + comptime!(2 * s as u32));
        } else {
            to[at] = to[comptime!(at - 1)] >> 16u32;
        }
    }
}

/// The lane's `bits` words at `from` into `words[first..]`.
#[cube]
pub(in crate::arch) fn lane_words(
    words: &mut Array<u32>,
    from: u32,
    #[comptime] first: usize,
    #[comptime] bits: usize,
) {
    if comptime!(bits % 4 == 0) {
        #[unroll]
        for quad in 0..comptime!(bits / 4) {
            let line = plane::load_chunk(from + comptime!(16 * quad as u32));
            #[unroll]
            for w in 0..4usize {
                words[comptime!(first + 4 * quad + w)] = line.extract(w);
            }
        }
    } else {
        #[unroll]
        for w in 0..bits {
            words[comptime!(first + w)] = ptx::load_word(from + comptime!(4 * w as u32));
        }
    }
}

/// Every strip times one 8-row block of x, into the sums from `tile` on.
#[cube]
fn multiply_strips(
    weights: &Array<Vector<u32, Const<4>>>,
    sums: &mut Array<Vector<f32, Const<4>>>,
    b0: u32,
    b1: u32,
    #[comptime] tile: usize,
    #[comptime] accumulate: bool,
    #[comptime] shape: PlaneMatmulShape,
) {
    #[unroll]
    for s in 0..comptime!(shape.strips() as usize) {
        let i = comptime!(s * shape.row_tiles() as usize + tile);
        let before = if comptime!(accumulate) {
            sums[i]
        } else {
            Vector::<f32, Const<4>>::zeroed()
        };
        sums[i] = ptx::mma(weights[s], b0, b1, before, 16u32, comptime!(shape.ty));
    }
}
