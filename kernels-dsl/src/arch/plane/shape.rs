//! Comptime shape of the plane tier's kernel: who computes and copies what, and where it lies.

use super::block_scaled::SCALE_BYTES;
use super::operands::key_of;
use crate::attention::ScaledBy;
use crate::quant::{OperandFormat, SCALE_ROWS};

/// Units of a plane.
const PLANE: u32 = 32;
/// Bytes of a cp.async, and of a row of an 8 x 8 matrix that ldmatrix reads.
const CHUNK: u32 = 16;

/// Tile, head dimensions and stages of the plane tier.
///
/// Shared memory holds the query tile, then the stages of K, then those of V. A row takes whole
/// lines of 128 bytes, and chunk c of 16 bytes of row r lies where chunk `c ^ (r % 8)` would: the 8
/// rows that ldmatrix reads at a time lie in different banks, and cp.async fills whole lines. As
/// tiles start at multiples of 1 KB, a chunk's address is that of chunk 0 with three bits flipped.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct PlaneShape {
    /// Head dimension of q and k, a multiple of 8.
    pub d: u32,
    /// Head dimension of v, a multiple of 8.
    pub d_v: u32,
    /// Query rows of a tile: 16, 32, 64, 128 or 256.
    pub rows: u32,
    /// Keys of a block, a multiple of 16.
    pub block: u32,
    /// Stages of K and of V: with n of them n - 1 blocks arrive while the one before is multiplied,
    /// with 1 K arrives during P V and V during Q K^T.
    pub stages: u32,
    /// Scores of a block are computed before the values of the one before it: wants 2 stages.
    pub ahead: bool,
    /// Query heads whose rows alternate in a tile.
    pub pack: u32,
    /// Results are f32 parts, to be merged.
    pub split: bool,
    /// Parts of a tile that a cube takes, each by a plane of its own with stages of its own; more than 1
    /// only where a plane holds all rows.
    pub parts: u32,
    /// K and V are E4M3 codes, two to each place of a 16-bit element: the tiles of K and V are those
    /// of half the width, and are decoded on the way to mma.
    pub codes: Option<ScaledBy>,
    /// Formats of q and k, and of P and v, where products take block-scaled operands as they are stored.
    pub operands: Option<(OperandFormat, OperandFormat)>,
    /// Rows of a page of the cache.
    pub page: Option<u32>,
    /// "bf16" or "f16".
    pub ty: &'static str,
}

