//! Operations under way.

use crate::decode::TensorShape;

/// 4, 8 or 16 bytes on their way by cp.async.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) to: u32,
    pub(super) from: u64,
    pub(super) bytes: u32,
    /// Bytes that are read; the others become 0.
    pub(super) read: u32,
}

/// Shared to global memory, in a bulk group.
#[derive(Clone, Debug)]
pub(super) enum BulkStore {
    Tensor {
        map: usize,
        coords: Vec<i32>,
        from: u32,
    },
    Bytes {
        to: u64,
        from: u32,
        bytes: u32,
    },
}

/// A wgmma of one warp: its 16 rows.
#[derive(Clone, Debug)]
pub(super) struct PendingProduct {
    /// Index of the instruction.
    pub(super) pc: usize,
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) accumulate: bool,
    /// 16-byte pieces of shared memory that it reads.
    pub(super) pieces: Vec<u32>,
}

/// An unfinished tcgen05.ld or tcgen05.st.
#[derive(Clone, Debug)]
pub(super) struct TensorMemoryOp {
    pub(super) store: bool,
    pub(super) shape: TensorShape,
    pub(super) registers: Vec<u32>,
    /// Values of a store, [register][lane].
    pub(super) values: Vec<[u32; 32]>,
    pub(super) lane: u32,
    pub(super) column: u32,
}

/// One destination of a copy into shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) cube: usize,
    pub(super) to: u32,
    pub(super) bar_cube: usize,
    pub(super) bar: u32,
}

/// What completes on an mbarrier.
#[derive(Clone, Debug)]
pub(super) enum Task {
    Tensor {
        map: usize,
        coords: Vec<i32>,
        targets: Vec<Target>,
    },
    Bytes {
        from: u64,
        bytes: u32,
        targets: Vec<Target>,
    },
    /// Shared memory of one cube to that of another.
    Between {
        from: (usize, u32),
        bytes: u32,
        target: Target,
    },
    /// An arrival that waits for cp.async of a lane.
    Arrive {
        chunks: Vec<Chunk>,
        warp: usize,
        lane: usize,
        bar: u32,
    },
}
