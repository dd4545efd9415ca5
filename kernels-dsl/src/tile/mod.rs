//! The vocabulary: fragments, products, edges. No instruction, lane or plane size is named here.

mod edge;
mod fragment;
mod layout;
mod product;

pub use edge::*;
pub use fragment::*;
pub use layout::*;
pub use product::*;
