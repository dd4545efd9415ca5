//! Architectures: the only place that names an instruction. One folder each: the unit tier
//! on plain FMA, which every backend can run, and the Hopper tier on TMA and wgmma.

pub mod fma;
pub mod hopper;
