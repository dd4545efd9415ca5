//! Weights as codes: E4M3 or E2M1 over the scores that they were made of, and the scale factors beside them. PTX ISA sections
//! in brackets.

use cubecl::prelude::*;

use super::shape::SCALE_BYTES;
use super::{BlackwellCtx, LaneFragment, SCALE_COLUMNS, STAGE_ROWS, ScoreLane, ptx};
use crate::arch::hopper::ptx::{fence_async, val};
use crate::attention::{Encode, WeightFormat};

/// Four scale factors of 1, in E8M0.
const ONES: u32 = 0x7F7F_7F7F;

/// Four weights -> a word of E4M3 codes, the first in the lowest bits [9.7.9.22 cvt]. Exact: they are E4M3 values.
#[cube]
pub(in crate::arch) fn pack_e4m3(a: f32, b: f32, c: f32, d: f32) -> u32 {
    let out: u32;
    gpu_asm!("{{ .reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f32 lo, {b}, {a}; cvt.rn.satfinite.e4m3x2.f32 hi, {d}, {c}; mov.b32 {o}, {{lo, hi}}; }}", o = out(_) out, a = in(_) val::<f32>(a), b = in(_) val::<f32>(b), c = in(_) val::<f32>(c), d = in(_) val::<f32>(d), options(pure, nomem));
    out
}

/// The E4M3 value nearest to x, to f16 and back [9.7.9.22 cvt]: f16 holds them all. NaN stays NaN.
#[cube]
pub(super) fn round_e4m3(x: f32) -> f32 {
    let out: f32;
    gpu_asm!("{{ .reg .b16 code, lo, hi; .reg .b32 pair; cvt.rn.satfinite.e4m3x2.f32 code, {x}, {x}; cvt.rn.f16x2.e4m3x2 pair, code; mov.b32 {{lo, hi}}, pair; cvt.f32.f16 {o}, lo; }}", o = out(_) out, x = in(_) val::<f32>(x), options(pure, nomem));
    out
}

/// x, an E4M3 value, as its code [9.7.9.22 cvt].
#[cube]
pub(in crate::arch) fn e4m3_of(x: f32) -> u32 {
    let out: u32;
    gpu_asm!("{{ .reg .b16 code; cvt.rn.satfinite.e4m3x2.f32 code, 0f00000000, {x}; cvt.u32.u16 {o}, code; }}", o = out(_) out, x = in(_) val::<f32>(x), options(pure, nomem));
    out
}

/// A power of two as E8M0 code: the nearest one, should the exponential have missed it.
#[cube]
pub(in crate::arch) fn e8m0_of(x: f32) -> u32 {
    (u32::reinterpret(x) + comptime!(1u32 << 22)) >> 23u32
}

/// 2^32: the difference of two numbers near a threshold times this is 0 or at least 1.
const STEEP: f32 = 4_294_967_296.0;

/// E2M1 codes of columns first to first + 7, as [`weight_code`](crate::attention::weight_code()) has them, the first in the lowest bits.
///
/// Comparisons, selections and logic run at half the rate of f32 arithmetic, and a code is but a sum of steps: each is
/// a multiplication and addition that saturates to 0 or 1 (NaN to 0). Four codes are digits of an f32, exactly.
#[cube]
fn codes(x: &Array<f32>, #[comptime] first: usize, #[comptime] format: WeightFormat) -> u32 {
    let out: u32;
    let text = comptime!(codes_text(format));
    gpu_asm!("{{ // {o} {a} {b} {c} {d} {e} {f} {g} {h}\n{text} }}", o = out(_) out, a = in(_) val::<f32>(x[first]), b = in(_) val::<f32>(x[comptime!(first + 1)]), c = in(_) val::<f32>(x[comptime!(first + 2)]), d = in(_) val::<f32>(x[comptime!(first + 3)]), e = in(_) val::<f32>(x[comptime!(first + 4)]), f = in(_) val::<f32>(x[comptime!(first + 5)]), g = in(_) val::<f32>(x[comptime!(first + 6)]), h = in(_) val::<f32>(x[comptime!(first + 7)]), text = const text);
    out
}

