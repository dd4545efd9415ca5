//! The Hopper tier (sm_90a): TMA brings blocks into 128-byte-swizzled stages behind mbarrier
//! rings, a producer warpgroup keeps them full, two or three consumer warpgroups take turns at
//! wgmma with P in registers and scores ahead of values.

mod forward;
mod kernels;
mod loads;
mod matmul;
mod operands;
pub(in crate::arch) mod ptx;
mod slots;
mod source;
mod store;

pub use forward::*;
pub use kernels::*;
pub use matmul::*;
pub use operands::*;

pub(in crate::arch) use loads::zero_rows;
pub(in crate::arch) use operands::{descriptor_k_major, descriptor_mn_major};
