//! Comptime shape of the plane tier's product with packed weights.

use crate::quant::{TILE, WeightTiles};

/// Units of a plane.
const PLANE: u32 = 32;
/// Bytes of a cp.async.
const CHUNK: u32 = 16;
/// Columns of a strip: the rows of mma.sync's left operand.
const STRIP: u32 = 16;
/// f32 between a row of a block's sums and the next, so that the lanes of a store hit different
/// banks.
const PAD: u32 = 4;

/// Block, planes and stages.
///
/// A k-block is `planes_k` tiles deep, one for each plane along k; planes side by side have their own
/// strips. With few rows no planes lie side by side: each copies what it multiplies, and none waits for
/// another. A stage holds, one behind the other: x as `planes_k` tiles of `rows` lines of 128 bytes,
/// chunk c of line r where chunk `c ^ (r % 8)` would be; codes as in memory, column block by column
/// block; scales and zero points of every tile's groups.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct PlaneMatmulShape {
    /// Rows of x of a block: 8, 16, 32 or 64.
    pub rows: u32,
    /// Columns of W of a block, a multiple of 64.
    pub columns: u32,
    /// Planes along k.
    pub planes_k: u32,
    /// k-blocks in flight.
    pub stages: u32,
    /// How weights are stored.
    pub tiles: WeightTiles,
    /// Rows of x consist of aligned chunks of 16 bytes.
    pub chunks: bool,
    /// A block is summed by several cubes.
    pub split: bool,
    /// "bf16" or "f16".
    pub ty: &'static str,
}

impl PlaneMatmulShape {
    /// Strips of a plane: all of a tile's where x has few rows, two where its sums want the registers.
    pub fn strips(self) -> u32 {
        if self.rows <= 16 { 4 } else { 2 }
    }
    /// 8-row blocks of x: the columns of mma.sync's right operand.
    pub fn row_tiles(self) -> u32 {
        self.rows / 8
    }
    /// Planes along the columns of W.
    pub fn planes_n(self) -> u32 {
        self.columns / (STRIP * self.strips())
    }
    /// Units of a cube.
    pub fn units(self) -> u32 {
        PLANE * self.planes_n() * self.planes_k
    }
    /// Units that copy for one another, and wait for one another.
    pub fn team(self) -> u32 {
        PLANE * self.planes_n() * self.planes_k / self.teams()
    }
    /// Teams of a cube, each with its own tiles along k.
    pub fn teams(self) -> u32 {
        if self.planes_n() == 1 {
            self.planes_k
        } else {
            1
        }
    }
    /// Tiles along k of a k-block that a team copies.
    pub fn team_tiles(self) -> u32 {
        self.planes_k / self.teams()
    }
    /// Column blocks of the weights' tiles.
    pub fn tiles_n(self) -> u32 {
        self.columns / TILE
    }
    /// Rows of scales of a stage.
    pub fn scale_rows(self) -> u32 {
        self.planes_k * self.tiles.groups
    }
    /// Bytes of a stage of x.
    pub fn x_bytes(self) -> u32 {
        self.planes_k * self.rows * 128
    }
    /// Bytes of the codes of a stage of one column block.
    pub fn run_bytes(self) -> u32 {
        self.planes_k * self.tiles.tile_bytes()
    }
    /// Those that a team copies.
    pub fn team_run_bytes(self) -> u32 {
        self.team_tiles() * self.tiles.tile_bytes()
    }
    /// Bytes of the codes of a stage.
    pub fn word_bytes(self) -> u32 {
        self.tiles_n() * self.run_bytes()
    }
    /// Bytes of the scales of a stage.
    pub fn scale_bytes(self) -> u32 {
        self.scale_rows() * self.columns * self.tiles.scales.bytes()
    }
    /// Bytes of the zero points or minima of a stage.
    pub fn zero_bytes(self) -> u32 {
        self.scale_rows() * self.columns * self.tiles.zero_bytes()
    }
    /// Bytes from the start of a stage to its codes.
    pub fn words_at(self) -> u32 {
        self.x_bytes()
    }
    /// Bytes from the start of a stage to its scales.
    pub fn scales_at(self) -> u32 {
        self.words_at() + self.word_bytes()
    }
    /// Bytes from the start of a stage to its zero points.
    pub fn zeros_at(self) -> u32 {
        self.scales_at() + self.scale_bytes()
    }
    /// Bytes of a stage.
    pub fn stage_bytes(self) -> u32 {
        (self.zeros_at() + self.zero_bytes()).next_multiple_of(128)
    }
    /// f32 from one row of a block's sums to the next.
    pub fn sum_row(self) -> u32 {
        self.columns + PAD
    }
    /// f32 from the sums of one plane along k to those of the next.
    pub fn sum_plane(self) -> u32 {
        self.rows * self.sum_row()
    }
    /// Bytes from the first stage to the word that says whether the cube was the last of its block.
    pub fn flag_at(self) -> u32 {
        let sums = self.planes_k * self.sum_plane() * 4;
        (self.stages * self.stage_bytes()).max(sums.next_multiple_of(CHUNK))
    }
    /// Shared memory of a cube.
    pub fn smem_bytes(self) -> u32 {
        self.flag_at() + CHUNK
    }
    /// Chunks that a team copies of a stage of x, codes, scales, zero points.
    pub fn copies(self) -> [u32; 4] {
        [
            self.x_bytes(),
            self.word_bytes(),
            self.scale_bytes(),
            self.zero_bytes(),
        ]
        .map(|bytes| bytes / self.teams() / CHUNK)
    }
    /// Whether every unit copies the same chunks of the codes of every column block.
    pub fn even(self) -> bool {
        (self.team_run_bytes() / CHUNK).is_multiple_of(self.team())
    }
    /// Rows of x that a unit copies chunks of.
    pub fn row_sets(self) -> u32 {
        (self.rows / self.pass_lines()).max(1)
    }
    /// Lines of 128 bytes that a team copies at a time.
    pub fn pass_lines(self) -> u32 {
        self.team() / 8
    }
    /// Bytes in memory and in the stage to a unit's chunks of the codes of a column block.
    pub(super) fn word_steps(self) -> Vec<(u32, u32)> {
        let passes = self.team_run_bytes() / CHUNK / self.team();
        (0..passes)
            .map(|pass| pass * self.team() * CHUNK)
            .map(|offset| (offset, offset))
            .collect()
    }
    /// Bytes in memory and in the stage to a unit's chunks of a row of x: a tile, or as many as the team's lines
    /// fill at a time, after the other.
    pub(super) fn x_steps(self) -> Vec<(u32, u32)> {
        let (sets, lines) = (self.row_sets(), self.pass_lines());
        let tiles = (lines / self.rows).max(1);
        let passes = self.team_tiles() * self.rows / lines / sets;
        (0..passes)
            .map(|pass| (pass * tiles * 128, pass * sets * lines * 128))
            .collect()
    }
    /// How often every unit copies a chunk until `chunks` are copied.
    pub fn passes(self, chunks: u32) -> u32 {
        chunks.div_ceil(self.team())
    }
}
