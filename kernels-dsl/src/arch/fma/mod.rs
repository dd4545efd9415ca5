//! The unit tier: one unit owns one row, products are FMA straight from global memory.
//!
//! No plane operation, no shared memory, any plane size and any cube size down to one unit, so
//! it runs on the CPU JIT, on every WebGPU device and on CUDA. `N` is the width of a load.

mod backward;
mod backward_kernels;
mod forward;
mod kernels;
mod matmul;
mod roles;
mod views;

pub use backward::*;
pub use backward_kernels::*;
pub use forward::*;
pub use kernels::*;
pub use matmul::*;
pub use roles::*;
pub use views::*;
