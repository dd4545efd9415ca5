//! Which rows a tile stands for, and the tables that say so.

use cubecl::prelude::*;

use super::{LogitFeatures, LogitInputs, LogitTensors};

/// Where the tables start in the table buffer, in words. `n` is the number of sequences: b, or
/// that of the packed ones.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct TableOffsets {
    /// Queries of every sequence, `[n]` u32.
    pub len_q: usize,
    /// Keys of every sequence, `[n]` u32.
    pub len_kv: usize,
    /// First row of every packed sequence in q, out and lse, `[n]` u32.
    pub first_q: usize,
    /// First row of every packed sequence in k and v, `[n]` u32.
    pub first_kv: usize,
    /// Documents of the queries, [b, s_q] u32.
    pub doc_q: usize,
    /// Documents of the keys, [b, s_kv] u32.
    pub doc_kv: usize,
    /// ALiBi slopes, `[h_q]` f32 as bits.
    pub slopes: usize,
    /// The forward's tiles, `[tiles]` of [`TILE_WORDS`] u32, longest first.
    pub tiles: usize,
    /// Logits of the sinks, `[h_q]` f32 as bits.
    pub sinks: usize,
    /// Pages of every sequence, [n, `page_row`] u32; of the buffer of pages where there is one.
    pub pages: usize,
    /// From one sequence's pages to the next one's.
    pub page_row: usize,
    /// First scale of K's codes in their buffer, and from page to page and head to head.
    pub k_scales: usize,
    /// See `k_scales`.
    pub k_scale_page: usize,
    /// See `k_scales`.
    pub k_scale_head: usize,
    /// The same for V.
    pub v_scales: usize,
    /// See `v_scales`.
    pub v_scale_page: usize,
    /// See `v_scales`.
    pub v_scale_head: usize,
}

/// Words of a listed tile: sequence, first row, first key, one past the last key.
pub const TILE_WORDS: usize = 4;

/// One query tile: rows of one sequence, and what the hooks need to know of it.
///
/// A row stands for a query of the head, or of one of the `pack` heads of a group, which then
/// alternate: [`query`](TileCoords::query) and [`row_coords()`] say which. Rows, queries and keys
/// count from the start of their sequence; only loads and stores add `first_q` and `first_kv`,
/// which are 0 unless sequences are packed.
#[derive(CubeType, Clone, Copy)]
pub struct TileCoords {
    /// Batch entry of the tensors; 0 for packed sequences.
    pub batch: u32,
    /// Batch entry of out and lse: `batch`, or that of the tile's part where tiles are split.
    pub entry: u32,
    /// Query head, the first of those packed into the tile.
    pub head: u32,
    /// First row of the tile (forward), or first key (backward over keys).
    pub row0: u32,
    /// Row of the tensors that query 0 stands in.
    pub first_q: u32,
    /// Row of the tensors that key 0 stands in.
    pub first_kv: u32,
    /// Queries of the sequence.
    pub len_q: u32,
    /// Keys of the sequence.
    pub len_kv: u32,
    /// Queries that belong to the sequence in out and lse: those from `len_q` on become 0 and
    /// -inf, those from here on are somebody else's.
    pub rows_q: u32,
    /// First key that some row of the tile may see for all that the host's plan knows.
    pub keys_lo: u32,
    /// One past the last such key.
    pub keys_hi: u32,
    /// Key index that the diagonal of query 0 stands on.
    pub shift: i32,
    /// ALiBi slope of the head.
    pub slope: f32,
    /// Query heads whose rows alternate, 1 for a tile of one head.
    #[cube(comptime)]
    pub pack: u32,
}

#[cube]
impl TileCoords {
    /// Query that row `row` of the tile stands for.
    pub fn query(&self, row: u32) -> u32 {
        query_of(self.row0 + row, comptime!(self.pack))
    }

    /// Query head that row `row` of the tile belongs to.
    pub fn head_of(&self, row: u32) -> u32 {
        head_of(self.head, self.row0 + row, comptime!(self.pack))
    }
}

/// Query that row `row` stands for, counted from the sequence's first row.
#[cube]
pub fn query_of(row: u32, #[comptime] pack: u32) -> u32 {
    if comptime!(pack == 1) {
        row
    } else {
        row / pack
    }
}

