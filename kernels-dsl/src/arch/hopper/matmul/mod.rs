//! Products with packed weights on the Hopper tier: weights are wgmma's left operand in registers, 64
//! columns of W at a time, and rows of x its right one in shared memory. A thread of each of four
//! producer warps in turns brings x by TMA and codes, scales and zero points by bulk copies; two or four
//! consumer warpgroups unpack and multiply the column blocks of the tiles dealt out to them: with scales in the weights
//! a tile is unpacked while the one before is multiplied, with scaled sums one consumer multiplies while
//! the other waits or scales.

mod arrange;
mod kernel;
mod ptx;
mod shape;
mod store;
mod tier;

pub use arrange::*;
pub use kernel::*;
pub use shape::*;
pub use tier::*;
