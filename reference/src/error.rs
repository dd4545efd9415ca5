//! The one error type: bad input, named with its value and its limit.

use std::fmt;

/// Why the reference refused its input.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A buffer holds another number of elements than its shape asks for.
    Length {
        /// Name of the buffer.
        tensor: &'static str,
        /// Elements it holds.
        len: usize,
        /// Elements its shape asks for.
        expected: usize,
    },
    /// An axis has another size than the rest of the problem gives it.
    Axis {
        /// Name of the tensor.
        tensor: &'static str,
        /// Name of the axis.
        axis: &'static str,
        /// Its size.
        size: usize,
        /// The size it must have.
        expected: usize,
    },
    /// An axis of a mask or bias is neither full nor 1.
    Broadcast {
        /// Name of the tensor.
        tensor: &'static str,
        /// Name of the axis.
        axis: &'static str,
        /// Its size.
        size: usize,
        /// The full size.
        full: usize,
    },
    /// The query heads do not divide evenly among the key heads.
    Heads {
        /// Query heads.
        h_q: usize,
        /// Key and value heads.
        h_kv: usize,
    },
    /// An entry of a table points past its limit.
    Index {
        /// Name of the table.
        tensor: &'static str,
        /// Position of the entry.
        position: usize,
        /// Its value.
        value: usize,
        /// The largest value allowed.
        limit: usize,
    },
    /// Two options exclude each other.
    Conflict {
        /// One.
        option: &'static str,
        /// The other.
        with: &'static str,
    },
    /// A scalar is outside its domain.
    Parameter {
        /// Name of the scalar.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What it must be.
        requirement: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Length {
                tensor,
                len,
                expected,
            } => write!(f, "{tensor}: {len} elements, its shape asks for {expected}"),
            Error::Axis {
                tensor,
                axis,
                size,
                expected,
            } => write!(f, "{tensor}: axis {axis} has size {size}, not {expected}"),
            Error::Broadcast {
                tensor,
                axis,
                size,
                full,
            } => write!(
                f,
                "{tensor}: axis {axis} has size {size}, neither {full} nor 1"
            ),
            Error::Heads { h_q, h_kv } => {
                write!(f, "q: h_q {h_q} is not a multiple of h_kv {h_kv}")
            }
            Error::Index {
                tensor,
                position,
                value,
                limit,
            } => write!(f, "{tensor}[{position}] is {value}, at most {limit}"),
            Error::Conflict { option, with } => {
                write!(f, "{option} cannot be combined with {with}")
            }
            Error::Parameter {
                name,
                value,
                requirement,
            } => write!(f, "{name} is {value}, it must be {requirement}"),
        }
    }
}

impl std::error::Error for Error {}

/// Checks that `tensor` holds `expected` elements.
pub(crate) fn check_length(tensor: &'static str, len: usize, expected: usize) -> Result<(), Error> {
    if len == expected {
        return Ok(());
    }
    Err(Error::Length {
        tensor,
        len,
        expected,
    })
}

/// Checks that every entry of a table is at most `limit`.
pub(crate) fn check_entries(
    tensor: &'static str,
    entries: impl IntoIterator<Item = usize>,
    limit: usize,
) -> Result<(), Error> {
    match entries.into_iter().enumerate().find(|&(_, v)| v > limit) {
        None => Ok(()),
        Some((position, value)) => Err(Error::Index {
            tensor,
            position,
            value,
            limit,
        }),
    }
}
