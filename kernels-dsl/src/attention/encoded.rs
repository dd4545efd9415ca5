//! Weights as small floats, taken straight from their logits: Direct-P.
//!
//! The E2M1 code of p = 2^(x - max) over the scale of its group is the number of thresholds (logarithms of
//! midpoints between codes) that x passes: no exponential, division or rounding for each weight, one
//! exponential for each group. Running maxima are integers here, so that factors between them are powers of
//! two and a code does not depend on which of them was known.

use core::marker::PhantomData;

use cubecl::prelude::*;

use super::{Exponential, LOWEST, RowState};
use crate::quant::{ScaleRule, e2m1_value, one_if};
use crate::tile::Fragment;

/// What the weights of attention are when they multiply V, and the row sum is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WeightFormat {
    /// Floats of the tier's own.
    #[default]
    Wide,
    /// E4M3, raised by 2^8.
    E4m3,
    /// E2M1 in groups of 16 keys, over the group's unrounded largest weight / 6; that scale is E4M3, raised by 6 * 2^8.
    Nvfp4,
    /// E2M1 in groups of 32 keys, over the stored power of two.
    Mxfp4(ScaleRule),
}

/// Exponent that E4M3 weights and scales are raised by, so that small ones do not flush: the largest is
/// 2^8 of at most 448.
const RAISED: f32 = 8.0;

const LOG2_6: f32 = 2.584_962_6;

/// What x less the group's maximum reaches for codes 1 to 7: log2(midpoint / 6), the smallest f32 that rounds
/// up. -3 is a tie, and goes to the even code 2.
const NVFP4_THRESHOLDS: [f32; 7] = [
    -4.584_962_4,
    -3.0,
    -2.263_034_3,
    -1.777_607_6,
    -1.263_034_3,
    -0.777_607_56,
    -0.263_034_4,
];

/// The same of x less the stored exponent: log2(midpoint). -2 is a tie, and goes to the even code 0.
const MXFP4_THRESHOLDS: [f32; 7] = [
    -1.999_999_9,
    -0.415_037_48,
    0.321_928_1,
    0.807_354_9,
    1.321_928_1,
    1.807_354_9,
    2.321_928_3,
];

impl WeightFormat {
    /// Keys whose weights share a scale.
    pub fn group(self) -> usize {
        match self {
            WeightFormat::Wide | WeightFormat::E4m3 => 1,
            WeightFormat::Nvfp4 => 16,
            WeightFormat::Mxfp4(_) => 32,
        }
    }

    /// Whether weights are encoded at all.
    pub fn encoded(self) -> bool {
        self != WeightFormat::Wide
    }

    /// log2 of what encoded weights are larger by than weights.
    pub(crate) fn raised(self) -> f32 {
        match self {
            WeightFormat::Wide | WeightFormat::Mxfp4(_) => 0.0,
            WeightFormat::E4m3 => RAISED,
            WeightFormat::Nvfp4 => RAISED + LOG2_6,
        }
    }

    /// What [`weight_code()`] compares with.
    pub(crate) fn thresholds(self) -> [f32; 7] {
        match self {
            WeightFormat::Mxfp4(_) => MXFP4_THRESHOLDS,
            _ => NVFP4_THRESHOLDS,
        }
    }

    fn rule(self) -> Option<ScaleRule> {
        match self {
            WeightFormat::Mxfp4(rule) => Some(rule),
            _ => None,
        }
    }
}

/// Where weights in E2M1 go: codes and scales to products that multiply them, the values that they stand for to all others.
#[cube]
pub trait Encode: 'static + Send + Sync {
    /// View of a block of scores, which weights replace.
    type Scores: Fragment;

    /// Columns that a unit holds of a group, in a block of `block` keys.
    fn columns(
        s: &<Self::Scores as Fragment>::Regs,
        #[comptime] block: u32,
        #[comptime] format: WeightFormat,
    ) -> comptime_type!(usize);

    /// Largest of `x` over the units that share a group.
    fn group_max(x: f32, #[comptime] format: WeightFormat) -> f32;

    /// Columns [first, first + group) of row r, which hold what [`weight_code()`] takes, weigh the values of those codes times
    /// `scale`. Returns the sum of these weights.
    fn group(
        s: &mut <Self::Scores as Fragment>::Regs,
        #[comptime] r: usize,
        #[comptime] first: usize,
        #[comptime] group: usize,
        scale: f32,
        #[comptime] format: WeightFormat,
    ) -> f32;
}

/// Weights as the values that they stand for.
pub struct AsValues<F>(PhantomData<F>);

#[cube]
impl<F: Fragment> Encode for AsValues<F> {
    type Scores = F;

    /// The units that share a row hold as many each.
    fn columns(
        s: &F::Regs,
        #[comptime] block: u32,
        #[comptime] format: WeightFormat,
    ) -> comptime_type!(usize) {
        let cols = F::cols(s);
        comptime!(cols * format.group() / block as usize)
    }
    fn group_max(x: f32, #[comptime] _format: WeightFormat) -> f32 {
        F::reduce_max(x)
    }
    fn group(
        s: &mut F::Regs,
        #[comptime] r: usize,
        #[comptime] first: usize,
        #[comptime] group: usize,
        scale: f32,
        #[comptime] format: WeightFormat,
    ) -> f32 {
        let mut sum = 0.0f32;
        #[unroll]
        for i in 0..group {
            let c = comptime!(first + i);
            let value = e2m1_value(weight_code(F::get(&*s, r, c), format));
            sum += value;
            F::set(s, r, c, value * scale);
        }
        sum * scale
    }
}

