//! Comptime shape of the Blackwell tier's kernel.

use super::{SCALE_COLUMNS, TensorPlan};
use crate::attention::{LogitFeatures, TileShape, WeightFormat};
use crate::quant::{OperandFormat, SCALE_ROWS, ScaleRule};

/// Rows of a query stage: the lanes of tensor memory.
pub const STAGE_ROWS: u32 = 128;

/// Bytes of the scale factors of 128 rows by 4 groups.
pub(super) const SCALE_BYTES: u32 = SCALE_ROWS as u32 * 4;

/// Columns of O that a thread moves at a time: the fewer, the fewer registers.
pub(super) const CHUNK: u32 = 16;

/// Comptime shape of the Blackwell tier's kernel.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct BlackwellShape {
    /// Head dimension of q and k, a multiple of 8.
    pub d: u32,
    /// Head dimension of v, a multiple of 8.
    pub d_v: u32,
    /// Keys of a block: 32, 64 or 128.
    pub block: u32,
    /// Query stages, 1 or 2.
    pub q_stages: u32,
    /// Stages of each of the rings of K and V.
    pub stages: u32,
    /// "bf16" or "f16".
    pub ty: &'static str,
    /// Hooks compiled in.
    pub features: LogitFeatures,
    /// Query heads whose rows alternate in a tile; divides the rows.
    pub pack: u32,
    /// Cubes that multiply together (`cta_group`), 1 or the 2 of a pair: each has query stages of its own, and a half of every
    /// K and V block.
    pub cubes: u32,
}

