//! The tests of the reference: known values, properties, finite differences.

mod attention;
mod backward;
mod cases;
mod direct;
mod hadamard;
mod invalid;
mod masks;
mod merge;
mod operand;
mod packing;
mod quant_blocks;
mod quant_e8m0;
mod quant_float;
mod quant_int;
