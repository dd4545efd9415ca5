//! Arithmetic, logic, moves, conversions and comparisons.

use super::Decoded;
use super::alu::{Alu, Combine, Compare, Kind, Relation};
use super::cursor::Cursor;
use super::op::{Op, Src};
use super::ty::Ty;
use crate::number::{Format, Rounding};
use crate::parse::Operand;

const NONE: Src = Src::Imm(0);

pub(super) fn scalar(c: &mut Cursor) -> Decoded {
    match c.opcode() {
        "mov" => moving(c),
        "cvt" => convert(c),
        "setp" => compare(c),
        "set" => Err("`set` is not modelled".to_owned()),
        "selp" => select(c),
        "lop3" => logic3(c),
        "prmt" => permute(c),
        "shf" => funnel(c),
        "bfe" | "bfi" | "brev" | "popc" | "clz" => bits(c),
        "dp4a" => dot4(c),
        _ => arithmetic(c),
    }
}

fn alu(alu: Alu, dst: u32, srcs: &[Src]) -> Op {
    let mut all = [NONE; 4];
    all[..srcs.len()].copy_from_slice(srcs);
    Op::Alu {
        alu,
        dst,
        srcs: all,
    }
}

fn moving(c: &mut Cursor) -> Decoded {
    let ty = c.ty()?;
    if let Some(Operand::Vector(_)) = c.peek_operand() {
        let parts = c.dsts()?;
        let src = c.src(ty)?;
        c.finish()?;
        let bits = ty.bits() / parts.len() as u32;
        return Ok(Op::Unpack { parts, src, bits });
    }
    let dst = c.dst()?;
    if let Some(name) = c.special()? {
        c.operand()?;
        c.finish()?;
        return Ok(Op::Special { dst, name });
    }
    if let Some(Operand::Vector(_)) = c.peek_operand() {
        let parts = c.srcs(Ty::B(32))?;
        c.finish()?;
        let bits = ty.bits() / parts.len() as u32;
        return Ok(Op::Pack { dst, parts, bits });
    }
    let src = c.src(ty)?;
    c.finish()?;
    Ok(alu(Alu::new(Kind::Mov, ty), dst, &[src]))
}

fn rounding(word: &str) -> Option<(Rounding, bool)> {
    Some(match word {
        "rn" => (Rounding::Nearest, false),
        "rna" => (Rounding::NearestAway, false),
        "rz" => (Rounding::Zero, false),
        "rm" => (Rounding::Down, false),
        "rp" => (Rounding::Up, false),
        "rni" => (Rounding::Nearest, true),
        "rzi" => (Rounding::Zero, true),
        "rmi" => (Rounding::Down, true),
        "rpi" => (Rounding::Up, true),
        _ => return None,
    })
}

fn convert(c: &mut Cursor) -> Decoded {
    if c.take("pack") {
        return Err("`cvt.pack` is not modelled".to_owned());
    }
    let round = c.try_parse(rounding);
    let ftz = c.take("ftz");
    let sat = c.take("sat");
    let mut relu = c.take("relu");
    let mut satfinite = c.take("satfinite");
    relu |= c.take("relu");
    satfinite |= c.take("satfinite");
    let to_word = c.modifier()?;
    let quad = to_word.strip_suffix("x4").and_then(Format::parse);
    let to = match quad {
        Some(format) => Ty::F(format),
        None => Ty::parse(to_word).ok_or_else(|| format!("type `.{to_word}` is not modelled"))?,
    };
    let from = c.ty()?;
    let dst = c.dst()?;
    let mut op = Alu::new(Kind::Convert { from }, to);
    op.rounding = round.map(|(rounding, _)| rounding);
    op.integral = round.is_some_and(|(_, integral)| integral) && to.float();
    op.ftz = ftz;
    op.relu = relu;
    op.sat = sat || satfinite;
    let single = |ty: Ty| matches!(ty, Ty::F(Format::F32 | Format::F16 | Format::Bf16));
    let srcs = match (quad, to, from) {
        (Some(_), _, Ty::F(wide)) => {
            op.kind = Kind::ConvertQuad { from: wide };
            c.srcs(from)?
        }
        (None, Ty::F2(_), Ty::F(wide)) if single(from) => {
            op.kind = Kind::ConvertPair { from: wide };
            vec![c.src(from)?, c.src(from)?]
        }
        (None, Ty::F2(_), Ty::F(_)) | (None, Ty::F(_), Ty::F2(_)) => {
            return Err(format!(
                "conversion from {from:?} to {to:?} is not modelled"
            ));
        }
        _ => vec![c.src(from)?],
    };
    c.finish()?;
    Ok(alu(op, dst, &srcs))
}

