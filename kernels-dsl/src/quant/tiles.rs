//! The order in which products read packed weights: fragments of matrix units, one behind another.
//!
//! W is [k in, n out]. Stored rows and columns are rounded up to whole tiles of 64 x 64; a tile of
//! column block tn and row block tk is number `tn * k_tiles + tk`, so that a column block's tiles
//! follow one another. A tile is 4 strips of 16 columns; a strip is 32 lanes; a lane is `bits`
//! words, a little-endian stream of 32 codes. Code i = 8 s + f of lane 4 r + c stands for
//!
//! ```text
//! k = 64 tk + 16 s + 8 ((f / 2) % 2) + 2 c + f / 4
//! n = 64 tn + 16 strip + 2 r + f % 2
//! ```
//!
//! which are the registers f % 4 and halves f / 4 of the left operand of m16n8k16 whose rows r and
//! r + 8 are the columns 2 r and 2 r + 1 of W: neighbours of the result lie in one lane. Scales
//! [groups, 64 tn + 8 r + 2 strip + h] are f16 or a byte, zero points in the same places bytes, minima f16.

use cubecl::prelude::*;

/// Rows and columns of a tile.
pub const TILE: u32 = 64;
/// Rows of W that one instruction of a matrix unit takes.
pub const STEP: u32 = 16;
/// A stored row that stands for no row of W; `gather` holds it where groups are padded.
pub const NO_ROW: u32 = u32::MAX;

/// What a code of a weight stands for before its group's scale.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy, Default)]
pub enum WeightCodes {
    /// An unsigned integer of 2, 3, 4 or 8 bits, less the zero point.
    #[default]
    Int,
    /// FP4 [OCP MX 1.0, 5.3.3]: sign, 2 bits of exponent, 1 of mantissa; 0 0.5 1 1.5 2 3 4 6. NVFP4 and
    /// MXFP4 are these with their scales.
    E2M1,
    /// FP8 [OCP OFP8]: sign, 4 bits of exponent, 3 of mantissa, no infinity.
    E4M3,
    /// 4-bit NormalFloat: quantiles of a normal distribution [Dettmers et al. 2023, QLoRA, appendix E].
    Nf4,
}

impl WeightCodes {
    /// Whether codes of this kind come in `bits`.
    pub fn takes(self, bits: u32) -> bool {
        match self {
            WeightCodes::Int => matches!(bits, 2 | 3 | 4 | 8),
            WeightCodes::E2M1 | WeightCodes::Nf4 => bits == 4,
            WeightCodes::E4M3 => bits == 8,
        }
    }
}

/// How the scale of a group is stored.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy, Default)]
pub enum ScaleType {
    /// binary16.
    #[default]
    F16,
    /// A non-negative E4M3: NVFP4's.
    E4M3,
    /// 2^(byte - 127): the MX formats'.
    E8M0,
}

impl ScaleType {
    /// Bytes of a scale.
    pub fn bytes(self) -> u32 {
        match self {
            ScaleType::F16 => 2,
            ScaleType::E4M3 | ScaleType::E8M0 => 1,
        }
    }
}

/// What codes of integers are measured from, where that is stored.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy, Default)]
pub enum ZeroType {
    /// A zero point, a byte: w = scale * (code - zero).
    #[default]
    Point,
    /// A minimum, binary16: w = scale * code + minimum. Scales go into such weights ([`Scaling::Weights`]).
    Minimum,
}

impl ZeroType {
    /// Bytes of one.
    pub fn bytes(self) -> u32 {
        match self {
            ZeroType::Point => 1,
            ZeroType::Minimum => 2,
        }
    }
}

/// Where the scale of a group is multiplied in.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy, Default)]
pub enum Scaling {
    /// Into the group's sum, in f32: weights are multiplied as the small numbers they are, exactly.
    #[default]
    Sums,
    /// Into the weights, which are rounded once to 16 bits, as a dequantized copy of them would be: sums
    /// never leave the matrix unit, and products need not wait for one another.
    Weights,
}

/// Comptime facts of stored weights.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct WeightTiles {
    /// Bits of a code: 2, 3, 4 or 8.
    pub bits: u32,
    /// What they stand for.
    pub codes: WeightCodes,
    /// How scales are stored.
    pub scales: ScaleType,
    /// Zero points or minima that are stored; else the zero points of integers are 2^(bits - 1).
    pub zeros: Option<ZeroType>,
    /// Groups that a tile has rows of: 4 or 2 for groups of 16 or 32 rows. Longer ones end at the
    /// ends of tiles.
    pub groups: u32,
    /// Rows are stored in another order than x has its columns.
    pub gathered: bool,
}

