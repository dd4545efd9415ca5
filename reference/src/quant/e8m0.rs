//! E8M0: a power of two in one byte, the shared scale of MX blocks.
//!
//! Code c is 2^(c - 127) for c <= 254, and 255 is NaN; there is no zero and no sign (OCP MX 1.0).

use super::float::{FloatFormat, exponent, power_of_two};

/// The NaN code.
pub const NAN: u8 = 255;

/// Which power of two stands for a value, or scales a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScaleRule {
    /// The power of two at or below: floor(log2 amax) - emax for a block (OCP MX 1.0). Values
    /// between the element's largest and the next power of two saturate.
    Floor,
    /// The power of two at or above: ceil(log2(amax / max)) for a block. Nothing saturates.
    Ceil,
    /// Rounds amax to the element's mantissa width first, ties up, then as `Floor`.
    RoundEven,
}

/// The value of a code.
pub fn decode(code: u8) -> f64 {
    match code {
        NAN => f64::NAN,
        _ => power_of_two(i32::from(code) - 127),
    }
}

/// The code of a value: of its power of two at or below (`Floor`), at or above (`Ceil`), or the
/// nearest (`RoundEven`: 1.5 rounds up). Clamps to 2^-127 (0 included) and 2^127; negative values,
/// infinities and NaN give NaN.
pub fn encode(x: f64, rule: ScaleRule) -> u8 {
    let up = match rule {
        ScaleRule::Floor => false,
        ScaleRule::Ceil => significand(x) > 1.0,
        ScaleRule::RoundEven => significand(x) >= 1.5,
    };
    code(x, i32::from(up))
}

/// The scale of a block whose largest magnitude is `amax`, for elements of the given format: the
/// code of floor(log2 amax) - emax, plus 1 where the rule asks for it. 0 gives 2^-127; infinite
/// or NaN `amax` gives NaN.
pub fn block_scale(amax: f64, element: &FloatFormat, rule: ScaleRule) -> u8 {
    let emax = element.max_exponent();
    let up = match rule {
        ScaleRule::Floor => false,
        // amax / max > 2^(floor(log2 amax) - emax), without the rounding of a division.
        ScaleRule::Ceil => significand(amax) > significand(element.max()),
        ScaleRule::RoundEven => {
            let half_unit = power_of_two(-1 - element.mantissa_bits as i32);
            significand(amax) + half_unit >= 2.0
        }
    };
    code(amax, i32::from(up) - emax)
}

/// The code of 2^(floor(log2 x) + offset).
fn code(x: f64, offset: i32) -> u8 {
    if x.is_nan() || x.is_infinite() || x < 0.0 {
        return NAN;
    }
    (exponent(x) + offset + 127).clamp(0, 254) as u8
}

/// x / 2^floor(log2 x), in [1, 2); 0 for 0.
fn significand(x: f64) -> f64 {
    if x.is_nan() || x.is_infinite() || x <= 0.0 {
        return 0.0;
    }
    // In two steps, because 2^-floor(log2 x) overflows for subnormal x.
    let half = -exponent(x) / 2;
    x * power_of_two(half) * power_of_two(-exponent(x) - half)
}
