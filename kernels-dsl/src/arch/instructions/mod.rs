//! The instructions that the matrix tiers build on, one a launch: whether a device, or the interpreter that stands in
//! for one, multiplies, moves and converts as the bounds of whole kernels assume.

mod convert;
mod form;
mod plane;
mod warpgroup;

pub use convert::*;
pub use form::*;
pub use plane::*;
pub use warpgroup::*;
