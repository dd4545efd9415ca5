//! Loaders of weights whose codes are small floats or name entries of a table.
//!
//! A float's sign goes to the 16-bit float's, its other bits to the low end of the exponent and what
//! follows it; one multiplication by a power of two puts the exponent right, subnormal codes
//! included, which are subnormal before it. All of that is exact.

use cubecl::prelude::*;

use super::{ColumnZeros, Loader};
use crate::arch::plane::pairs;
use crate::attention::e4m3_value;

/// FP4 codes.
pub struct E2m1;
/// FP8 codes.
pub struct E4m3;
/// Codes of NormalFloat.
pub struct Nf4;

/// -0 twice, in f16 and bf16 alike: what added to a product keeps the sign of a zero.
const MINUS_ZEROS: u32 = 0x8000_8000;

/// No format of this file has zero points.
#[cube]
fn none() -> ColumnZeros {
    ColumnZeros {
        even: 0u32.runtime(),
        odd: 0u32.runtime(),
    }
}

#[cube]
impl Loader for E2m1 {
    fn zeros(_even: u32, _odd: u32, #[comptime] _ty: &'static str) -> ColumnZeros {
        none()
    }
    fn fragment(
        words: &Array<u32>,
        _zeros: &ColumnZeros,
        #[comptime] first: usize,
        #[comptime] step: usize,
        #[comptime] _bits: u32,
        #[comptime] ty: &'static str,
    ) -> Vector<u32, Const<4>> {
        // Right shift from the top of a half, mask there, 2^(bias of ty - 1) twice.
        let (down, mask, factor) = comptime!(match ty {
            "f16" => (3, 0x0E00_0E00u32, 0x7400_7400u32),
            _ => (6, 0x01C0_01C0u32, 0x7E80_7E80u32),
        });
        let word = words[comptime!(first + step)];
        let mut out = Vector::<u32, Const<4>>::zeroed();
        #[unroll]
        for i in 0..4usize {
            // Code i of a half to its top.
            let top = shifted(word, comptime!(12 - 4 * i as i32));
            let magnitude = shifted(word, comptime!(12 - 4 * i as i32 - down)) & mask;
            let pair = pairs::select_bits(top, MINUS_ZEROS.runtime(), magnitude);
            out.insert(
                i,
                pairs::fma(pair, factor.runtime(), MINUS_ZEROS.runtime(), ty),
            );
        }
        out
    }
    fn number(code: u32, _zero: u32) -> f32 {
        let magnitude = code & 7u32;
        let normal = f32::reinterpret((magnitude << 22u32) + comptime!(126u32 << 23));
        let subnormal = f32::cast_from(magnitude) * 0.5f32;
        let value = select(magnitude < 2u32, subnormal, normal);
        select(code >= 8u32, -value, value)
    }
}

/// `word << by`, to the right where `by` is negative.
#[cube]
fn shifted(word: u32, #[comptime] by: i32) -> u32 {
    if comptime!(by < 0) {
        word >> comptime!(by.unsigned_abs())
    } else {
        word << comptime!(by.unsigned_abs())
    }
}

#[cube]
impl Loader for E4m3 {
    fn zeros(_even: u32, _odd: u32, #[comptime] _ty: &'static str) -> ColumnZeros {
        none()
    }
    fn fragment(
        words: &Array<u32>,
        _zeros: &ColumnZeros,
        #[comptime] first: usize,
        #[comptime] step: usize,
        #[comptime] _bits: u32,
        #[comptime] ty: &'static str,
    ) -> Vector<u32, Const<4>> {
        // As above; 2^(bias of ty - 7).
        let (down, mask, factor) = comptime!(match ty {
            "f16" => (1, 0x3F80_3F80u32, 0x5C00_5C00u32),
            _ => (4, 0x07F0_07F0u32, 0x7B80_7B80u32),
        });
        let low = words[comptime!(first + 2 * step)];
        let high = words[comptime!(first + 2 * step + 1)];
        let mut out = Vector::<u32, Const<4>>::zeroed();
        #[unroll]
        for i in 0..4usize {
            // Byte i of either word, twice in its half.
            let bytes = comptime!(0x4400 + 0x1111 * i as u32);
            let top = pairs::bytes(low, high, bytes.runtime());
            let magnitude = shifted(top, comptime!(-down)) & mask;
            let pair = pairs::select_bits(top, MINUS_ZEROS.runtime(), magnitude);
            out.insert(
                i,
                pairs::fma(pair, factor.runtime(), MINUS_ZEROS.runtime(), ty),
            );
        }
        out
    }
    fn number(code: u32, _zero: u32) -> f32 {
        e4m3_value(code)
    }
}

