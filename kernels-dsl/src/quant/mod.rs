//! Quantized weights and the transforms around them: one unpack per format, shared by every
//! kernel that reads packed weights.

mod dequantize;
mod hadamard;
mod packing;

pub use dequantize::*;
pub use hadamard::*;
pub use packing::*;
