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

#[cube]
impl Segments {
    /// No row of the tile sees a key.
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
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
    Segments {
        start: start as u32,
        inner_start: inner_start as u32,
        inner_end: inner_end as u32,
        end: end as u32,
    }
}
