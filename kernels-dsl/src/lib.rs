//! Attention, softmax-rescaling, dequantization and Hadamard kernels in CubeCL's language,
//! written once and lowered to CUDA, wgpu and the CPU.
//!
//! `tile` is the vocabulary, `arch` the only place that names an instruction, `attention` and
//! `quant` the algorithms, `launch` the host side: capabilities, selection, launches.

#![allow(
    missing_docs,
    reason = "CubeCL's macros generate items without documentation"
)]
#![allow(
    clippy::collapsible_if,
    clippy::manual_is_multiple_of,
    reason = "kernels nest run-time conditions in comptime ones and have no is_multiple_of"
)]

pub mod arch;
pub mod attention;
pub mod error;
pub mod launch;
pub mod quant;
pub mod tile;

pub use arch::instructions::{
    CodeFormat, Instruction, InstructionSizes, MatrixElement, WgmmaOperands,
};
pub use error::{Error, InvalidProblem, NotAvailable, RuntimeFailure};
pub use launch::*;
pub use quant::{OperandFormat, PackFormat, ScaleRule, ScaleType, Scaling, WeightCodes, ZeroType};
