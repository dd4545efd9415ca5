//! PTX text to a [`Module`].

mod ast;
mod body;
mod lex;
mod module;

pub use ast::{Entry, Instruction, Module, Operand, Register, Space, Variable};
pub use module::parse;
