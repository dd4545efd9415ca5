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
}

/// Words of a listed tile: sequence, first row, first key, one past the last key.
pub const TILE_WORDS: usize = 4;

/// One query tile: rows of one (sequence, query head), and what the hooks need to know of it.
///
/// Rows, queries and keys count from the start of their sequence. Only loads and stores add
/// `first_q` and `first_kv`, which are 0 unless sequences are packed.
#[derive(CubeType, Clone, Copy)]
pub struct TileCoords {
    /// Batch entry of the tensors; 0 for packed sequences.
    pub batch: u32,
    /// Query head.
    pub head: u32,
    /// First query row of the tile (forward), or first key row (backward over keys).
    pub row0: u32,
    /// Row of the tensors that query 0 stands in.
    pub first_q: u32,
    /// Row of the tensors that key 0 stands in.
    pub first_kv: u32,
    /// Queries of the sequence.
    pub len_q: u32,
    /// Keys of the sequence.
    pub len_kv: u32,
    /// Rows that belong to the sequence in out and lse: those from `len_q` on become 0 and -inf,
    /// those from here on are somebody else's.
    pub rows_q: u32,
    /// First key that some row of the tile may see for all that the host's plan knows.
    pub keys_lo: u32,
    /// One past the last such key.
    pub keys_hi: u32,
    /// Key index that the diagonal of query 0 stands on.
    pub shift: i32,
    /// ALiBi slope of the head.
    pub slope: f32,
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
#[cube]
pub fn tile_coords(
    inputs: &LogitInputs<'_>,
    sequence: u32,
    head: u32,
    row0: u32,
    #[comptime] features: LogitFeatures,
) -> TileCoords {
    let tensors = inputs.tensors;
    let offsets = inputs.offsets;
    let mut len_q = inputs.s_q;
    let mut len_kv = inputs.s_kv;
    if comptime!(features.lengths) {
        len_q = table_word(tensors, offsets.len_q + sequence as usize);
        len_kv = table_word(tensors, offsets.len_kv + sequence as usize);
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
    let mut slope = 0.0f32;
    if comptime!(features.alibi) {
        slope = f32::from_bits(table_word(tensors, offsets.slopes + head as usize));
    }
    TileCoords {
        batch,
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
        slope,
    }
}

/// Coordinates of entry `index` of the host's list, for one head.
#[cube]
pub fn listed_tile(
    inputs: &LogitInputs<'_>,
    index: u32,
    head: u32,
    #[comptime] features: LogitFeatures,
) -> TileCoords {
    let tensors = inputs.tensors;
    let at = inputs.offsets.tiles + index as usize * comptime!(TILE_WORDS);
    let sequence = table_word(tensors, at);
    let row0 = table_word(tensors, at + 1);
    let mut coords = tile_coords(inputs, sequence, head, row0, features);
    if comptime!(features.documents) {
        coords.keys_lo = table_word(tensors, at + 2);
        coords.keys_hi = table_word(tensors, at + 3);
    }
    coords
}
