//! The algorithms, each written once over the vocabulary of [`crate::tile`].

mod backward;
mod coords;
mod exponential;
mod forward;
mod logits;
mod merge;
mod row_state;
mod schedule;
mod stream;
mod tier;

pub use backward::*;
pub use coords::*;
pub use exponential::*;
pub use forward::*;
pub use logits::*;
pub use merge::*;
pub use row_state::*;
pub use schedule::*;
pub use stream::*;
pub use tier::*;
