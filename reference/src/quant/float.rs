//! Small binary floating-point formats: E4M3, E5M2, E2M1, and f16 and bf16 by the same rules.

/// What the codes with an all-ones exponent mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Specials {
    /// Mantissa 0 is infinity, the others NaN (IEEE 754).
    InfinityAndNan,
    /// Mantissa all ones is NaN, the others are ordinary numbers.
    NanOnly,
    /// All are ordinary numbers.
    None,
}

/// How a value between two neighbours is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Round {
    /// To the nearest; ties to the even code. What hardware conversions do.
    NearestEven,
    /// To the nearest; ties away from zero.
    NearestAway,
    /// To the nearest; ties toward zero (what gemlite does for E2M1).
    NearestZero,
    /// Toward zero.
    TowardZero,
    /// Toward +infinity.
    TowardPositive,
    /// Toward -infinity.
    TowardNegative,
}

/// What becomes of a value that would round past the largest finite one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// The largest finite value, for infinities too (`satfinite` in PTX).
    Saturate,
    /// Infinity, or NaN where the format has none, or the largest value where it has neither.
    Special,
}

/// A format of one sign bit, `exponent_bits` and `mantissa_bits`, with bias 2^(exponent_bits-1) - 1.
///
/// ```text
/// exponent field e > 0:  (-1)^sign * 2^(e - bias) * (1 + m / 2^mantissa_bits)
/// exponent field 0:      (-1)^sign * 2^(1 - bias) * m / 2^mantissa_bits
/// ```
///
/// ```
/// use flashcube_reference::quant::float::{E4M3, Overflow, Round};
///
/// assert_eq!(E4M3.encode(464.0, Round::NearestEven, Overflow::Special), 0x7e);
/// assert_eq!(E4M3.encode(464.1, Round::NearestEven, Overflow::Special), 0x7f);
/// assert_eq!(E4M3.decode(0x7e), 448.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FloatFormat {
    /// Width of the exponent field.
    pub exponent_bits: u32,
    /// Width of the mantissa field.
    pub mantissa_bits: u32,
    /// Meaning of the all-ones exponent.
    pub specials: Specials,
}

/// FP8 with 3 mantissa bits: largest 448, smallest 2^-9, NaN 0x7f, no infinity (OCP OFP8).
pub const E4M3: FloatFormat = FloatFormat {
    exponent_bits: 4,
    mantissa_bits: 3,
    specials: Specials::NanOnly,
};

/// FP8 with 2 mantissa bits: largest 57344, smallest 2^-16, infinity 0x7c (OCP OFP8).
pub const E5M2: FloatFormat = FloatFormat {
    exponent_bits: 5,
    mantissa_bits: 2,
    specials: Specials::InfinityAndNan,
};

/// FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, nothing else (OCP MX).
pub const E2M1: FloatFormat = FloatFormat {
    exponent_bits: 2,
    mantissa_bits: 1,
    specials: Specials::None,
};

/// IEEE 754 binary16.
pub const F16: FloatFormat = FloatFormat {
    exponent_bits: 5,
    mantissa_bits: 10,
    specials: Specials::InfinityAndNan,
};

/// bfloat16.
pub const BF16: FloatFormat = FloatFormat {
    exponent_bits: 8,
    mantissa_bits: 7,
    specials: Specials::InfinityAndNan,
};

impl FloatFormat {
    /// The value of a code; bits above the sign are ignored. A NaN keeps its sign.
    pub fn decode(&self, code: u16) -> f64 {
        let code = u32::from(code) & (2 * self.sign_bit() - 1);
        let (negative, magnitude) = (code & self.sign_bit() != 0, code & (self.sign_bit() - 1));
        let value = if magnitude > self.max_code() {
            if magnitude == self.infinity_code() {
                f64::INFINITY
            } else {
                f64::NAN
            }
        } else {
            let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
            let exponent = magnitude >> self.mantissa_bits;
            let implicit = u32::from(exponent > 0) << self.mantissa_bits;
            let unit = self.min_exponent() + exponent.max(1) as i32 - 1 - self.mantissa_bits as i32;
            f64::from(implicit + mantissa) * power_of_two(unit)
        };
        if negative { -value } else { value }
    }

    /// The code of a value. NaN becomes the all-ones code of its sign; in a format without NaN
    /// it becomes the largest positive value, as the PTX conversion to E2M1 has it.
    pub fn encode(&self, x: f64, round: Round, overflow: Overflow) -> u16 {
        let negative = x.is_sign_negative();
        let magnitude = match self.specials {
            Specials::None if x.is_nan() => return self.max_code() as u16,
            _ if x.is_nan() => self.sign_bit() - 1,
            _ => self.encode_magnitude(x.abs(), negative, round, overflow),
        };
        let sign = if negative { self.sign_bit() } else { 0 };
        (sign | magnitude) as u16
    }

