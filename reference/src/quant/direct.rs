//! Direct-P: attention weights as small floats, taken from their logarithms.
//!
//! A weight is p = 2^(x - m), x the logit in base 2 and m an integer that no logit of the row exceeds by
//! a whole: the row's maximum rounded up. So two maxima differ by a factor that is a power of two, and what a
//! weight becomes does not depend on which of them was known when it was rounded (subnormal scales aside).
//!
//! The E2M1 code of p over the scale of its group needs neither p nor a division: it is the number
//! of thresholds, logarithms of the midpoints between codes, that x passes.

use super::e8m0::ScaleRule;
use super::float::{E2M1, E4M3, Overflow, power_of_two};

/// How weights become the left operand of the second product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// E4M3, each weight on its own.
    E4m3,
    /// E2M1 in groups of 16 of one E4M3 scale, that of the group's largest weight over 6.
    Nvfp4,
    /// E2M1 in groups of 32 of one power of two.
    Mxfp4(ScaleRule),
}

/// Exponent that E4M3 weights and scales are raised by, so that small ones do not flush: the largest is
/// 2^8 of at most 448.
pub const RAISED: i32 = 8;

/// What x less the group's maximum reaches for codes 1 to 7 over the scale max / 6: log2(midpoint / 6).
///
/// The smallest f32 that rounds up: x counts when `x >= t`. -3 is a tie, 0.75, which goes to the even code 2.
pub const NVFP4_THRESHOLDS: [f32; 7] = [
    -4.584_962_4,
    -3.0,
    -2.263_034_3,
    -1.777_607_6,
    -1.263_034_3,
    -0.777_607_56,
    -0.263_034_4,
];

/// The same of x less the exponent of the stored scale: log2(midpoint).
///
/// -2 is a tie, 0.25, which goes to the even code 0: the first threshold is the next f32 after it.
pub const MXFP4_THRESHOLDS: [f32; 7] = [
    -1.999_999_9,
    -0.415_037_48,
    0.321_928_1,
    0.807_354_9,
    1.321_928_1,
    1.807_354_9,
    2.321_928_3,
];

/// The E2M1 code, 0 to 7, of a weight whose logarithm over its scale is `x`: how many thresholds it passes.
pub fn code(x: f32, thresholds: &[f32; 7]) -> u8 {
    thresholds.iter().filter(|&&t| x >= t).count() as u8
}

impl WeightFormat {
    /// Weights that share a scale.
    pub fn group(self) -> usize {
        match self {
            WeightFormat::E4m3 => 1,
            WeightFormat::Nvfp4 => 16,
            WeightFormat::Mxfp4(_) => 32,
        }
    }

    /// What encoded weights are larger by than weights, with raised scales.
    pub fn factor(self) -> f64 {
        match self {
            WeightFormat::E4m3 => power_of_two(RAISED),
            WeightFormat::Nvfp4 => 6.0 * power_of_two(RAISED),
            WeightFormat::Mxfp4(_) => 1.0,
        }
    }

    /// Exponent of the scale that a group of MXFP4 stores for a largest logit `top`.
    pub fn stored_exponent(rule: ScaleRule, top: f64) -> f64 {
        match rule {
            ScaleRule::Floor => top.floor() - 2.0,
            ScaleRule::Ceil => (top - 6f64.log2()).ceil(),
            // The largest weight is rounded to one bit of mantissa first, halves up.
            ScaleRule::RoundEven => (top + (4f64 / 3.5).log2()).floor() - 2.0,
        }
    }

    /// Encodes a group of logits in base 2 (-inf: hidden) against the row's integer maximum: the values
    /// that are multiplied, [`factor`](Self::factor) times the weights. Without `raised` scales start at
    /// 1 and are not enlarged.
    pub fn encode(self, x: &[f64], max: f64, raised: bool) -> Vec<f64> {
        let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if top == f64::NEG_INFINITY {
            return vec![0.0; x.len()];
        }
        let raise = if raised { f64::from(RAISED) } else { 0.0 };
        match self {
            WeightFormat::E4m3 => {
                let round = |x: &f64| E4M3.round((x - max + raise).exp2(), Overflow::Saturate);
                x.iter().map(round).collect()
            }
            WeightFormat::Nvfp4 => {
                let over = if raised { 1.0 } else { 6.0 };
                let scale = E4M3.round((top - max + raise).exp2() / over, Overflow::Saturate);
                let value = |x: &f64| decode(x - top, &NVFP4_THRESHOLDS) * scale;
                x.iter().map(value).collect()
            }
            WeightFormat::Mxfp4(rule) => {
                let e = Self::stored_exponent(rule, top);
                let value = |x: &f64| decode(x - e, &MXFP4_THRESHOLDS) * (e - max).exp2();
                x.iter().map(value).collect()
            }
        }
    }
}

/// The value of the code of `x`.
fn decode(x: f64, thresholds: &[f32; 7]) -> f64 {
    let passed = thresholds.iter().filter(|&&t| x >= f64::from(t)).count();
    E2M1.decode(passed as u16)
}
