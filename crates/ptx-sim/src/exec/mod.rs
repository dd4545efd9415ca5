//! Runs the warps of a cluster.

mod address;
mod barrier;
mod bulk;
mod copies;
mod lanes;
mod machine;
mod mbarrier;
mod memory;
mod poison;
mod products;
mod schedule;
mod step;
mod task;
mod tcgen;
mod tmem;
mod uses;
mod warp;
mod wgmma;

pub(crate) use machine::Machine;
pub(crate) use uses::registers_of;

/// Windows of the generic address space.
pub(crate) const SHARED_WINDOW: u64 = 1 << 56;
pub(crate) const LOCAL_WINDOW: u64 = 2 << 56;
pub(crate) const PARAM_WINDOW: u64 = 3 << 56;
/// Variables of the module, a part of the global space.
pub(crate) const GLOBALS_WINDOW: u64 = 4 << 56;
/// Bits of a shared address below the number of the cube in its cluster.
pub(crate) const RANK_SHIFT: u32 = 24;
