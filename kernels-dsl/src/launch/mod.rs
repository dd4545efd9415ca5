//! The host side: what a device can do, which blueprint a problem gets, and the launches.

mod attend;
mod blueprint;
mod caps;
mod fault;
mod geometry;
mod options;
mod select;
mod tensor;

pub use attend::*;
pub use blueprint::*;
pub use caps::*;
pub use fault::*;
pub use options::*;
pub use select::*;
pub use tensor::*;

pub(crate) use geometry::*;