impl BlackwellShape {
    /// Query rows of a cube.
    pub fn rows(self) -> u32 {
        STAGE_ROWS * self.q_stages
    }
    /// Query rows of a tile: those of cube 0 first.
    pub fn tile_rows(self) -> u32 {
        self.rows() * self.cubes
    }
    /// Keys of a block that a cube holds: a product with K has a column for each.
    pub fn key_rows(self) -> u32 {
        self.block / self.cubes
    }
    /// Columns of V that a cube holds, the last of them perhaps past its end.
    pub fn value_columns(self) -> u32 {
        self.width() / self.cubes
    }
    /// Units of a cube: two softmax and two correction warpgroups, and one that loads and multiplies. One query stage leaves
    /// two of them without work, but with fewer units ptxas would ignore setmaxnreg.
    pub fn units(self) -> u32 {
        128 * 5
    }
    /// What the coordinates of a tile depend on.
    pub(super) fn tile_shape(self) -> TileShape {
        TileShape {
            rows: self.tile_rows(),
            pack: self.pack,
            single: false,
            features: self.features,
        }
    }
    /// 64-column blocks of a tile `width` wide: the span of the 128-byte swizzle.
    fn columns(width: u32) -> u32 {
        width.div_ceil(64)
    }
    /// Columns of O: the product's N comes in steps of 16.
    pub(crate) fn width(self) -> u32 {
        self.d_v.next_multiple_of(16)
    }
    /// What lies where in tensor memory.
    pub fn tensor_plan(self) -> TensorPlan {
        TensorPlan {
            q_stages: self.q_stages,
            block: self.block,
            width: self.width(),
            weight_bits: self.weight_bits(),
            score_scales: SCALE_COLUMNS * self.score_tiles(),
            weight_scales: SCALE_COLUMNS * self.weight_tiles(),
            value_scales: SCALE_COLUMNS * self.value_tiles(),
        }
    }
    /// What P and V are as block-scaled operands.
    pub(super) fn value_format(self) -> Option<OperandFormat> {
        self.features
            .operands
            .map(|scores| match self.features.weights {
                WeightFormat::Wide | WeightFormat::E4m3 if scores.unscaled() => scores,
                WeightFormat::Wide | WeightFormat::E4m3 => {
                    OperandFormat::Mxfp8(ScaleRule::default())
                }
                WeightFormat::Nvfp4 => OperandFormat::Nvfp4 { exponent: 0 },
                WeightFormat::Mxfp4(rule) => OperandFormat::Mxfp4(rule),
            })
    }
    /// Bits of a weight.
    pub(super) fn weight_bits(self) -> u32 {
        self.value_format()
            .map_or(16, |format| format.bits() as u32)
    }
    /// Bytes of a block's keys in a row of V.
    pub(super) fn value_span(self) -> u32 {
        self.block * self.weight_bits() / 8
    }
    /// Whether operands have scale factors.
    pub(super) fn scaled(self) -> bool {
        self.features.operands.is_some_and(|x| !x.unscaled())
    }
    /// Tiles of scale factors of 128 rows of Q or K.
    pub(super) fn score_tiles(self) -> u32 {
        let tiles = |format: OperandFormat| self.d.div_ceil(format.quad() as u32);
        let scaled = self.features.operands.filter(|_| self.scaled());
        scaled.map_or(0, tiles)
    }
    /// Tiles of scale factors of a block of P.
    pub(super) fn weight_tiles(self) -> u32 {
        let tiles = |format: OperandFormat| self.block.div_ceil(format.quad() as u32);
        let scaled = self.value_format().filter(|_| self.scaled());
        scaled.map_or(0, tiles)
    }
    /// Tiles of scale factors of 128 columns of V each, for four groups of keys.
    pub(super) fn value_rows(self) -> u32 {
        self.width().div_ceil(SCALE_ROWS as u32)
    }
    /// Tiles of scale factors of a block of V.
    pub(super) fn value_tiles(self) -> u32 {
        self.weight_tiles() * self.value_rows()
    }
    /// Whether P is codes with scale factors of their own, which reach tensor memory through shared memory.
    pub(super) fn weights_scaled(self) -> bool {
        self.weight_bits() == 4
    }
    /// Bytes of the scale factors of the weights of a query stage.
    pub(super) fn weight_scale_bytes(self) -> u32 {
        match self.weights_scaled() {
            true => self.weight_tiles() * SCALE_BYTES,
            false => 0,
        }
    }
    /// Places of 16 bits in a row of Q or K: its elements, or their codes four by four or two by two.
    pub(super) fn row_places(self) -> u32 {
        match self.features.operands {
            Some(format) => {
                let row = (self.d as usize).next_multiple_of(format.quad());
                (row * format.bits()) as u32 / 16
            }
            None => self.d,
        }
    }
    /// Bytes of the elements of a query tile; their scale factors lie behind them.
    pub fn q_codes(self) -> u32 {
        Self::columns(self.row_places()) * self.rows() * 128
    }
    /// Bytes of a query tile.
    pub fn q_bytes(self) -> u32 {
        self.q_codes() + self.q_stages * self.score_tiles() * SCALE_BYTES
    }
    /// Bytes of a query tile and of the scale factors of weights behind it.
    pub fn q_space(self) -> u32 {
        self.q_bytes() + self.q_stages * self.weight_scale_bytes()
    }
    /// Bytes of the elements of a key block; their scale factors lie behind them.
    pub fn k_codes(self) -> u32 {
        Self::columns(self.row_places()) * self.key_rows() * 128
    }
    /// Bytes of a key block.
    pub fn k_bytes(self) -> u32 {
        self.k_codes() + self.score_tiles() * SCALE_BYTES
    }
    /// Bytes of a K stage, a multiple of what the swizzle repeats in.
    pub fn k_stage(self) -> u32 {
        self.k_bytes().next_multiple_of(1024)
    }
    /// Bytes of the elements of a value block: keys by 64-column blocks, or, as codes, columns by keys. Their scale factors
    /// lie behind them.
    pub fn v_codes(self) -> u32 {
        match self.features.operands {
            Some(_) => self.value_columns() * self.value_span(),
            None => Self::columns(self.value_columns()) * self.block * 128,
        }
    }
    /// Bytes of a value block.
    pub fn v_bytes(self) -> u32 {
        self.v_codes() + self.value_tiles() * SCALE_BYTES
    }
    /// Bytes of a V stage, a multiple of what the swizzle repeats in.
    pub fn v_stage(self) -> u32 {
        self.v_bytes().next_multiple_of(1024)
    }
    /// Shared memory of a cube: queries, rings, barriers, values of rows, the address of tensor memory.
    pub fn smem_bytes(self) -> u32 {
        self.q_space()
            + self.stages * (self.k_stage() + self.v_stage())
            + 8 * self.barriers()
            + 4 * self.row_words()
            + 16
    }
    /// A factor, an inverse and a lse of every row.
    pub(super) fn row_words(self) -> u32 {
        3 * self.rows()
    }
    /// mbarriers: q full; k full, k empty, v full and v empty of every ring stage; scores, weights, factors,
    /// finished values and outputs of every query stage; v landed.
    pub fn barriers(self) -> u32 {
        1 + 4 * self.stages + 5 * self.q_stages + 1
    }
    /// Registers after setmaxnreg: softmax, correction, the rest; together at most what the units start with, 96 each.
    pub fn registers(self) -> (u32, u32, u32) {
        match self.q_stages {
            1 => (232, 80, 48),
            _ => (168, 48, 48),
        }
    }
    /// Byte offsets of the k-steps of Q K^T in the stages of Q and K (both K-major): 32 bytes
    /// within a 64-column block, then the next block.
    pub(super) fn score_steps(self) -> Vec<(u32, u32)> {
        (0..self.row_places().div_ceil(16))
            .map(|k| {
                let within = k % 4 * 32;
                (
                    k / 4 * self.rows() * 128 + within,
                    k / 4 * self.key_rows() * 128 + within,
                )
            })
            .collect()
    }
    /// k-steps of P V: columns in P, bytes in a stage of V (MN-major), 16 keys each.
    pub(super) fn value_steps(self) -> Vec<(u32, u32)> {
        (0..self.block / 16)
            .map(|k| (k * 8, k * 16 * 128))
            .collect()
    }
    /// Instruction descriptor [PTX 9.7.17.4.4] of a product with `n` columns: f32 results, 16-bit operands, 128 rows
    /// of every cube; `outer` where the right operand's columns are contiguous.
    pub(super) fn instruction(self, n: u32, outer: bool) -> u32 {
        let format = u32::from(self.ty == "bf16");
        let formats = format << 7 | format << 10;
        let (columns, rows) = ((n / 8) << 17, (self.cubes * STAGE_ROWS / 16) << 24);
        1 << 4 | formats | u32::from(outer) << 16 | columns | rows
    }
}
