//! Named problems, fresh inputs, derived bounds, and the conformance runs over them.
//!
//! - [`problems`] lists every [`Problem`]: small adversarial ones and the shapes of real models.
//!   A problem and a seed determine every input bit ([`Inputs::generate`]).
//! - [`check`] tests a kernel of your own against the f64 reference; [`export_problem`] and
//!   [`check_file`] do the same through files.
//! - [`run`] tests ours on a device, [`mutants::run`] tests the tests.
//! - [`required()`] lists the rows that must execute; [`support::render`] prints them as a table.
//!
//! Bounds are derived in docs/numerics.md and computed in [`bounds`].

pub mod bounds;
pub mod mutants;
pub mod required;
pub mod support;

mod array;
mod catalogue;
mod conformance;
mod files;
mod filter;
mod inputs;
mod launch;
mod oracle;
mod pressure;
mod problem;
mod sizes;
mod verdict;

pub use array::{Array, Data};
pub use catalogue::{problem, problems};
pub use conformance::{Outcome, Repeats, Report, Row, check, run, run_one, run_repeatedly};
pub use files::{FileError, check_file, export_problem, origin};
pub use filter::{Filter, InvalidShard, Shard};
pub use inputs::Inputs;
pub use oracle::{Expected, expected};
pub use problem::{
    Append, Attend, Decode, HadamardSizes, Kernel, LinearSizes, Memory, MergeSizes, Operands,
    PackedSizes, Problem, QuantizeSizes, Task, UnknownKernel, Values,
};
pub use required::{BackendName, Required, required};
pub use verdict::{Measure, Outputs, Relative, Verdict};
