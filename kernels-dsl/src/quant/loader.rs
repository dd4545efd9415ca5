//! Codes -> numbers, one implementation per format, for every kernel that multiplies with packed
//! weights.

use cubecl::prelude::*;

use super::floats::{E2m1, E4m3, Nf4};
use super::{WeightCodes, WeightTiles};
use crate::arch::plane::pairs;

/// What unpacking wants of the zero points of a lane's two columns: constants of a pair each.
#[derive(CubeType, Clone, Copy)]
pub struct ColumnZeros {
    /// For the even column.
    pub even: u32,
    /// For the odd column.
    pub odd: u32,
}

/// The unpack of a format: what a code stands for before its group's scale. Matrix units take it in
/// 16 bits, which hold it exactly but for NF4, whose numbers are rounded once.
#[cube]
pub trait Loader: Send + Sync + 'static {
    /// Constants of the zero points of a lane's even and odd column, for elements of `ty` ("f16" or
    /// "bf16").
    fn zeros(even: u32, odd: u32, #[comptime] ty: &'static str) -> ColumnZeros;
    /// The left operand of step `step`: codes `8 step ..` of the lane whose words start at
    /// `words[first]`, as pairs of `ty`: registers f % 4, halves f / 4.
    fn fragment(
        words: &Array<u32>,
        zeros: &ColumnZeros,
        #[comptime] first: usize,
        #[comptime] step: usize,
        #[comptime] bits: u32,
        #[comptime] ty: &'static str,
    ) -> Vector<u32, Const<4>>;
    /// The same for one code, by plain arithmetic.
    fn number(code: u32, zero: u32) -> f32;
}

/// [`Loader::zeros`] of the loader of `tiles`.
#[cube]
pub fn zeros_of(
    even: u32,
    odd: u32,
    #[comptime] tiles: WeightTiles,
    #[comptime] ty: &'static str,
) -> ColumnZeros {
    if comptime!(tiles.codes == WeightCodes::Int && tiles.bits == 4) {
        Int4::zeros(even, odd, ty)
    } else {
        Integers::zeros(even, odd, ty)
    }
}

/// [`Loader::fragment`] of the loader of `tiles`.
#[cube]
pub fn fragment_of(
    words: &Array<u32>,
    zeros: &ColumnZeros,
    #[comptime] first: usize,
    #[comptime] step: usize,
    #[comptime] tiles: WeightTiles,
    #[comptime] ty: &'static str,
) -> Vector<u32, Const<4>> {
    let bits = comptime!(tiles.bits);
    match comptime!(tiles.codes) {
        WeightCodes::Int => {
            if comptime!(bits == 4) {
                Int4::fragment(words, zeros, first, step, bits, ty)
            } else {
                Integers::fragment(words, zeros, first, step, bits, ty)
            }
        }
        WeightCodes::E2M1 => E2m1::fragment(words, zeros, first, step, bits, ty),
        WeightCodes::E4M3 => E4m3::fragment(words, zeros, first, step, bits, ty),
        WeightCodes::Nf4 => Nf4::fragment(words, zeros, first, step, bits, ty),
    }
}

/// [`Loader::number`] of the loader of `codes`.
#[cube]
pub fn number_of(code: u32, zero: u32, #[comptime] codes: WeightCodes) -> f32 {
    match comptime!(codes) {
        WeightCodes::Int => Integers::number(code, zero),
        WeightCodes::E2M1 => E2m1::number(code, zero),
        WeightCodes::E4M3 => E4m3::number(code, zero),
        WeightCodes::Nf4 => Nf4::number(code, zero),
    }
}

/// Integers of 4 bits, code - zero.
///
/// A nibble in the low mantissa bits of 1024 (f16) or 128 (bf16) is that number plus the code: one
/// logic operation makes a pair, one subtraction takes the constant and the zero point off. In f16
/// the nibbles one higher count sixteens, which a multiply-add brings down (Kim et al. 2022,
/// "Who says elephants can't run").
pub struct Int4;

/// Integers of 2, 3, 4 or 8 bits, code - zero, field by field.
pub struct Integers;

