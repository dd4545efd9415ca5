//! A unit's view of an accumulator tile.

use cubecl::prelude::*;

/// What one unit holds of a tile of scores: `rows x cols` f32 values at known places of the tile.
///
/// The implementor is a marker; the values live in [`Regs`](Fragment::Regs). Rows may be shared
/// by several units, which is why maxima and sums go through [`reduce_max`](Fragment::reduce_max)
/// and [`reduce_sum`](Fragment::reduce_sum). On FMA a unit owns whole rows and both are the
/// identity; on a matrix unit they are shuffles.
#[cube]
pub trait Fragment: 'static + Send + Sync {
    /// The registers.
    type Regs: CubeType;

    /// Rows this unit works on.
    fn rows(f: &Self::Regs) -> comptime_type!(usize);
    /// Columns this unit holds of each of its rows.
    fn cols(f: &Self::Regs) -> comptime_type!(usize);

    /// Value at (r, c), both counted within the unit.
    fn get(f: &Self::Regs, #[comptime] r: usize, #[comptime] c: usize) -> f32;
    /// Replaces the value at (r, c).
    fn set(f: &mut Self::Regs, #[comptime] r: usize, #[comptime] c: usize, x: f32);

    /// Row of the tile that the unit's row `r` is.
    fn row(f: &Self::Regs, #[comptime] r: usize) -> u32;
    /// Column of the tile that the unit's column 0 is.
    fn first_col(f: &Self::Regs) -> u32;
    /// How far column `c` lies to the right of column 0: the same in every unit, so that mask
    /// edges are compared with constants.
    fn col_step(f: &Self::Regs, #[comptime] c: usize) -> comptime_type!(u32);

    /// Largest of `x` over the units that share the row.
    fn reduce_max(x: f32) -> f32;
    /// Sum of `x` over the units that share the row.
    fn reduce_sum(x: f32) -> f32;
}
