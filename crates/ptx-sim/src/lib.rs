//! Executes PTX on the CPU: kernels for Ampere, Hopper and Blackwell as NVRTC or Triton compile them, without a GPU.
//!
//! It is an interpreter and a checker. Asynchronous operations (`cp.async`, bulk and tensor copies, `wgmma`, `tcgen05`)
//! finish at the latest legal moment or at seeded random ones, and what they own may not be touched before; accesses to
//! shared memory that no barrier orders, missing proxy fences, wrong transaction counts, reads of what nobody wrote,
//! accesses out of bounds, deadlocks and tensor memory that is not given back are errors with the instruction and the
//! cube. An opcode, modifier or operand that is not modelled is an error too, never skipped.
//!
//! ```
//! use flashcube_ptx_sim::{Arg, Kernel, Launch, Memory, parse, run};
//!
//! let source = "
//! .version 8.0
//! .target sm_80
//! .address_size 64
//! .visible .entry double(.param .u64 data) {
//!     .reg .b32 %r<3>; .reg .b64 %rd<3>;
//!     ld.param.u64 %rd0, [data];
//!     mov.u32 %r0, %tid.x;
//!     mul.wide.u32 %rd1, %r0, 4;
//!     add.s64 %rd2, %rd0, %rd1;
//!     ld.global.u32 %r1, [%rd2];
//!     shl.b32 %r2, %r1, 1;
//!     st.global.u32 [%rd2], %r2;
//!     ret;
//! }";
//! let module = parse(source)?;
//! let kernel = Kernel::load(&module, Some("double"))?;
//! let mut memory = Memory::new();
//! let data = memory.add(&[1, 0, 0, 0, 21, 0, 0, 0]);
//! run(&kernel, &Launch::new([1; 3], [2, 1, 1], vec![Arg::Buffer(data, 0)]), &memory)?;
//! assert_eq!(memory.contents(data), [2, 0, 0, 0, 42, 0, 0, 0]);
//! # Ok::<(), flashcube_ptx_sim::SimError>(())
//! ```

mod check;
mod decode;
mod error;
mod exec;
mod global;
mod kernel;
mod launch;
mod matrix;
mod number;
mod parse;
mod tensor_map;

pub use check::Fault;
pub use error::{Place, Result, SimError, SyntaxProblem};
pub use global::{BufferId, Memory};
pub use kernel::Kernel;
pub use launch::{Arg, Coverage, Launch, Schedule, run};
pub use number::{Format, Rounding};
pub use parse::{Entry, Instruction, Module, Operand, Register, Space, Variable, parse};
pub use tensor_map::{Swizzle, TensorMap};
