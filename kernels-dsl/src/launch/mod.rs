//! The host side: what a device can do, which blueprint a problem gets, and the launches.

mod attend;
mod autotune;
mod backward;
mod blueprint;
mod cache_view;
mod caps;
mod check;
mod decode;
mod dequantize;
mod fault;
mod forward;
mod geometry;
mod hadamard;
mod hooks;
mod merge;
mod options;
mod plan;
mod select;
mod splits;
mod tensor;
mod tickets;

pub use attend::*;
pub use autotune::candidates;
pub use backward::*;
pub use blueprint::*;
pub use cache_view::*;
pub use caps::*;
pub use check::cube_units;
pub use decode::*;
pub use dequantize::*;
pub use fault::*;
pub use hadamard::*;
pub use merge::*;
pub use options::*;
pub use plan::*;
pub use select::*;
pub use splits::*;
pub use tensor::*;

pub(crate) use autotune::autotune;
pub(crate) use check::*;
pub(crate) use forward::*;
pub(crate) use geometry::*;
pub(crate) use hooks::*;
pub(crate) use tickets::*;
