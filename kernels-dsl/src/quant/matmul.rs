//! Products with packed weights: one loop over tiles of W for every tier.
//!
//! Codes are multiplied as the small numbers they stand for, which 16 bits hold exactly (NF4's but to
//! their precision); the scale of a group multiplies the group's sum. The accumulator is f32 throughout.

use cubecl::prelude::*;

use super::{STEP, TILE, WeightTiles};

/// Which parts of the loop these units run.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct MatmulRoles {
    /// Bring tiles in.
    pub load: bool,
    /// Unpack and multiply them.
    pub multiply: bool,
}

impl MatmulRoles {
    /// Everything.
    pub const ALL: Self = Self {
        load: true,
        multiply: true,
    };
    /// The producer's part.
    pub const LOAD: Self = Self {
        load: true,
        multiply: false,
    };
    /// The consumers' part.
    pub const MULTIPLY: Self = Self {
        load: false,
        multiply: true,
    };
}

/// One architecture's tiles of y^T = W^T x^T: weights are the left operand, rows of x the columns
/// of the right one.
#[cube]
pub trait MatmulTier {
    /// Where tiles are found.
    type Ctx: CubeType;
    /// Packed words, scales and zero points of what these units multiply of a k-block.
    type Block: CubeType;
    /// Unpacked weights of a step.
    type Weights: CubeType;
    /// Sums over the rows of one group.
    type Sums: CubeType;
    /// Sums of scaled sums.
    type Acc: CubeType;

    /// How many parts of a block are multiplied one after the other.
    fn parts(ctx: &Self::Ctx) -> comptime_type!(usize);
    /// Starts the loads that run ahead of the loop.
    fn begin(ctx: &mut Self::Ctx, start: u32, end: u32);
    /// Brings k-block `j`, or one that runs ahead of it.
    fn load(ctx: &mut Self::Ctx, j: u32, end: u32);
    /// Waits for k-block `j`.
    fn receive(ctx: &mut Self::Ctx, j: u32);
    /// Whether any of the columns of part `part` exist.
    fn exists(ctx: &Self::Ctx, #[comptime] part: usize) -> bool;
    /// Takes part `part` of k-block `j` out of where it arrived.
    fn open(ctx: &mut Self::Ctx, j: u32, #[comptime] part: usize) -> Self::Block;
    /// The weights of step `step`, which lie in group `group` of the block.
    fn unpack(
        ctx: &Self::Ctx,
        block: &Self::Block,
        #[comptime] step: usize,
        #[comptime] group: usize,
    ) -> Self::Weights;
    /// `sums (+)= weights * x`, started; `accumulate` unset begins a group.
    fn issue(
        ctx: &mut Self::Ctx,
        weights: &Self::Weights,
        sums: &mut Self::Sums,
        j: u32,
        #[comptime] step: usize,
        #[comptime] accumulate: bool,
    );
    /// Waits for the products of the group, then `acc += scales * sums`.
    fn rescale(
        ctx: &mut Self::Ctx,
        block: &Self::Block,
        sums: &mut Self::Sums,
        acc: &mut Self::Acc,
        #[comptime] part: usize,
        #[comptime] group: usize,
    );
    /// Gives the place of k-block `j` back.
    fn release(ctx: &mut Self::Ctx, j: u32);
}

/// `acc += W^T x^T` over the k-blocks `start .. end`.
#[cube]
pub fn multiply_blocks<T: MatmulTier>(
    ctx: &mut T::Ctx,
    sums: &mut T::Sums,
    acc: &mut T::Acc,
    start: u32,
    end: u32,
    #[comptime] tiles: WeightTiles,
    #[comptime] roles: MatmulRoles,
) {
    if comptime!(roles.load) {
        T::begin(ctx, start, end);
    }
    for j in start..end {
        if comptime!(roles.load) {
            T::load(ctx, j, end);
        }
        if comptime!(roles.multiply) {
            T::receive(ctx, j);
            let parts = T::parts(&*ctx);
            #[unroll]
            for part in 0..parts {
                if T::exists(&*ctx, part) {
                    multiply_part::<T>(ctx, sums, acc, j, part, tiles);
                }
            }
            T::release(ctx, j);
        }
    }
}

#[cube]
fn multiply_part<T: MatmulTier>(
    ctx: &mut T::Ctx,
    sums: &mut T::Sums,
    acc: &mut T::Acc,
    j: u32,
    #[comptime] part: usize,
    #[comptime] tiles: WeightTiles,
) {
    let block = T::open(ctx, j, part);
    let steps = comptime!(tiles.group_steps() as usize);
    #[unroll]
    for s in 0..comptime!((TILE / STEP) as usize) {
        let group = comptime!(s / steps);
        let weights = T::unpack(&*ctx, &block, s, group);
        T::issue(ctx, &weights, sums, j, s, comptime!(s % steps > 0));
        if comptime!(s % steps == steps - 1) {
            T::rescale(ctx, &block, sums, acc, part, group);
        }
    }
}
