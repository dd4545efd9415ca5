//! Float formats: exact values of their bits, and bits of exact values under every rounding.

/// A binary float format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 11 exponent bits, 52 of fraction.
    F64,
    /// 8, 23.
    F32,
    /// 8, 10: an f32 whose low 13 bits a matrix unit does not look at.
    Tf32,
    /// 8, 7.
    Bf16,
    /// 5, 10.
    F16,
    /// 5, 2, with infinities.
    E5m2,
    /// 4, 3, without infinities, one NaN pattern per sign.
    E4m3,
    /// 3, 2, finite only.
    E3m2,
    /// 2, 3, finite only.
    E2m3,
    /// 2, 1, finite only.
    E2m1,
    /// Unsigned powers of two, 0xff is NaN.
    Ue8m0,
    /// E4M3 without a sign (scale factors).
    Ue4m3,
}

/// How a value between two neighbours is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// To the nearest, ties to even.
    Nearest,
    /// To the nearest, ties away from zero.
    NearestAway,
    /// Towards zero.
    Zero,
    /// Towards negative infinity.
    Down,
    /// Towards positive infinity.
    Up,
}

impl Format {
    /// The format that a type modifier names.
    pub(crate) fn parse(word: &str) -> Option<Format> {
        Some(match word {
            "f64" => Format::F64,
            "f32" => Format::F32,
            "tf32" => Format::Tf32,
            "bf16" => Format::Bf16,
            "f16" => Format::F16,
            "e5m2" => Format::E5m2,
            "e4m3" => Format::E4m3,
            "e3m2" => Format::E3m2,
            "e2m3" => Format::E2m3,
            "e2m1" => Format::E2m1,
            "ue8m0" => Format::Ue8m0,
            "ue4m3" => Format::Ue4m3,
            _ => return None,
        })
    }
    /// (exponent bits, fraction bits).
    fn shape(self) -> (u32, u32) {
        match self {
            Format::F64 => (11, 52),
            Format::F32 => (8, 23),
            Format::Tf32 => (8, 10),
            Format::Bf16 => (8, 7),
            Format::F16 => (5, 10),
            Format::E5m2 => (5, 2),
            Format::E4m3 | Format::Ue4m3 => (4, 3),
            Format::E3m2 => (3, 2),
            Format::E2m3 => (2, 3),
            Format::E2m1 => (2, 1),
            Format::Ue8m0 => (8, 0),
        }
    }
    /// Bits that a value takes.
    pub fn bits(self) -> u32 {
        match self {
            Format::Tf32 => 32,
            Format::Ue8m0 => 8,
            Format::Ue4m3 => 8,
            _ => {
                let (e, m) = self.shape();
                1 + e + m
            }
        }
    }
    fn infinite(self) -> bool {
        matches!(
            self,
            Format::F64 | Format::F32 | Format::Tf32 | Format::Bf16 | Format::F16 | Format::E5m2
        )
    }
    /// Bits of NaN, None where the format has none.
    fn nan(self) -> Option<u64> {
        Some(match self {
            Format::F64 => 0x7fff_ffff_ffff_ffff,
            Format::F32 | Format::Tf32 => 0x7fff_ffff,
            Format::Bf16 | Format::F16 => 0x7fff,
            Format::E5m2 | Format::E4m3 | Format::Ue4m3 => 0x7f,
            Format::Ue8m0 => 0xff,
            Format::E3m2 | Format::E2m3 | Format::E2m1 => return None,
        })
    }
    /// Bits of the largest finite value.
    fn max_finite(self) -> u64 {
        let (e, m) = self.shape();
        match self {
            Format::Tf32 => 0x7f7f_e000,
            Format::Ue8m0 => 0xfe,
            Format::E4m3 | Format::Ue4m3 => 0x7e,
            _ if self.infinite() => (((1u64 << e) - 1) << m) - 1,
            _ => (1 << (e + m)) - 1,
        }
    }

    /// The value of `bits`.
    pub fn decode(self, bits: u64) -> f64 {
        match self {
            Format::F64 => return f64::from_bits(bits),
            Format::F32 => return f64::from(f32::from_bits(bits as u32)),
            Format::Bf16 => return f64::from(f32::from_bits((bits as u32) << 16)),
            Format::Tf32 => return f64::from(f32::from_bits(bits as u32 & 0xffff_e000)),
            Format::Ue8m0 => {
                return if bits & 0xff == 0xff {
                    f64::NAN
                } else {
                    power_of_two((bits & 0xff) as i32 - 127)
                };
            }
            _ => {}
        }
        let (e, m) = self.shape();
        let fraction = bits & ((1 << m) - 1);
        let exponent = bits >> m & ((1 << e) - 1);
        let negative = self != Format::Ue4m3 && bits >> (e + m) & 1 == 1;
        let magnitude = bits & ((1 << (e + m)) - 1);
        let top = (1 << e) - 1;
        let value = if self.infinite() && exponent == top {
            if fraction == 0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        } else if Some(magnitude) == self.nan() {
            f64::NAN
        } else {
            let bias = (1 << (e - 1)) - 1;
            let (significand, power) = if exponent == 0 {
                (fraction, 1 - bias - m as i32)
            } else {
                (fraction | 1 << m, exponent as i32 - bias - m as i32)
            };
            significand as f64 * power_of_two(power)
        };
        if negative { -value } else { value }
    }

