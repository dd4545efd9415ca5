//! Arithmetic of one thread: what is computed, and how.

use super::ty::{Ty, sign_extend, zero_extend};
use crate::decode::float;
use crate::number::{Format, Rounding};

/// Operation of up to four values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mov,
    Add,
    Sub,
    Mul,
    MulHi,
    MulWide,
    /// a b + c; fused for floats.
    Mad,
    MadHi,
    MadWide,
    Div,
    Rem,
    Min,
    Max,
    Neg,
    Abs,
    CopySign,
    And,
    Or,
    Xor,
    Not,
    Cnot,
    Shl,
    Shr,
    /// Funnel shifts.
    ShfLeft {
        wrap: bool,
    },
    ShfRight {
        wrap: bool,
    },
    Select,
    BitExtract,
    BitInsert,
    BitReverse,
    Popc,
    Clz,
    Permute,
    Lop3(u8),
    Dp4a {
        signed: bool,
    },
    Rcp,
    Sqrt,
    Rsqrt,
    Ex2,
    Lg2,
    Sin,
    Cos,
    Tanh,
    Convert {
        from: Ty,
    },
    /// Two values, the second one into the low half.
    ConvertPair {
        from: Format,
    },
    /// Four values, each a quarter; the last one lowest.
    ConvertQuad {
        from: Format,
    },
}

/// An operation with its modifiers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Alu {
    pub(crate) kind: Kind,
    pub(crate) ty: Ty,
    pub(crate) rounding: Option<Rounding>,
    /// Float conversions that give an integer in float form.
    pub(crate) integral: bool,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
    pub(crate) relu: bool,
    /// NaN wins in min and max.
    pub(crate) nan: bool,
    /// Sign and magnitude as in `.xorsign.abs`.
    pub(crate) xorsign: bool,
}

impl Alu {
    pub(crate) fn new(kind: Kind, ty: Ty) -> Self {
        Self {
            kind,
            ty,
            rounding: None,
            integral: false,
            ftz: false,
            sat: false,
            relu: false,
            nan: false,
            xorsign: false,
        }
    }

    /// The result, in the low bits of its type.
    pub(crate) fn eval(&self, s: [u64; 4]) -> u64 {
        match self.kind {
            Kind::Mov => s[0],
            Kind::Select => {
                if s[2] & 1 == 1 {
                    s[0]
                } else {
                    s[1]
                }
            }
            Kind::Convert { from } => float::convert(self, from, s[0]),
            Kind::ConvertPair { from } => float::convert_pair(self, from, s[0], s[1]),
            Kind::ConvertQuad { from } => float::convert_quad(self, from, s),
            _ => match self.ty {
                Ty::F(Format::F32) => float::f32_op(self, s),
                Ty::F(Format::F64) => float::f64_op(self, s),
                Ty::F(format) => float::narrow_op(self, format, s),
                Ty::F2(format) => {
                    let half = format.bits();
                    let part = |shift: u32| {
                        let cut = s.map(|value| zero_extend(value >> shift, half));
                        zero_extend(float::narrow_op(self, format, cut), half) << shift
                    };
                    part(0) | part(half)
                }
                _ => self.integer(s),
            },
        }
    }

    fn integer(&self, [a, b, c, d]: [u64; 4]) -> u64 {
        let bits = self.ty.bits();
        let signed = self.ty.signed();
        let ext = |value: u64| {
            if signed {
                i128::from(sign_extend(value, bits))
            } else {
                i128::from(zero_extend(value, bits))
            }
        };
        let (x, y) = (ext(a), ext(b));
        let product = x.wrapping_mul(y);
        // Conversions go through i128, whose low 64 bits are the two's complement result.
        let wide = |value: i128| value as u64;
        match self.kind {
            Kind::Add if self.sat => wide((x + y).clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)),
            Kind::Sub if self.sat => wide((x - y).clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)),
            Kind::Add => a.wrapping_add(b),
            Kind::Sub => a.wrapping_sub(b),
            Kind::Mul => a.wrapping_mul(b),
            Kind::Mad => a.wrapping_mul(b).wrapping_add(c),
            Kind::MulWide => wide(product),
            Kind::MadWide => wide(product).wrapping_add(c),
            Kind::MulHi => wide(product >> bits),
            Kind::MadHi => wide(product >> bits).wrapping_add(c),
            // PTX leaves division by zero open; the hardware gives all ones.
            Kind::Div => {
                if y == 0 {
                    u64::MAX
                } else {
                    wide(x / y)
                }
            }
            Kind::Rem => {
                if y == 0 {
                    a
                } else {
                    wide(x % y)
                }
            }
            Kind::Min => wide(x.min(y)),
            Kind::Max => wide(if self.relu { x.max(y).max(0) } else { x.max(y) }),
            Kind::Neg => a.wrapping_neg(),
            Kind::Abs => wide(x.abs()),
            Kind::And => a & b,
            Kind::Or => a | b,
            Kind::Xor => a ^ b,
            Kind::Not => !a,
            Kind::Cnot => u64::from(zero_extend(a, bits) == 0),
            Kind::Shl => {
                if b as u32 >= bits {
                    0
                } else {
                    a << (b as u32)
                }
            }
            Kind::Shr => wide(x >> (b as u32).min(if signed { bits - 1 } else { bits })),
            Kind::ShfLeft { wrap } => {
                let by = shift_amount(c, wrap);
                (a | b << 32).checked_shl(by).unwrap_or(0) >> 32 & 0xffff_ffff
            }
            Kind::ShfRight { wrap } => (a | b << 32) >> shift_amount(c, wrap) & 0xffff_ffff,
            Kind::BitExtract => bit_extract(a, b, c, bits, signed),
            Kind::BitInsert => bit_insert(a, b, c, d, bits),
            Kind::BitReverse => a.reverse_bits() >> (64 - bits),
            Kind::Popc => u64::from(zero_extend(a, bits).count_ones()),
            Kind::Clz => u64::from(zero_extend(a, bits).leading_zeros() - (64 - bits)),
            Kind::Permute => permute(a, b, c),
            Kind::Lop3(table) => lop3(a, b, c, table),
            Kind::Dp4a { signed } => dot4(a, b, c, signed),
            // The decoder pairs the other kinds with float types only.
            _ => a,
        }
    }
}

