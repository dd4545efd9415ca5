//! Architectures: the only place that names an instruction. One folder each: the unit tier
//! on plain FMA, which every backend can run, the plane tier on mma.sync, and the Hopper tier on TMA
//! and wgmma.

pub mod fma;
pub mod hopper;
pub mod plane;