/// Query head of row `row`, counted from the sequence's first row, in a tile whose first head is
/// `head`.
#[cube]
pub fn head_of(head: u32, row: u32, #[comptime] pack: u32) -> u32 {
    if comptime!(pack == 1) {
        head
    } else {
        head + row % pack
    }
}

/// The tile as its row `row` sees it: with the head and the slope of that row.
#[cube]
pub fn row_coords(
    inputs: &LogitInputs<'_>,
    at: &TileCoords,
    row: u32,
    #[comptime] features: LogitFeatures,
) -> TileCoords {
    let head = at.head_of(row);
    let slope = if comptime!(at.pack == 1) {
        at.slope
    } else {
        slope_of(inputs, head, features)
    };
    TileCoords {
        batch: at.batch,
        entry: at.entry,
        head,
        row0: at.row0,
        first_q: at.first_q,
        first_kv: at.first_kv,
        len_q: at.len_q,
        len_kv: at.len_kv,
        rows_q: at.rows_q,
        keys_lo: at.keys_lo,
        keys_hi: at.keys_hi,
        shift: at.shift,
        slope,
        pack: comptime!(at.pack),
    }
}

#[cube]
fn slope_of(inputs: &LogitInputs<'_>, head: u32, #[comptime] features: LogitFeatures) -> f32 {
    let mut slope = 0.0f32;
    if comptime!(features.alibi) {
        let at = inputs.offsets.slopes + head as usize;
        slope = f32::from_bits(table_word(inputs.tensors, at));
    }
    slope
}

/// Word `at` of the table buffer; 0 where none is bound.
#[cube]
pub(crate) fn table_word(tensors: &LogitTensors, at: usize) -> u32 {
    #[comptime]
    match &tensors.table {
        ComptimeOption::Some(t) => t[at],
        ComptimeOption::None => 0u32,
    }
}

/// Coordinates of the tile at `row0` of (sequence, head), with its lengths and slope looked up.
/// With `pack` > 1 the tile is of the `pack` heads from `head` on.
#[cube]
pub fn tile_coords(
    inputs: &LogitInputs<'_>,
    sequence: u32,
    head: u32,
    row0: u32,
    #[comptime] features: LogitFeatures,
    #[comptime] pack: u32,
) -> TileCoords {
    let tensors = inputs.tensors;
    let offsets = inputs.offsets;
    let mut len_q = inputs.s_q;
    let mut len_kv = inputs.s_kv;
    if comptime!(features.lengths) {
        #[comptime]
        match &tensors.lengths {
            ComptimeOption::Some(l) => {
                // Whoever wrote them: no key past the cache is read.
                len_kv = len_kv.min(l[offsets.len_kv + sequence as usize]);
            }
            ComptimeOption::None => {
                len_q = table_word(tensors, offsets.len_q + sequence as usize);
                len_kv = table_word(tensors, offsets.len_kv + sequence as usize);
            }
        }
    }
    let mut batch = sequence;
    let mut first_q = 0u32;
    let mut first_kv = 0u32;
    let mut rows_q = inputs.s_q;
    if comptime!(features.varlen) {
        batch = 0u32;
        first_q = table_word(tensors, offsets.first_q + sequence as usize);
        first_kv = table_word(tensors, offsets.first_kv + sequence as usize);
        rows_q = len_q;
    }
    TileCoords {
        batch,
        entry: batch,
        head,
        row0,
        first_q,
        first_kv,
        len_q,
        len_kv,
        rows_q,
        keys_lo: 0u32.runtime(),
        keys_hi: len_kv,
        shift: inputs.scalars.anchor * (len_kv as i32 - len_q as i32),
        slope: slope_of(inputs, head, features),
        pack,
    }
}

/// Coordinates of entry `index` of the host's list, for one head or the `pack` heads from it on.
#[cube]
pub fn listed_tile(
    inputs: &LogitInputs<'_>,
    index: u32,
    head: u32,
    #[comptime] features: LogitFeatures,
    #[comptime] pack: u32,
) -> TileCoords {
    let tensors = inputs.tensors;
    let at = inputs.offsets.tiles + index as usize * comptime!(TILE_WORDS);
    let sequence = table_word(tensors, at);
    let row0 = table_word(tensors, at + 1);
    let mut coords = tile_coords(inputs, sequence, head, row0, features, pack);
    if comptime!(features.documents) {
        coords.keys_lo = table_word(tensors, at + 2);
        coords.keys_hi = table_word(tensors, at + 3);
    }
    coords
}
