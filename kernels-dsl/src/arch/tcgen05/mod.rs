//! The Blackwell tier (sm_100a, sm_103a): TMA brings blocks into 128-byte-swizzled stages, tcgen05
//! multiplies them into tensor memory, and five roles meet through mbarriers: one warp loads, one
//! multiplies for each query stage, a warpgroup for each turns its scores into weights, and another
//! rescales and stores its outputs. Weights take the place of their scores in tensor memory and are
//! the left operand of the second product from there.
//!
//! A query stage is 128 rows, one thread a row. Each stage walks the blocks sequentially; that the
//! matrix unit is busy with one stage while the other is in its softmax comes from there being two.

mod block_scaled;
mod codes;
mod edges;
mod exponential;
mod forward;
mod kernels;
mod loads;
mod operands;
mod plan;
mod ptx;
mod shape;
mod store;

pub(in crate::arch) use codes::{e4m3_of, e8m0_of, pack_e4m3};
pub use edges::*;
pub use exponential::*;
pub use forward::*;
pub use kernels::*;
pub use operands::*;
pub use plan::*;
pub use shape::*;
