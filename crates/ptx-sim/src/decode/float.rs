//! Float arithmetic and conversions.

use super::alu::{Alu, Kind};
use super::ty::{Ty, sign_extend, zero_extend};
use crate::number::{Format, Rounding, two_sum};

fn flush(value: f32, ftz: bool) -> f32 {
    if ftz && value.is_subnormal() {
        0.0f32.copysign(value)
    } else {
        value
    }
}

/// NaN results have this one pattern.
const NAN: u32 = 0x7fff_ffff;

fn bits32(value: f32) -> u64 {
    u64::from(if value.is_nan() { NAN } else { value.to_bits() })
}

pub(super) fn f32_op(alu: &Alu, s: [u64; 4]) -> u64 {
    let read = |i: usize| flush(f32::from_bits(s[i] as u32), alu.ftz);
    let (a, b, c) = (read(0), read(1), read(2));
    let rounding = alu.rounding.unwrap_or(Rounding::Nearest);
    let nearest = rounding == Rounding::Nearest;
    let directed = |value: f64, residual: f64| {
        let bits = Format::F32.encode(value, residual, rounding, false);
        f32::from_bits(bits as u32)
    };
    let (x, y, z) = (f64::from(a), f64::from(b), f64::from(c));
    let value = match alu.kind {
        // Bit patterns pass through, NaN included.
        Kind::Neg => return (s[0] ^ 0x8000_0000) & 0xffff_ffff,
        Kind::Abs => return s[0] & 0x7fff_ffff,
        Kind::CopySign => return s[1] & 0x7fff_ffff | s[0] & 0x8000_0000,
        Kind::Add if nearest => a + b,
        Kind::Sub if nearest => a - b,
        Kind::Mul if nearest => a * b,
        Kind::Mad if nearest => a.mul_add(b, c),
        Kind::Add => {
            let (sum, rest) = two_sum(x, y);
            directed(sum, rest)
        }
        Kind::Sub => {
            let (sum, rest) = two_sum(x, -y);
            directed(sum, rest)
        }
        Kind::Mul => directed(x * y, 0.0),
        Kind::Mad => {
            let (sum, rest) = two_sum(x * y, z);
            directed(sum, rest)
        }
        Kind::Div => directed_quotient(alu, x, y),
        Kind::Rcp => directed_quotient(alu, 1.0, x),
        Kind::Sqrt => {
            let root = x.sqrt();
            // sqrt is correctly rounded; the sign of the remainder tells on which side it lies.
            let rest = (-root).mul_add(root, x);
            directed(root, if root.is_finite() { rest } else { 0.0 })
        }
        Kind::Rsqrt => (1.0 / x.sqrt()) as f32,
        Kind::Ex2 => x.exp2() as f32,
        Kind::Lg2 => x.log2() as f32,
        Kind::Sin => x.sin() as f32,
        Kind::Cos => x.cos() as f32,
        Kind::Tanh => x.tanh() as f32,
        Kind::Min | Kind::Max => extreme(alu, x, y) as f32,
        _ => a,
    };
    let value = if alu.sat {
        if value.is_nan() {
            0.0
        } else {
            value.clamp(0.0, 1.0)
        }
    } else {
        value
    };
    let value = if alu.relu && value < 0.0 { 0.0 } else { value };
    bits32(flush(value, alu.ftz))
}

/// x / y: the approximate forms give the correctly rounded quotient, which is within their bounds.
fn directed_quotient(alu: &Alu, x: f64, y: f64) -> f32 {
    let rounding = alu.rounding.unwrap_or(Rounding::Nearest);
    let quotient = x / y;
    let rest = if quotient.is_finite() && quotient != 0.0 {
        (-quotient).mul_add(y, x) * y.signum()
    } else {
        0.0
    };
    f32::from_bits(Format::F32.encode(quotient, rest, rounding, false) as u32)
}

/// min or max: the number wins over NaN unless `.NaN`; -0 is below +0.
fn extreme(alu: &Alu, x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() {
        return match (alu.nan, x.is_nan()) {
            (true, _) => f64::NAN,
            (_, true) => y,
            _ => x,
        };
    }
    let sign = x.is_sign_negative() ^ y.is_sign_negative();
    let (l, r) = if alu.xorsign {
        (x.abs(), y.abs())
    } else {
        (x, y)
    };
    let smaller = l.total_cmp(&r).is_lt();
    let pick = if smaller == (alu.kind == Kind::Min) {
        l
    } else {
        r
    };
    if alu.xorsign && sign { -pick } else { pick }
}

pub(super) fn f64_op(alu: &Alu, s: [u64; 4]) -> u64 {
    let [a, b, c, _] = s.map(f64::from_bits);
    let value = match alu.kind {
        Kind::Neg => return s[0] ^ 1 << 63,
        Kind::Abs => return s[0] & !(1 << 63),
        Kind::CopySign => return s[1] & !(1 << 63) | s[0] & 1 << 63,
        Kind::Add => a + b,
        Kind::Sub => a - b,
        Kind::Mul => a * b,
        Kind::Mad => a.mul_add(b, c),
        Kind::Div => a / b,
        Kind::Rcp => 1.0 / a,
        Kind::Sqrt => a.sqrt(),
        Kind::Rsqrt => 1.0 / a.sqrt(),
        Kind::Min | Kind::Max => extreme(alu, a, b),
        _ => a,
    };
    value.to_bits()
}

