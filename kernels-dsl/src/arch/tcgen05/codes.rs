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
fn pack_e4m3(a: f32, b: f32, c: f32, d: f32) -> u32 {
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
fn e4m3_of(x: f32) -> u32 {
    let out: u32;
    gpu_asm!("{{ .reg .b16 code; cvt.rn.satfinite.e4m3x2.f32 code, 0f00000000, {x}; cvt.u32.u16 {o}, code; }}", o = out(_) out, x = in(_) val::<f32>(x), options(pure, nomem));
    out
}

/// A power of two as E8M0 code: the nearest one, should the exponential have missed it.
#[cube]
fn e8m0_of(x: f32) -> u32 {
    (u32::reinterpret(x) + comptime!(1u32 << 22)) >> 23u32
}

/// Weights as codes and scales of [`ScoreLane`].
pub struct LaneCodes;

#[cube]
impl Encode for LaneCodes {
    type Scores = LaneFragment;

    fn shift(#[comptime] c: usize) -> comptime_type!(u32) {
        4 * (c as u32 % 8)
    }
    fn code(s: &mut ScoreLane, #[comptime] _r: usize, #[comptime] c: usize, code: u32) {
        let word = comptime!(c / 8);
        if comptime!(c.is_multiple_of(8)) {
            s.codes[word] = code;
        } else {
            s.codes[word] |= code;
        }
    }
    fn scale(
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
            let halves = twice(s.codes[comptime!(first / 8 + w)]);
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

/// A row of weights, which are E4M3 values, over the upper end of its scores, and their scale factors over the lower one.
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
    let mut ones = Vector::<u32, Const<4>>::zeroed();
    #[unroll]
    for w in 0..4usize {
        ones.insert(w, comptime!(ONES).runtime());
    }
    ptx::store_row::<Const<4>>(row + ctx.scores_column(), ones, SCALE_COLUMNS);
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