impl PlaneShape {
    /// 16-row tiles of a plane: two where S, P and O of 32 rows fit the registers, since K and V
    /// are then read from shared memory half as often.
    pub fn m_tiles(self) -> u32 {
        if self.rows >= 128 && self.d_v <= 128 {
            2
        } else {
            1
        }
    }
    /// Planes that share the rows of a tile.
    pub fn planes(self) -> u32 {
        self.rows / (16 * self.m_tiles())
    }
    /// Units that work on one part of a tile.
    pub fn team(self) -> u32 {
        PLANE * self.planes()
    }
    /// Units of a cube.
    pub fn units(self) -> u32 {
        self.team() * self.parts
    }
    /// Query rows of a plane.
    pub fn plane_rows(self) -> u32 {
        16 * self.m_tiles()
    }
    /// f32 registers of a unit's scores.
    pub fn score_registers(self) -> u32 {
        self.m_tiles() * self.block / 2
    }
    /// f32 registers of a unit's accumulator.
    pub fn acc_registers(self) -> u32 {
        self.m_tiles() * self.d_v / 2
    }
    /// Registers of a unit's query fragments, where the tile leaves room to keep them: K alone is
    /// then read from shared memory for the scores.
    pub fn query_registers(self) -> u32 {
        let words = self.m_tiles() * self.q_places().div_ceil(16) * 4;
        // A lone plane's copies, of which it makes all, want registers for addresses.
        let room = if self.planes() < 4 { 96 } else { 176 };
        // Their scale factors are kept anyway.
        let scales = self.m_tiles() * self.score_tiles();
        if self.score_registers() + self.acc_registers() + words + scales <= room {
            words
        } else {
            0
        }
    }
    /// Bytes from one row of `width` elements to the next in shared memory.
    pub fn row_bytes(width: u32) -> u32 {
        width.next_multiple_of(64) * 2
    }
    /// Bytes from the start of a tile to chunk `chunk` of row `row`.
    #[cfg(test)]
    pub(super) fn chunk_at(width: u32, row: u32, chunk: u32) -> u32 {
        row * Self::row_bytes(width) + (chunk ^ (row % 8)) * CHUNK
    }
    /// Bytes of the query tile, which later holds the output tile.
    pub fn q_bytes(self) -> u32 {
        self.rows * self.q_row().max(Self::row_bytes(self.d_v))
    }
    /// Places of 16 bits in a row of K or V that is `width` elements wide.
    pub fn places(self, width: u32) -> u32 {
        match (self.codes, self.operands) {
            (Some(_), _) => width / 2,
            (None, Some((scores, _))) => {
                let bits = scores.bits() as u32;
                width.next_multiple_of(256 / bits) * bits / 16
            }
            (None, None) => width,
        }
    }
    /// The same in a row of Q.
    pub fn q_places(self) -> u32 {
        match self.operands {
            Some(_) => self.places(self.d),
            None => self.d,
        }
    }
    /// Bytes of a row of Q in shared memory.
    pub fn q_row(self) -> u32 {
        Self::row_bytes(self.q_places())
    }
    /// Places and rows of a tile of V: block-scaled ones have a row for each column.
    fn v_tile(self) -> (u32, u32) {
        match self.operands {
            Some((_, values)) => (self.block * values.bits() as u32 / 16, self.d_v),
            None => (self.places(self.d_v), self.block),
        }
    }
    /// Keys from those of one unit of four to those of the next: what a word of P holds.
    pub fn apart(self) -> u32 {
        match self.operands {
            Some((_, values)) => 32 / values.bits() as u32,
            None => 2,
        }
    }
    /// Key that column `column` of a block stands for.
    pub fn key_of(self, column: u32) -> u32 {
        key_of(self.apart(), column)
    }
    /// Tiles of scale factors of a block of keys.
    pub fn score_tiles(self) -> u32 {
        let quad = |(scores, _): (OperandFormat, OperandFormat)| scores.quad() as u32;
        self.operands.map_or(0, |o| self.d.div_ceil(quad(o)))
    }
    /// Tiles of scale factors of a block of values.
    pub fn value_tiles(self) -> u32 {
        let rows = SCALE_ROWS as u32;
        self.operands.map_or(0, |_| self.d_v.div_ceil(rows))
    }
    /// Keys that share a scale factor.
    pub fn value_group(self) -> u32 {
        self.operands.map_or(1, |(_, values)| values.group() as u32)
    }
    /// Bits of a weight.
    pub fn weight_bits(self) -> u32 {
        self.operands.map_or(16, |(_, values)| values.bits() as u32)
    }
    /// Products that add up a block's values.
    pub fn weight_steps(self) -> u32 {
        self.block * self.weight_bits() / 256
    }
    /// Words of a unit's weights.
    pub fn weight_words(self) -> u32 {
        self.score_registers() * self.weight_bits() / 32
    }
    /// The same with those of scale factors.
    pub fn prob_words(self) -> u32 {
        let scales = match self.weight_bits() {
            4 => self.m_tiles() * self.weight_steps(),
            _ => 0,
        };
        self.weight_words() + scales
    }
    /// Bytes of a row of K in shared memory.
    pub fn k_row(self) -> u32 {
        Self::row_bytes(self.places(self.d))
    }
    /// Bytes of a row of V in shared memory.
    pub fn v_row(self) -> u32 {
        Self::row_bytes(self.v_tile().0)
    }
    /// Bytes of a stage of K.
    pub fn k_bytes(self) -> u32 {
        self.k_codes() + self.score_tiles() * SCALE_BYTES
    }
    /// Those of its keys.
    pub fn k_codes(self) -> u32 {
        self.block * self.k_row()
    }
    /// Bytes of a stage of V.
    pub fn v_bytes(self) -> u32 {
        self.v_codes() + self.value_tiles() * SCALE_BYTES
    }
    /// Those of its values.
    pub fn v_codes(self) -> u32 {
        self.v_tile().1 * self.v_row()
    }
    /// Bytes from one f32 row of a part's result to the next: its lse follows its columns.
    pub fn result_row(self) -> u32 {
        self.d_v * 4 + 2 * CHUNK
    }
    /// Bytes from the query tile to where each plane keeps the place of its tile. A part's result takes
    /// the room of queries, keys and values.
    pub fn place_at(self) -> u32 {
        let tiles = self.q_bytes() + self.stages * (self.k_bytes() + self.v_bytes());
        match self.split {
            true => tiles.max(self.rows * self.result_row()),
            false => tiles,
        }
    }
    /// Shared memory of a part of a tile.
    pub fn part_bytes(self) -> u32 {
        let bytes = self.place_at() + self.planes() * 2 * CHUNK;
        match self.parts {
            1 => bytes,
            // Tiles start at multiples of 1 KB.
            _ => bytes.next_multiple_of(1024),
        }
    }
    /// Shared memory of a cube.
    pub fn smem_bytes(self) -> u32 {
        self.part_bytes() * self.parts + if self.split { CHUNK } else { 0 }
    }
    /// How the units of a cube copy a query tile.
    pub fn q_copy(self) -> CopyShape {
        CopyShape::new(self.q_places(), self.rows, self.team())
    }
    /// How they copy a block of K.
    pub fn k_copy(self) -> CopyShape {
        CopyShape {
            apart: self.apart(),
            ..CopyShape::new(self.places(self.d), self.block, self.team())
        }
    }
    /// How they copy a block of V.
    pub fn v_copy(self) -> CopyShape {
        let (places, rows) = self.v_tile();
        CopyShape::new(places, rows, self.team())
    }
    /// How the units of a plane copy their rows of the output tile.
    pub fn out_copy(self) -> CopyShape {
        CopyShape::new(self.d_v, self.plane_rows(), PLANE)
    }
}

