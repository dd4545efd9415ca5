//! Kernels to CUDA C++, PTX and machine code on a machine without a GPU, and what they cost there.
//!
//! The way is that of CubeCL's CUDA runtime: the kernel's IR is printed as CUDA C++ ([`cuda_source`]), NVRTC compiles it to
//! PTX ([`Lowering::ptx`]), ptxas assembles that ([`Lowering::lower`]); then ptxas' report and the disassembly become
//! a [`Report`]. ptxas 13.0 stands in for the driver's own assembler, which on a card turns the PTX into machine code; the
//! two may differ in details.
//!
//! [`kernels`] lists the library's own kernels; any other kernel lowers the same way from the struct its launch macro made.
//!
//! Nothing here links LLVM. The toolkit is searched for at run time ([`Toolkit::find`]).

mod arch;
mod cache;
mod cubecl;
mod error;
mod kernels;
mod lower;
mod model;
mod nvrtc;
mod ptxas;
mod report;
mod sass;
mod source;
mod toolkit;
#[cfg(feature = "wgsl")]
mod wgsl;

pub use arch::Arch;
pub use cache::{Cache, Key};
pub use cubecl::{cuda_source, properties, settings, target_properties};
pub use error::{LoweringError, Result};
#[cfg(feature = "wgsl")]
pub use kernels::wgsl_caps;
pub use kernels::{
    AttendProblem, Blueprint, DataKernel, ListedKernel, MatmulProblem, Problem, cuda_caps,
    find_kernel, kernels,
};
pub use lower::{Lowered, Lowering};
pub use model::{BlockWork, Prediction, Rates};
pub use nvrtc::{Nvrtc, Ptx};
pub use ptxas::{Assembly, Resources, assemble};
pub use report::{Expect, Report, Violation};
pub use sass::{Instruction, Sass};
pub use source::CudaSource;
pub use toolkit::Toolkit;
#[cfg(feature = "wgsl")]
pub use wgsl::{wgsl_properties, wgsl_source};