fn compare(c: &mut Cursor) -> Decoded {
    let word = c.modifier()?;
    let (relation, unordered) = match word {
        "eq" => (Relation::Eq, false),
        "ne" => (Relation::Ne, false),
        "lt" | "lo" => (Relation::Lt, false),
        "le" | "ls" => (Relation::Le, false),
        "gt" | "hi" => (Relation::Gt, false),
        "ge" | "hs" => (Relation::Ge, false),
        "equ" => (Relation::Eq, true),
        "neu" => (Relation::Ne, true),
        "ltu" => (Relation::Lt, true),
        "leu" => (Relation::Le, true),
        "gtu" => (Relation::Gt, true),
        "geu" => (Relation::Ge, true),
        "num" => (Relation::Num, false),
        "nan" => (Relation::Nan, false),
        other => return Err(format!("comparison `.{other}` is not modelled")),
    };
    let combine = c.try_parse(|word| {
        Some(match word {
            "and" => Combine::And,
            "or" => Combine::Or,
            "xor" => Combine::Xor,
            _ => return None,
        })
    });
    let ftz = c.take("ftz");
    let ty = c.ty()?;
    if matches!(ty, Ty::F2(_)) {
        return Err("comparisons of pairs are not modelled".to_owned());
    }
    let (p, q) = c.pair()?;
    let a = c.src(ty)?;
    let b = c.src(ty)?;
    let with = combine.map(|_| c.pred()).transpose()?;
    c.finish()?;
    let compare = Compare {
        relation,
        unordered,
        ty,
        ftz,
        combine,
    };
    Ok(Op::Compare {
        compare,
        p,
        q,
        a,
        b,
        with,
    })
}

fn select(c: &mut Cursor) -> Decoded {
    let ty = c.ty()?;
    let dst = c.dst()?;
    let (a, b) = (c.src(ty)?, c.src(ty)?);
    let p = c.pred()?;
    c.finish()?;
    Ok(alu(Alu::new(Kind::Select, ty), dst, &[a, b, p]))
}

fn logic3(c: &mut Cursor) -> Decoded {
    c.need("b32")?;
    let dst = c.dst()?;
    let srcs = [c.word()?, c.word()?, c.word()?];
    let table = c.literal()? as u8;
    c.finish()?;
    Ok(alu(Alu::new(Kind::Lop3(table), Ty::B(32)), dst, &srcs))
}

fn permute(c: &mut Cursor) -> Decoded {
    c.need("b32")?;
    let dst = c.dst()?;
    let srcs = [c.word()?, c.word()?, c.word()?];
    c.finish()?;
    Ok(alu(Alu::new(Kind::Permute, Ty::B(32)), dst, &srcs))
}

fn funnel(c: &mut Cursor) -> Decoded {
    let left = match c.modifier()? {
        "l" => true,
        "r" => false,
        other => return Err(format!("direction `.{other}` is not modelled")),
    };
    let wrap = c.take("wrap");
    if !wrap {
        c.need("clamp")?;
    }
    c.need("b32")?;
    let dst = c.dst()?;
    let srcs = [c.word()?, c.word()?, c.word()?];
    c.finish()?;
    let kind = if left {
        Kind::ShfLeft { wrap }
    } else {
        Kind::ShfRight { wrap }
    };
    Ok(alu(Alu::new(kind, Ty::B(32)), dst, &srcs))
}

fn bits(c: &mut Cursor) -> Decoded {
    let (kind, count) = match c.opcode() {
        "bfe" => (Kind::BitExtract, 3),
        "bfi" => (Kind::BitInsert, 4),
        "brev" => (Kind::BitReverse, 1),
        "popc" => (Kind::Popc, 1),
        _ => (Kind::Clz, 1),
    };
    let ty = c.ty()?;
    plain(c, Alu::new(kind, ty), ty, count)
}

fn dot4(c: &mut Cursor) -> Decoded {
    let (a, b) = (c.ty()?, c.ty()?);
    if a.signed() != b.signed() {
        return Err("mixed signs are not modelled".to_owned());
    }
    let kind = Kind::Dp4a { signed: a.signed() };
    plain(c, Alu::new(kind, Ty::B(32)), Ty::B(32), 3)
}

/// Destination and `count` sources of one type.
fn plain(c: &mut Cursor, op: Alu, ty: Ty, count: usize) -> Decoded {
    let dst = c.dst()?;
    let srcs: Decoded<Vec<Src>> = (0..count).map(|_| c.src(ty)).collect();
    c.finish()?;
    Ok(alu(op, dst, &srcs?))
}

