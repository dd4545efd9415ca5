//! The algorithms, each written once over the vocabulary of [`crate::tile`].

mod append;
mod backward;
mod codes;
mod coords;
mod encoded;
mod exponential;
mod forward;
mod logits;
mod merge;
mod pages;
mod row_state;
mod schedule;
mod softmax;
mod stream;
mod tier;

pub use append::*;
pub use backward::*;
pub use codes::*;
pub use coords::*;
pub use encoded::*;
pub use exponential::*;
pub use forward::*;
pub use logits::*;
pub use merge::*;
pub use pages::*;
pub use row_state::*;
pub use schedule::*;
pub use stream::*;
pub use tier::*;
