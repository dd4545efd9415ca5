//! Conformance of every kernel on every backend against the reference, in one binary: each
//! further one would link LLVM again.

mod addressing;
mod backends;
mod catalogue;
mod decode;
mod files;
mod invalid;
mod linear;
mod operands;
mod plan;
mod property;
mod selection;
mod tuning;
