//! 2^x, on two kinds of units.

use cubecl::prelude::*;

use super::codes::round_e4m3;
use crate::arch::hopper::Binary;
use crate::attention::Exponential;

/// Of so many columns one is computed by a polynomial. For every score an SM of sm_100 has 1/16 cycle of its
/// special-function units, and 1/128 cycle of its FMA units for each of about 3.5 operations of the softmax; a
/// polynomial has 10 more of the latter instead of the former. Both are busy alike for
/// (1 - p) / 16 = (3.5 + 10 p) / 128: p = 1/4. On sm_103, whose special-function units are twice as fast, p would be 1/28.
const EVERY: usize = 4;

/// 2^f for |f| <= 1/2: the minimax polynomial of degree 5 for the relative error, 1.8 * 2^-23 as
/// evaluated in f32. No less exact than `ex2.approx`, so that the log-sum-exp does not tell.
const COEFFICIENTS: [f32; 6] = [
    1.000_000_1,
    0.693_146_94,
    0.240_221_2,
    0.055_507_13,
    0.009_675_541,
    0.001_327_647_2,
];

/// 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Base 2, with every fourth column on the FMA units.
pub struct BinaryMixed;

#[cube]
impl Exponential for BinaryMixed {
    fn per_nat() -> comptime_type!(f32) {
        Binary::per_nat()
    }
    fn exp(x: f32) -> f32 {
        Binary::exp(x)
    }
    fn exp_at(x: f32, #[comptime] c: usize) -> f32 {
        if comptime!(c % EVERY == EVERY - 1) {
            exp2_polynomial(x)
        } else {
            Binary::exp(x)
        }
    }
    fn log(x: f32) -> f32 {
        Binary::log(x)
    }
    fn e4m3(x: f32) -> f32 {
        Binary::e4m3(x)
    }
}

/// Base 2, with weights rounded to E4M3 by the conversion unit.
pub struct BinaryCoded;

#[cube]
impl Exponential for BinaryCoded {
    fn per_nat() -> comptime_type!(f32) {
        Binary::per_nat()
    }
    fn exp(x: f32) -> f32 {
        Binary::exp(x)
    }
    fn exp_at(x: f32, #[comptime] _c: usize) -> f32 {
        Binary::exp(x)
    }
    fn log(x: f32) -> f32 {
        Binary::log(x)
    }
    fn e4m3(x: f32) -> f32 {
        round_e4m3(x)
    }
}

/// 2^x for x < 127, 0 below the normal range, NaN for NaN: x = n + f, 2^n as bits times a polynomial of f.
#[cube]
fn exp2_polynomial(x: f32) -> f32 {
    let shifted = x + ROUND;
    let f = x - (shifted - ROUND);
    let mut p = comptime!(COEFFICIENTS[5]).runtime();
    #[unroll]
    for k in 0..5usize {
        p = fma(p, f, comptime!(COEFFICIENTS[4 - k]).runtime());
    }
    let power = (u32::reinterpret(shifted) << 23u32) + comptime!(127u32 << 23);
    select(x < -126.0f32, 0.0f32, p * f32::reinterpret(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`exp2_polynomial`] computes, step by step.
    fn evaluated(x: f32) -> f32 {
        let shifted = x + ROUND;
        let f = x - (shifted - ROUND);
        let p = COEFFICIENTS
            .iter()
            .rev()
            .fold(0.0f32, |p, &c| p.mul_add(f, c));
        let power = (shifted.to_bits() << 23).wrapping_add(127 << 23);
        if x < -126.0 {
            0.0
        } else {
            p * f32::from_bits(power)
        }
    }

    #[test]
    fn polynomial_is_within_two_units_of_the_last_place() {
        // Weights lie in 2^-126..2^8.
        let worst = (0..1_340_000)
            .map(|i| -126.0 + i as f32 * 1e-4)
            .map(|x| (f64::from(evaluated(x)) / f64::from(x).exp2() - 1.0).abs())
            .fold(0.0, f64::max);
        assert!(worst < 2.0 * 2f64.powi(-23), "{worst:e}");
        assert_eq!(evaluated(f32::NEG_INFINITY), 0.0);
        assert!(evaluated(f32::NAN).is_nan());
    }
}
