//! Architectures: the only place that names an instruction. One folder each: the unit tier
//! on plain FMA, which every backend can run, the plane tier on mma.sync, the Hopper tier on TMA and
//! wgmma, and the Blackwell tier on TMA and tcgen05. `instructions` runs what they build on alone.

pub mod fma;
pub mod hopper;
pub mod instructions;
pub mod plane;
pub mod tcgen05;