    /// The nearest value of the format, ties to even.
    pub fn round(&self, x: f64, overflow: Overflow) -> f64 {
        self.decode(self.encode(x, Round::NearestEven, overflow))
    }

    /// The largest finite value.
    pub fn max(&self) -> f64 {
        self.decode(self.max_code() as u16)
    }

    /// floor(log2) of the largest finite value.
    pub fn max_exponent(&self) -> i32 {
        exponent(self.max())
    }

    /// Within one binade the codes count the multiples of its unit 2^(e - mantissa_bits), and the
    /// next binade goes on counting: code = multiple + (e - min_exponent) * 2^mantissa_bits, where
    /// a multiple that was rounded up to the next power of two carries by itself.
    fn encode_magnitude(&self, x: f64, negative: bool, round: Round, overflow: Overflow) -> u32 {
        let beyond = match (overflow, self.specials) {
            (Overflow::Saturate, _) | (_, Specials::None) => self.max_code(),
            (_, Specials::NanOnly) => self.sign_bit() - 1,
            (_, Specials::InfinityAndNan) => self.infinity_code(),
        };
        if x.is_infinite() {
            return beyond;
        }
        let binade = exponent(x).max(self.min_exponent());
        let multiple = x / power_of_two(binade - self.mantissa_bits as i32);
        let away = match round {
            Round::TowardPositive => !negative,
            Round::TowardNegative => negative,
            _ => false,
        };
        let rounded = match round {
            Round::NearestEven => multiple.round_ties_even(),
            Round::NearestAway => multiple.round(),
            Round::NearestZero => (multiple - 0.5).ceil(),
            _ if away => multiple.ceil(),
            _ => multiple.floor(),
        };
        let binades = (binade - self.min_exponent()) as u32;
        let code = rounded as u32 + (binades << self.mantissa_bits);
        if code <= self.max_code() {
            return code;
        }
        let nearest = matches!(
            round,
            Round::NearestEven | Round::NearestAway | Round::NearestZero
        );
        if nearest || away {
            beyond
        } else {
            self.max_code()
        }
    }

    fn sign_bit(&self) -> u32 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    fn min_exponent(&self) -> i32 {
        2 - (1 << (self.exponent_bits - 1))
    }

    fn infinity_code(&self) -> u32 {
        match self.specials {
            Specials::InfinityAndNan => ((1 << self.exponent_bits) - 1) << self.mantissa_bits,
            // Past every code: no such value.
            Specials::NanOnly | Specials::None => u32::MAX,
        }
    }

    /// The code of the largest finite value.
    fn max_code(&self) -> u32 {
        match self.specials {
            Specials::InfinityAndNan => self.infinity_code() - 1,
            Specials::NanOnly => self.sign_bit() - 2,
            Specials::None => self.sign_bit() - 1,
        }
    }
}

/// x rounded once to f32, ties to even.
pub fn round_f32(x: f64) -> f64 {
    f64::from(x as f32)
}

/// x rounded once to f16, ties to even, overflowing to infinity.
pub fn round_f16(x: f64) -> f64 {
    F16.round(x, Overflow::Special)
}

/// x rounded once to bf16, ties to even, overflowing to infinity.
pub fn round_bf16(x: f64) -> f64 {
    BF16.round(x, Overflow::Special)
}

/// x rounded once to E4M3, ties to even, saturating.
pub fn round_e4m3(x: f64) -> f64 {
    E4M3.round(x, Overflow::Saturate)
}

/// x rounded once to E5M2, ties to even, saturating.
pub fn round_e5m2(x: f64) -> f64 {
    E5M2.round(x, Overflow::Saturate)
}

/// x rounded once to E2M1, ties to even, saturating.
pub fn round_e2m1(x: f64) -> f64 {
    E2M1.round(x, Overflow::Saturate)
}

/// 2^e for normal results, -1022 <= e <= 1023.
pub(super) fn power_of_two(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// floor(log2 x) of a finite x > 0, exact (log2 itself rounds up just below a power of two);
/// far below every exponent for 0.
pub(super) fn exponent(x: f64) -> i32 {
    match (x.to_bits() >> 52 & 0x7ff) as i32 {
        0 if x == 0.0 => i32::MIN / 2,
        // Subnormal in f64.
        0 => exponent(x * power_of_two(64)) - 64,
        biased => biased - 1023,
    }
}
