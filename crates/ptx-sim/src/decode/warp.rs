//! Instructions of several lanes of a warp.

use super::Decoded;
use super::cursor::Cursor;
use super::op::{Atomic, Op, Shuffle, Vote};
use super::ty::Ty;

pub(super) fn shuffle(c: &mut Cursor) -> Decoded {
    c.need("sync")?;
    let kind = match c.modifier()? {
        "up" => Shuffle::Up,
        "down" => Shuffle::Down,
        "bfly" => Shuffle::Butterfly,
        "idx" => Shuffle::Index,
        other => return Err(format!("shuffle `.{other}` is not modelled")),
    };
    c.need("b32")?;
    let (dst, valid) = c.pair()?;
    let dst = dst.ok_or("a shuffle needs a destination")?;
    let (value, lane, clamp, members) = (c.word()?, c.word()?, c.word()?, c.word()?);
    c.finish()?;
    Ok(Op::Shuffle {
        kind,
        dst,
        valid,
        value,
        lane,
        clamp,
        members,
    })
}

pub(super) fn vote(c: &mut Cursor) -> Decoded {
    c.need("sync")?;
    let kind = match c.modifier()? {
        "all" => Vote::All,
        "any" => Vote::Any,
        "uni" => Vote::Uniform,
        "ballot" => Vote::Ballot,
        other => return Err(format!("vote `.{other}` is not modelled")),
    };
    c.need(if kind == Vote::Ballot { "b32" } else { "pred" })?;
    let dst = c.dst()?;
    let value = c.pred()?;
    let members = c.word()?;
    c.finish()?;
    Ok(Op::Vote {
        kind,
        dst,
        value,
        members,
    })
}

pub(super) fn matching(c: &mut Cursor) -> Decoded {
    let all = c.take("all");
    if !all {
        c.need("any")?;
    }
    c.need("sync")?;
    let ty = c.ty()?;
    let (dst, pred) = c.pair()?;
    let dst = dst.ok_or("a match needs a destination")?;
    let value = c.src(ty)?;
    let members = c.word()?;
    c.finish()?;
    Ok(Op::Match {
        all,
        bits: ty.bits(),
        dst,
        pred,
        value,
        members,
    })
}

pub(super) fn redux(c: &mut Cursor) -> Decoded {
    c.need("sync")?;
    let op = match c.modifier()? {
        "add" => Atomic::Add,
        "min" => Atomic::Min,
        "max" => Atomic::Max,
        "and" => Atomic::And,
        "or" => Atomic::Or,
        "xor" => Atomic::Xor,
        other => return Err(format!("reduction `.{other}` is not modelled")),
    };
    let ty = c.ty()?;
    if !matches!(ty, Ty::U(32) | Ty::S(32) | Ty::B(32)) {
        return Err(format!("reductions of {ty:?} are not modelled"));
    }
    let dst = c.dst()?;
    let value = c.src(ty)?;
    let members = c.word()?;
    c.finish()?;
    Ok(Op::Redux {
        op,
        signed: ty.signed(),
        dst,
        value,
        members,
    })
}

pub(super) fn active_mask(c: &mut Cursor) -> Decoded {
    c.need("b32")?;
    let dst = c.dst()?;
    c.finish()?;
    Ok(Op::Activemask { dst })
}

pub(super) fn elect(c: &mut Cursor) -> Decoded {
    c.need("sync")?;
    let (lane, pred) = c.pair()?;
    let pred = pred.ok_or("elect.sync needs a predicate")?;
    let members = c.word()?;
    c.finish()?;
    Ok(Op::Elect {
        lane,
        pred,
        members,
    })
}
