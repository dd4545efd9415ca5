//! wgmma: a warpgroup, and a cube, a trial.

use cubecl::prelude::*;

use super::{MatrixElement, WgmmaOperands};
use crate::arch::hopper::{descriptor_k_major, descriptor_mn_major, ptx};

/// Words of a row of 128 bytes, the span of the swizzle.
const SPAN: usize = 32;
/// Words of an instruction's depth, 256 bits.
const DEPTH: usize = 8;

/// out = A B^T (+ C) [trials, 64, n] by one wgmma; A [trials, 64, k], B [trials, n, k], C [trials, 64, n], which A and B in
/// shared memory leave out. B^T goes through shared memory in the 128-byte swizzle, as the tiers' tiles do.
#[cube(launch_unchecked)]
pub fn multiply_warpgroup(
    a: &[u32],
    b: &[u32],
    c: &[f32],
    out: &mut [f32],
    #[comptime] element: MatrixElement,
    #[comptime] n: u32,
    #[comptime] operands: WgmmaOperands,
) {
    let mut left: Shared<[u32]> = Shared::new_aligned_slice(comptime!(64 * SPAN), 1024usize);
    // K-major a row a column of B, MN-major 16 rows for 64 of them.
    let mut right: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(n.next_multiple_of(64) as usize * SPAN), 1024usize);
    if comptime!(operands == WgmmaOperands::RegistersMn) {
        stage_mn_major(b, &mut right, n);
    } else {
        stage_rows(b, &mut right, n);
    }
    if comptime!(operands == WgmmaOperands::Shared) {
        stage_rows(a, &mut left, 64u32);
    }
    ptx::fence_async();
    sync_cube();
    let from = ptx::smem_addr::<u32>(&right[0]);
    // Thread t holds columns 8 g + 2 (t % 4) + e of rows 16 (t / 32) + t % 32 / 4 + 8 r.
    let row = UNIT_POS / 32u32 * 16u32 + UNIT_POS % 32u32 / 4u32;
    let corner = (CUBE_POS * 64usize + row as usize) * comptime!(n as usize)
        + (UNIT_POS % 4u32 * 2u32) as usize;
    if comptime!(operands == WgmmaOperands::Shared) {
        let size!(NS) = comptime!((n as usize / 2).next_power_of_two());
        let a_desc = descriptor_k_major(ptx::smem_addr::<u32>(&left[0]));
        let b_desc = descriptor_k_major(from);
        from_shared::<NS>(a_desc, b_desc, out, corner, element, n);
    } else {
        let b_desc = if comptime!(operands == WgmmaOperands::RegistersMn) {
            descriptor_mn_major(from, 16u32)
        } else {
            descriptor_k_major(from)
        };
        from_registers(a, b_desc, c, out, row, corner, element, n, operands);
    }
}

/// Both operands in shared memory, as in Q K^T.
#[cube]
fn from_shared<NS: Size>(
    a: u64,
    b: u64,
    out: &mut [f32],
    corner: usize,
    #[comptime] element: MatrixElement,
    #[comptime] n: u32,
) {
    let width = NS::value();
    let text = comptime!(ptx::scores_text(n / 2, width, element.ptx(), &[(0, 0)]));
    let issued = ptx::issue_scores::<NS>(a, b, text);
    let product = ptx::wait_scores::<NS>(issued, comptime!(n / 2), 0u32);
    #[unroll]
    for i in 0..comptime!(n as usize / 2) {
        out[corner + comptime!(place(n, i))] = product.extract(i);
    }
}

/// Left operand and accumulator in registers, as in P V and in products with packed weights.
#[cube]
fn from_registers(
    a: &[u32],
    b: u64,
    c: &[f32],
    out: &mut [f32],
    row: u32,
    corner: usize,
    #[comptime] element: MatrixElement,
    #[comptime] n: u32,
    #[comptime] operands: WgmmaOperands,
) {
    let mut left = Vector::<u32, Const<4>>::zeroed();
    let at = (CUBE_POS * 64usize + row as usize) * DEPTH + (UNIT_POS % 4u32) as usize;
    #[unroll]
    for i in 0..4usize {
        left.insert(i, a[at + comptime!(i % 2 * 8 * DEPTH + i / 2 * 4)]);
    }
    ptx::bank_declare(comptime!(n / 2));
    #[unroll]
    for i in 0..comptime!(n as usize / 2) {
        ptx::bank_set(c[corner + comptime!(place(n, i))], comptime!(i as u32));
    }
    let text = comptime!(registers_text(element, n, operands));
    ptx::issue_values::<Const<4>>(left, b, text);
    ptx::wait_values::<Const<4>>(left, 0u32);
    #[unroll]
    for i in 0..comptime!(n as usize / 2) {
        out[corner + comptime!(place(n, i))] = ptx::bank_get(comptime!(i as u32));
    }
}

fn registers_text(element: MatrixElement, n: u32, operands: WgmmaOperands) -> String {
    if operands == WgmmaOperands::RegistersMn {
        return ptx::values_text(n / 2, 4, element.ptx(), &[0]);
    }
    let transposes = if element.bits() == 16 { ", 0" } else { "" };
    let operands = [ptx::bank(n / 2), "{%0, %1, %2, %3}".into(), "%4".into()];
    let product = ptx::wgmma(n, element.ptx(), operands, true, transposes);
    format!("{product}\nwgmma.commit_group.sync.aligned;\n")
}

/// Accumulator `i` in memory, counted from the thread's first element.
fn place(n: u32, i: usize) -> usize {
    i / 4 * 8 + i / 2 % 2 * 8 * n as usize + i % 2
}

/// `rows` rows of 256 bits into rows of 128 bytes: 16-byte chunk c of row r goes where c ^ r % 8 lies.
#[cube]
fn stage_rows(from: &[u32], to: &mut Shared<[u32]>, #[comptime] rows: u32) {
    let mut i = UNIT_POS;
    while i < comptime!(rows * DEPTH as u32) {
        let (row, word) = (i / comptime!(DEPTH as u32), i % comptime!(DEPTH as u32));
        let chunk = (word / 4u32) ^ (row % 8u32);
        let at = row * comptime!(SPAN as u32) + chunk * 4u32 + word % 4u32;
        to[at as usize] = from[CUBE_POS * comptime!(rows as usize * DEPTH) + i as usize];
        i += CUBE_DIM;
    }
}

/// B [n, 16] of 16-bit elements into blocks of 64 columns of B^T, 16 rows of 128 bytes each, swizzled alike.
#[cube]
fn stage_mn_major(from: &[u32], to: &mut Shared<[u32]>, #[comptime] n: u32) {
    let mut i = UNIT_POS;
    while i < comptime!(n / 2 * 16) {
        // A word holds columns 2 p and 2 p + 1 of row k.
        let (pair, k) = (i % comptime!(n / 2), i / comptime!(n / 2));
        let at = CUBE_POS * comptime!(n as usize * DEPTH)
            + (2u32 * pair * comptime!(DEPTH as u32) + k / 2u32) as usize;
        let shift = 16u32 * (k % 2u32);
        let low = (from[at] >> shift) & 0xFFFFu32;
        let high = (from[at + DEPTH] >> shift) & 0xFFFFu32;
        let (block, inner) = (pair / 32u32, pair % 32u32);
        let chunk = (inner / 4u32) ^ (k % 8u32);
        let word = (block * 16u32 + k) * comptime!(SPAN as u32) + chunk * 4u32 + inner % 4u32;
        to[word as usize] = low | (high << 16u32);
        i += CUBE_DIM;
    }
}