/// Logits in base 2 -> encoded weights, in place, and the row sums of this unit's part over just these. `may_hide` is set when
/// a logit of the block can be -inf.
#[cube]
pub fn encoded_weights<E: Encode, X: Exponential>(
    s: &mut <E::Scores as Fragment>::Regs,
    st: &mut RowState,
    factors: &Array<f32>,
    #[comptime] format: WeightFormat,
    #[comptime] block: u32,
    #[comptime] may_hide: bool,
) {
    let rows = E::Scores::rows(&*s);
    let cols = E::Scores::cols(&*s);
    let share = E::columns(&*s, block, format);
    let group = comptime!(if format.group() == 1 { cols } else { share });
    #[unroll]
    for r in 0..rows {
        // Rows that have seen nothing subtract 0, not -inf.
        let max = select(st.max[r] < LOWEST, 0.0f32, st.max[r]);
        let mut sum = st.sum[r] * factors[r];
        #[unroll]
        for g in 0..comptime!(cols / group) {
            let first = comptime!(g * group);
            if comptime!(format == WeightFormat::E4m3) {
                sum += encode_each::<E::Scores, X>(s, r, max, may_hide);
            } else {
                sum += encode_group::<E, X>(s, r, first, group, max, format, may_hide);
            }
        }
        st.sum[r] = sum;
    }
}

/// Row r in E4M3; returns its sum.
#[cube]
fn encode_each<F: Fragment, X: Exponential>(
    s: &mut F::Regs,
    #[comptime] r: usize,
    max: f32,
    #[comptime] may_hide: bool,
) -> f32 {
    let cols = F::cols(&*s);
    let mut sum = 0.0f32;
    #[unroll]
    for c in 0..cols {
        let x = F::get(&*s, r, c);
        let hidden = x < LOWEST;
        let seen = if comptime!(may_hide) {
            select(hidden, max, x)
        } else {
            x
        };
        let e = X::e4m3(X::exp(seen - max + RAISED));
        let p = if comptime!(may_hide) {
            select(hidden, 0.0f32, e)
        } else {
            e
        };
        sum += p;
        F::set(s, r, c, p);
    }
    sum
}

/// Columns [first, first + group) of row r in E2M1 with their scale; returns their sum.
#[cube]
fn encode_group<E: Encode, X: Exponential>(
    s: &mut <E::Scores as Fragment>::Regs,
    #[comptime] r: usize,
    #[comptime] first: usize,
    #[comptime] group: usize,
    max: f32,
    #[comptime] format: WeightFormat,
    #[comptime] may_hide: bool,
) -> f32 {
    let mut top = E::Scores::get(&*s, r, first);
    #[unroll]
    for c in 1..group {
        top = top.max(E::Scores::get(&*s, r, comptime!(first + c)));
    }
    top = E::group_max(top, format);
    if comptime!(may_hide) {
        // A group without a visible key has any scale.
        top = select(top < LOWEST, max, top);
    }
    let (zero, scale) = if comptime!(format == WeightFormat::Nvfp4) {
        (top, X::e4m3(X::exp(top - max + RAISED)))
    } else {
        let e = stored_exponent(top, format);
        (e, X::exp(e - max))
    };
    #[unroll]
    for i in 0..group {
        let c = comptime!(first + i);
        let x = E::Scores::get(&*s, r, c);
        let seen = if comptime!(may_hide) {
            select(x < LOWEST, LOWEST, x - zero)
        } else {
            x - zero
        };
        E::Scores::set(s, r, c, seen);
    }
    E::group(s, r, first, group, scale, format)
}

/// Exponent that MXFP4 stores for a group whose largest logit is `top`.
#[cube]
fn stored_exponent(top: f32, #[comptime] format: WeightFormat) -> f32 {
    let rule = comptime!(format.rule());
    if comptime!(rule == Some(ScaleRule::Floor)) {
        top.floor() - 2.0f32
    } else if comptime!(rule == Some(ScaleRule::Ceil)) {
        (top - LOG2_6).ceil()
    } else {
        // log2(4 / 3.5): a largest weight of 7/4 and more is rounded up to the next power of two.
        (top + 0.192_645_08f32).floor() - 2.0f32
    }
}

/// How many thresholds `x` passes, which is its E2M1 code: a bit at a time, since thresholds ascend. 0 for NaN.
///
/// x is a logit in base 2 less its group's largest one (NVFP4) or less the stored exponent (MXFP4).
#[cube]
pub fn weight_code(x: f32, #[comptime] format: WeightFormat) -> u32 {
    let t = comptime!(format.thresholds());
    let upper = x >= comptime!(t[3]);
    let middle = x >= select(upper, comptime!(t[5]).runtime(), comptime!(t[1]).runtime());
    let above = select(middle, comptime!(t[6]).runtime(), comptime!(t[4]).runtime());
    let below = select(middle, comptime!(t[2]).runtime(), comptime!(t[0]).runtime());
    let lowest = x >= select(upper, above, below);
    select(upper, 4u32, 0u32) + select(middle, 2u32, 0u32) + one_if(lowest)
}
