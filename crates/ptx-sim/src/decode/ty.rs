//! Types that modifiers name.

use crate::number::Format;

/// A PTX type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ty {
    Pred,
    B(u32),
    U(u32),
    S(u32),
    /// A scalar float.
    F(Format),
    /// Two floats of one kind, the first in the low half.
    F2(Format),
}

impl Ty {
    pub(crate) fn parse(word: &str) -> Option<Ty> {
        if let Some(pair) = word.strip_suffix("x2") {
            return Format::parse(pair).map(Ty::F2);
        }
        Some(match word {
            "pred" => Ty::Pred,
            "b8" => Ty::B(8),
            "b16" => Ty::B(16),
            "b32" => Ty::B(32),
            "b64" => Ty::B(64),
            "b128" => Ty::B(128),
            "u8" => Ty::U(8),
            "u16" => Ty::U(16),
            "u32" => Ty::U(32),
            "u64" => Ty::U(64),
            "s8" => Ty::S(8),
            "s16" => Ty::S(16),
            "s32" => Ty::S(32),
            "s64" => Ty::S(64),
            other => Ty::F(Format::parse(other)?),
        })
    }
    pub(crate) fn bits(self) -> u32 {
        match self {
            Ty::Pred => 1,
            Ty::B(bits) | Ty::U(bits) | Ty::S(bits) => bits,
            Ty::F(format) => format.bits().next_power_of_two().max(8),
            Ty::F2(format) => (2 * format.bits()).next_power_of_two().max(8),
        }
    }
    pub(crate) fn bytes(self) -> usize {
        (self.bits() as usize).div_ceil(8)
    }
    pub(crate) fn signed(self) -> bool {
        matches!(self, Ty::S(_))
    }
    pub(crate) fn float(self) -> bool {
        matches!(self, Ty::F(_) | Ty::F2(_))
    }
}

/// `value`'s low `bits`, zero-extended.
pub(crate) fn zero_extend(value: u64, bits: u32) -> u64 {
    if bits >= 64 {
        value
    } else {
        value & ((1 << bits) - 1)
    }
}

/// `value`'s low `bits`, sign-extended.
pub(crate) fn sign_extend(value: u64, bits: u32) -> i64 {
    if bits >= 64 {
        value as i64
    } else {
        ((value << (64 - bits)) as i64) >> (64 - bits)
    }
}
