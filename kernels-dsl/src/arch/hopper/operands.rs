//! Tiles in shared memory, the accumulator fragment, and the base-2 exponential.

use cubecl::prelude::*;

use super::ptx;
use super::slots::SLOT;
use crate::attention::{Exponential, LogitFeatures, TileShape};
use crate::quant::e4m3_rounded;
use crate::tile::Fragment;

/// Comptime shape of the Hopper tier's kernel.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct HopperShape {
    /// Head dimension of q and k, a multiple of 8.
    pub d: u32,
    /// Head dimension of v, a multiple of 8.
    pub d_v: u32,
    /// Keys of a block, a multiple of 16.
    pub block: u32,
    /// Consumer warpgroups, 64 query rows each.
    pub consumers: u32,
    /// Stages of each of the two rings.
    pub stages: u32,
    /// "bf16" or "f16".
    pub ty: &'static str,
    /// Hooks compiled in: which parts of a tile the kernel must be told. With `lengths` the
    /// producer zeroes V rows past a sequence's.
    pub features: LogitFeatures,
    /// Query heads whose rows alternate in a tile; divides the rows.
    pub pack: u32,
    /// Cubes that share loads of K and V: 1 or 2.
    pub cluster: u32,
}

impl HopperShape {
    /// Query rows of a tile.
    pub fn rows(self) -> u32 {
        64 * self.consumers
    }
    /// Units of a cube: one producer warpgroup and the consumers.
    pub fn units(self) -> u32 {
        128 * (1 + self.consumers)
    }
    /// What the coordinates of a tile depend on.
    pub(super) fn tile_shape(self) -> TileShape {
        TileShape {
            rows: self.rows(),
            pack: self.pack,
            single: false,
            features: self.features,
        }
    }
    /// 64-column blocks of a tile `width` wide: the span of the 128-byte swizzle.
    fn columns(width: u32) -> u32 {
        width.div_ceil(64)
    }
    /// Tiles that the consumers may still read; see [`slots`](super::slots).
    pub(super) fn slots(self) -> u32 {
        self.q_stages() + 1
    }
    /// Query tiles in flight: two where shared memory has room, so that the next tile's queries
    /// are there when this one is done.
    pub fn q_stages(self) -> u32 {
        // 227 KB, what a cube may have on sm_90.
        const LIMIT: u32 = 227 << 10;
        let control = 8 * (4 + 4 * self.stages + 1) + 3 * 4 * SLOT;
        let others = self.stages * (self.k_bytes() + self.v_bytes()) + control;
        if 2 * self.q_bytes() + others <= LIMIT {
            2
        } else {
            1
        }
    }
    /// Whether a tile's first scores may go out with the last values of the tile before: its
    /// queries have a stage of their own, and a consumer the registers (three share too few).
    pub fn joined(self) -> bool {
        self.q_stages() > 1 && self.consumers < 3
    }
    /// Bytes of a query tile.
    pub fn q_bytes(self) -> u32 {
        Self::columns(self.d) * self.rows() * 128
    }
    /// Bytes of a K stage.
    pub fn k_bytes(self) -> u32 {
        Self::columns(self.d) * self.block * 128
    }
    /// Bytes of a V stage.
    pub fn v_bytes(self) -> u32 {
        Self::columns(self.d_v) * self.block * 128
    }
    /// Rows of K and V that one copy brings: a block, or the largest part of it that lies in one page
    /// wherever it starts.
    pub fn box_rows(self) -> u32 {
        let Some(page) = self.features.page else {
            return self.block;
        };
        let (mut a, mut b) = (self.block, page);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    }
    /// Whether the producer zeroes rows of V past a sequence: those that the copy does not.
    pub(super) fn mends(self) -> bool {
        self.features.lengths || self.features.page.is_some()
    }
    /// Shared memory of a cube.
    pub fn smem_bytes(self) -> u32 {
        self.q_stages() * self.q_bytes()
            + self.stages * (self.k_bytes() + self.v_bytes())
            + 8 * self.barriers()
            + self.slots() * 4 * SLOT
    }
    /// mbarriers: full and empty of every Q, K and V stage, and v landed.
    pub fn barriers(self) -> u32 {
        2 * self.q_stages() + 4 * self.stages + 1
    }
    /// Registers after setmaxnreg, producer and consumer.
    pub fn registers(self) -> (u32, u32) {
        match self.consumers {
            1 => (56, 248),
            // Short rows leave the consumers some, which a producer of packed sequences in bands lacks.
            2 if self.d <= 64 && self.features.varlen && self.features.band_left => (56, 224),
            2 => (40, 232),
            _ => (32, 160),
        }
    }
    /// Byte offsets of the k-steps of Q K^T in the stages of Q and K (both K-major): 32 bytes
    /// within a 64-column block, then the next block.
    pub(super) fn score_steps(self) -> Vec<(u32, u32)> {
        (0..self.d.div_ceil(16))
            .map(|k| {
                let within = k % 4 * 32;
                (
                    k / 4 * self.rows() * 128 + within,
                    k / 4 * self.block * 128 + within,
                )
            })
            .collect()
    }
    /// Byte offsets of the k-steps of P V in a stage of V (MN-major): 16 rows of 128 bytes.
    pub(super) fn value_steps(self) -> Vec<u32> {
        (0..self.block / 16).map(|k| k * 16 * 128).collect()
    }
}

