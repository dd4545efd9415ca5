//! Comptime shape of the Hopper tier's product with packed weights.

use crate::quant::{Scaling, TILE, WeightTiles};

/// Column blocks of 64 of a block.
const TILES_N: u32 = 4;
/// Warps that bring k-blocks in, in turns: those of a warpgroup.
pub(super) const PRODUCERS: u32 = 4;

/// Block and stages.
///
/// A block is 256 columns of W, dealt out to the consumers, by `rows` rows of x; a k-block is `depth`
/// tiles deep. A stage holds, one behind the other: x, for every tile along k `rows` lines of 128 bytes in the
/// 128-byte swizzle; the codes of four column blocks; the scales of their groups, tile by tile along k; their
/// zero points.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct HopperMatmulShape {
    /// Rows of x of a block: the columns of wgmma's right operand, 8 to 128.
    pub rows: u32,
    /// Tiles along k of a k-block: 1 or 2.
    pub depth: u32,
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
        TILES_N * TILE
    }
    /// Column blocks of the weights' tiles.
    pub fn tiles_n(self) -> u32 {
        TILES_N
    }
    /// Consumer warpgroups: four, whose short products hide one another's waits, where registers hold their sums; else
    /// two.
    pub fn consumers(self) -> u32 {
        match self.scaling {
            Scaling::Weights if !self.crowded() => 4,
            _ => 2,
        }
    }
    /// Column blocks that a consumer multiplies.
    pub fn parts(self) -> u32 {
        TILES_N / self.consumers()
    }
    /// Tiles that a consumer multiplies of a k-block, one after the other: of every tile along k its column
    /// blocks.
    pub fn turns(self) -> u32 {
        self.depth * self.parts()
    }
    /// Tile along k and column block of a consumer's `turn`.
    pub fn turn(self, turn: usize) -> (u32, u32) {
        (turn as u32 / self.parts(), turn as u32 % self.parts())
    }
    /// Units of a cube: a producer warpgroup and the consumers.
    pub fn units(self) -> u32 {
        128 * (1 + self.consumers())
    }
    /// Units that hold sums.
    pub fn consumer_units(self) -> u32 {
        128 * self.consumers()
    }
    /// Rows of scales of a stage.
    pub fn scale_rows(self) -> u32 {
        self.depth * self.tiles.groups
    }
    /// Bytes of the codes of a stage of one column block.
    pub fn run_bytes(self) -> u32 {
        self.depth * self.tiles.tile_bytes()
    }
    /// f32 registers of a unit's sums over one group and one column block.
    pub fn sum_registers(self) -> u32 {
        self.rows / 2
    }
    /// f32 registers of a unit's accumulator.
    pub fn acc_registers(self) -> u32 {
        self.parts() * self.sum_registers()
    }
    /// Whether the consumers' sums want more registers than an even share of them.
    pub fn crowded(self) -> bool {
        self.rows > 64
    }
    /// Registers after setmaxnreg, producer and consumer.
    pub fn registers(self) -> (u32, u32) {
        (56, 224)
    }
    /// Bytes of a stage of x.
    pub fn x_bytes(self) -> u32 {
        self.depth * self.x_tile_bytes()
    }
    /// Bytes of x that multiply one tile.
    pub fn x_tile_bytes(self) -> u32 {
        self.rows * 128
    }
    /// Bytes from the start of a stage to its codes.
    pub fn words_at(self) -> u32 {
        self.x_bytes()
    }
    /// Bytes from the start of a stage to its scales.
    pub fn scales_at(self) -> u32 {
        self.words_at() + TILES_N * self.run_bytes()
    }
    /// Bytes of a row of scales of a stage.
    pub fn scale_row(self) -> u32 {
        self.tiles.scales.bytes() * self.columns()
    }
    /// Bytes from the start of a stage to its zero points.
    pub fn zeros_at(self) -> u32 {
        self.scales_at() + self.scale_rows() * self.scale_row()
    }
    /// Bytes of a row of zero points or minima of a stage.
    pub fn zero_row(self) -> u32 {
        self.tiles.zero_bytes() * self.columns()
    }
    /// Bytes of a stage.
    pub fn stage_bytes(self) -> u32 {
        let zeros = self.scale_rows() * self.zero_row();
        (self.zeros_at() + zeros).next_multiple_of(1024)
    }
    /// Bytes that arrive in a stage.
    pub fn arrival(self) -> u32 {
        let columns = self.tiles.scales.bytes() + self.tiles.zero_bytes();
        let scales = self.scale_rows() * columns * TILE;
        self.x_bytes() + TILES_N * (self.run_bytes() + scales)
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
