//! Quantized number formats: packed integers, small floats, and blocks that share a scale.

pub mod blocks;
pub mod direct;
pub mod e8m0;
pub mod float;
pub mod int;
pub mod operand;
pub mod tiled;
