//! Faults of pairs of cubes.

use super::{Plant, dropped, every, first, no_wait, plant, with};

/// Two query stages a cube, up to three blocks, tiles without rows or keys, and values past a length.
pub(super) const PROBLEM: &str = "attend_forward/blackwell_pairs/lengths/bf16";

pub(super) fn plants() -> Vec<Plant> {
    let mut all = results();
    all.extend(operands());
    all.extend(lives());
    all
}

/// What cube 0 tells both.
fn results() -> Vec<Plant> {
    vec![
        plant(
            "commits to cube 0 alone",
            "multicast::cluster",
            every,
            with("both, 3;", "both, 1;"),
            &["Deadlock"],
        ),
        plant(
            "commits to cube 1 alone",
            "multicast::cluster",
            every,
            with("both, 3;", "both, 2;"),
            &["Deadlock"],
        ),
        plant(
            "a product of one cube",
            "tcgen05.mma.cta_group::2",
            every,
            with("cta_group::2", "cta_group::1"),
            &["TensorMemory", "Numbers", "Uninitialised"],
        ),
    ]
}

/// What both tell cube 0.
fn operands() -> Vec<Plant> {
    vec![
        plant(
            "barriers of cube 1 for those of cube 0",
            "mapa.shared::cluster",
            every,
            with(", 0;", ", 1;"),
            &["Deadlock", "Mbarrier"],
        ),
        plant(
            "copies that complete in the other cube, not as of a pair",
            "cp.async.bulk.tensor",
            every,
            with(".cta_group::2", ""),
            &["TensorMap"],
        ),
        plant(
            "an arrival for the product",
            "mbarrier.arrive.release.cluster",
            first,
            dropped(),
            &["Deadlock"],
        ),
        plant(
            "a count of bytes",
            "mbarrier.arrive.expect_tx.release.cluster",
            first,
            dropped(),
            &["Deadlock", "Mbarrier"],
        ),
        plant(
            "waits of the warps that multiply",
            "mbarrier.try_wait.parity.acquire.cluster",
            every,
            no_wait(),
            &["Race", "Uninitialised", "SharedOwned", "TensorMemory"],
        ),
    ]
}

/// What both begin and end together.
fn lives() -> Vec<Plant> {
    vec![
        plant(
            "meeting of the pair",
            "barrier.cluster",
            every,
            dropped(),
            &["Race", "Uninitialised", "TensorMemory", "Mbarrier"],
        ),
        plant(
            "deallocation",
            "tcgen05.dealloc",
            every,
            dropped(),
            &["Leak"],
        ),
    ]
}
