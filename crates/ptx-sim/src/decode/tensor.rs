//! Operands of the asynchronous matrix instructions.

use super::op::{Addr, Src};
use crate::number::Format;

/// A wgmma instruction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wgmma {
    Fence,
    Commit,
    Wait { groups: u32 },
    Mma(WgmmaMma),
}

/// D (64 x n) = A (64 x k) B (k x n) [+ D].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WgmmaMma {
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) d_format: Format,
    pub(crate) a_format: Format,
    pub(crate) b_format: Format,
    pub(crate) d: Vec<u32>,
    pub(crate) a: MatrixSource,
    pub(crate) b: Src,
    pub(crate) accumulate: Src,
    pub(crate) negate_a: bool,
    pub(crate) negate_b: bool,
    /// MN-major operands.
    pub(crate) transpose_a: bool,
    pub(crate) transpose_b: bool,
}

/// Where the left operand is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MatrixSource {
    Descriptor(Src),
    Registers(Vec<u32>),
    /// Tensor memory.
    Tensor(Addr),
}

/// Kinds of tcgen05.mma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcgenKind {
    F16,
    Tf32,
    F8f6f4,
    Mxf8f6f4,
    Mxf4,
    Mxf4nvf4,
}

/// Rows and bits of a tensor-memory load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorShape {
    L32B32,
    L16B64,
    L16B128,
    L16B256,
    L16B32x2,
}

/// A tcgen05 instruction; `pair` is `cta_group::2`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tcgen {
    Alloc {
        dst: Addr,
        columns: Src,
        pair: bool,
    },
    Dealloc {
        addr: Src,
        columns: Src,
        pair: bool,
    },
    Relinquish {
        pair: bool,
    },
    Mma(TcgenMma),
    Commit {
        bar: Addr,
        pair: bool,
        multicast: Option<Src>,
    },
    Load {
        shape: TensorShape,
        dsts: Vec<u32>,
        addr: Addr,
        pack: bool,
        offset: u32,
    },
    Store {
        shape: TensorShape,
        srcs: Vec<Src>,
        addr: Addr,
        unpack: bool,
        offset: u32,
    },
    WaitLoad,
    WaitStore,
    FenceBefore,
    FenceAfter,
    /// Shared to tensor memory; `warps` copies over the lane quarters.
    Copy {
        shape: CopyShape,
        addr: Addr,
        descriptor: Src,
        pair: bool,
    },
}

impl Tcgen {
    /// Whether it is `cta_group::2`, of those that name a group.
    pub(crate) fn pair(&self) -> Option<bool> {
        match self {
            Self::Alloc { pair, .. }
            | Self::Dealloc { pair, .. }
            | Self::Relinquish { pair }
            | Self::Commit { pair, .. }
            | Self::Copy { pair, .. } => Some(*pair),
            Self::Mma(mma) => Some(mma.pair),
            _ => None,
        }
    }
}

/// Shapes of tcgen05.cp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyShape {
    L128B256,
    L4B256,
    L128B128,
    L64B128 { lower: bool },
    L32B128,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TcgenMma {
    pub(crate) kind: TcgenKind,
    pub(crate) pair: bool,
    pub(crate) d: Addr,
    pub(crate) a: MatrixSource,
    pub(crate) b: Src,
    pub(crate) idesc: Src,
    /// Scale factors of A and B, and K elements per scale.
    pub(crate) scales: Option<(Addr, Addr, u32)>,
    /// Lanes of D that are not written, 32 a word: 128 of a cube, or of the even and then of the odd cube.
    pub(crate) disabled: Vec<Src>,
    pub(crate) accumulate: Src,
}
