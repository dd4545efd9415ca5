//! Instructions of the text to [`Op`]s. What is not known is an error with its line.

mod alu;
mod bulk;
mod cursor;
mod float;
mod memory;
mod op;
mod products;
mod scalar;
mod special;
mod sync;
mod tcgen;
mod tensor;
mod ty;
mod warp;

use std::collections::HashMap;

pub(crate) use alu::{Alu, Kind};
pub(crate) use op::*;
pub(crate) use tensor::*;
pub(crate) use ty::{Ty, zero_extend};

use crate::error::{Result, SimError};
use crate::parse::{Entry, Instruction, Module};
use cursor::Cursor;

/// Reason for refusing an instruction.
type Refusal = String;
/// What decoders return.
type Decoded<T = Op> = std::result::Result<T, Refusal>;

/// Addresses of names.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    /// Variables of shared memory: offset in the cube's window.
    pub(crate) shared: HashMap<String, u32>,
    /// Variables of global memory: address.
    pub(crate) global: HashMap<String, u64>,
    /// Variables of local memory: offset.
    pub(crate) local: HashMap<String, u64>,
    /// Parameters: offset.
    pub(crate) params: HashMap<String, u64>,
    /// Labels: index of the instruction.
    pub(crate) labels: HashMap<String, usize>,
}

/// Decodes the code of `entry`.
pub(crate) fn decode(module: &Module, entry: &Entry, symbols: &Symbols) -> Result<Vec<Code>> {
    entry
        .body
        .iter()
        .map(|instruction| {
            let op = one(instruction, entry, symbols).map_err(|problem| SimError::Instruction {
                line: instruction.line,
                text: module.line(instruction.line).to_owned(),
                problem,
            })?;
            Ok(Code {
                line: instruction.line,
                guard: instruction.guard,
                op,
            })
        })
        .collect()
}

fn one(instruction: &Instruction, entry: &Entry, symbols: &Symbols) -> Decoded {
    let mut c = Cursor::new(instruction, entry, symbols);
    let op = match c.opcode() {
        "cp" => bulk::copy(&mut c)?,
        "ld" | "ldu" => memory::load(&mut c)?,
        "st" => memory::store(&mut c)?,
        "atom" | "red" => memory::atomic(&mut c)?,
        "cvta" => memory::convert_address(&mut c)?,
        "mapa" => memory::map_shared(&mut c)?,
        "prefetch" | "prefetchu" | "applypriority" | "discard" => memory::hint(&mut c)?,
        "bra" => sync::branch(&mut c)?,
        "ret" | "exit" => sync::exit(&mut c)?,
        "trap" => {
            c.finish()?;
            Op::Trap
        }
        "nanosleep" | "pmevent" => sync::pause(&mut c)?,
        "bar" | "barrier" => sync::barrier(&mut c)?,
        "fence" | "membar" => sync::fence(&mut c)?,
        "griddepcontrol" => sync::grid_dependency(&mut c)?,
        "mbarrier" => sync::mbarrier(&mut c)?,
        "setmaxnreg" => sync::max_registers(&mut c)?,
        "shfl" => warp::shuffle(&mut c)?,
        "vote" => warp::vote(&mut c)?,
        "match" => warp::matching(&mut c)?,
        "redux" => warp::redux(&mut c)?,
        "activemask" => warp::active_mask(&mut c)?,
        "elect" => warp::elect(&mut c)?,
        "ldmatrix" => products::load_matrix(&mut c)?,
        "stmatrix" => products::store_matrix(&mut c)?,
        "mma" => products::mma(&mut c)?,
        "wgmma" => products::wgmma(&mut c)?,
        "tcgen05" => tcgen::tcgen05(&mut c)?,
        _ => scalar::scalar(&mut c)?,
    };
    Ok(op)
}