#[cube]
impl Loader for Int4 {
    fn zeros(even: u32, odd: u32, #[comptime] ty: &'static str) -> ColumnZeros {
        let (even, odd) = (even * 0x0001_0001u32, odd * 0x0001_0001u32);
        if comptime!(ty == "f16") {
            ColumnZeros {
                even: even | 0x6400_6400u32,
                odd: (odd << 4u32) | 0xD400_D400u32,
            }
        } else {
            ColumnZeros {
                even: even | 0xC300_C300u32,
                odd: odd | 0xC300_C300u32,
            }
        }
    }
    fn fragment(
        words: &Array<u32>,
        zeros: &ColumnZeros,
        #[comptime] first: usize,
        #[comptime] step: usize,
        #[comptime] _bits: u32,
        #[comptime] ty: &'static str,
    ) -> Vector<u32, Const<4>> {
        let word = words[comptime!(first + step)];
        let mut out = Vector::<u32, Const<4>>::zeroed();
        if comptime!(ty == "f16") {
            let high = word >> 8u32;
            #[unroll]
            for half in 0..2usize {
                let w = if comptime!(half == 0) { word } else { high };
                let magic = 0x6400_6400u32.runtime();
                let even = pairs::select_bits(w, 0x000F_000Fu32.runtime(), magic);
                let odd = pairs::select_bits(w, 0x00F0_00F0u32.runtime(), magic);
                out.insert(comptime!(2 * half), pairs::sub(even, zeros.even));
                out.insert(
                    comptime!(2 * half + 1),
                    pairs::fma(odd, 0x2C00_2C00u32.runtime(), zeros.odd, ty),
                );
            }
        } else {
            #[unroll]
            for i in 0..4usize {
                let w = word >> comptime!(4 * i as u32);
                let magic = 0x4300_4300u32.runtime();
                let pair = pairs::select_bits(w, 0x000F_000Fu32.runtime(), magic);
                let zero = if comptime!(i % 2 == 0) {
                    zeros.even
                } else {
                    zeros.odd
                };
                out.insert(i, pairs::fma(pair, 0x3F80_3F80u32.runtime(), zero, ty));
            }
        }
        out
    }
    fn number(code: u32, zero: u32) -> f32 {
        f32::cast_from(code as i32 - zero as i32)
    }
}

#[cube]
impl Loader for Integers {
    fn zeros(even: u32, odd: u32, #[comptime] _ty: &'static str) -> ColumnZeros {
        ColumnZeros { even, odd }
    }
    fn fragment(
        words: &Array<u32>,
        zeros: &ColumnZeros,
        #[comptime] first: usize,
        #[comptime] step: usize,
        #[comptime] bits: u32,
        #[comptime] ty: &'static str,
    ) -> Vector<u32, Const<4>> {
        let mut out = Vector::<u32, Const<4>>::zeroed();
        #[unroll]
        for i in 0..4usize {
            let zero = if comptime!(i % 2 == 0) {
                zeros.even
            } else {
                zeros.odd
            };
            let low = field(words, first, comptime!(8 * step + i), bits);
            let high = field(words, first, comptime!(8 * step + i + 4), bits);
            let low = Self::number(low, zero);
            let high = Self::number(high, zero);
            out.insert(i, pairs::round(low, high, ty));
        }
        out
    }
    fn number(code: u32, zero: u32) -> f32 {
        f32::cast_from(code as i32 - zero as i32)
    }
}

/// Field `i` of the stream of `bits`-bit codes that starts at `words[first]`.
#[cube]
fn field(
    words: &Array<u32>,
    #[comptime] first: usize,
    #[comptime] i: usize,
    #[comptime] bits: u32,
) -> u32 {
    let bit = comptime!(i as u32 * bits);
    let at = comptime!(first + (bit / 32) as usize);
    let shift = comptime!(bit % 32);
    let low = words[at] >> shift;
    let all = if comptime!(shift + bits > 32) {
        low | (words[comptime!(at + 1)] << comptime!(32 - shift))
    } else {
        low
    };
    all & comptime!((1u32 << bits) - 1)
}
