//! Loads, stores, atomics and addresses.

use super::Decoded;
use super::alu::{Alu, Kind};
use super::cursor::Cursor;
use super::op::{Addr, AddrSpace, Atomic, Op, Src};
use super::ty::Ty;
use crate::exec::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use crate::parse::Operand;

/// Order, scope and cache modifiers, which change nothing where memory is consistent.
const ORDER: [&str; 12] = [
    "weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "cta", "cluster",
    "gpu", "sys", "sc",
];
const CACHE: [&str; 22] = [
    "nc",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::evict_normal",
    "L2::evict_first",
    "L2::evict_last",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::cache_hint",
    "noftz",
    "unified",
];

fn space(c: &mut Cursor) -> AddrSpace {
    c.try_parse(|word| {
        Some(match word {
            "global" | "const" => AddrSpace::Global,
            "shared" | "shared::cta" => AddrSpace::Shared,
            "shared::cluster" => AddrSpace::Cluster,
            "local" => AddrSpace::Local,
            "param" | "param::entry" => AddrSpace::Param,
            _ => return None,
        })
    })
    .unwrap_or(AddrSpace::Generic)
}

/// Order modifiers, the space, cache modifiers, in any order that PTX allows.
fn place(c: &mut Cursor) -> AddrSpace {
    c.skip(&ORDER);
    let found = space(c);
    c.skip(&CACHE);
    c.skip(&ORDER);
    c.skip(&CACHE);
    found
}

fn vector(c: &mut Cursor) -> usize {
    c.try_parse(|word| {
        Some(match word {
            "v2" => 2,
            "v4" => 4,
            "v8" => 8,
            _ => return None,
        })
    })
    .unwrap_or(1)
}

/// A cache policy operand that no cache listens to.
fn drop_policy(c: &mut Cursor) -> Decoded<()> {
    if c.left() > 0 {
        c.src(Ty::B(64))?;
    }
    Ok(())
}

pub(super) fn load(c: &mut Cursor) -> Decoded {
    let space = place(c);
    let width = vector(c);
    let ty = c.ty()?;
    let dsts = c.dsts()?;
    let addr = c.addr()?;
    drop_policy(c)?;
    c.finish()?;
    if dsts.len() != width {
        return Err(format!("{width} registers are wanted"));
    }
    Ok(Op::Load {
        space,
        ty,
        dsts,
        addr,
    })
}

pub(super) fn store(c: &mut Cursor) -> Decoded {
    if c.take("async") || c.take("bulk") {
        return Err("st.async and st.bulk are not modelled".to_owned());
    }
    let space = place(c);
    let width = vector(c);
    let ty = c.ty()?;
    let addr = c.addr()?;
    let srcs = c.srcs(ty)?;
    drop_policy(c)?;
    c.finish()?;
    if srcs.len() != width {
        return Err(format!("{width} registers are wanted"));
    }
    Ok(Op::Store {
        space,
        ty,
        srcs,
        addr,
    })
}

pub(super) fn atomic(c: &mut Cursor) -> Decoded {
    let reduction = c.opcode() == "red";
    if c.take("async") {
        return Err("red.async is not modelled".to_owned());
    }
    c.skip(&ORDER);
    let space = space(c);
    c.skip(&ORDER);
    let op = match c.modifier()? {
        "add" => Atomic::Add,
        "min" => Atomic::Min,
        "max" => Atomic::Max,
        "and" => Atomic::And,
        "or" => Atomic::Or,
        "xor" => Atomic::Xor,
        "exch" => Atomic::Exch,
        "cas" => Atomic::Cas,
        "inc" => Atomic::Inc,
        "dec" => Atomic::Dec,
        other => return Err(format!("atomic `.{other}` is not modelled")),
    };
    c.skip(&CACHE);
    let width = vector(c);
    let ty = c.ty()?;
    if !matches!(ty.bits(), 16 | 32 | 64) {
        return Err(format!("atomics of {ty:?} are not modelled"));
    }
    let dsts = if reduction {
        vec![None; width]
    } else {
        c.dsts()?
    };
    let addr = c.addr()?;
    let srcs = c.srcs(ty)?;
    let other = if op == Atomic::Cas {
        c.src(ty)?
    } else {
        Src::Imm(0)
    };
    drop_policy(c)?;
    c.finish()?;
    if dsts.len() != width || srcs.len() != width {
        return Err(format!("{width} registers are wanted"));
    }
    Ok(Op::Atomic {
        space,
        op,
        ty,
        dsts,
        addr,
        srcs,
        other,
    })
}

/// `cvta` and `cvta.to`: the windows of the generic space.
pub(super) fn convert_address(c: &mut Cursor) -> Decoded {
    let back = c.take("to");
    let window = match space(c) {
        AddrSpace::Global | AddrSpace::Generic => 0,
        AddrSpace::Shared | AddrSpace::Cluster => SHARED_WINDOW,
        AddrSpace::Local => LOCAL_WINDOW,
        AddrSpace::Param => PARAM_WINDOW,
    };
    let ty = c.ty()?;
    let dst = c.dst()?;
    let src = c.src(ty)?;
    c.finish()?;
    let kind = if back { Kind::Sub } else { Kind::Add };
    Ok(Op::Alu {
        alu: Alu::new(kind, Ty::U(64)),
        dst,
        srcs: [src, Src::Imm(window), Src::Imm(0), Src::Imm(0)],
    })
}

pub(super) fn map_shared(c: &mut Cursor) -> Decoded {
    let generic = !c.take("shared::cluster");
    let ty = c.ty()?;
    let dst = c.dst()?;
    let addr = match c.operand()? {
        operand @ Operand::Address(..) => {
            let Addr { base, offset } = c.address(operand)?;
            if offset != 0 {
                return Err("an offset cannot stand here".to_owned());
            }
            base
        }
        operand => c.source(operand, ty)?,
    };
    let rank = c.word()?;
    c.finish()?;
    Ok(Op::MapShared {
        dst,
        addr,
        rank,
        generic,
    })
}

/// Prefetches and cache hints, which have no effect on results.
pub(super) fn hint(c: &mut Cursor) -> Decoded {
    if c.opcode() == "discard" {
        return Err("`discard` destroys data and is not modelled".to_owned());
    }
    while c.modifier().is_ok() {}
    while c.left() > 0 {
        c.operand()?;
    }
    c.finish()?;
    Ok(Op::Nothing)
}
