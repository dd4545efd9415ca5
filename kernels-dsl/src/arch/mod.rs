//! Architectures: the only place that names an instruction. One folder each; today the unit
//! tier on plain FMA, which every backend can run.

pub mod fma;
