//! What a kernel may not do, and the bookkeeping that finds it.

mod clock;
mod fault;
mod releases;
mod shared;

pub(crate) use clock::Knowledge;
pub use fault::Fault;
pub(crate) use shared::{Access, Epoch, RESERVED, Shared};
