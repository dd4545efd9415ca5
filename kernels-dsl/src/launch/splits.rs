//! How many parts a decode cuts its keys into: pure, from what a device holds at a time and from
//! bytes.

/// How the blocks of every tile are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SplitPlan {
    /// Parts of a tile, at least 1.
    pub splits: usize,
    /// Fewest blocks of a part that is not the last: short sequences use fewer parts.
    pub part: usize,
}

impl SplitPlan {
    /// Every tile in one piece.
    pub const WHOLE: SplitPlan = SplitPlan { splits: 1, part: 1 };
}

/// What [`plan_splits`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SplitProblem {
    /// Tiles before they are cut: sequences x key heads x tiles of their queries.
    pub tiles: usize,
    /// Blocks of the longest tile.
    pub blocks: usize,
    /// Keys of a block.
    pub block: usize,
    /// Bytes of a block of K and V.
    pub block_bytes: usize,
    /// Bytes of a tile's partial result.
    pub part_bytes: usize,
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Cubes that a multiprocessor holds at a time.
    pub resident: usize,
}

/// Most parts of a tile: what the merge reads of one row.
pub const MAX_SPLITS: usize = 256;

/// Cubes on each multiprocessor whose copies together keep the memory busy.
const BUSY: usize = 3;
/// What the merge costs beside its bytes: a launch of about 4 us, and about 1.5 us of loads for every so
/// many parts, in bytes at 4 TB/s.
const MERGE_BYTES: u128 = 16 << 20;
/// See `MERGE_BYTES`.
const GROUP_BYTES: u128 = 6 << 20;
/// See `MERGE_BYTES`.
const GROUP: usize = 32;
/// Keys below which a part is not worth its cube.
const LEAST_KEYS: usize = 64;

/// The number of parts that takes least time, the smaller one of two that take the same.
///
/// Time is counted in bytes at the memory's full speed. A wave of cubes moves its blocks at that
/// speed where there are three on each multiprocessor, and a cube is no faster when there are
/// fewer. Parts cost their bytes twice and a launch that merges them.
pub fn plan_splits(problem: &SplitProblem) -> SplitPlan {
    let part = LEAST_KEYS.div_ceil(problem.block.max(1)).max(1);
    let most = problem.blocks.div_ceil(part).clamp(1, MAX_SPLITS);
    let splits = (1..=most)
        .min_by_key(|&splits| (time(problem, splits, part), splits))
        .unwrap_or(1);
    SplitPlan { splits, part }
}

/// Bytes' worth of time with so many parts.
fn time(problem: &SplitProblem, splits: usize, part: usize) -> u128 {
    let each = problem.blocks.div_ceil(splits).max(part).max(1);
    let parts = problem.blocks.div_ceil(each).max(1);
    let cubes = problem.tiles * parts;
    let slots = (problem.multiprocessors * problem.resident).max(1);
    let busy = (problem.multiprocessors * BUSY).min(slots);
    let (full, rest) = (cubes / slots, cubes % slots);
    let last = if rest == 0 { 0 } else { rest.max(busy) };
    let bytes = (full * slots + last) as u128 * (each * problem.block_bytes) as u128;
    match splits {
        1 => bytes,
        _ => {
            let merge = MERGE_BYTES + GROUP_BYTES * splits.div_ceil(GROUP) as u128;
            bytes + merge + 2 * (problem.tiles * splits * problem.part_bytes) as u128
        }
    }
}