/// f16 and bf16.
pub(super) fn narrow_op(alu: &Alu, format: Format, s: [u64; 4]) -> u64 {
    let sign = 1u64 << (format.bits() - 1);
    let [a, b, c, _] = s.map(|bits| format.decode(bits));
    let (value, rest) = match alu.kind {
        Kind::Neg => return s[0] ^ sign,
        Kind::Abs => return s[0] & !sign,
        Kind::Add => two_sum(a, b),
        Kind::Sub => two_sum(a, -b),
        Kind::Mul => (a * b, 0.0),
        Kind::Mad => two_sum(a * b, c),
        Kind::Min | Kind::Max => (extreme(alu, a, b), 0.0),
        Kind::Ex2 => (a.exp2(), 0.0),
        Kind::Tanh => (a.tanh(), 0.0),
        _ => (a, 0.0),
    };
    let (value, rest) = if alu.sat && !(0.0..=1.0).contains(&value) {
        (if value > 1.0 { 1.0 } else { 0.0 }, 0.0)
    } else if alu.relu && value < 0.0 {
        (0.0, 0.0)
    } else {
        (value, rest)
    };
    format.encode(value, rest, Rounding::Nearest, false)
}

/// `cvt` of one value, or of a pair of one kind to another.
pub(super) fn convert(alu: &Alu, from: Ty, bits: u64) -> u64 {
    match (from, alu.ty) {
        (Ty::F2(narrow), Ty::F2(to)) => {
            let wide = narrow
                .bits()
                .next_power_of_two()
                .max(if narrow.bits() == 6 { 8 } else { 4 });
            let (low, high) = (zero_extend(bits, wide), zero_extend(bits >> wide, wide));
            let one = |value: u64| float_to_float(alu, narrow, to, value);
            let step = pair_step(to);
            one(low) | one(high) << step
        }
        (Ty::F(from), Ty::F(to)) => float_to_float(alu, from, to, bits),
        (Ty::F(from), to) => float_to_integer(alu, from, to, bits),
        (from, Ty::F(to)) => {
            let value = if from.signed() {
                i128::from(sign_extend(bits, from.bits()))
            } else {
                i128::from(zero_extend(bits, from.bits()))
            };
            let rounding = alu.rounding.unwrap_or(Rounding::Nearest);
            let near = value as f64;
            let rest = (value - near as i128) as f64;
            to.encode(near, rest, rounding, alu.sat)
        }
        (from, to) => {
            let value = if from.signed() {
                i128::from(sign_extend(bits, from.bits()))
            } else {
                i128::from(zero_extend(bits, from.bits()))
            };
            let value = if alu.sat { saturate(value, to) } else { value };
            let narrow = value as u64;
            if to.signed() {
                sign_extend(narrow, to.bits()) as u64
            } else {
                zero_extend(narrow, to.bits())
            }
        }
    }
}

fn saturate(value: i128, to: Ty) -> i128 {
    let bits = to.bits();
    if to.signed() {
        value.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        value.clamp(0, (1 << bits) - 1)
    }
}

fn float_to_float(alu: &Alu, from: Format, to: Format, bits: u64) -> u64 {
    let mut value = from.decode(bits);
    if alu.ftz && value.abs() < f64::from(f32::MIN_POSITIVE) {
        value = 0.0f64.copysign(value);
    }
    if alu.integral {
        value = round_integral(value, alu.rounding.unwrap_or(Rounding::Nearest));
    }
    if alu.sat && matches!(to, Format::F32 | Format::F16 | Format::F64) {
        value = if value.is_nan() {
            0.0
        } else {
            value.clamp(0.0, 1.0)
        };
    }
    narrow(alu, to, value)
}

/// A value to `to`, with `.relu` and `.satfinite`.
fn narrow(alu: &Alu, to: Format, value: f64) -> u64 {
    let value = if alu.relu && value < 0.0 { 0.0 } else { value };
    let rounding = if alu.integral {
        Rounding::Nearest
    } else {
        alu.rounding.unwrap_or(Rounding::Nearest)
    };
    // E2M1 and the 6-bit formats have no NaN: it becomes the largest positive value.
    to.encode(value, 0.0, rounding, alu.sat)
}

/// `value` as a whole number.
pub(super) fn round_integral(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::NearestAway => value.round(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

fn float_to_integer(alu: &Alu, from: Format, to: Ty, bits: u64) -> u64 {
    let value = round_integral(from.decode(bits), alu.rounding.unwrap_or(Rounding::Zero));
    if value.is_nan() {
        // 0x80000000 for 32-bit floats would be what some targets give; PTX says 0 up to 32 bits.
        return if to.bits() == 64 { 1 << 63 } else { 0 };
    }
    // `as` clamps; a second clamp brings it to the type.
    saturate(value as i128, to) as u64
}

/// Distance of the halves of a packed pair.
fn pair_step(format: Format) -> u32 {
    match format.bits() {
        4 => 4,
        6 | 8 => 8,
        other => other,
    }
}

/// `cvt.rn.bf16x2.f32 d, a, b`: a into the upper half.
pub(super) fn convert_pair(alu: &Alu, from: Format, a: u64, b: u64) -> u64 {
    let Ty::F2(to) = alu.ty else { return 0 };
    let one = |bits: u64| narrow(alu, to, from.decode(bits));
    one(b) | one(a) << pair_step(to)
}

/// `cvt.rs..x4`-like packing of four values, the last one lowest.
pub(super) fn convert_quad(alu: &Alu, from: Format, s: [u64; 4]) -> u64 {
    let (Ty::F(to) | Ty::F2(to)) = alu.ty else {
        return 0;
    };
    let step = pair_step(to);
    (0..4).fold(0, |bits, i| {
        bits | narrow(alu, to, from.decode(s[3 - i])) << (step * i as u32)
    })
}
