//! Kernels that NVRTC and Triton compiled, run on the CPU.
#![allow(missing_docs)]

mod attention;
mod cutlass;
mod faults;
mod ours;
mod pair;
mod registers;
mod triton;
mod values;
