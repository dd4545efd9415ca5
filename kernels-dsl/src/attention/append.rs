//! New rows of K and V into a cache, rotated on the way.

use cubecl::prelude::*;

use super::{KeyPages, LogitTensors, TableOffsets, table_word};
use crate::tile::Layout;

/// Which columns a rotation pairs.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub enum RopePairs {
    /// 2 i and 2 i + 1.
    Interleaved,
    /// i and i + half the rotated columns.
    HalfSplit,
}

/// Comptime choices of an append.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct AppendShape {
    /// Columns of a row.
    pub d: usize,
    /// Rows of a page; `None` for a cache in one piece.
    pub page: Option<u32>,
    /// Pairs of the rotation and the columns it covers, an even number; `None` copies rows as they are.
    pub rope: Option<(RopePairs, usize)>,
    /// Sequences get rows of their own number and place; all of the source's otherwise.
    pub ragged: bool,
}

/// Where an append's tables start in the table buffer, in words, and its sizes.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct AppendSizes {
    /// Rows that every sequence gets, `[b]`.
    pub count: usize,
    /// First of them in the source, `[b]`.
    pub first: usize,
    /// Key heads.
    pub h: u32,
    /// Rows of the source.
    pub s: u32,
    /// Keys that a sequence can have.
    pub capacity: u32,
    /// Elements of the source.
    pub total: usize,
    /// Angle 0 of position 0 in cos, and from one position to the next.
    pub cos: usize,
    /// See `cos`.
    pub cos_row: usize,
    /// The same in sin.
    pub sin: usize,
    /// See `sin`.
    pub sin_row: usize,
}

/// `cache[len + i] = rotate(source[first + i], angle(len + i))` for i below count, one unit an element.
///
/// With x, y the columns of a pair and c, s = cos, sin [positions, columns / 2] at row `len + i`:
/// x' = x c - y s, y' = y c + x s in f32, rounded once.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn append_rows_fma<E: Float>(
    source: &[E],
    cache: &mut [E],
    cos: &ComptimeOption<Box<[f32]>>,
    sin: &ComptimeOption<Box<[f32]>>,
    tensors: &LogitTensors,
    offsets: &TableOffsets,
    source_layout: &Layout,
    cache_layout: &Layout,
    sizes: &AppendSizes,
    #[comptime] shape: AppendShape,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS < sizes.total {
        let d = comptime!(shape.d);
        let column = (ABSOLUTE_POS % d) as u32;
        let lane = ABSOLUTE_POS / d;
        let i = (lane % sizes.s as usize) as u32;
        let head = (lane / sizes.s as usize % sizes.h as usize) as u32;
        let sequence = (lane / sizes.s as usize / sizes.h as usize) as u32;
        let mut count = sizes.s;
        let mut first = 0u32;
        if comptime!(shape.ragged) {
            count = table_word(tensors, sizes.count + sequence as usize);
            first = table_word(tensors, sizes.first + sequence as usize);
        }
        let key = cached_keys(tensors, offsets, sequence) + i;
        if i < count && key < sizes.capacity {
            let from =
                source_layout.base(sequence, head) + (first + i) as usize * source_layout.row;
            let value = rotated::<E>(source, from, column, key, cos, sin, sizes, shape);
            let mut entry = sequence;
            let mut row = key;
            if comptime!(shape.page.is_some()) {
                let page = comptime!(shape.page.unwrap_or(1));
                let pages = KeyPages::new(tensors, offsets, sequence, page);
                entry = pages.page_of(key);
                row = key % page;
            }
            let to = cache_layout.base(entry, head) + row as usize * cache_layout.row;
            cache[to + column as usize] = E::cast_from(value);
        }
    }
}

/// Keys that the sequence has before the append.
#[cube]
fn cached_keys(tensors: &LogitTensors, offsets: &TableOffsets, sequence: u32) -> u32 {
    let at = offsets.len_kv + sequence as usize;
    #[comptime]
    match &tensors.lengths {
        ComptimeOption::Some(lengths) => lengths[at],
        ComptimeOption::None => table_word(tensors, at),
    }
}

#[cube]
fn rotated<E: Float>(
    source: &[E],
    from: usize,
    column: u32,
    key: u32,
    cos: &ComptimeOption<Box<[f32]>>,
    sin: &ComptimeOption<Box<[f32]>>,
    sizes: &AppendSizes,
    #[comptime] shape: AppendShape,
) -> f32 {
    let mut value = f32::cast_from(source[from + column as usize]);
    if comptime!(shape.rope.is_some()) {
        let (pairs, width) = comptime!(shape.rope.unwrap_or((RopePairs::HalfSplit, 0)));
        let half = comptime!(width as u32 / 2);
        if column < comptime!(width as u32) {
            let (pair, second) = match comptime!(pairs) {
                RopePairs::Interleaved => (column / 2u32, column % 2u32 == 1u32),
                RopePairs::HalfSplit => (column % half, column >= half),
            };
            let step = match comptime!(pairs) {
                RopePairs::Interleaved => 1u32.runtime(),
                RopePairs::HalfSplit => half.runtime(),
            };
            let partner = select(second, column - step, column + step);
            let other = f32::cast_from(source[from + partner as usize]);
            let (position, pair) = (key as usize, pair as usize);
            let c = angle_at(cos, sizes.cos + position * sizes.cos_row + pair);
            let s = angle_at(sin, sizes.sin + position * sizes.sin_row + pair);
            value = value * c + select(second, other, -other) * s;
        }
    }
    value
}

#[cube]
fn angle_at(table: &ComptimeOption<Box<[f32]>>, at: usize) -> f32 {
    #[comptime]
    match table {
        ComptimeOption::Some(t) => t[at],
        ComptimeOption::None => 0.0f32,
    }
}

/// `lengths[offset + i] += counts[first + i]`, or `each` without counts, for i below n, held below
/// `capacity`: what follows an append whose lengths only the device knows.
#[cube(launch_unchecked)]
pub fn advance_lengths(
    lengths: &mut [u32],
    counts: &ComptimeOption<Box<[u32]>>,
    offset: usize,
    first: usize,
    each: u32,
    n: usize,
    capacity: u32,
) {
    if ABSOLUTE_POS < n {
        let at = offset + ABSOLUTE_POS;
        let more = #[comptime]
        match counts {
            ComptimeOption::Some(counts) => counts[first + ABSOLUTE_POS],
            ComptimeOption::None => each,
        };
        lengths[at] = capacity.min(lengths[at] + more);
    }
}

/// Rows of page `from[p]` become those of page `to[p]` for every listed pair: what a fork's first
/// append does to the page that it shares. One unit an element of a page.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn copy_pages_fma<E: Float>(
    pool: &mut [E],
    pairs: &[u32],
    layout: &Layout,
    h: u32,
    rows: u32,
    total: usize,
    #[comptime] d: usize,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS < total {
        let column = ABSOLUTE_POS % d;
        let lane = ABSOLUTE_POS / d;
        let row = lane % rows as usize;
        let head = (lane / rows as usize % h as usize) as u32;
        let pair = lane / rows as usize / h as usize;
        let (from, to) = (pairs[2 * pair], pairs[2 * pair + 1]);
        let place = row * layout.row + column;
        pool[layout.base(to, head) + place] = pool[layout.base(from, head) + place];
    }
}
