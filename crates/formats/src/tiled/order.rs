//! Where a code lies, and in which order rows are stored.

use crate::error::{FormatError, product};
use crate::int_weights::{QuantShape, check_groups};

/// Newest version of the files of this order. Version 2 has no minima, and is written where there are none.
pub const VERSION: i64 = 3;
/// Rows and columns of a tile.
pub(super) const TILE: usize = 64;
/// A stored row that stands for none of the source.
pub(super) const NO_ROW: u32 = u32::MAX;

/// Word and lowest bit of the code of a stored row and column.
pub(super) fn code_at(row: usize, column: usize, rows: usize, bits: u32) -> (usize, u32) {
    let tile = column / TILE * (rows / TILE) + row / TILE;
    let (y, x) = (row % TILE, column % TILE);
    let lane = x / 16 * 32 + x % 16 / 2 * 4 + y % 8 / 2;
    let field = y / 16 * 8 + y % 2 * 4 + y % 16 / 8 * 2 + x % 2;
    let bit = field as u32 * bits;
    let word = (tile * 128 + lane) * bits as usize + (bit / 32) as usize;
    (word, bit % 32)
}

/// Place of a column's scale and zero point in a row of them.
pub(super) fn place(column: usize) -> usize {
    let x = column % TILE;
    column / TILE * TILE + x % 16 / 2 * 8 + x / 16 * 2 + x % 2
}

/// Which source row and group every stored one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TileOrder {
    /// Stored rows, a multiple of 64.
    pub rows: usize,
    /// Stored rows that share a scale: 16, 32 or a multiple of 64.
    pub group: usize,
    /// `[rows]`: source row of every stored one, `u32::MAX` for none; None where it is the same.
    pub gather: Option<Vec<u32>>,
    /// Source group of every stored one, then those without rows.
    pub sources: Vec<u32>,
}

impl TileOrder {
    /// The order of a weight whose rows have these groups: consecutive ones, or those of `g_idx` `[k]`.
    ///
    /// # Errors
    /// [`FormatError::OutOfRange`] for a group that is not there, [`FormatError::WrongShape`] for another
    /// number of them, [`FormatError::TooLarge`] past the address space.
    pub fn of(shape: QuantShape, g_idx: Option<&[u32]>) -> Result<Self, FormatError> {
        check_groups(&shape, g_idx)?;
        product("words", &[shape.k, shape.n.next_multiple_of(TILE), 8])?;
        let few = matches!(shape.group, 16 | 32);
        let whole = shape.is_per_channel() || few || shape.group.is_multiple_of(TILE);
        if g_idx.is_some() || !whole {
            return Self::gathered(shape, g_idx);
        }
        let rows = shape.k.next_multiple_of(TILE);
        let group = match shape.is_per_channel() {
            // Rows of padding belong to the last group, whatever its length.
            true => rows.max(TILE),
            false => shape.group,
        };
        let used = rows.div_ceil(group);
        // The last tile may have rows past every group of 16 or 32.
        let last = shape.groups.saturating_sub(1);
        let stored = used.max(shape.groups);
        let sources = (0..stored).map(|group| group.min(last) as u32).collect();
        Ok(Self {
            rows,
            group,
            gather: None,
            sources,
        })
    }

    /// Groups one behind the other, of as many rows as pads the fewest.
    fn gathered(shape: QuantShape, g_idx: Option<&[u32]>) -> Result<Self, FormatError> {
        let mut members: Vec<Vec<u32>> = vec![Vec::new(); shape.groups];
        for row in 0..shape.k {
            let group = g_idx.map_or(row / shape.group, |g_idx| g_idx[row] as usize);
            members[group].push(row as u32);
        }
        let total = |group: usize| -> usize {
            let stored = members
                .iter()
                .map(|m| m.len().div_ceil(group))
                .sum::<usize>();
            (stored * group).next_multiple_of(TILE)
        };
        let group = [128, 64, 32].into_iter().min_by_key(|&group| total(group));
        let group = group.unwrap_or(TILE);
        let rows = total(group);
        product("words", &[rows, shape.n.next_multiple_of(TILE), 8])?;
        let mut gather = Vec::with_capacity(rows);
        let mut sources = Vec::new();
        for (source, members) in members.iter().enumerate() {
            gather.extend_from_slice(members);
            let stored = members.len().div_ceil(group);
            gather.resize((sources.len() + stored) * group, NO_ROW);
            sources.resize(sources.len() + stored, source as u32);
        }
        gather.resize(rows, NO_ROW);
        let last = sources.last().copied().unwrap_or(0);
        sources.resize(rows.div_ceil(group), last);
        let unused = members.iter().enumerate().filter(|(_, m)| m.is_empty());
        sources.extend(unused.map(|(source, _)| source as u32));
        Ok(Self {
            rows,
            group,
            gather: Some(gather),
            sources,
        })
    }

    /// The source's row of a stored one; it may lie past the last.
    pub(super) fn source(&self, row: usize) -> Option<usize> {
        match &self.gather {
            None => Some(row),
            Some(gather) => (gather[row] != NO_ROW).then_some(gather[row] as usize),
        }
    }
}

impl TileOrder {
    /// Codes [k, n] as words.
    pub(super) fn pack(&self, codes: &[u8], shape: QuantShape) -> Vec<u32> {
        let columns = shape.n.next_multiple_of(TILE);
        let mut words = vec![0u32; self.rows * columns / 32 * shape.bits as usize];
        for row in 0..self.rows {
            let Some(source) = self.source(row).filter(|&source| source < shape.k) else {
                continue;
            };
            let codes = &codes[source * shape.n..(source + 1) * shape.n];
            for (column, &code) in codes.iter().enumerate() {
                let (at, shift) = code_at(row, column, self.rows, shape.bits);
                words[at] |= u32::from(code) << shift;
                if shift + shape.bits > 32 {
                    words[at + 1] |= u32::from(code) >> (32 - shift);
                }
            }
        }
        words
    }

    /// Values [groups, n] of the source's groups to the places of the stored ones, `fill` where there is
    /// no column.
    pub(super) fn spread<T: Copy>(&self, values: &[T], n: usize, fill: T) -> Vec<T> {
        let columns = n.next_multiple_of(TILE);
        let mut places = vec![fill; self.sources.len() * columns];
        for (stored, &source) in self.sources.iter().enumerate() {
            for column in 0..n {
                places[stored * columns + place(column)] = values[source as usize * n + column];
            }
        }
        places
    }
}

/// What [`TileOrder::spread`] spread, where it came from.
pub(super) fn gather<T: Copy>(
    places: &[T],
    sources: &[u32],
    (groups, n): (usize, usize),
    fill: T,
) -> Vec<T> {
    let columns = n.next_multiple_of(TILE);
    let mut values = vec![fill; groups * n];
    for (stored, &source) in sources.iter().enumerate() {
        for column in 0..n {
            values[source as usize * n + column] = places[stored * columns + place(column)];
        }
    }
    values
}
