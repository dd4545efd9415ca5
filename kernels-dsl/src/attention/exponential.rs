//! The base in which scores are exponentiated.

use cubecl::prelude::*;

/// exp and log in one base, and the factor that brings natural logits into it.
///
/// `exp(x * PER_NAT)` in this base is e^x. Keeping logits in the hardware's own base saves a
/// multiplication per score; keeping maximum, rescale factor and log-sum-exp in the same base
/// makes them agree exactly.
#[cube]
pub trait Exponential: 'static + Send + Sync {
    /// log_base(e).
    fn per_nat() -> comptime_type!(f32);
    /// base^x.
    fn exp(x: f32) -> f32;
    /// base^x of column `c` of a unit's row: some columns may leave the special-function unit to the others.
    fn exp_at(x: f32, #[comptime] c: usize) -> f32;
    /// log_base(x).
    fn log(x: f32) -> f32;
}

/// Base e, as every backend offers it.
pub struct Natural;

#[cube]
impl Exponential for Natural {
    fn per_nat() -> comptime_type!(f32) {
        1.0f32
    }
    fn exp(x: f32) -> f32 {
        x.exp()
    }
    fn exp_at(x: f32, #[comptime] _c: usize) -> f32 {
        x.exp()
    }
    fn log(x: f32) -> f32 {
        x.ln()
    }
}
