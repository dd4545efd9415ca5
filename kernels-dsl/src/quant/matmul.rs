//! Products with packed weights: one loop over tiles of W for every tier.
//!
//! Codes become the small numbers they stand for, which 16 bits hold exactly (NF4's but to their
//! precision); the scale of a group multiplies the group's sum, or the numbers ([`Scaling`]). The
//! accumulator is f32 throughout.

use cubecl::prelude::*;

use super::{STEP, Scaling, TILE, WeightTiles};

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
    /// Takes part `part` of k-block `j` out of where it arrived.
    fn open(ctx: &mut Self::Ctx, j: u32, #[comptime] part: usize) -> Self::Block;
    /// Waits until the weights that this part had in the block before are multiplied, so that others may take
    /// their registers; what the next part's products read stays under way.
    fn claim(ctx: &mut Self::Ctx);
    /// The weights of step `step`, which lie in group `group` of the block.
    fn unpack(
        ctx: &Self::Ctx,
        block: &Self::Block,
        #[comptime] step: usize,
        #[comptime] group: usize,
    ) -> Self::Weights;
    /// `sums (+)= weights * x` for part `part`, started; `accumulate` unset begins a group.
    fn issue(
        ctx: &mut Self::Ctx,
        weights: &Self::Weights,
        sums: &mut Self::Sums,
        j: u32,
        #[comptime] part: usize,
        #[comptime] step: usize,
        #[comptime] accumulate: bool,
    );
    /// Closes a part's products where scales are in the weights.
    fn commit(ctx: &mut Self::Ctx);
    /// Waits for the products of the group, then `acc += scales * sums`.
    fn rescale(
        ctx: &mut Self::Ctx,
        block: &Self::Block,
        sums: &mut Self::Sums,
        acc: &mut Self::Acc,
        #[comptime] part: usize,
        #[comptime] group: usize,
    );
    /// Gives the place of k-block `j` back, or of the one before it, where products of `j` are under way.
    fn release(ctx: &mut Self::Ctx, j: u32);
    /// Waits for products under way and gives the last place back.
    fn settle(ctx: &mut Self::Ctx);
}

/// `acc += W^T x^T` over the k-blocks `start .. end`; with scales in the weights `sums += ` that.
#[cube]
pub fn multiply_blocks<T: MatmulTier>(
    ctx: &mut T::Ctx,
    sums: &mut T::Sums,
    acc: &mut T::Acc,
    start: u32,
    end: u32,
    #[comptime] tiles: WeightTiles,
    #[comptime] scaling: Scaling,
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
                T::claim(ctx);
                multiply_part::<T>(ctx, sums, acc, j, part, tiles, scaling);
                T::commit(ctx);
            }
            T::release(ctx, j);
        }
    }
    if comptime!(roles.multiply) {
        T::settle(ctx);
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
    #[comptime] scaling: Scaling,
) {
    let block = T::open(ctx, j, part);
    let steps = comptime!(tiles.group_steps() as usize);
    let apart = comptime!(scaling == Scaling::Sums);
    // Products that nothing comes between go off together, and are waited for together.
    let mut unpacked = Sequence::<T::Weights>::new();
    if comptime!(!apart) {
        #[unroll]
        for s in 0..comptime!((TILE / STEP) as usize) {
            unpacked.push(T::unpack(&*ctx, &block, s, comptime!(s / steps)));
        }
    }
    #[unroll]
    for s in 0..comptime!((TILE / STEP) as usize) {
        let group = comptime!(s / steps);
        if apart {
            let weights = T::unpack(&*ctx, &block, s, group);
            let accumulate = comptime!(s % steps > 0);
            T::issue(ctx, &weights, sums, j, part, s, accumulate);
            if comptime!(s % steps == steps - 1) {
                T::rescale(ctx, &block, sums, acc, part, group);
            }
        } else {
            T::issue(ctx, &unpacked[s], sums, j, part, s, true);
        }
    }
}