/// NormalFloat's numbers [bitsandbytes, `create_normal_map`]: quantiles of the normal distribution,
/// the largest 1, with 0 among them.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Byte `byte` of entries `4 quad ..` of the table in `ty`.
fn table_word(ty: &str, byte: usize, quad: usize) -> u32 {
    let entry = |x: f32| match ty {
        "f16" => half::f16::from_f32(x).to_le_bytes(),
        _ => half::bf16::from_f32(x).to_le_bytes(),
    };
    let bytes = |i: usize| entry(NF4[4 * quad + i])[byte];
    u32::from_le_bytes([bytes(0), bytes(1), bytes(2), bytes(3)])
}

/// Byte `byte` of the table's entries for the four codes in the low half of `codes`.
#[cube]
fn look_up(codes: u32, #[comptime] byte: usize, #[comptime] ty: &'static str) -> u32 {
    // A byte permutation looks up eight entries; the code's last bit says which eight.
    let within = codes & 0x7777u32;
    let lower = pairs::bytes(
        comptime!(table_word(ty, byte, 0)).runtime(),
        comptime!(table_word(ty, byte, 1)).runtime(),
        within,
    );
    let upper = pairs::bytes(
        comptime!(table_word(ty, byte, 2)).runtime(),
        comptime!(table_word(ty, byte, 3)).runtime(),
        within,
    );
    pairs::bytes(lower, upper, ((codes >> 1u32) & 0x4444u32) | 0x3210u32)
}

#[cube]
impl Loader for Nf4 {
    fn zeros(_even: u32, _odd: u32, #[comptime] _ty: &'static str) -> ColumnZeros {
        none()
    }
    fn fragment(
        words: &Array<u32>,
        _zeros: &ColumnZeros,
        #[comptime] first: usize,
        #[comptime] step: usize,
        #[comptime] _bits: u32,
        #[comptime] ty: &'static str,
    ) -> Vector<u32, Const<4>> {
        let word = words[comptime!(first + step)];
        let upper = word >> 16u32;
        let (low, high) = (look_up(word, 0usize, ty), look_up(word, 1usize, ty));
        let (upper_low, upper_high) = (look_up(upper, 0usize, ty), look_up(upper, 1usize, ty));
        let mut out = Vector::<u32, Const<4>>::zeroed();
        #[unroll]
        for pair in 0..2usize {
            // Entries 2 pair and 2 pair + 1, whole, of codes 0 to 3 and of codes 4 to 7.
            let bytes = comptime!(0x5140 + 0x2222 * pair as u32).runtime();
            let lower = pairs::bytes(low, high, bytes);
            let upper = pairs::bytes(upper_low, upper_high, bytes);
            out.insert(
                comptime!(2 * pair),
                pairs::bytes(lower, upper, 0x5410u32.runtime()),
            );
            out.insert(
                comptime!(2 * pair + 1),
                pairs::bytes(lower, upper, 0x7632u32.runtime()),
            );
        }
        out
    }
    fn number(code: u32, _zero: u32) -> f32 {
        let mut value = comptime!(NF4[0]).runtime();
        #[unroll]
        for i in 1..16u32 {
            value = select(code == i, comptime!(NF4[i as usize]).runtime(), value);
        }
        value
    }
}