/// Shared-memory descriptor of a K-major tile with the 128-byte swizzle: stride 1024 bytes
/// between groups of 8 rows [PTX 9.7.15.5.1].
#[cube]
pub(in crate::arch) fn descriptor_k_major(addr: u32) -> u64 {
    let a = u64::cast_from((addr & 0x3FFFF) >> 4);
    a | (1u64 << 16) | (64u64 << 32) | (1u64 << 62)
}

/// Descriptor of an MN-major tile: `block` rows of 128 bytes between 64-column blocks, 1024
/// bytes between groups of 8 rows.
#[cube]
pub(in crate::arch) fn descriptor_mn_major(addr: u32, #[comptime] block: u32) -> u64 {
    let a = u64::cast_from((addr & 0x3FFFF) >> 4);
    let leading = comptime!(((block * 128) >> 4) as u64);
    a | (leading << 16) | (64u64 << 32) | (1u64 << 62)
}

/// A warpgroup's accumulator of wgmma m64nNk16: (T128, V) -> (M64, N), value 4 g + 2 r
/// + e of thread t is row 16 (t / 32) + t % 32 / 4 + 8 r, column 8 g + 2 (t % 4) + e.
#[derive(CubeType)]
pub struct WgmmaRegs<NS: Size> {
    /// What wgmma writes, from its issue to the wait for it.
    pub issued: Vector<f32, NS>,
    /// `[n]`: the values after the wait. An array: setting an element of a vector prints a copy of
    /// all of them, and the compiler reads each.
    pub v: Array<f32>,
    /// Row of the tile that r = 0 stands for.
    pub row: u32,
    /// Column of the tile that g = e = 0 stands for.
    pub col: u32,
    /// Registers in use, N / 2; NS is the power of two above.
    #[cube(comptime)]
    pub n: u32,
}

/// The fragment of [`WgmmaRegs`].
pub struct WgmmaFragment<NS>(core::marker::PhantomData<NS>);

#[cube]
impl<NS: Size> Fragment for WgmmaFragment<NS> {
    type Regs = WgmmaRegs<NS>;

    fn rows(_f: &WgmmaRegs<NS>) -> comptime_type!(usize) {
        2usize
    }
    fn cols(f: &WgmmaRegs<NS>) -> comptime_type!(usize) {
        comptime!(f.n as usize / 2)
    }
    fn get(f: &WgmmaRegs<NS>, #[comptime] r: usize, #[comptime] c: usize) -> f32 {
        f.v[comptime!(4 * (c / 2) + 2 * r + c % 2)]
    }
    fn set(f: &mut WgmmaRegs<NS>, #[comptime] r: usize, #[comptime] c: usize, x: f32) {
        f.v[comptime!(4 * (c / 2) + 2 * r + c % 2)] = x;
    }
    fn row(f: &WgmmaRegs<NS>, #[comptime] r: usize) -> u32 {
        f.row + comptime!(8 * r as u32)
    }
    fn first_col(f: &WgmmaRegs<NS>) -> u32 {
        f.col
    }
    fn col_step(_f: &WgmmaRegs<NS>, #[comptime] c: usize) -> comptime_type!(u32) {
        (8 * (c / 2) + c % 2) as u32
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

/// Base 2: what the special-function unit computes.
pub struct Binary;

#[cube]
impl Exponential for Binary {
    fn per_nat() -> comptime_type!(f32) {
        core::f32::consts::LOG2_E
    }
    fn exp(x: f32) -> f32 {
        ptx::ex2(x)
    }
    fn exp_at(x: f32, #[comptime] _c: usize) -> f32 {
        ptx::ex2(x)
    }
    fn log(x: f32) -> f32 {
        // Once a row: the accurate logarithm costs nothing here.
        x.ln() * core::f32::consts::LOG2_E
    }
    fn e4m3(x: f32) -> f32 {
        e4m3_rounded(x)
    }
}
