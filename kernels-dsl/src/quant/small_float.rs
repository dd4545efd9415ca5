//! E2M1, E4M3 and E8M0 codes by integer arithmetic and exact comparisons, the same bits on every backend: no
//! conversion instruction, no division, and no product that rounds decides a code.

use cubecl::prelude::*;

use crate::attention::e4m3_value;

/// NaN among E8M0 codes.
pub(crate) const E8M0_NAN: u32 = 255;
/// 1 among them.
pub(crate) const E8M0_ONE: u32 = 127;
/// NaN among E4M3 codes.
pub(crate) const E4M3_NAN: u32 = 0x7F;
/// 448, the largest E4M3 value.
const E4M3_MAX: u32 = 0x7E;
/// Bits of the f32 infinity: those of larger magnitudes are NaN.
pub(crate) const INFINITY_BITS: u32 = 0x7F80_0000;

/// 2^e for -126 <= e <= 127.
#[cube]
pub fn power_of_two(e: i32) -> f32 {
    f32::reinterpret(u32::cast_from(e + 127) << 23u32)
}

/// Bits of |x|: ordered as magnitudes are, with NaN above all.
#[cube]
pub fn magnitude_bits(x: f32) -> u32 {
    u32::reinterpret(x) & 0x7FFF_FFFFu32
}

/// 1 or 0.
#[cube]
pub(crate) fn one_if(set: bool) -> u32 {
    select(set, 1u32, 0u32)
}

/// 8 where x is negative, -0 included: the sign of an E2M1 code.
#[cube]
fn sign_of_4(x: f32) -> u32 {
    (u32::reinterpret(x) >> 31u32) << 3u32
}

/// The value of an E2M1 code: sign, 2 bits of exponent of bias 1, 1 of mantissa.
#[cube]
pub fn e2m1_value(code: u32) -> f32 {
    let magnitude = code & 7u32;
    // By the bits of an f32, whose exponent has a bias of 127; 0 and 0.5 have none of E2M1's.
    let half = comptime!(126u32 << 23);
    let small = magnitude * half;
    let normal = (magnitude << 22u32) + half;
    let value = f32::reinterpret(select(magnitude < 2u32, small, normal));
    select(code >= 8u32, -value, value)
}

/// The E2M1 code of x / unit, to nearest even and saturating. `unit` is positive and of few bits, so that
/// its products with the midpoints are exact.
#[cube]
pub fn e2m1_code(x: f32, unit: f32) -> u32 {
    let m = x.abs();
    // Ties go to the even code: up at midpoints above odd codes.
    let code = one_if(m > 0.25f32 * unit)
        + one_if(m >= 0.75f32 * unit)
        + one_if(m > 1.25f32 * unit)
        + one_if(m >= 1.75f32 * unit)
        + one_if(m > 2.5f32 * unit)
        + one_if(m >= 3.5f32 * unit)
        + one_if(m > 5.0f32 * unit);
    code | sign_of_4(x)
}

/// The largest E4M3 code whose value is at most x >= 0.
#[cube]
fn e4m3_floor(x: f32) -> u32 {
    // Codes of normal values by their bits, with the bias of 127 brought to 7.
    let normal = (u32::reinterpret(x) >> 20u32).max(960u32) - 960u32;
    let subnormal = u32::cast_from((x * 512.0f32).min(8.0f32));
    let small = x < comptime!(1.0f32 / 64.0);
    select(small, subnormal, normal).min(E4M3_MAX)
}

/// The E4M3 value nearest to x, ties to even, for 0 <= x <= 448.
#[cube]
pub fn e4m3_rounded(x: f32) -> f32 {
    // Normal values to 3 bits of mantissa, a carry included; subnormal ones to multiples of 2^-9.
    let bits = u32::reinterpret(x);
    let normal = f32::reinterpret((bits + 0x7_FFFFu32 + ((bits >> 20u32) & 1u32)) & 0xFFF0_0000u32);
    let scaled = (x * 512.0f32).min(8.0f32);
    let whole = u32::cast_from(scaled);
    let rest = scaled - f32::cast_from(whole);
    let up = rest > 0.5f32 || (rest == 0.5f32 && whole % 2u32 == 1u32);
    let subnormal = f32::cast_from(whole + one_if(up)) * comptime!(1.0f32 / 512.0);
    select(x < comptime!(1.0f32 / 64.0), subnormal, normal)
}

/// The E4M3 code of |x|, to nearest even and saturating.
#[cube]
pub fn e4m3_code(x: f32) -> u32 {
    e4m3_nearest(x.abs(), 1.0f32, x.abs())
}

/// The E4M3 code of x / unit, x >= 0: `guess` is that quotient but for a few roundings, which pick one of
/// two neighbours of the result at the worst; the comparison with the midpoint above is exact.
#[cube]
pub fn e4m3_nearest(x: f32, #[comptime] unit: f32, guess: f32) -> u32 {
    let below = e4m3_floor(guess);
    let above = (below + 1u32).min(E4M3_MAX);
    let middle = (e4m3_value(below) + e4m3_value(above)) * comptime!(unit / 2.0);
    let odd = below % 2u32 == 1u32;
    let up = x > middle || (x == middle && odd);
    select(up, above, below)
}