    /// Bits of the exact value `value + residual`, where `residual` is smaller than half a unit in the last place of
    /// `value` and only its sign counts. With `saturate` what is too large becomes the largest finite value.
    pub fn encode(self, value: f64, residual: f64, rounding: Rounding, saturate: bool) -> u64 {
        if self == Format::F64 {
            return value.to_bits();
        }
        if self == Format::F32 && rounding == Rounding::Nearest && residual == 0.0 && !saturate {
            let narrow = value as f32;
            return if narrow.is_nan() {
                0x7fff_ffff
            } else {
                u64::from(narrow.to_bits())
            };
        }
        let (e, m) = self.shape();
        if value.is_nan() {
            return self.nan().unwrap_or(self.max_finite());
        }
        let sign = if value.is_sign_negative() { 1u64 } else { 0 };
        let magnitude = self.magnitude(value.abs(), residual * value.signum(), sign, rounding);
        let bits = match magnitude {
            Some(bits) if bits <= self.max_finite() => bits,
            _ if saturate || !self.infinite() && self.nan().is_none() => self.max_finite(),
            _ if self.infinite() => {
                let away = match rounding {
                    Rounding::Zero => false,
                    Rounding::Down => sign == 1,
                    Rounding::Up => sign == 0,
                    _ => true,
                };
                if value.is_infinite() || away {
                    let unit = if self == Format::Tf32 { 23 } else { m };
                    ((1 << e) - 1) << unit
                } else {
                    self.max_finite()
                }
            }
            _ => self.nan().unwrap_or(self.max_finite()),
        };
        match self {
            Format::Ue8m0 | Format::Ue4m3 => bits,
            Format::Tf32 => bits | sign << 31,
            _ => bits | sign << (e + m),
        }
    }

    /// Bits of a magnitude without its sign; None above everything.
    fn magnitude(self, value: f64, residual: f64, sign: u64, rounding: Rounding) -> Option<u64> {
        let (e, m) = self.shape();
        if value.is_infinite() {
            return None;
        }
        let bias = (1i32 << (e - 1)) - 1;
        // Ue8m0 has no zero and no subnormals.
        let lowest = if self == Format::Ue8m0 {
            -127
        } else {
            1 - bias
        };
        let mut exponent = exponent_of(value).max(lowest);
        let unit = exponent - m as i32;
        let scaled = value * power_of_two(-unit / 2) * power_of_two(-unit - (-unit / 2));
        let mut whole = scaled.floor();
        let rest = scaled - whole;
        let mut below = rest;
        if residual < 0.0 && rest == 0.0 && whole > 0.0 {
            // The exact value lies just under a representable one.
            let hidden = f64::from(1u32 << m);
            if whole == hidden && exponent > lowest {
                // A power of two: below it the units are half as large.
                exponent -= 1;
                whole = 2.0 * hidden;
            }
            whole -= 1.0;
            below = 1.0;
        }
        let inexact = below > 0.0 || residual != 0.0;
        let half = if below == 1.0 {
            std::cmp::Ordering::Greater
        } else {
            below.total_cmp(&0.5).then(
                residual
                    .partial_cmp(&0.0)
                    .unwrap_or(std::cmp::Ordering::Equal),
            )
        };
        let odd = whole % 2.0 == 1.0;
        let up = match rounding {
            Rounding::Nearest => half.is_gt() || half.is_eq() && odd,
            Rounding::NearestAway => half.is_ge(),
            Rounding::Zero => false,
            Rounding::Down => inexact && sign == 1,
            Rounding::Up => inexact && sign == 0,
        };
        let count = whole as u64 + u64::from(up);
        if self == Format::Ue8m0 {
            let power = exponent + i32::from(count > 1);
            return Some((power + 127).max(0) as u64);
        }
        let hidden = 1u64 << m;
        // A carry out of the significand moves to the next exponent by plain addition.
        let biased = (exponent - lowest) as u64;
        let bits = if count < hidden {
            count
        } else {
            (biased << m) + count
        };
        Some(if self == Format::Tf32 {
            bits << 13
        } else {
            bits
        })
    }
}

