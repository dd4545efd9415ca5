//! Which key blocks a query tile visits, and where masks must be written.

use cubecl::prelude::*;

use super::{
    LogitFeatures, LogitInputs, LogitScalars, TILE_WORDS, TileCoords, listed_tile, table_word,
    tile_coords,
};

/// Key blocks `[start, end)` of a tile; those in `[inner_start, inner_end)` hide nothing.
#[derive(CubeType, Clone, Copy)]
pub struct Segments {
    /// First block that any row of the tile may see.
    pub start: u32,
    /// First block seen whole by every row.
    pub inner_start: u32,
    /// One past the last block seen whole by every row.
    pub inner_end: u32,
    /// One past the last block that any row may see.
    pub end: u32,
}

#[cube]
impl Segments {
    /// No row of the tile sees a key.
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Part `index` of the blocks, cut into `parts` of equal length or into fewer of `least`.
    pub fn part(&self, index: u32, parts: u32, least: u32) -> Segments {
        let blocks = self.end - self.start;
        let each = blocks.div_ceil(parts).max(least);
        let start = self.end.min(self.start + index * each);
        let end = self.end.min(start + each);
        Segments {
            start,
            inner_start: self.inner_start.max(start).min(end),
            inner_end: self.inner_end.max(start).min(end),
            end,
        }
    }
}

/// Segments of the tile of `rows` rows from `at.row0`, over blocks of `block` keys.
///
/// Rows past `len_q` do not widen the range: their results are never kept.
#[cube]
pub fn segments(
    at: &TileCoords,
    scalars: &LogitScalars,
    rows: u32,
    #[comptime] block: u32,
    #[comptime] features: LogitFeatures,
) -> Segments {
    let len_kv = at.len_kv as i32;
    let n = comptime!(block as i32);
    let query0 = at.query(0u32.runtime());
    let first = query0 as i32 + at.shift;
    let last = at.len_q.min(at.query(rows - 1u32) + 1u32) as i32 - 1 + at.shift;

    // Keys [lo, hi) some row may see; [inner_lo, inner_hi) every row sees.
    let mut lo = 0i32;
    let mut hi = len_kv;
    if comptime!(features.documents) {
        lo = at.keys_lo as i32;
        hi = at.keys_hi as i32;
    }
    let mut inner_lo = 0i32;
    let mut inner_hi = len_kv;
    if comptime!(features.band_right) {
        hi = hi.min(last + scalars.right + 1);
        inner_hi = inner_hi.min(first + scalars.right + 1);
    }
    if comptime!(features.band_left) {
        lo = lo.max(first - scalars.left);
        inner_lo = inner_lo.max(last - scalars.left);
    }
    let seen = lo < hi && query0 < at.len_q;
    lo = select(seen, lo, 0i32);
    hi = select(seen, hi, 0i32);
    let start = lo / n;
    let end = (hi + comptime!(n - 1)) / n;
    if comptime!(features.irregular()) {
        inner_hi = 0i32;
    }
    let inner_start = ((inner_lo + comptime!(n - 1)) / n).max(start).min(end);
    let inner_end = (inner_hi.max(0i32) / n).max(inner_start).min(end);
    let all = Segments {
        start: start as u32,
        inner_start: inner_start as u32,
        inner_end: inner_end as u32,
        end: end as u32,
    };
    if comptime!(features.split) {
        let index = at.entry - at.batch * scalars.splits;
        all.part(index, scalars.splits, scalars.part)
    } else {
        all
    }
}

/// Segments of a tile that sees every key, even one past the last query.
#[cube]
pub fn all_blocks(s_kv: u32, #[comptime] block: u32) -> Segments {
    Segments {
        start: 0u32.runtime(),
        inner_start: 0u32.runtime(),
        inner_end: s_kv / block,
        end: s_kv.div_ceil(block),
    }
}

/// Where in the order a tile stands.
#[derive(CubeType, Clone, Copy)]
struct Place {
    index: u32,
    lane: u32,
}

/// In which order tiles are taken: groups of lanes that share the L2 cache; within a group, row tile
/// by row tile, the longest first: the last rows under a mask that shortens the first ones, and
/// whatever order the host's list has.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct TileOrder {
    /// (batch, head) pairs of a group, or heads where tiles are listed. Packed heads count as one.
    pub lanes: u32,
    /// All of them.
    pub all_lanes: u32,
}

/// Comptime facts that the coordinates of a tile depend on.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct TileShape {
    /// Query rows.
    pub rows: u32,
    /// Query heads that alternate in them.
    pub pack: u32,
    /// A lane has one tile, and its query heads are all that share a key head.
    pub single: bool,
    /// Hooks compiled in.
    pub features: LogitFeatures,
}

#[cube]
impl TileOrder {
    /// The tile at `position` of the order, of `h_q` query heads with `tiles` tiles a lane. Parts of
    /// a split tile follow one another.
    pub fn tile(
        &self,
        position: u32,
        h_q: u32,
        tiles: u32,
        inputs: &LogitInputs<'_>,
        #[comptime] shape: TileShape,
    ) -> TileCoords {
        if comptime!(shape.features.split) {
            let splits = inputs.scalars.splits;
            let mut at = self.whole_tile(position / splits, h_q, tiles, inputs, shape);
            at.entry = at.batch * splits + position % splits;
            at
        } else {
            self.whole_tile(position, h_q, tiles, inputs, shape)
        }
    }

    /// Lane of the tile at `position`, and which of its tiles it is.
    fn place(&self, position: u32, tiles: u32) -> Place {
        let group = position / (self.lanes * tiles);
        let within = position % (self.lanes * tiles);
        let first_lane = group * self.lanes;
        let lanes = self.lanes.min(self.all_lanes - first_lane);
        Place {
            index: within / lanes,
            lane: first_lane + within % lanes,
        }
    }

    /// Index of the sequence that the listed tile at `position` belongs to.
    pub fn sequence(&self, position: u32, tiles: u32, inputs: &LogitInputs<'_>) -> u32 {
        let index = self.place(position, tiles).index;
        let at = inputs.offsets.tiles + index as usize * comptime!(TILE_WORDS);
        table_word(inputs.tensors, at)
    }

    fn whole_tile(
        &self,
        position: u32,
        h_q: u32,
        tiles: u32,
        inputs: &LogitInputs<'_>,
        #[comptime] shape: TileShape,
    ) -> TileCoords {
        let features = comptime!(shape.features);
        let pack = comptime!(shape.pack);
        let place = if comptime!(shape.single) {
            Place {
                index: 0u32.runtime(),
                lane: position,
            }
        } else {
            self.place(position, tiles)
        };
        let (index, lane) = (place.index, place.lane);
        if comptime!(features.listed()) {
            listed_tile(inputs, index, lane * pack, features, pack)
        } else {
            let row_tile = if comptime!(features.band_right) {
                tiles - 1u32 - index
            } else {
                index
            };
            let heads = h_q / pack;
            let (batch, head) = (lane / heads, lane % heads * pack);
            let row0 = row_tile * comptime!(shape.rows);
            tile_coords(inputs, batch, head, row0, features, pack)
        }
    }
}