/// Addend of a step at `threshold`: what passes is above the number below it.
fn step_addend(threshold: f32) -> f32 {
    -STEEP * threshold.next_down()
}

fn codes_text(format: WeightFormat) -> String {
    let hex = |x: f32| format!("0f{:08X}", x.to_bits());
    let steep = hex(STEEP);
    let mut text = ".reg .f32 code, step, digits<2>;\n.reg .b32 halves<2>;\n".to_owned();
    for i in 0..8 {
        for (k, threshold) in format.thresholds().into_iter().enumerate() {
            let (to, at) = (
                if k == 0 { "code" } else { "step" },
                hex(step_addend(threshold)),
            );
            text += &format!("fma.rn.sat.f32 {to}, %{}, {steep}, {at};\n", i + 1);
            if k > 0 {
                text += "add.f32 code, code, step;\n";
            }
        }
        let (half, digit) = (i / 4, i % 4);
        text += &match digit {
            0 => format!("mov.f32 digits{half}, code;\n"),
            _ => {
                let place = hex((1 << (4 * digit)) as f32);
                format!("fma.rn.f32 digits{half}, code, {place}, digits{half};\n")
            }
        };
    }
    for half in 0..2 {
        // 2^23: an integer below it is then in the lowest bits.
        text += &format!(
            "add.f32 digits{half}, digits{half}, 0f4B000000;\nmov.b32 halves{half}, digits{half};\n"
        );
    }
    text + "prmt.b32 %0, halves0, halves1, 0x5410;"
}

/// Weights as codes and scales of [`ScoreLane`].
pub struct LaneCodes;

#[cube]
impl Encode for LaneCodes {
    type Scores = LaneFragment;

    fn columns(
        _s: &ScoreLane,
        #[comptime] _block: u32,
        #[comptime] format: WeightFormat,
    ) -> comptime_type!(usize) {
        comptime!(format.group())
    }
    fn group_max(x: f32, #[comptime] _format: WeightFormat) -> f32 {
        x
    }
    fn group(
        s: &mut ScoreLane,
        #[comptime] _r: usize,
        #[comptime] first: usize,
        #[comptime] group: usize,
        scale: f32,
        #[comptime] format: WeightFormat,
    ) -> f32 {
        let code = if comptime!(format == WeightFormat::Nvfp4) {
            e4m3_of(scale)
        } else {
            e8m0_of(scale)
        };
        let at = comptime!(first / group);
        let word = comptime!(at / 4);
        if comptime!(at.is_multiple_of(4)) {
            s.scales[word] = code;
        } else {
            s.scales[word] |= code << comptime!(8 * (at as u32 % 4));
        }
        let mut pairs = 0u32;
        #[unroll]
        for w in 0..comptime!(group / 8) {
            let word = comptime!(first / 8 + w);
            let codes = codes(&s.v, comptime!(8 * word), format);
            s.codes[word] = codes;
            let halves = twice(codes);
            pairs += (halves & 0x0F0F_0F0Fu32) + ((halves >> 4u32) & 0x0F0F_0F0Fu32);
        }
        // Four bytes of at most 96: their sum fits 16 bits.
        let sums = (pairs & 0x00FF_00FFu32) + ((pairs >> 8u32) & 0x00FF_00FFu32);
        let sum = (sums & 0xFFFFu32) + (sums >> 16u32);
        f32::cast_from(sum) * (0.5f32 * scale)
    }
}

/// Twice the values of eight E2M1 codes without signs, each in its own four bits: 0, 1, 2, 3, 4, 6, 8, 12 for codes 0 to 7,
/// which is the code, and for u m l, the upper, middle and lowest bit, u l + 2 u m + 2 u m l more.
#[cube]
fn twice(codes: u32) -> u32 {
    let upper = (codes >> 2u32) & 0x1111_1111u32;
    let with_lowest = upper & codes;
    let with_middle = (upper << 1u32) & codes;
    let all = (with_lowest << 1u32) & with_middle;
    codes + with_lowest + with_middle + all
}

