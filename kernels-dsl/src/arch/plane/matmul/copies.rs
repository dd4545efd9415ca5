//! What the units of a team bring into a stage, chunk by chunk.

use cubecl::prelude::*;

use super::{PlaneMatmul, PlaneMatmulExpand, ptx};
use crate::arch::plane::copies::{shared_chunk, team_unit};
use crate::arch::plane::ptx as plane;
use crate::quant::{NO_ROW, TILE};

#[cube]
impl<'a> PlaneMatmul<'a> {
    /// Number of this unit in its team.
    fn member(&self) -> u32 {
        team_unit(comptime!(self.shape.team()))
    }

    /// First tile along k of the team in a k-block.
    fn team_tile(&self) -> u32 {
        if comptime!(self.shape.teams() > 1) {
            self.plane_k
        } else {
            0u32.runtime()
        }
    }

    /// Starts copying k-block `j` to its stage; nothing from `end` on.
    pub(super) fn copy_block(&self, j: u32, end: u32) {
        if j < end {
            let shape = comptime!(self.shape);
            let stage = self.stage(j);
            if comptime!(shape.even()) {
                if j < self.whole {
                    self.copy_whole_words(j, stage);
                } else {
                    self.copy_ragged_words(j, stage);
                }
            } else {
                self.copy_ragged_words(j, stage);
            }
            self.copy_scales(j, stage);
            if comptime!(shape.chunks) {
                if j < self.whole {
                    self.copy_whole_x(j, stage);
                } else {
                    self.copy_ragged_x(j, stage);
                }
            } else {
                self.copy_ragged_x(j, stage);
            }
        }
    }

    /// Codes of a k-block all of whose tiles exist.
    fn copy_whole_words(&self, j: u32, stage: u32) {
        let shape = comptime!(self.shape);
        let run = comptime!(shape.run_bytes());
        let within = self.team_tile() * comptime!(shape.tiles.tile_bytes()) + self.member() * 16u32;
        let to = stage + comptime!(shape.words_at()) + within;
        #[unroll]
        for t in 0..comptime!(shape.tiles_n()) {
            let first = (self.n_tile + t) as u64
                * (self.sizes.k_tiles as u64 * comptime!(shape.tiles.tile_bytes() as u64));
            let from = self.words_from + first + j as u64 * run as u64 + within as u64;
            let steps = comptime!(shape.word_steps());
            ptx::copy_steps(to + comptime!(t * run), from, 16u32.runtime(), steps);
        }
    }

    /// x of a k-block all of whose columns exist.
    fn copy_whole_x(&self, j: u32, stage: u32) {
        let shape = comptime!(self.shape);
        let line = self.member() / 8u32;
        let piece = self.member() % 8u32;
        let below = stage + self.team_tile() * comptime!(128 * shape.rows);
        let tile = self.team_tile() + line / comptime!(shape.rows);
        let depth = j * comptime!(shape.planes_k) + tile;
        let column = depth * TILE + piece * 8u32;
        #[unroll]
        for set in 0..comptime!(shape.row_sets()) {
            let skipped = comptime!(set * shape.pass_lines());
            let to = shared_chunk(below, line + skipped, piece, 128u32);
            let row = self.row0 + line % comptime!(shape.rows) + skipped;
            let at = self.sizes.x_offset
                + row.min(self.sizes.m - 1u32) as usize * self.sizes.x_row
                + column as usize;
            let from = plane::global_addr::<u16>(&self.x[at]);
            let bytes = select(row < self.sizes.m, 16u32, 0u32);
            ptx::copy_steps(to, from, bytes, comptime!(shape.x_steps()));
        }
    }

    fn copy_ragged_words(&self, j: u32, stage: u32) {
        let shape = comptime!(self.shape);
        let [_, words, _, _] = comptime!(shape.copies());
        for pass in 0..comptime!(shape.passes(words)) {
            let chunk = self.member() + pass * comptime!(shape.team());
            if chunk < words {
                self.copy_words(j, stage, chunk);
            }
        }
    }

    fn copy_ragged_x(&self, j: u32, stage: u32) {
        let shape = comptime!(self.shape);
        let [x, _, _, _] = comptime!(shape.copies());
        for pass in 0..comptime!(shape.passes(x)) {
            let chunk = self.member() + pass * comptime!(shape.team());
            if chunk < x {
                self.copy_x(j, stage, chunk);
            }
        }
    }

    fn copy_scales(&self, j: u32, stage: u32) {
        let shape = comptime!(self.shape);
        let [_, _, scales, zeros] = comptime!(shape.copies());
        let team = comptime!(shape.team());
        #[unroll]
        for pass in 0..comptime!(shape.passes(scales)) {
            let chunk = self.member() + comptime!(pass * team);
            if chunk < scales {
                let size = comptime!(shape.tiles.scales.bytes());
                let bytes = comptime!(shape.columns * size);
                let to = stage + comptime!(shape.scales_at());
                self.copy_columns(j, to, self.scales_from, chunk, bytes, size);
            }
        }
        #[unroll]
        for pass in 0..comptime!(shape.passes(zeros)) {
            let chunk = self.member() + comptime!(pass * team);
            if chunk < zeros {
                let size = comptime!(shape.tiles.zero_bytes());
                let bytes = comptime!(shape.columns * size);
                let to = stage + comptime!(shape.zeros_at());
                self.copy_columns(j, to, self.zeros_from, chunk, bytes, size);
            }
        }
    }

