//! The host side: what a device can do, which blueprint a problem gets, and the launches.

mod attend;
mod autotune;
mod backward;
mod blueprint;
mod caps;
mod check;
mod dequantize;
mod fault;
mod forward;
mod geometry;
mod hadamard;
mod hooks;
mod matmul;
mod merge;
mod options;
mod plan;
mod select;
mod tensor;
mod tickets;

pub use attend::*;
pub use autotune::candidates;
pub use backward::*;
pub use blueprint::*;
pub use caps::*;
pub use check::cube_units;
pub use dequantize::*;
pub use fault::*;
pub use hadamard::*;
pub use matmul::*;
pub use merge::*;
pub use options::*;
pub use plan::*;
pub use select::*;
pub use tensor::*;

pub(crate) use autotune::autotune;
pub(crate) use check::*;
pub(crate) use dequantize::holds;
pub(crate) use forward::*;
pub(crate) use geometry::*;
pub(crate) use hooks::*;
pub(crate) use tickets::*;
