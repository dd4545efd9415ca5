//! The plane tier (CUDA sm_80 and up): cp.async brings blocks of K and V into shared memory a block
//! ahead, and each plane of 32 units multiplies its own 16 or 32 query rows by mma.sync, with the
//! scores' registers reused as P. All units play every role.

mod arrivals;
mod block_scaled;
mod codes;
mod copies;
mod forward;
#[cfg(test)]
mod interpreted;
mod kernels;
mod matmul;
mod operands;
pub mod pairs;
mod parts;
mod ptx;
mod shape;
mod store;

pub use block_scaled::{
    MmaCodes, ScaleLayouts, ScaleLayoutsCompilationArg, ScaleLayoutsLaunch, ScaleSource,
};
pub use forward::*;
pub use kernels::*;
pub use matmul::*;
pub use operands::*;
pub use parts::*;
pub use shape::*;

pub(in crate::arch) use arrivals::{count_arrival, last_to_arrive};
pub(in crate::arch) use matmul::{
    address_of, column_zeros, fence_device, lane_words, ldmatrix, load_word, mma, store_word,
};
pub(in crate::arch) use ptx::global_addr;
