//! mma.sync and ldmatrix: a plane, and a cube, a trial.

use cubecl::prelude::*;

use super::MatrixElement;
use crate::arch::hopper::ptx::smem_addr;
use crate::arch::plane::{ldmatrix, mma};

/// out = A B^T + C [trials, 16, 8] by one mma.sync; A [trials, 16, k], B [trials, 8, k], C [trials, 16, 8].
///
/// Lane 4 g + t holds words t and t + 4 of rows g and g + 8 of A and of row g of B, and columns 2 t and
/// 2 t + 1 of rows g and g + 8 of C [PTX 9.7.14.5].
#[cube(launch_unchecked)]
pub fn multiply_plane(
    a: &[u32],
    b: &[u32],
    c: &[f32],
    out: &mut [f32],
    #[comptime] element: MatrixElement,
    #[comptime] k: u32,
) {
    let words = comptime!((k * element.bits() / 32) as usize);
    let (g, t) = ((UNIT_POS / 4u32) as usize, (UNIT_POS % 4u32) as usize);
    let a_row = (CUBE_POS * 16usize + g) * words + t;
    let b_row = (CUBE_POS * 8usize + g) * words + t;
    let mut left = Vector::<u32, Const<4>>::zeroed();
    let mut right = Vector::<u32, Const<2>>::zeroed();
    #[unroll]
    for half in 0..comptime!(words / 4) {
        #[unroll]
        for r in 0..2usize {
            let at = a_row + comptime!(8 * r * words + 4 * half);
            left.insert(comptime!(2 * half + r), a[at]);
        }
        right.insert(half, b[b_row + comptime!(4 * half)]);
    }
    let mut sums = Vector::<f32, Const<4>>::zeroed();
    let corner = (CUBE_POS * 16usize + g) * 8usize + 2usize * t;
    #[unroll]
    for i in 0..4usize {
        sums.insert(i, c[corner + comptime!(i / 2 * 64 + i % 2)]);
    }
    let (b0, b1) = (right.extract(0usize), right.extract(1usize));
    let product = mma(left, b0, b1, sums, k, comptime!(element.ptx()));
    #[unroll]
    for i in 0..4usize {
        out[corner + comptime!(i / 2 * 64 + i % 2)] = product.extract(i);
    }
}

/// out [trials, 32 lanes, count, 2]: what one ldmatrix gives each lane of `rows` [trials, 8 count, 4 words], as the
/// numbers of its 16-bit halves.
#[cube(launch_unchecked)]
pub fn load_matrices(
    rows: &[u32],
    out: &mut [f32],
    #[comptime] count: u32,
    #[comptime] transposed: bool,
) {
    let words = comptime!(32 * count as usize);
    let mut tile: Shared<[u32]> = Shared::new_aligned_slice(words, 16usize);
    #[unroll]
    for i in 0..comptime!(count as usize) {
        let at = comptime!(32 * i) + UNIT_POS as usize;
        tile[at] = rows[CUBE_POS * words + at];
    }
    sync_cube();
    // Lanes beyond the matrices' rows have no address to give.
    let row = UNIT_POS % comptime!(8 * count);
    let from = smem_addr::<u32>(&tile[0]) + 16u32 * row;
    let moved = ldmatrix(from, count, transposed);
    let to = (CUBE_POS * 32usize + UNIT_POS as usize) * comptime!(2 * count as usize);
    #[unroll]
    for i in 0..comptime!(count as usize) {
        let word = moved.extract(i);
        out[to + comptime!(2 * i)] = f32::cast_from(word & 0xFFFFu32);
        out[to + comptime!(2 * i + 1)] = f32::cast_from(word >> 16u32);
    }
}
