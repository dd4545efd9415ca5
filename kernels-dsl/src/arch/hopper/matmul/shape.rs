//! Comptime shape of the Hopper tier's product with packed weights.

use crate::quant::{Scaling, TILE, WeightTiles};

/// Consumer warpgroups.
pub(super) const CONSUMERS: u32 = 2;
/// Column blocks of 64 that a consumer multiplies one after the other.
pub(super) const PARTS: u32 = 2;

/// Block and stages.
///
/// A block is 256 columns of W, 128 a consumer, by `rows` rows of x; a k-block is one tile deep. A
/// stage holds, one behind the other: x, `rows` lines of 128 bytes in the 128-byte swizzle; the
/// codes of four tiles; the scales of their groups; their zero points.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct HopperMatmulShape {
    /// Rows of x of a block: the columns of wgmma's right operand, 8 to 128.
    pub rows: u32,
    /// k-blocks in flight.
    pub stages: u32,
    /// How weights are stored.
    pub tiles: WeightTiles,
    /// Where scales are multiplied in.
    pub scaling: Scaling,
    /// A block is summed by several cubes.
    pub split: bool,
    /// n is even and rows of y consist of aligned pairs of elements.
    pub pairs: bool,
    /// "bf16" or "f16".
    pub ty: &'static str,
}

impl HopperMatmulShape {
    /// Columns of W of a block.
    pub fn columns(self) -> u32 {
        self.tiles_n() * TILE
    }
    /// Column blocks of the weights' tiles.
    pub fn tiles_n(self) -> u32 {
        CONSUMERS * PARTS
    }
    /// Units of a cube: a producer warpgroup and the consumers.
    pub fn units(self) -> u32 {
        128 * (1 + CONSUMERS)
    }
    /// f32 registers of a unit's sums over one group and one column block.
    pub fn sum_registers(self) -> u32 {
        self.rows / 2
    }
    /// f32 registers of a unit's accumulator.
    pub fn acc_registers(self) -> u32 {
        PARTS * self.sum_registers()
    }
    /// Whether the consumers' sums want more registers than an even share of them.
    pub fn crowded(self) -> bool {
        self.rows > 64
    }
    /// Registers after setmaxnreg, producer and consumer.
    pub fn registers(self) -> (u32, u32) {
        (24, 240)
    }
    /// Bytes of a stage of x.
    pub fn x_bytes(self) -> u32 {
        self.rows * 128
    }
    /// Bytes from the start of a stage to its codes.
    pub fn words_at(self) -> u32 {
        self.x_bytes()
    }
    /// Bytes from the start of a stage to its scales.
    pub fn scales_at(self) -> u32 {
        self.words_at() + self.tiles_n() * self.tiles.tile_bytes()
    }
    /// Bytes of a row of scales of a stage.
    pub fn scale_row(self) -> u32 {
        self.tiles.scales.bytes() * self.columns()
    }
    /// Bytes from the start of a stage to its zero points.
    pub fn zeros_at(self) -> u32 {
        self.scales_at() + self.tiles.groups * self.scale_row()
    }
    /// Bytes of a row of zero points of a stage.
    pub fn zero_row(self) -> u32 {
        self.columns()
    }
    /// Bytes of a stage.
    pub fn stage_bytes(self) -> u32 {
        let zeros = match self.tiles.zeros {
            true => self.tiles.groups * self.zero_row(),
            false => 0,
        };
        (self.zeros_at() + zeros).next_multiple_of(1024)
    }
    /// Bytes that arrive in a stage.
    pub fn arrival(self) -> u32 {
        let zeros = if self.tiles.zeros { TILE } else { 0 };
        let scales = self.tiles.groups * (self.tiles.scales.bytes() * TILE + zeros);
        self.x_bytes() + self.tiles_n() * (self.tiles.tile_bytes() + scales)
    }
    /// Bytes from the first stage to the barriers: full and empty of every stage.
    pub fn bars_at(self) -> u32 {
        self.stages * self.stage_bytes()
    }
    /// Bytes from the first stage to the word that says whether the cube was the last of its block.
    pub fn flag_at(self) -> u32 {
        self.bars_at() + 16 * self.stages
    }
    /// Shared memory of a cube.
    pub fn smem_bytes(self) -> u32 {
        self.flag_at() + 16
    }
}
