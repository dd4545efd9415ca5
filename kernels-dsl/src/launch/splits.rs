//! How many parts a decode cuts its keys into: pure, from what a device holds at a time and from
//! bytes.

use super::COUNTERS;

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
    /// Parts that a multiprocessor works on at a time.
    pub resident: usize,
    /// How many of them keep the memory busy.
    pub busy: usize,
    /// The kernel merges the parts itself, without a launch of its own.
    pub merges: bool,
    /// Most parts of a tile that one cube takes and merges.
    pub together: usize,
}

impl SplitProblem {
    /// Parts that a cube takes where a tile has `splits`: their greatest common divisor with the most it
    /// can take.
    pub fn parts_of_a_cube(&self, splits: usize) -> usize {
        let (mut a, mut b) = (splits, self.together);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    }
}

/// Most parts of a tile: what the merge reads of one row.
pub const MAX_SPLITS: usize = 256;

/// Parts on each multiprocessor that keep the memory busy, by their copies, and where codes have to be decoded.
pub(crate) const BUSY: [usize; 2] = [3, 7];
/// What a launch that merges costs beside its bytes, in bytes at 4 TB/s: about 4 us, and about 1.5 us of
/// loads for every 32 parts.
const LAUNCHED: (u128, u128, usize) = (16 << 20, 6 << 20, 32);
/// The same where the last cube of a tile merges: about 1.5 us for the cubes to meet, and 1 us of loads for
/// every 8 of them.
const MET: (u128, u128, usize) = (6 << 20, 4 << 20, 8);
/// Parts that one cube takes where it can take several.
pub(crate) const PARTS: usize = 4;
/// Keys below which a part is not worth its cube.
const LEAST_KEYS: usize = 64;

/// The number of parts that takes least time, the smaller one of two that take the same.
///
/// Time is counted in bytes at the memory's full speed. A wave of cubes moves its blocks at that
/// speed where enough parts are busy, and a part is no faster when there are fewer. Parts of several
/// cubes cost their bytes twice, and either a launch that merges them or that cubes meet, for which tiles must not
/// be more than there are counters.
pub fn plan_splits(problem: &SplitProblem) -> SplitPlan {
    let part = LEAST_KEYS.div_ceil(problem.block.max(1)).max(1);
    let most = problem.blocks.div_ceil(part).clamp(1, MAX_SPLITS);
    // Cubes that meet need a counter for each tile.
    let counted = |splits: &usize| {
        !problem.merges || problem.tiles <= COUNTERS || problem.parts_of_a_cube(*splits) == *splits
    };
    let splits = (1..=most)
        .filter(counted)
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
    let busy = (problem.multiprocessors * problem.busy).min(slots);
    let (full, rest) = (cubes / slots, cubes % slots);
    let last = if rest == 0 { 0 } else { rest.max(busy) };
    let bytes = (full * slots + last) as u128 * (each * problem.block_bytes) as u128;
    match splits / problem.parts_of_a_cube(splits) {
        1 => bytes,
        left => {
            let (once, each, group) = if problem.merges { MET } else { LAUNCHED };
            let merge = once + each * left.div_ceil(group) as u128;
            bytes + merge + 2 * (problem.tiles * left * problem.part_bytes) as u128
        }
    }
}