/// A row of weights, which are E4M3 values, over the upper end of its scores, and their scale factors, if they have any, over
/// the lower one.
#[cube]
pub(super) fn store_values(ctx: &BlackwellCtx<'_>, weights: &Array<f32>) {
    let row = ctx.lane_address();
    let to = row + ctx.probs_column();
    #[unroll]
    for chunk in 0..comptime!(ctx.shape.block / 32) {
        let mut words = Vector::<u32, Const<8>>::zeroed();
        #[unroll]
        for w in 0..8usize {
            let c = comptime!(32 * chunk as usize + 4 * w);
            let word = pack_e4m3(
                weights[c],
                weights[comptime!(c + 1)],
                weights[comptime!(c + 2)],
                weights[comptime!(c + 3)],
            );
            words.insert(w, word);
        }
        ptx::store_row::<Const<8>>(to + comptime!(8 * chunk), words, 8u32);
    }
    if comptime!(ctx.shape.scaled()) {
        let mut ones = Vector::<u32, Const<4>>::zeroed();
        #[unroll]
        for w in 0..4usize {
            ones.insert(w, comptime!(ONES).runtime());
        }
        ptx::store_row::<Const<4>>(row + ctx.scores_column(), ones, SCALE_COLUMNS);
    }
}

/// A row of E2M1 codes over the upper end of its scores. Their scale factors go to shared memory, in tiles of 128 rows by 4
/// groups [9.7.17.10.7], row r at byte 16 (r mod 32) + 4 (r / 32): tcgen05.cp reads them.
#[cube]
pub(super) fn store_codes(ctx: &BlackwellCtx<'_>, lane: &ScoreLane) {
    let shape = comptime!(ctx.shape);
    let n = comptime!(shape.block / 8);
    let size!(N) = comptime!(n as usize);
    let mut words = Vector::<u32, N>::zeroed();
    #[unroll]
    for w in 0..comptime!(n as usize) {
        words.insert(w, lane.codes[w]);
    }
    ptx::store_row::<N>(ctx.lane_address() + ctx.probs_column(), words, n);
    let row = UNIT_POS % STAGE_ROWS;
    let to = ctx.weight_scales() + row % 32u32 * 16u32 + row / 32u32 * 4u32;
    #[unroll]
    for t in 0..comptime!(shape.weight_tiles()) {
        let word = lane.scales[comptime!(t as usize)];
        ptx::store_shared(to + comptime!(t * SCALE_BYTES), word);
    }
    fence_async();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::ScaleRule;

    #[test]
    fn steps_pass_their_thresholds_and_nothing_below() {
        for format in [WeightFormat::Nvfp4, WeightFormat::Mxfp4(ScaleRule::Ceil)] {
            for threshold in format.thresholds() {
                let step = |x: f32| x.mul_add(STEEP, step_addend(threshold)).clamp(0.0, 1.0);
                let (mut below, mut above) = (threshold, threshold);
                for _ in 0..1000 {
                    assert_eq!(step(above), 1.0, "{above}");
                    below = below.next_down();
                    assert_eq!(step(below), 0.0, "{below}");
                    above = above.next_up();
                }
                for far in [f32::MIN, -100.0, -6.0] {
                    assert_eq!(step(far), 0.0);
                }
                assert_eq!(step(3.0), 1.0);
            }
        }
    }

    #[test]
    fn twice_an_e2m1_value_is_its_code_and_products_of_bits() {
        let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (code, value) in values.into_iter().enumerate() {
            let [lowest, middle, upper] = [0, 1, 2].map(|bit| code >> bit & 1);
            let more = upper * lowest + 2 * upper * middle + 2 * upper * middle * lowest;
            assert_eq!((code + more) as f64, 2.0 * value);
        }
    }
}
