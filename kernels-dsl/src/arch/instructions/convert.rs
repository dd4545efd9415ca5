//! Conversions between f32, f16 and codes of 4 to 16 bits: a cube of 32 units a trial, two numbers a unit.

use cubecl::prelude::*;

use super::CodeFormat;
use crate::arch::hopper::ptx::{pack2, val};

/// `%0` = the codes of f32 `%1` (lower) and `%2` [PTX 9.7.9.22 cvt].
fn encode_text(format: CodeFormat) -> String {
    let convert = |to: &str| format!("cvt.rn.satfinite.{}x2.f32 {to}, %2, %1;", format.ptx());
    match format {
        CodeFormat::E2M1 => format!(
            "{{ .reg .b8 c, z; {} mov.b32 %0, {{c, c, c, c}}; }}",
            convert("c")
        ),
        _ => format!("{{ .reg .b16 c; {} mov.b32 %0, {{c, c}}; }}", convert("c")),
    }
}

/// `%0` = the f16 of the two codes in the low bits of `%1`.
fn decode_text(format: CodeFormat) -> String {
    let convert = format!("cvt.rn.f16x2.{}x2 %0, c;", format.ptx());
    match format {
        CodeFormat::E2M1 => {
            format!("{{ .reg .b8 c, x, y, z; mov.b32 {{c, x, y, z}}, %1; {convert} }}")
        }
        _ => format!("{{ .reg .b16 c, x; mov.b32 {{c, x}}, %1; {convert} }}"),
    }
}

/// Codes of two numbers, the first lowest, in the low bits.
#[cube]
fn encode(low: f32, high: f32, #[comptime] format: CodeFormat) -> u32 {
    if comptime!(format.bits() == 16) {
        pack2(low, high, comptime!(format.ptx()))
    } else {
        let text = comptime!(encode_text(format));
        let o: u32;
        // SAFETY: sm_89 and up, of 4 bits sm_100a and its like.
        gpu_asm!("{text} // {o} {a} {b}", o = out(_) o, a = in(_) val::<f32>(low), b = in(_) val::<f32>(high), text = const text, options(pure, nomem));
        o
    }
}

/// f16 of two codes.
#[cube]
fn decode(codes: u32, #[comptime] format: CodeFormat) -> u32 {
    let text = comptime!(decode_text(format));
    let o: u32;
    // SAFETY: as of `encode`.
    gpu_asm!("{text} // {o} {a}", o = out(_) o, a = in(_) val::<u32>(codes), text = const text, options(pure, nomem));
    o
}

/// out [trials, 64] = the codes, as numbers, of `values` [trials, 64] (f32 by their bits).
#[cube(launch_unchecked)]
pub fn encode_values(values: &[u32], out: &mut [f32], #[comptime] format: CodeFormat) {
    let at = (CUBE_POS * 32usize + UNIT_POS as usize) * 2usize;
    let (low, high) = (
        f32::reinterpret(values[at]),
        f32::reinterpret(values[at + 1]),
    );
    let codes = encode(low, high, format);
    let bits = comptime!(format.bits());
    let mask = comptime!((1u32 << bits) - 1);
    out[at] = f32::cast_from(codes & mask);
    out[at + 1] = f32::cast_from((codes >> bits) & mask);
}

/// A number that stands for the bits of an f16, the same for every NaN.
#[cube]
fn bits_of(half: u32) -> f32 {
    let nan = (half & 0x7FFFu32) > 0x7C00u32;
    f32::cast_from(select(nan, 0x7FFFu32, half))
}

/// out [trials, 64] = the f16, by the numbers of their bits, of `codes` [trials, 32], two a word.
#[cube(launch_unchecked)]
pub fn decode_codes(codes: &[u32], out: &mut [f32], #[comptime] format: CodeFormat) {
    let at = CUBE_POS * 32usize + UNIT_POS as usize;
    let pair = decode(codes[at], format);
    out[2usize * at] = bits_of(pair & 0xFFFFu32);
    out[2usize * at + 1] = bits_of(pair >> 16u32);
}
