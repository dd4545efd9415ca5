//! Instructions as the executor wants them.

use super::alu::{Alu, Compare};
use super::tensor::{Tcgen, Wgmma};
use super::ty::Ty;
use crate::matrix::MmaShape;

/// Where a value is read from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Src {
    Reg(u32),
    Imm(u64),
    /// Address in the thread's own cube's shared memory.
    Shared(u32),
    /// Predicate that must be false.
    Not(u32),
}

/// `[base + offset]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Addr {
    pub(crate) base: Src,
    pub(crate) offset: i64,
}

/// State space of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddrSpace {
    Generic,
    Global,
    /// The cube's own shared memory.
    Shared,
    /// Shared memory of any cube of the cluster.
    Cluster,
    Local,
    Param,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarKind {
    Sync,
    Arrive,
}

/// How a wait on an mbarrier names the phase it waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PhaseArg {
    Parity(Src),
    State(Src),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mbar {
    Init {
        count: Src,
    },
    Inval,
    /// `state` gets the phase; `tx` bytes are expected first.
    Arrive {
        state: Option<u32>,
        count: Src,
        tx: Option<Src>,
    },
    ExpectTx {
        tx: Src,
    },
    CompleteTx {
        tx: Src,
    },
    /// Arrives when the thread's earlier cp.async are done.
    ArriveAsync {
        noinc: bool,
    },
    /// `blocking` for try_wait.
    Wait {
        done: u32,
        phase: PhaseArg,
        blocking: bool,
    },
}

/// What fences order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// Threads only.
    Memory,
    /// Generic against asynchronous proxy.
    ProxyAsync,
    /// mbarrier.init before use by the cluster.
    MbarrierInit,
    /// A tensor map's.
    ProxyTensormap,
}

/// A copy of a tensor's box.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TensorCopy {
    pub(crate) map: Addr,
    pub(crate) coords: Vec<Src>,
    pub(crate) smem: Addr,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Bulk {
    /// Tensor to shared memory; `multicast` is the mask of cubes, `pair` is `cta_group::2`: the mbarrier may lie in
    /// either cube of the destination's pair.
    TensorLoad {
        copy: TensorCopy,
        bar: Addr,
        multicast: Option<Src>,
        pair: bool,
    },
    TensorStore {
        copy: TensorCopy,
        add: bool,
    },
    TensorPrefetch,
    /// Contiguous bytes, global to shared.
    Load {
        dst: Addr,
        src: Addr,
        bytes: Src,
        bar: Addr,
        multicast: Option<Src>,
    },
    /// Contiguous bytes, shared to global.
    Store {
        dst: Addr,
        src: Addr,
        bytes: Src,
    },
    /// Contiguous bytes, shared to another cube's shared memory.
    ToCluster {
        dst: Addr,
        src: Addr,
        bytes: Src,
        bar: Addr,
    },
    Commit,
    Wait {
        groups: u32,
        read: bool,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Op {
    Alu {
        alu: Alu,
        dst: u32,
        srcs: [Src; 4],
    },
    /// Predicates p and q = the comparison and its opposite, each combined with `with`.
    Compare {
        compare: Compare,
        p: Option<u32>,
        q: Option<u32>,
        a: Src,
        b: Src,
        with: Option<Src>,
    },
    /// `parts` into `dst`, low part first.
    Pack {
        dst: u32,
        parts: Vec<Src>,
        bits: u32,
    },
    Unpack {
        parts: Vec<Option<u32>>,
        src: Src,
        bits: u32,
    },
    Special {
        dst: u32,
        name: Special,
    },
    Load {
        space: AddrSpace,
        ty: Ty,
        dsts: Vec<Option<u32>>,
        addr: Addr,
    },
    Store {
        space: AddrSpace,
        ty: Ty,
        srcs: Vec<Src>,
        addr: Addr,
    },
    Atomic {
        space: AddrSpace,
        op: Atomic,
        ty: Ty,
        dsts: Vec<Option<u32>>,
        addr: Addr,
        srcs: Vec<Src>,
        other: Src,
    },
    Branch {
        target: usize,
    },
    Exit,
    Trap,
    Nothing,
    Shuffle {
        kind: Shuffle,
        dst: u32,
        valid: Option<u32>,
        value: Src,
        lane: Src,
        clamp: Src,
        members: Src,
    },
    Vote {
        kind: Vote,
        dst: u32,
        value: Src,
        members: Src,
    },
    Match {
        all: bool,
        bits: u32,
        dst: u32,
        pred: Option<u32>,
        value: Src,
        members: Src,
    },
    Redux {
        op: Atomic,
        signed: bool,
        dst: u32,
        value: Src,
        members: Src,
    },
    Activemask {
        dst: u32,
    },
    Elect {
        lane: Option<u32>,
        pred: u32,
        members: Src,
    },
    WarpSync {
        members: Src,
    },
    Bar {
        kind: BarKind,
        id: Src,
        count: Option<Src>,
    },
    ClusterArrive,
    ClusterWait,
    Fence(Fence),
    Mbar {
        op: Mbar,
        addr: Addr,
        space: AddrSpace,
    },
    MapShared {
        dst: u32,
        addr: Src,
        rank: Src,
        generic: bool,
    },
    CopyAsync {
        dst: Addr,
        src: Addr,
        bytes: u32,
        read: Option<Src>,
        ignore: Option<Src>,
    },
    CopyCommit,
    CopyWait {
        groups: u32,
    },
    Bulk(Bulk),
    LoadMatrix {
        count: usize,
        transpose: bool,
        dsts: Vec<u32>,
        addr: Addr,
    },
    StoreMatrix {
        count: usize,
        transpose: bool,
        srcs: Vec<Src>,
        addr: Addr,
    },
    Mma {
        shape: MmaShape,
        d: Vec<u32>,
        a: Vec<Src>,
        b: Vec<Src>,
        c: Vec<Src>,
        scales: Option<[Src; 6]>,
    },
    Wgmma(Wgmma),
    SetMaxRegs {
        count: u32,
        up: bool,
    },
    Tcgen(Tcgen),
}

/// Special registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    Lane,
    Warp,
    NWarp,
    LaneMask(LaneMask),
    ClusterCtaid(usize),
    ClusterNctaid(usize),
    ClusterId(usize),
    NClusterId(usize),
    ClusterRank,
    ClusterSize,
    Sm,
    NSm,
    Clock,
    DynamicShared,
    TotalShared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneMask {
    Eq,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A decoded instruction.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    pub(crate) line: u32,
    pub(crate) guard: Option<(u32, bool)>,
    pub(crate) op: Op,
}
