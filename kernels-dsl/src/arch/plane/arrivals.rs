//! Cubes that leave partial results and count each other, so that the last of them can finish what they share.

use cubecl::prelude::*;

use super::{fence_device, load_word, store_word};

/// Whether the `cubes` cubes that share `counter` have all come here, this one last. Every unit of a cube calls
/// it, with what it left in memory; the shared word at `flag` is theirs alone.
#[cube]
pub(in crate::arch) fn last_to_arrive(
    flag: u32,
    cubes: u32,
    counters: &mut [Atomic<u32>],
    counter: u32,
) -> bool {
    fence_device();
    sync_cube();
    if UNIT_POS == 0u32 {
        count_arrival(flag, cubes, counters, counter);
    }
    sync_cube();
    fence_device();
    load_word(flag) == 1u32
}

/// One unit's part of it: 1 at the shared address `flag` for the last cube, which leaves the counter at 0 for the
/// launch after this, and 0 for the others. What its cube left must be fenced, and fenced again by who reads.
#[cube]
pub(in crate::arch) fn count_arrival(
    flag: u32,
    cubes: u32,
    counters: &mut [Atomic<u32>],
    counter: u32,
) {
    let before = counters[counter as usize].fetch_add(1u32);
    let mut last = 0u32.runtime();
    if before == cubes - 1u32 {
        counters[counter as usize].store(0u32);
        last = 1u32.runtime();
    }
    store_word(flag, last);
}