/// 2^power, exact over all of f64's range, 0 below it.
pub(crate) fn power_of_two(power: i32) -> f64 {
    if power < -1074 {
        0.0
    } else if power < -1022 {
        f64::from_bits(1 << (power + 1074))
    } else if power > 1023 {
        f64::INFINITY
    } else {
        f64::from_bits(((power + 1023) as u64) << 52)
    }
}

/// Exponent of the leading bit; that of the smallest number for 0.
fn exponent_of(value: f64) -> i32 {
    let bits = value.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32;
    if exponent > 0 {
        exponent - 1023
    } else if bits == 0 {
        -1074
    } else {
        -1011 - (bits.leading_zeros() as i32)
    }
}

/// a + b as the rounded sum and the exact error of it.
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    if !sum.is_finite() {
        return (sum, 0.0);
    }
    let b_part = sum - a;
    (sum, (a - (sum - b_part)) + (b - b_part))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: [Format; 9] = [
        Format::F16,
        Format::Bf16,
        Format::E5m2,
        Format::E4m3,
        Format::E3m2,
        Format::E2m3,
        Format::E2m1,
        Format::Ue8m0,
        Format::Ue4m3,
    ];

    #[test]
    fn every_value_survives_a_round_trip_under_every_rounding() {
        for format in SMALL {
            for bits in 0..1u64 << format.bits().min(16) {
                let value = format.decode(bits);
                if value.is_nan() || format == Format::Ue4m3 && bits > 0x7f {
                    continue;
                }
                for rounding in [
                    Rounding::Nearest,
                    Rounding::NearestAway,
                    Rounding::Zero,
                    Rounding::Down,
                    Rounding::Up,
                ] {
                    let back = format.encode(value, 0.0, rounding, false);
                    assert_eq!(back, bits, "{format:?} {bits:#x} {rounding:?}");
                }
            }
        }
    }

    #[test]
    fn midpoints_go_to_even_and_directed_roundings_bracket() {
        for format in SMALL.into_iter().filter(|&f| f != Format::Ue8m0) {
            let top = format.max_finite();
            for bits in 0..top {
                let (low, high) = (format.decode(bits), format.decode(bits + 1));
                let middle = (low + high) / 2.0;
                let at = |residual, rounding| format.encode(middle, residual, rounding, false);
                assert_eq!(at(0.0, Rounding::Nearest), bits + (bits & 1));
                assert_eq!(at(0.0, Rounding::NearestAway), bits + 1);
                assert_eq!(at(1e-30, Rounding::Nearest), bits + 1);
                assert_eq!(at(-1e-30, Rounding::Nearest), bits);
                assert_eq!(at(0.0, Rounding::Zero), bits);
                assert_eq!(at(0.0, Rounding::Up), bits + 1);
                assert_eq!(format.encode(high, -1e-30, Rounding::Down, false), bits);
            }
        }
    }

    #[test]
    fn overflow_saturates_or_becomes_what_the_format_has() {
        let big = 1e30;
        assert_eq!(Format::E4m3.encode(big, 0.0, Rounding::Nearest, true), 0x7e);
        assert_eq!(
            Format::E4m3.encode(-big, 0.0, Rounding::Nearest, false),
            0xff
        );
        assert_eq!(
            Format::E5m2.encode(big, 0.0, Rounding::Nearest, false),
            0x7c
        );
        assert_eq!(Format::E2m1.encode(-big, 0.0, Rounding::Nearest, true), 0xf);
        assert_eq!(
            Format::F16.encode(65520.0, 0.0, Rounding::Nearest, false),
            0x7c00
        );
        assert_eq!(
            Format::F16.encode(65519.0, 0.0, Rounding::Nearest, false),
            0x7bff
        );
        assert_eq!(
            Format::F32.encode(1e300, 0.0, Rounding::Zero, false),
            0x7f7f_ffff
        );
    }

    #[test]
    fn f32_agrees_with_the_hardware_conversion() {
        let mut state = 1u64;
        for _ in 0..100_000 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let value = f64::from_bits(state);
            if value.is_nan() {
                continue;
            }
            let direct = u64::from((value as f32).to_bits());
            let slow = Format::F32.encode(value, 0.0, Rounding::Nearest, false);
            assert_eq!(slow, direct);
            // The general path, reached through a residual that changes nothing.
            if value.abs() < 1e38 && value.abs() > 1e-40 {
                let down =
                    f32::from_bits(Format::F32.encode(value, 0.0, Rounding::Down, false) as u32);
                let up = f32::from_bits(Format::F32.encode(value, 0.0, Rounding::Up, false) as u32);
                assert!(f64::from(down) <= value && value <= f64::from(up));
                assert!(up == down || up == down.next_up());
            }
        }
    }
}
