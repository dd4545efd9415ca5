//! Quantized weights and the transforms around them: one unpack per format, shared by every
//! kernel that reads packed weights.

mod dequantize;
mod floats;
mod hadamard;
mod loader;
mod matmul;
mod packing;
mod tiles;

pub use dequantize::*;
pub use floats::*;
pub use hadamard::*;
pub use loader::*;
pub use matmul::*;
pub use packing::*;
pub use tiles::*;