/// Units dealt out over a tile: unit t copies chunk `t % lanes` of rows `t / lanes`,
/// `t / lanes + pass_rows`, ...
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct CopyShape {
    /// Chunks of a row.
    pub chunks: u32,
    /// Units along a row, a power of two; those past `chunks` idle.
    pub lanes: u32,
    /// Rows that the units copy at a time; divides the rows of the tile.
    pub pass_rows: u32,
    /// How often.
    pub passes: u32,
    /// Bytes from row to row in shared memory.
    pub row_bytes: u32,
    /// Of the rows that ldmatrix reads together every second one lies this far from the last: 2 where they are
    /// neighbours.
    pub apart: u32,
}

impl CopyShape {
    /// `rows` rows of `width` elements by `units` units.
    fn new(width: u32, rows: u32, units: u32) -> Self {
        let chunks = width / 8;
        let mut lanes = chunks.next_power_of_two();
        while !rows.is_multiple_of(units / lanes) {
            lanes *= 2;
        }
        Self {
            chunks,
            lanes,
            pass_rows: units / lanes,
            passes: rows / (units / lanes),
            row_bytes: PlaneShape::row_bytes(width),
            apart: 2,
        }
    }
    /// How the number of row `row`'s chunks is flipped: its place among the rows that ldmatrix reads together.
    pub fn flip(self, row: u32) -> u32 {
        row / self.apart % 4 * 2 + row % 2
    }
    /// Some units idle.
    pub fn partial(self) -> bool {
        self.chunks < self.lanes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes() -> impl Iterator<Item = PlaneShape> {
        let widths = (8..=256).step_by(8);
        widths.flat_map(|d| {
            [16, 32, 64, 128, 256].into_iter().flat_map(move |rows| {
                [16, 48, 64, 80, 128].map(|block| PlaneShape {
                    d,
                    d_v: 264 - d,
                    rows,
                    block,
                    stages: 2,
                    ahead: false,
                    pack: 1,
                    split: false,
                    parts: 1,
                    codes: None,
                    operands: None,
                    page: None,
                    ty: "f16",
                })
            })
        })
    }

    #[test]
    fn every_chunk_of_a_tile_is_copied_once() {
        for shape in shapes() {
            let (rows, block) = (shape.rows, shape.block);
            for (copy, width, rows, units) in [
                (shape.q_copy(), shape.d, rows, shape.units()),
                (shape.k_copy(), shape.d, block, shape.units()),
                (shape.v_copy(), shape.d_v, block, shape.units()),
                (shape.out_copy(), shape.d_v, shape.plane_rows(), PLANE),
            ] {
                let mut seen = vec![0; (rows * width / 8) as usize];
                for unit in 0..units {
                    let (first, chunk) = (unit / copy.lanes, unit % copy.lanes);
                    for pass in 0..copy.passes {
                        let row = first + pass * copy.pass_rows;
                        assert!(row < rows, "{shape:?} {copy:?}");
                        if chunk < copy.chunks {
                            // As the copies compute it: from the address in the first pass.
                            let to = PlaneShape::chunk_at(width, first, chunk);
                            let flipped = to ^ ((pass * copy.pass_rows % 8) * CHUNK);
                            assert_eq!(
                                flipped + pass * copy.pass_rows * copy.row_bytes,
                                PlaneShape::chunk_at(width, row, chunk)
                            );
                            seen[(row * copy.chunks + chunk) as usize] += 1;
                        }
                    }
                }
                assert!(seen.iter().all(|&n| n == 1), "{shape:?} {copy:?}");
            }
        }
    }

    #[test]
    fn eight_rows_lie_in_different_banks_and_chunks_in_different_places() {
        for width in (8..=256).step_by(8) {
            let mut places = std::collections::BTreeSet::new();
            for chunk in 0..width / 8 {
                let at = |row| PlaneShape::chunk_at(width, row, chunk);
                let groups: std::collections::BTreeSet<u32> =
                    (0..8).map(|row| at(row) / CHUNK % 8).collect();
                assert_eq!(groups.len(), 8, "{width}");
                places.extend((0..16).map(at));
                for row in 0..16 {
                    // As the products compute it: from the address of chunk 0.
                    let flipped = PlaneShape::chunk_at(width, row, 0) ^ (chunk % 8 * CHUNK);
                    assert_eq!(flipped + chunk / 8 * 128, at(row), "{width}");
                }
            }
            assert_eq!(places.len() as u32, 2 * width, "{width}");
        }
    }
}
