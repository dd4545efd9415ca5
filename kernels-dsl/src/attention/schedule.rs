//! Which key blocks a query tile visits, and where masks must be written.

use cubecl::prelude::*;

use super::{LogitFeatures, LogitScalars, TileCoords};

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

/// Segments of the tile of `rows` queries from `at.row0`, over blocks of `block` keys.
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
    let first = at.row0 as i32 + at.shift;
    let last = at.len_q.min(at.row0 + rows) as i32 - 1 + at.shift;

    // Keys [lo, hi) some row may see; [inner_lo, inner_hi) every row sees.
    let mut lo = 0i32;
    let mut hi = len_kv;
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
    if at.row0 >= at.len_q {
        hi = 0i32;
    }
    hi = hi.max(0i32);
    lo = lo.min(hi);
    let start = lo / n;
    let end = (hi + comptime!(n - 1)) / n;
    if comptime!(features.irregular()) {
        inner_hi = 0i32;
    }
    let inner_start = ((inner_lo + comptime!(n - 1)) / n).max(start).min(end);
    let inner_end = (inner_hi.max(0i32) / n).max(inner_start).min(end);
    Segments {
        start: start as u32,
        inner_start: inner_start as u32,
        inner_end: inner_end as u32,
        end: end as u32,
    }
}

/// In which order the tiles of a problem are taken: groups of lanes that share the L2 cache, and
/// within a group, under a mask that shortens the first rows, the last rows first.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct TileOrder {
    /// (batch, head) pairs of a group.
    pub lanes: u32,
    /// b * h_q.
    pub all_lanes: u32,
}

/// A tile of a problem.
#[derive(CubeType, Clone, Copy)]
pub struct TilePlace {
    /// batch * h_q + head.
    pub lane: u32,
    /// Tile of query rows.
    pub tile: u32,
}

#[cube]
impl TileOrder {
    /// Where the tile at `position` of the order lies; a lane has `tiles` of them.
    pub fn place(
        &self,
        position: u32,
        tiles: u32,
        #[comptime] features: LogitFeatures,
    ) -> TilePlace {
        let group = position / (self.lanes * tiles);
        let within = position % (self.lanes * tiles);
        let first = group * self.lanes;
        let lanes = self.lanes.min(self.all_lanes - first);
        if comptime!(features.band_right) {
            TilePlace {
                lane: first + within % lanes,
                tile: tiles - 1u32 - within / lanes,
            }
        } else {
            TilePlace {
                lane: first + within / tiles,
                tile: within % tiles,
            }
        }
    }
}
