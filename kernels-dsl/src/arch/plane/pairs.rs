//! Arithmetic on two 16-bit floats in one register.

use cubecl::prelude::*;

use crate::arch::hopper::ptx::{pack2, val};
use crate::quant::{ScaleType, e8m0_value};

/// `(word & mask) | magic` in one instruction, which the compiler makes two of [PTX 9.7.8.7].
#[cube]
pub fn select_bits(word: u32, mask: u32, magic: u32) -> u32 {
    let o: u32;
    gpu_asm!("lop3.b32 {o}, {a}, {b}, {c}, 0xEA;", o = out(_) o, a = in(_) val::<u32>(word), b = in(_) val::<u32>(mask), c = in(_) val::<u32>(magic), options(pure, nomem));
    o
}

/// a - b in f16 [PTX 9.7.4.2].
#[cube]
pub fn sub(a: u32, b: u32) -> u32 {
    let o: u32;
    gpu_asm!("sub.rn.f16x2 {o}, {a}, {b};", o = out(_) o, a = in(_) val::<u32>(a), b = in(_) val::<u32>(b), options(pure, nomem));
    o
}

/// a * b + c in `ty`, "f16" or "bf16" [PTX 9.7.4.4].
#[cube]
pub fn fma(a: u32, b: u32, c: u32, #[comptime] ty: &'static str) -> u32 {
    let o: u32;
    gpu_asm!("fma.rn.{t}x2 {o}, {a}, {b}, {c};", o = out(_) o, a = in(_) val::<u32>(a), b = in(_) val::<u32>(b), c = in(_) val::<u32>(c), t = const ty, options(pure, nomem));
    o
}

/// `numbers`, pairs of the even and the odd column in turns, times the columns' factors, rounded once (in bf16
/// what the low part adds is rounded before, which no result shows but near ties).
#[cube]
pub fn scaled(
    numbers: Vector<u32, Const<4>>,
    factors: Vector<u32, Const<4>>,
    #[comptime] ty: &'static str,
) -> Vector<u32, Const<4>> {
    // -0 leaves a product its sign.
    let nothing = 0x8000_8000u32.runtime();
    let mut out = Vector::<u32, Const<4>>::zeroed();
    #[unroll]
    for i in 0..4usize {
        let number = numbers.extract(i);
        let below = if comptime!(ty == "f16") {
            nothing
        } else {
            fma(number, factors.extract(comptime!(2 + i % 2)), nothing, ty)
        };
        out.insert(i, fma(number, factors.extract(comptime!(i % 2)), below, ty));
    }
    out
}

/// `numbers`, pairs of the even and the odd column in turns, times the columns' scales plus their minima, two f16 each;
/// rounded once: bf16, which holds neither, through f32.
#[cube]
pub fn above_minima(
    numbers: Vector<u32, Const<4>>,
    scales: u32,
    minima: u32,
    #[comptime] ty: &'static str,
) -> Vector<u32, Const<4>> {
    let mut out = Vector::<u32, Const<4>>::zeroed();
    if comptime!(ty == "f16") {
        #[unroll]
        for i in 0..4usize {
            // The column's half twice.
            let half = comptime!(if i % 2 == 0 { 0x1010u32 } else { 0x3232 }).runtime();
            let scale = bytes(scales, scales, half);
            let minimum = bytes(minima, minima, half);
            out.insert(i, fma(numbers.extract(i), scale, minimum, ty));
        }
    } else {
        let (scales, minima) = (widen(scales), widen(minima));
        #[unroll]
        for i in 0..4usize {
            let number = numbers.extract(i);
            let scale = scales.extract(comptime!(i % 2));
            let minimum = minima.extract(comptime!(i % 2));
            let low = f32::reinterpret(number << 16u32);
            let high = f32::reinterpret(number & 0xFFFF_0000u32);
            out.insert(
                i,
                round(
                    cubecl::prelude::fma(low, scale, minimum),
                    cubecl::prelude::fma(high, scale, minimum),
                    ty,
                ),
            );
        }
    }
    out
}

/// Factors of an even and an odd column as pairs of `ty`, then what they lack of the f32: nothing in f16, which
/// holds the 11 bits of every scale.
#[cube]
pub fn column_factors(even: f32, odd: f32, #[comptime] ty: &'static str) -> Vector<u32, Const<4>> {
    let mut out = Vector::<u32, Const<4>>::zeroed();
    let high = round(even, odd, ty);
    out.insert(0usize, bytes(high, high, 0x1010u32.runtime()));
    out.insert(1usize, bytes(high, high, 0x3232u32.runtime()));
    if comptime!(ty == "bf16") {
        let low = round(
            even - f32::reinterpret(high << 16u32),
            odd - f32::reinterpret(high & 0xFFFF_0000u32),
            ty,
        );
        out.insert(2usize, bytes(low, low, 0x1010u32.runtime()));
        out.insert(3usize, bytes(low, low, 0x3232u32.runtime()));
    }
    out
}

/// Bytes of (a, b), a's first; digit i of `selector` names that of byte i [PTX 9.7.9.7 prmt].
#[cube]
pub fn bytes(a: u32, b: u32, selector: u32) -> u32 {
    let o: u32;
    gpu_asm!("prmt.b32 {o}, {a}, {b}, {s};", o = out(_) o, a = in(_) val::<u32>(a), b = in(_) val::<u32>(b), s = in(_) val::<u32>(selector), options(pure, nomem));
    o
}

/// (low, high) rounded to `ty`.
#[cube]
pub fn round(low: f32, high: f32, #[comptime] ty: &'static str) -> u32 {
    pack2(low, high, ty)
}

/// Scales of an even and an odd column in f32: two f16, or two bytes in the low half.
#[cube]
pub fn scales(pair: u32, #[comptime] ty: ScaleType) -> Vector<f32, Const<2>> {
    match comptime!(ty) {
        ScaleType::F16 => widen(pair),
        ScaleType::E4M3 => {
            // The code is an f16's but for 8 in the exponent.
            let half = bytes(pair, 0u32.runtime(), 0x1404u32.runtime());
            widen((half >> 1u32) & 0x3F80_3F80u32) * Vector::new(256.0f32)
        }
        ScaleType::E8M0 => {
            let mut out = Vector::<f32, Const<2>>::zeroed();
            out.insert(0usize, e8m0_value(pair & 0xFFu32));
            out.insert(1usize, e8m0_value((pair >> 8u32) & 0xFFu32));
            out
        }
    }
}

/// The two f16 of a register in f32.
#[cube]
pub fn widen(pair: u32) -> Vector<f32, Const<2>> {
    let o: Vector<f32, Const<2>>;
    gpu_asm!("{{ .reg .b16 l, h; mov.b32 {{l, h}}, {a}; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }} // {o}", o = out(_) o, a = in(_) val::<u32>(pair), options(pure, nomem));
    o
}
