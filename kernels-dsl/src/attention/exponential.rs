//! The base in which scores are exponentiated.

use cubecl::prelude::*;

use crate::quant::e4m3_rounded;

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
    /// The E4M3 value nearest to x >= 0, ties to even, at most 448: what an encoded weight is.
    fn e4m3(x: f32) -> f32;
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
    fn e4m3(x: f32) -> f32 {
        e4m3_rounded(x)
    }
}

/// Base 2 as every backend offers it, exact for integers: 2^x = e^(x ln 2) of the fraction, times a power of two
/// by its bits. 0 below the normal numbers.
pub struct Dyadic;

#[cube]
impl Exponential for Dyadic {
    fn per_nat() -> comptime_type!(f32) {
        core::f32::consts::LOG2_E
    }
    fn exp(x: f32) -> f32 {
        // No clamp: NaN becomes the lower end.
        let above = x.max(-126.0f32);
        let bounded = above.min(127.0f32);
        let whole = bounded.floor();
        let part = (bounded - whole) * core::f32::consts::LN_2;
        // An exponential of 0 need not be 1 on every backend.
        let of_part = select(part == 0.0f32, 1.0f32, part.exp());
        let power = f32::reinterpret(u32::cast_from(whole as i32 + 127) << 23u32);
        select(x < -126.0f32, 0.0f32, of_part * power)
    }
    fn exp_at(x: f32, #[comptime] _c: usize) -> f32 {
        Self::exp(x)
    }
    fn log(x: f32) -> f32 {
        x.ln() * core::f32::consts::LOG2_E
    }
    fn e4m3(x: f32) -> f32 {
        e4m3_rounded(x)
    }
}
