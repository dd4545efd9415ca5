//! Products with packed weights on the plane tier. Weights are mma.sync's left operand, 16 columns
//! of W a strip, and rows of x its right one, so that one row of x wastes seven columns of an
//! instruction and no more. cp.async brings k-blocks a few ahead; codes are unpacked in registers.

mod copies;
mod kernel;
mod ptx;
mod shape;
mod store;
mod tier;

pub use kernel::*;
pub use shape::*;
pub use tier::*;

pub(in crate::arch) use kernel::address_of;
pub(in crate::arch) use ptx::{fence_device, ldmatrix, load_word, mma, store_word};
pub(in crate::arch) use tier::{column_zeros, lane_words};