fn shift_amount(by: u64, wrap: bool) -> u32 {
    if wrap {
        by as u32 & 31
    } else {
        (by as u32).min(32)
    }
}

fn bit_extract(a: u64, position: u64, length: u64, bits: u32, signed: bool) -> u64 {
    let position = position as u32 & 0xff;
    let length = length as u32 & 0xff;
    let top = bits - 1;
    let fill = if !signed || length == 0 {
        0
    } else {
        a >> (position + length - 1).min(top) & 1
    };
    (0..bits).fold(0, |result, i| {
        let bit = if i < length && position + i <= top {
            a >> (position + i) & 1
        } else {
            fill
        };
        result | bit << i
    })
}

fn bit_insert(a: u64, b: u64, position: u64, length: u64, bits: u32) -> u64 {
    let position = position as u32 & 0xff;
    let length = length as u32 & 0xff;
    (0..length)
        .take_while(|i| position + i < bits)
        .fold(b, |result, i| {
            let at = position + i;
            result & !(1 << at) | (a >> i & 1) << at
        })
}

/// `prmt` in its default mode.
fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = (a & 0xffff_ffff) | b << 32;
    (0..4).fold(0, |result, i| {
        let code = selector >> (4 * i) & 0xf;
        let byte = bytes >> (8 * (code & 7)) & 0xff;
        let byte = if code & 8 == 0 {
            byte
        } else if byte & 0x80 != 0 {
            0xff
        } else {
            0
        };
        result | byte << (8 * i)
    })
}

fn lop3(a: u64, b: u64, c: u64, table: u8) -> u64 {
    (0..8u64)
        .filter(|i| table >> i & 1 == 1)
        .fold(0, |result, i| {
            let pick = |value: u64, bit: u64| if i >> bit & 1 == 1 { value } else { !value };
            result | pick(a, 2) & pick(b, 1) & pick(c, 0)
        })
        & 0xffff_ffff
}

fn dot4(a: u64, b: u64, c: u64, signed: bool) -> u64 {
    (0..4).fold(c, |sum, i| {
        let (x, y) = (a >> (8 * i) & 0xff, b >> (8 * i) & 0xff);
        let product = if signed {
            (sign_extend(x, 8) * sign_extend(y, 8)) as u64
        } else {
            x * y
        };
        sum.wrapping_add(product)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// Both are numbers.
    Num,
    /// One is NaN.
    Nan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

/// A comparison of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compare {
    pub(crate) relation: Relation,
    /// True when an operand is NaN.
    pub(crate) unordered: bool,
    pub(crate) ty: Ty,
    pub(crate) ftz: bool,
    pub(crate) combine: Option<Combine>,
}

impl Compare {
    pub(crate) fn eval(&self, a: u64, b: u64) -> bool {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let order = match self.ty {
            Ty::F(format) => {
                let read = |bits: u64| {
                    let value = format.decode(bits);
                    if self.ftz && value.abs() < f64::from(f32::MIN_POSITIVE) {
                        0.0
                    } else {
                        value
                    }
                };
                read(a).partial_cmp(&read(b))
            }
            Ty::S(bits) => Some(sign_extend(a, bits).cmp(&sign_extend(b, bits))),
            other => Some(zero_extend(a, other.bits()).cmp(&zero_extend(b, other.bits()))),
        };
        match (self.relation, order) {
            (Relation::Num, order) => order.is_some(),
            (Relation::Nan, order) => order.is_none(),
            (_, None) => self.unordered,
            (Relation::Eq, Some(order)) => order == Equal,
            (Relation::Ne, Some(order)) => order != Equal,
            (Relation::Lt, Some(order)) => order == Less,
            (Relation::Le, Some(order)) => order != Greater,
            (Relation::Gt, Some(order)) => order == Greater,
            (Relation::Ge, Some(order)) => order != Less,
        }
    }
}

impl Combine {
    pub(crate) fn apply(self, a: bool, b: bool) -> bool {
        match self {
            Combine::And => a & b,
            Combine::Or => a | b,
            Combine::Xor => a ^ b,
        }
    }
}
