//! Split-phase tile products.

use cubecl::prelude::*;

/// How a product treats its accumulator and the rows of its right operand.
#[derive_cube_comptime]
pub struct ProductMode {
    /// Add to the accumulator instead of replacing it.
    pub accumulate: bool,
    /// Some columns of the left operand are exact zeros that stand for hidden keys: what the
    /// right operand holds there (NaN included) must not reach the accumulator.
    pub hidden: bool,
}

/// `acc (+)= lhs * block(j)`: started by [`issue`](Product::issue), readable after
/// [`wait`](Product::wait). FMA and mma.sync finish at issue and wait for nothing; wgmma and
/// tcgen05 run until the wait, so the caller may do other work between the two.
#[cube]
pub trait Product {
    /// Where the unit finds the blocks of the right operand.
    type Ctx: CubeType;
    /// The left operand.
    type Lhs: CubeType;
    /// The accumulator.
    type Acc: CubeType;

    /// Starts the product with block `j`.
    fn issue(
        ctx: &mut Self::Ctx,
        lhs: &Self::Lhs,
        j: u32,
        acc: &mut Self::Acc,
        #[comptime] mode: ProductMode,
    );
    /// Returns when the product with block `j` is done, while `in_flight` later ones may run on.
    /// Until then `lhs` must not change.
    fn wait(
        ctx: &mut Self::Ctx,
        lhs: &Self::Lhs,
        acc: &mut Self::Acc,
        j: u32,
        #[comptime] in_flight: u32,
    );
}