    /// Chunk `chunk` of the codes; zeros for tiles past the end.
    fn copy_words(&self, j: u32, stage: u32, chunk: u32) {
        let shape = comptime!(self.shape);
        let run = comptime!(shape.team_run_bytes() / 16);
        let tile_chunks = comptime!(shape.tiles.tile_bytes() / 16);
        let mut column = 0u32.runtime();
        let mut within = chunk;
        if comptime!(shape.tiles_n() > 1) {
            column = chunk / run;
            within = chunk % run;
        }
        let team_tile = self.team_tile();
        let tile0 = j * comptime!(shape.planes_k) + team_tile;
        let k_tile = tile0 + within / tile_chunks;
        let n_tile = self.n_tile + column;
        let exists = k_tile < self.sizes.k_tiles && n_tile < self.sizes.n_tiles;
        let first = n_tile as u64 * self.sizes.k_tiles as u64 + tile0 as u64;
        let offset = first * comptime!(shape.tiles.tile_bytes() as u64) + within as u64 * 16u64;
        let from = self.words_from + select(exists, offset, 0u64);
        let to = stage
            + comptime!(shape.words_at())
            + column * comptime!(shape.run_bytes())
            + team_tile * comptime!(shape.tiles.tile_bytes())
            + within * 16u32;
        ptx::copy_part(to, from, select(exists, 16u32, 0u32));
    }

    /// Chunk `chunk` of the scales or zero points, of which a row of the block has `bytes` and a column `size`.
    fn copy_columns(
        &self,
        j: u32,
        to: u32,
        from: u64,
        chunk: u32,
        #[comptime] bytes: u32,
        #[comptime] size: u32,
    ) {
        let shape = comptime!(self.shape);
        let tiles = comptime!(shape.tiles);
        let groups = comptime!(tiles.groups);
        let row = self.team_tile() * groups + chunk / comptime!(bytes / 16);
        let within = chunk % comptime!(bytes / 16) * 16u32;
        let k_tile = j * comptime!(shape.planes_k) + row / groups;
        let group = self.sizes.group_of(k_tile, row % groups, tiles);
        let columns = self.sizes.n_tiles * TILE;
        let first = self.n_tile * comptime!(TILE * size) + within;
        let exists = first < columns * size;
        let offset = group as u64 * (columns * size) as u64 + first as u64;
        let from = from + select(exists, offset, 0u64);
        let to = to + row * bytes + within;
        ptx::copy_part(to, from, select(exists, 16u32, 0u32));
    }

    /// Chunk `chunk` of x: zeros past its rows and columns.
    fn copy_x(&self, j: u32, stage: u32, chunk: u32) {
        let shape = comptime!(self.shape);
        let piece = chunk % 8u32;
        let row = chunk / 8u32 % comptime!(shape.rows);
        let depth = self.team_tile() + chunk / comptime!(8 * shape.rows);
        let line = depth * comptime!(shape.rows) + row;
        let to = shared_chunk(stage, line, piece, 128u32);
        let k = (j * comptime!(shape.planes_k) + depth) * TILE + piece * 8u32;
        let exists = self.row0 + row < self.sizes.m;
        let at = self.sizes.x_offset
            + (self.row0 + row).min(self.sizes.m - 1u32) as usize * self.sizes.x_row;
        if comptime!(shape.chunks) {
            // A chunk may end past the last column; nothing of one that starts there is read.
            let left = select(
                exists && k < self.sizes.k,
                self.sizes.k - k.min(self.sizes.k),
                0u32,
            );
            let column = select(left > 0u32, k, 0u32);
            let from = plane::global_addr::<u16>(&self.x[at + column as usize]);
            ptx::copy_part(to, from, left.min(8u32) * 2u32);
        } else {
            let mut line = Array::<u32>::new(4usize);
            #[unroll]
            for w in 0..4usize {
                let low = self.element(at, k + comptime!(2 * w as u32), exists);
                let high = self.element(at, k + comptime!(2 * w as u32 + 1), exists);
                line[w] = low | (high << 16u32);
            }
            plane::store_words(to, line[0usize], line[1usize], line[2usize], line[3usize]);
        }
    }

    /// The element of x that stored row `k` multiplies, of the row that starts at `at`; 0 for none.
    fn element(&self, at: usize, k: u32, exists: bool) -> u32 {
        let mut column = k;
        #[comptime]
        match &self.gather {
            ComptimeOption::Some(gather) => {
                column = NO_ROW;
                if k < self.sizes.k_tiles * TILE {
                    column = gather[k as usize];
                }
            }
            ComptimeOption::None => {}
        }
        let mut bits = 0u32.runtime();
        if exists && column < self.sizes.k {
            bits = self.x[at + column as usize] as u32;
        }
        bits
    }
}
