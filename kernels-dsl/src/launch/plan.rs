//! Which tiles a forward visits, and in which order: pure, from lengths and documents alone.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use super::{Alignment, expect_entries};
use crate::attention::TILE_WORDS;
use crate::error::InvalidProblem;

/// Rows of one sequence: a batch entry's, or those between two cumulative lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sequence {
    /// Row of q, out and lse that query 0 stands in.
    pub first_q: usize,
    /// Queries.
    pub len_q: usize,
    /// Rows of out and lse, at least `len_q`: those past it become 0 and -inf.
    pub rows_q: usize,
    /// Row of k and v that key 0 stands in.
    pub first_kv: usize,
    /// Keys.
    pub len_kv: usize,
}

impl Sequence {
    /// The sequences between cumulative lengths, and one without keys over the rows of q past the
    /// last of them, so that every row of out is written.
    ///
    /// # Errors
    /// [`InvalidProblem::Entries`] and [`InvalidProblem::Entry`], which name the table: each starts
    /// with 0, never falls, ends within its tensor, and has an entry more than there are sequences.
    pub fn packed(
        (cu_q, cu_kv): (&[usize], &[usize]),
        (total_q, total_kv): (usize, usize),
    ) -> Result<Vec<Sequence>, InvalidProblem> {
        check_cumulative("cu_seqlens_q", cu_q, total_q)?;
        check_cumulative("cu_seqlens_kv", cu_kv, total_kv)?;
        expect_entries("cu_seqlens_kv", cu_kv.len(), cu_q.len())?;
        let of = |first_q, len_q, first_kv, len_kv| Sequence {
            first_q,
            len_q,
            rows_q: len_q,
            first_kv,
            len_kv,
        };
        let mut sequences: Vec<Sequence> = cu_q
            .windows(2)
            .zip(cu_kv.windows(2))
            .map(|(q, kv)| of(q[0], q[1] - q[0], kv[0], kv[1] - kv[0]))
            .collect();
        let end = cu_q[cu_q.len() - 1];
        if end < total_q {
            sequences.push(of(end, total_q - end, 0, 0));
        }
        Ok(sequences)
    }
}

fn check_cumulative(
    name: &'static str,
    table: &[usize],
    total: usize,
) -> Result<(), InvalidProblem> {
    if table.is_empty() {
        return expect_entries(name, 0, 1);
    }
    // The largest value each entry may have: the first is 0, the others end where the next does.
    let limits = table[1..].iter().copied().chain([total]);
    for (index, (&value, next)) in table.iter().zip(limits).enumerate() {
        let limit = if index == 0 { 0 } else { next };
        if value > limit {
            return Err(InvalidProblem::Entry {
                name,
                index,
                value,
                limit,
            });
        }
    }
    Ok(())
}

/// Where the keys of every document of a batch entry lie, ids in any order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentSpans(HashMap<u32, Range<usize>>);

impl DocumentSpans {
    /// From the document id of every key.
    pub fn of(keys: &[u32]) -> Self {
        let mut spans: HashMap<u32, Range<usize>> = HashMap::new();
        let mut first = 0;
        for run in keys.chunk_by(|a, b| a == b) {
            let last = first + run.len();
            spans.entry(run[0]).or_insert(first..last).end = last;
            first = last;
        }
        Self(spans)
    }

    /// The shortest range that holds every key of the documents of these queries; empty if there
    /// is none.
    pub fn covering(&self, queries: &[u32]) -> Range<usize> {
        let runs = queries.chunk_by(|a, b| a == b);
        let spans = runs.filter_map(|run| self.0.get(&run[0]).cloned());
        spans
            .reduce(|all, span| all.start.min(span.start)..all.end.max(span.end))
            .unwrap_or(0..0)
    }
}

/// Keys that causal mask and window leave to a query, relative to its diagonal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PlanBand {
    /// Keys left of the diagonal; `None` is all.
    pub left: Option<usize>,
    /// Keys right of the diagonal; `None` is all, causal is 0.
    pub right: Option<usize>,
    /// Where the diagonal starts.
    pub alignment: Alignment,
}

/// Sizes of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TileSizes {
    /// Rows; those of `pack` heads alternate.
    pub rows: usize,
    /// Query heads in the rows of a tile.
    pub pack: usize,
    /// Keys of a block.
    pub block: usize,
}

/// One query tile of a forward, for every head or every pack of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListedTile {
    /// Index of the sequence.
    pub sequence: usize,
    /// First row, counted from the start of the sequence.
    pub row0: usize,
    /// First key that some row may see, whatever the band says.
    pub keys_lo: usize,
    /// One past the last such key.
    pub keys_hi: usize,
}

impl ListedTile {
    /// The tile as the kernels read it from the table buffer.
    pub fn words(&self) -> [u32; TILE_WORDS] {
        [self.sequence, self.row0, self.keys_lo, self.keys_hi].map(|x| x as u32)
    }
}

/// Tiles over every row of the sequences, those with most blocks of keys first: cubes that take
/// them in this order finish together.
///
/// `keys(sequence, queries)` bounds the keys that any of the queries may see. Tiles with equally
/// many blocks stay in the order of their rows, so that neighbours in time read the same keys.
pub fn plan_tiles(
    sequences: &[Sequence],
    sizes: TileSizes,
    band: PlanBand,
    keys: impl Fn(usize, Range<usize>) -> Range<usize>,
) -> Vec<ListedTile> {
    let mut tiles = Vec::new();
    for (index, sequence) in sequences.iter().enumerate() {
        for row0 in (0..sequence.rows_q * sizes.pack).step_by(sizes.rows) {
            let end = (row0 + sizes.rows).div_ceil(sizes.pack);
            let queries = row0 / sizes.pack..sequence.len_q.min(end);
            let seen = match queries.is_empty() {
                true => 0..0,
                false => keys(index, queries.clone()),
            };
            let tile = ListedTile {
                sequence: index,
                row0,
                keys_lo: seen.start,
                keys_hi: seen.end,
            };
            tiles.push((blocks(sequence, queries, seen, sizes.block, band), tile));
        }
    }
    tiles.sort_by_key(|&(blocks, _)| Reverse(blocks));
    tiles.into_iter().map(|(_, tile)| tile).collect()
}

/// Blocks that the kernels visit for these queries: `attention::segments` on the host.
fn blocks(
    sequence: &Sequence,
    queries: Range<usize>,
    keys: Range<usize>,
    block: usize,
    band: PlanBand,
) -> usize {
    if queries.is_empty() {
        return 0;
    }
    let shift = match band.alignment {
        Alignment::TopLeft => 0,
        Alignment::BottomRight => sequence.len_kv as i64 - sequence.len_q as i64,
    };
    let (first, last) = (queries.start as i64 + shift, queries.end as i64 - 1 + shift);
    let (mut lo, mut hi) = (keys.start as i64, keys.end as i64);
    if let Some(right) = band.right {
        hi = hi.min(last + right as i64 + 1);
    }
    if let Some(left) = band.left {
        lo = lo.max(first - left as i64);
    }
    match lo < hi {
        true => (hi as usize).div_ceil(block) - lo as usize / block,
        false => 0,
    }
}
