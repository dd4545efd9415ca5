//! Asynchronous copies.

use super::Decoded;
use super::cursor::Cursor;
use super::op::{Addr, AddrSpace, Bulk, Mbar, Op, TensorCopy};
use super::ty::Ty;

pub(super) fn copy(c: &mut Cursor) -> Decoded {
    c.need("async")?;
    if c.take("bulk") {
        return bulk(c);
    }
    match c.peek() {
        Some("commit_group") => {
            c.modifier()?;
            c.finish()?;
            Ok(Op::CopyCommit)
        }
        Some("wait_group") => {
            c.modifier()?;
            let groups = c.literal()? as u32;
            c.finish()?;
            Ok(Op::CopyWait { groups })
        }
        Some("wait_all") => {
            c.modifier()?;
            c.finish()?;
            Ok(Op::CopyWait { groups: 0 })
        }
        Some("mbarrier") => arrive(c),
        _ => chunk(c),
    }
}

fn arrive(c: &mut Cursor) -> Decoded {
    c.need("mbarrier")?;
    c.need("arrive")?;
    let noinc = c.take("noinc");
    c.skip(&["shared::cta", "shared"]);
    c.need("b64")?;
    let addr = c.addr()?;
    c.finish()?;
    Ok(Op::Mbar {
        op: Mbar::ArriveAsync { noinc },
        addr,
        space: AddrSpace::Shared,
    })
}

/// `cp.async.ca|cg.shared.global [dst], [src], bytes {, read}`.
fn chunk(c: &mut Cursor) -> Decoded {
    let whole = c.take("cg");
    if !whole {
        c.need("ca")?;
    }
    if !c.take("shared") {
        c.need("shared::cta")?;
    }
    c.need("global")?;
    c.skip(&["L2::cache_hint", "L2::64B", "L2::128B", "L2::256B"]);
    let (dst, src) = (c.addr()?, c.addr()?);
    let bytes = c.literal()? as u32;
    if !(bytes == 16 || !whole && matches!(bytes, 4 | 8)) {
        return Err(format!("{bytes} bytes cannot be copied"));
    }
    let (mut read, mut ignore) = (None, None);
    if c.left() > 0 {
        let pred = match c.peek_operand() {
            Some(crate::parse::Operand::Register(register)) => c.bits(*register) == 1,
            Some(crate::parse::Operand::Not(_)) => true,
            _ => false,
        };
        if pred {
            ignore = Some(c.pred()?);
        } else {
            read = Some(c.word()?);
        }
    }
    c.finish()?;
    Ok(Op::CopyAsync {
        dst,
        src,
        bytes,
        read,
        ignore,
    })
}

fn bulk(c: &mut Cursor) -> Decoded {
    if c.take("commit_group") {
        c.finish()?;
        return Ok(Op::Bulk(Bulk::Commit));
    }
    if c.take("wait_group") {
        let read = c.take("read");
        let groups = c.literal()? as u32;
        c.finish()?;
        return Ok(Op::Bulk(Bulk::Wait { groups, read }));
    }
    if c.take("prefetch") {
        while c.modifier().is_ok() {}
        while c.left() > 0 {
            c.operand()?;
        }
        return Ok(Op::Bulk(Bulk::TensorPrefetch));
    }
    if c.take("tensor") {
        return tensor(c);
    }
    let to_cluster = c.take("shared::cluster");
    if to_cluster || c.take("shared::cta") {
        let from_global = c.take("global");
        if !from_global {
            c.need("shared::cta")?;
        }
        c.need("mbarrier::complete_tx::bytes")?;
        let multicast = c.take("multicast::cluster");
        let hint = c.take("L2::cache_hint");
        let (dst, src) = (c.addr()?, c.addr()?);
        let bytes = c.word()?;
        let bar = c.addr()?;
        let mask = if multicast { Some(c.word()?) } else { None };
        drop_hint(c, hint)?;
        c.finish()?;
        return Ok(Op::Bulk(if from_global {
            Bulk::Load {
                dst,
                src,
                bytes,
                bar,
                multicast: mask,
            }
        } else {
            Bulk::ToCluster {
                dst,
                src,
                bytes,
                bar,
            }
        }));
    }
    c.need("global")?;
    c.need("shared::cta")?;
    c.need("bulk_group")?;
    let hint = c.take("L2::cache_hint");
    let (dst, src) = (c.addr()?, c.addr()?);
    let bytes = c.word()?;
    drop_hint(c, hint)?;
    c.finish()?;
    Ok(Op::Bulk(Bulk::Store { dst, src, bytes }))
}

fn drop_hint(c: &mut Cursor, hint: bool) -> Decoded<()> {
    if hint {
        c.src(Ty::B(64))?;
    }
    Ok(())
}

fn rank(c: &mut Cursor) -> Decoded<usize> {
    let word = c.modifier()?;
    match word {
        "1d" | "2d" | "3d" | "4d" | "5d" => Ok(usize::from(word.as_bytes()[0] - b'0')),
        other => Err(format!("rank `.{other}` is not modelled")),
    }
}

/// `.cta_group::2` (true) or `.cta_group::1` (false), if it stands here.
fn pair_group(c: &mut Cursor) -> Option<bool> {
    let pair = c.take("cta_group::2");
    (pair || c.take("cta_group::1")).then_some(pair)
}

fn tensor(c: &mut Cursor) -> Decoded {
    let rank = rank(c)?;
    // CUTLASS writes the group here, the ISA's grammar has it behind the multicast; ptxas takes both.
    let group = pair_group(c);
    let load = c.take("shared::cluster") || c.take("shared::cta");
    if !load {
        if group.is_some() {
            return Err("a store has no group".to_owned());
        }
        c.need("global")?;
        c.need("shared::cta")?;
        c.take("tile");
        c.need("bulk_group")?;
        let hint = c.take("L2::cache_hint");
        let (map, coords) = c.tensor()?;
        let smem = c.addr()?;
        drop_hint(c, hint)?;
        c.finish()?;
        let copy = checked(rank, map, coords, smem)?;
        return Ok(Op::Bulk(Bulk::TensorStore { copy, add: false }));
    }
    c.need("global")?;
    c.take("tile");
    c.need("mbarrier::complete_tx::bytes")?;
    let multicast = c.take("multicast::cluster");
    let pair = group.or_else(|| pair_group(c)).unwrap_or(false);
    let hint = c.take("L2::cache_hint");
    let smem = c.addr()?;
    let (map, coords) = c.tensor()?;
    let bar = c.addr()?;
    let mask = if multicast { Some(c.word()?) } else { None };
    drop_hint(c, hint)?;
    c.finish()?;
    let copy = checked(rank, map, coords, smem)?;
    Ok(Op::Bulk(Bulk::TensorLoad {
        copy,
        bar,
        multicast: mask,
        pair,
    }))
}

fn checked(rank: usize, map: Addr, coords: Vec<super::op::Src>, smem: Addr) -> Decoded<TensorCopy> {
    if coords.len() != rank {
        return Err(format!("{rank} coordinates are wanted"));
    }
    Ok(TensorCopy { map, coords, smem })
}
