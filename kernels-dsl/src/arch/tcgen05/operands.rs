//! The fragment of scores and the descriptors of shared tiles.

use cubecl::prelude::*;

use crate::arch::hopper::{descriptor_k_major, descriptor_mn_major};
use crate::tile::Fragment;

/// A row of scores: thread t of a softmax warpgroup holds all columns of row t of its query stage, which is lane t of
/// tensor memory.
#[derive(CubeType)]
pub struct ScoreLane {
    /// `[n]` f32.
    pub v: Array<f32>,
    /// `[n / 8]`: E2M1 codes of the weights, the first in the lowest bits, where they are codes.
    pub codes: Array<u32>,
    /// Codes of the scales of their groups, four in a word.
    pub scales: Array<u32>,
    /// Row of the tile.
    pub row: u32,
    /// Columns.
    #[cube(comptime)]
    pub n: u32,
}

/// The fragment of [`ScoreLane`].
pub struct LaneFragment;

#[cube]
impl Fragment for LaneFragment {
    type Regs = ScoreLane;

    fn rows(_f: &ScoreLane) -> comptime_type!(usize) {
        1usize
    }
    fn cols(f: &ScoreLane) -> comptime_type!(usize) {
        comptime!(f.n as usize)
    }
    fn get(f: &ScoreLane, #[comptime] _r: usize, #[comptime] c: usize) -> f32 {
        f.v[c]
    }
    fn set(f: &mut ScoreLane, #[comptime] _r: usize, #[comptime] c: usize, x: f32) {
        f.v[c] = x;
    }
    fn row(f: &ScoreLane, #[comptime] _r: usize) -> u32 {
        f.row
    }
    fn first_col(_f: &ScoreLane) -> u32 {
        0u32.runtime()
    }
    fn col_step(_f: &ScoreLane, #[comptime] c: usize) -> comptime_type!(u32) {
        c as u32
    }
    fn reduce_max(x: f32) -> f32 {
        x
    }
    fn reduce_sum(x: f32) -> f32 {
        x
    }
}

/// What tells tcgen05's shared-memory descriptors from wgmma's [PTX 9.7.17.4.1]: a constant in
/// bits 46 to 48. The 128-byte swizzle, there in bits 61 to 63, has the same bit in both.
const TCGEN05: u64 = 1 << 46;

/// Descriptor of a K-major tile with the 128-byte swizzle.
#[cube]
pub(super) fn k_major(addr: u32) -> u64 {
    descriptor_k_major(addr) | TCGEN05
}

/// Descriptor of a K-major tile whose rows are `span` bytes, 32, 64 or 128, with the swizzle of that span: groups of 8
/// rows follow one another.
#[cube]
pub(super) fn k_major_of_span(addr: u32, #[comptime] span: u32) -> u64 {
    let a = u64::cast_from((addr & 0x3FFFF) >> 4);
    let swizzle = comptime!(swizzle_code(span) << 61);
    let stride = comptime!((8 * span as u64 / 16) << 32);
    a | comptime!(swizzle | stride | 1 << 16) | TCGEN05
}

/// How descriptors of tcgen05 name the swizzle of `span` bytes.
fn swizzle_code(span: u32) -> u64 {
    match span {
        32 => 6,
        64 => 4,
        _ => 2,
    }
}

/// Descriptor of scale factors of 128 rows, as tcgen05.cp reads 32 rows of 16 bytes: no swizzle, 128 bytes between
/// groups of 8 rows.
#[cube]
pub(super) fn scale_tile(addr: u32) -> u64 {
    u64::cast_from((addr & 0x3FFFF) >> 4) | (1u64 << 16) | (8u64 << 32) | TCGEN05
}

/// Descriptor of an MN-major tile of `block` rows.
#[cube]
pub(super) fn mn_major(addr: u32, #[comptime] block: u32) -> u64 {
    descriptor_mn_major(addr, block) | TCGEN05
}