impl WeightTiles {
    /// Steps that share a scale.
    pub fn group_steps(self) -> u32 {
        TILE / STEP / self.groups
    }
    /// Bytes of a tile.
    pub fn tile_bytes(self) -> u32 {
        TILE * TILE * self.bits / 8
    }
    /// Bytes of a strip of a tile.
    pub fn strip_bytes(self) -> u32 {
        self.tile_bytes() / 4
    }
    /// The zero point where none are stored.
    pub fn middle(self) -> u32 {
        match self.minima() {
            true => 0,
            false => 1 << (self.bits - 1),
        }
    }
    /// Whether weights have minima.
    pub fn minima(self) -> bool {
        self.zeros == Some(ZeroType::Minimum)
    }
    /// Whether weights have zero points of their own.
    pub fn points(self) -> bool {
        self.zeros == Some(ZeroType::Point)
    }
    /// Bytes of a group's zero point or minimum of a column.
    pub fn zero_bytes(self) -> u32 {
        self.zeros.map_or(0, ZeroType::bytes)
    }
}

/// Run-time sizes of a product y [m, n] = x [m, k] W.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct MatmulSizes {
    /// Rows of x and y.
    pub m: u32,
    /// Columns of y.
    pub n: u32,
    /// Columns of x.
    pub k: u32,
    /// Tiles along k.
    pub k_tiles: u32,
    /// Tiles along n.
    pub n_tiles: u32,
    /// Stored rows that share a scale, in units of 16.
    pub group: u32,
    /// Blocks of rows of x.
    pub m_blocks: u32,
    /// Blocks of columns of W.
    pub n_blocks: u32,
    /// Blocks of y that one cube sums, which come first.
    pub whole: u32,
    /// Parts that the rows of W are dealt out to for the other blocks.
    pub splits: u32,
    /// First element of x.
    pub x_offset: usize,
    /// From one row of x to the next.
    pub x_row: usize,
    /// First element of y.
    pub y_offset: usize,
    /// From one row of y to the next.
    pub y_row: usize,
    /// First element of the bias.
    pub bias_offset: usize,
    /// Factor on the sums, before the bias.
    pub factor: f32,
    /// Factor on the scales of [`Scaling::Weights`], a power of two that `factor` takes back.
    pub lift: f32,
}

/// One block of y over one part of the rows of W.
#[derive(CubeType, Clone, Copy)]
pub struct WorkUnit {
    /// Number of the block of y among those that have parts: which counter they meet at.
    pub block: u32,
    /// Block of rows.
    pub m_block: u32,
    /// Block of columns.
    pub n_block: u32,
    /// Parts of the block.
    pub parts: u32,
    /// Number of the part.
    pub split: u32,
    /// First of its k-blocks.
    pub start: u32,
    /// One past its last.
    pub end: u32,
}

#[cube]
impl MatmulSizes {
    /// Unit number `position`, of k-blocks of `depth` tiles. Parts of a block are neighbours, so
    /// that they run together; then come the blocks that read the same weights. Without `rounds` no block comes
    /// whole before the others.
    pub fn unit(
        &self,
        position: u32,
        #[comptime] depth: u32,
        #[comptime] rounds: bool,
    ) -> WorkUnit {
        let k_blocks = self.k_tiles.div_ceil(depth.runtime());
        let mut parts = self.splits;
        let mut place = position;
        let mut first = 0u32;
        if rounds {
            let whole = position < self.whole;
            parts = select(whole, 1u32, self.splits);
            place = select(whole, position, position - self.whole);
            first = select(whole, 0u32, self.whole);
        }
        let (block, split) = (place / parts, place % parts);
        WorkUnit {
            block,
            m_block: (first + block) % self.m_blocks,
            n_block: (first + block) / self.m_blocks,
            parts,
            split,
            start: (split as u64 * k_blocks as u64 / parts as u64) as u32,
            end: ((split as u64 + 1u64) * k_blocks as u64 / parts as u64) as u32,
        }
    }
    /// Units of all blocks.
    pub fn units(&self) -> u32 {
        self.whole + (self.m_blocks * self.n_blocks - self.whole) * self.splits
    }
    /// Group of part `part` of the groups of tile `k_tile`; one of the last tile's for tiles past the end.
    pub fn group_of(&self, k_tile: u32, part: u32, #[comptime] tiles: WeightTiles) -> u32 {
        let steps = comptime!(tiles.group_steps());
        (k_tile.min(self.k_tiles - 1u32) * comptime!(TILE / STEP) + part * steps) / self.group
    }
}
