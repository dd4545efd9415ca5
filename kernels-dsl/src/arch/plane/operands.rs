//! The accumulator fragment of mma.sync, and the addresses that lanes give ldmatrix.

use cubecl::prelude::*;

use crate::arch::hopper::ptx;
use crate::tile::Fragment;

/// A plane's scores as accumulators of mma.sync m16n8: (T32, V) -> (M16, N8), value
/// `4 (m N / 8 + n) + 2 r + e` of thread t is row `16 m + t / 4 + 8 r`, column
/// `8 n + 2 (t % 4) + e` [PTX 9.7.14.5.8, figure for C and D].
#[derive(CubeType)]
pub struct MmaRegs<NS: Size> {
    /// The values; NS is the power of two above the registers in use.
    pub v: Vector<f32, NS>,
    /// Row of the tile that m = r = 0 stands for.
    pub row: u32,
    /// Column of the tile that n = e = 0 stands for.
    pub col: u32,
    /// 16-row tiles.
    #[cube(comptime)]
    pub m_tiles: u32,
    /// 8-column tiles.
    #[cube(comptime)]
    pub n_tiles: u32,
    /// Columns from this thread's to the next one's; see [`PlaneShape::apart`](super::PlaneShape::apart).
    #[cube(comptime)]
    pub apart: u32,
}

/// The fragment of [`MmaRegs`].
pub struct MmaFragment<NS>(core::marker::PhantomData<NS>);

/// Register of (row r, column c) of a thread.
fn register(n_tiles: u32, r: usize, c: usize) -> usize {
    4 * ((r / 2) * n_tiles as usize + c / 2) + 2 * (r % 2) + c % 2
}

#[cube]
impl<NS: Size> Fragment for MmaFragment<NS> {
    type Regs = MmaRegs<NS>;

    fn rows(f: &MmaRegs<NS>) -> comptime_type!(usize) {
        comptime!(2 * f.m_tiles as usize)
    }
    fn cols(f: &MmaRegs<NS>) -> comptime_type!(usize) {
        comptime!(2 * f.n_tiles as usize)
    }
    fn get(f: &MmaRegs<NS>, #[comptime] r: usize, #[comptime] c: usize) -> f32 {
        f.v.extract(comptime!(register(f.n_tiles, r, c)))
    }
    fn set(f: &mut MmaRegs<NS>, #[comptime] r: usize, #[comptime] c: usize, x: f32) {
        f.v.insert(comptime!(register(f.n_tiles, r, c)), x);
    }
    fn row(f: &MmaRegs<NS>, #[comptime] r: usize) -> u32 {
        f.row + comptime!((16 * (r / 2) + 8 * (r % 2)) as u32)
    }
    fn first_col(f: &MmaRegs<NS>) -> u32 {
        f.col
    }
    fn col_step(f: &MmaRegs<NS>, #[comptime] c: usize) -> comptime_type!(u32) {
        comptime!(key_of(f.apart, 8 * (c as u32 / 2)) + c as u32 % 2)
    }
    fn reduce_max(x: f32) -> f32 {
        let y = x.max(ptx::shuffle_xor(x, 1u32));
        y.max(ptx::shuffle_xor(y, 2u32))
    }
    fn reduce_sum(x: f32) -> f32 {
        let y = x + ptx::shuffle_xor(x, 1u32);
        y + ptx::shuffle_xor(y, 2u32)
    }
}

/// P in the registers of mma.sync's left operand, two elements each: words `2 w, 2 w + 1` of the
/// scores, in the same order, since A of the k-step over keys `[16 k, 16 k + 16)` holds what C of
/// the 8-column tiles 2 k and 2 k + 1 holds.
#[derive(CubeType)]
pub struct MmaProbs<NP: Size> {
    /// The words; NP is the power of two above those in use.
    pub v: Vector<u32, NP>,
}

/// Bytes from a swizzled tile of A, or of V, to the row of 8 elements that this lane gives ldmatrix:
/// matrices of rows 0-7 and 8-15, then the same of the next chunk.
#[cube]
pub(super) fn rows_address(lane: u32, #[comptime] row_bytes: u32) -> u32 {
    lane % 16u32 * row_bytes + ((lane / 16u32) ^ (lane % 8u32)) * 16u32
}

/// Key that column `column`, an even one of the first unit of four, stands for, where neighbouring units' keys lie `apart`
/// apart.
pub(super) fn key_of(apart: u32, column: u32) -> u32 {
    let (n, per) = (column / 8, apart / 2);
    n / per * 4 * apart + n % per * 2
}

/// The same for K: matrices of the keys of 8 columns in two chunks, then of those of the next 8.
#[cube]
pub(super) fn keys_address(lane: u32, #[comptime] row_bytes: u32, #[comptime] apart: u32) -> u32 {
    let key = lane / 16u32 * comptime!(key_of(apart, 8)) + lane % 8u32 / 2u32 * apart + lane % 2u32;
    key * row_bytes + ((lane / 8u32 % 2u32) ^ (lane % 8u32)) * 16u32
}

/// The same for a step of half the depth: matrices of keys 0-7 and 8-15 in one chunk.
#[cube]
pub(super) fn half_keys_address(lane: u32, #[comptime] row_bytes: u32) -> u32 {
    lane % 16u32 * row_bytes + lane % 8u32 * 16u32
}

/// Bytes from a tile of Q to the 8 bytes, 4 columns of 16, that this lane loads where K is codes: row
/// `lane / 4`, columns from `4 (lane % 4)` on.
#[cube]
pub(super) fn code_rows_address(lane: u32, #[comptime] row_bytes: u32) -> u32 {
    let row = lane / 4u32;
    row * row_bytes + ((lane % 4u32 / 2u32) ^ row) * 16u32 + lane % 2u32 * 8u32
}
