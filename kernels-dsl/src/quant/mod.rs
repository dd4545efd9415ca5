//! Quantized weights and the transforms around them: one unpack per format, shared by every
//! kernel that reads packed weights.

mod dequantize;
mod floats;
mod hadamard;
mod loader;
mod matmul;
mod operand;
mod packing;
mod repack;
mod small_float;
mod tiles;

pub use dequantize::*;
pub use floats::*;
pub use hadamard::*;
pub use loader::*;
pub use matmul::*;
pub use operand::*;
pub use packing::*;
pub use repack::*;
pub use small_float::*;
pub use tiles::*;