/// Kind, number of sources and whether integers, floats and bits or predicates may stand there.
fn operation(opcode: &str) -> Option<(Kind, usize, bool, bool, bool)> {
    Some(match opcode {
        "add" => (Kind::Add, 2, true, true, false),
        "sub" => (Kind::Sub, 2, true, true, false),
        "mul" => (Kind::Mul, 2, true, true, false),
        "mad" => (Kind::Mad, 3, true, true, false),
        "fma" => (Kind::Mad, 3, false, true, false),
        "div" => (Kind::Div, 2, true, true, false),
        "rem" => (Kind::Rem, 2, true, false, false),
        "min" => (Kind::Min, 2, true, true, false),
        "max" => (Kind::Max, 2, true, true, false),
        "neg" => (Kind::Neg, 1, true, true, false),
        "abs" => (Kind::Abs, 1, true, true, false),
        "copysign" => (Kind::CopySign, 2, false, true, false),
        "and" => (Kind::And, 2, false, false, true),
        "or" => (Kind::Or, 2, false, false, true),
        "xor" => (Kind::Xor, 2, false, false, true),
        "not" => (Kind::Not, 1, false, false, true),
        "cnot" => (Kind::Cnot, 1, false, false, true),
        "shl" => (Kind::Shl, 2, false, false, true),
        "shr" => (Kind::Shr, 2, true, false, true),
        "rcp" => (Kind::Rcp, 1, false, true, false),
        "sqrt" => (Kind::Sqrt, 1, false, true, false),
        "rsqrt" => (Kind::Rsqrt, 1, false, true, false),
        "ex2" => (Kind::Ex2, 1, false, true, false),
        "lg2" => (Kind::Lg2, 1, false, true, false),
        "sin" => (Kind::Sin, 1, false, true, false),
        "cos" => (Kind::Cos, 1, false, true, false),
        "tanh" => (Kind::Tanh, 1, false, true, false),
        _ => return None,
    })
}

fn arithmetic(c: &mut Cursor) -> Decoded {
    let (mut kind, count, integers, floats, bit_types) =
        operation(c.opcode()).ok_or_else(|| format!("opcode `{}` is not modelled", c.opcode()))?;
    let part = c.try_parse(|word| {
        Some(match (kind, word) {
            (Kind::Mul, "lo") | (Kind::Mad, "lo") => kind,
            (Kind::Mul, "hi") => Kind::MulHi,
            (Kind::Mad, "hi") => Kind::MadHi,
            (Kind::Mul, "wide") => Kind::MulWide,
            (Kind::Mad, "wide") => Kind::MadWide,
            _ => return None,
        })
    });
    kind = part.unwrap_or(kind);
    let approximate = matches!(
        kind,
        Kind::Div
            | Kind::Rcp
            | Kind::Sqrt
            | Kind::Rsqrt
            | Kind::Ex2
            | Kind::Lg2
            | Kind::Sin
            | Kind::Cos
            | Kind::Tanh
    );
    if approximate {
        c.skip(&["approx", "full"]);
    }
    let mut op = Alu::new(kind, Ty::B(32));
    op.rounding = c
        .try_parse(|word| rounding(word).filter(|(_, integral)| !integral))
        .map(|(rounding, _)| rounding);
    op.ftz = c.take("ftz");
    op.nan = c.take("NaN");
    if c.take("xorsign") {
        c.need("abs")?;
        op.xorsign = true;
    }
    op.sat = c.take("sat");
    op.relu = c.take("relu");
    op.ty = c.ty()?;
    let fits = match op.ty {
        Ty::U(_) | Ty::S(_) => integers,
        Ty::F(Format::F32 | Format::F64 | Format::F16 | Format::Bf16)
        | Ty::F2(Format::F16 | Format::Bf16) => floats && part.is_none(),
        Ty::B(_) | Ty::Pred => bit_types,
        _ => false,
    };
    if !fits || matches!(kind, Kind::Mul | Kind::Mad) && !op.ty.float() && part.is_none() {
        return Err(format!("`{}` of {:?} is not modelled", c.opcode(), op.ty));
    }
    let dst = c.dst()?;
    let mut srcs = Vec::new();
    for i in 0..count {
        let ty = match (kind, i) {
            (Kind::MadWide, 2) => Ty::B(2 * op.ty.bits()),
            (Kind::Shl | Kind::Shr, 1) => Ty::B(32),
            _ => op.ty,
        };
        srcs.push(c.src(ty)?);
    }
    c.finish()?;
    Ok(alu(op, dst, &srcs))
}
