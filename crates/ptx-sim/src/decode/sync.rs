//! Control flow, barriers, fences and mbarriers.

use super::Decoded;
use super::cursor::Cursor;
use super::op::{AddrSpace, BarKind, Fence, Mbar, Op, PhaseArg, Src};
use super::ty::Ty;

pub(super) fn branch(c: &mut Cursor) -> Decoded {
    c.take("uni");
    let target = c.label()?;
    c.finish()?;
    Ok(Op::Branch { target })
}

pub(super) fn exit(c: &mut Cursor) -> Decoded {
    c.take("uni");
    c.finish()?;
    Ok(Op::Exit)
}

/// `nanosleep`: time does not pass here.
pub(super) fn pause(c: &mut Cursor) -> Decoded {
    if c.opcode() != "nanosleep" {
        return Err(format!("opcode `{}` is not modelled", c.opcode()));
    }
    c.need("u32")?;
    c.word()?;
    c.finish()?;
    Ok(Op::Nothing)
}

pub(super) fn barrier(c: &mut Cursor) -> Decoded {
    if c.opcode() == "barrier" && c.take("cluster") {
        let arrive = c.take("arrive");
        if !arrive {
            c.need("wait")?;
        }
        c.skip(&["release", "relaxed", "acquire", "aligned"]);
        c.finish()?;
        return Ok(if arrive {
            Op::ClusterArrive
        } else {
            Op::ClusterWait
        });
    }
    c.take("cta");
    if c.take("warp") {
        c.need("sync")?;
        let members = c.word()?;
        c.finish()?;
        return Ok(Op::WarpSync { members });
    }
    let kind = match c.modifier()? {
        "sync" => BarKind::Sync,
        "arrive" => BarKind::Arrive,
        other => return Err(format!("barrier `.{other}` is not modelled")),
    };
    c.take("aligned");
    let id = c.word()?;
    let count = if c.left() > 0 { Some(c.word()?) } else { None };
    c.finish()?;
    if kind == BarKind::Arrive && count.is_none() {
        return Err("an arrival needs the number of threads".to_owned());
    }
    Ok(Op::Bar { kind, id, count })
}

pub(super) fn fence(c: &mut Cursor) -> Decoded {
    if c.opcode() == "membar" {
        c.skip(&["cta", "gl", "sys"]);
        c.finish()?;
        return Ok(Op::Fence(Fence::Memory));
    }
    let scopes = ["cta", "cluster", "gpu", "sys"];
    let fence = if c.take("mbarrier_init") {
        c.need("release")?;
        c.need("cluster")?;
        Fence::MbarrierInit
    } else if c.take("proxy") {
        if c.take("async") {
            c.skip(&["shared::cta", "shared::cluster", "global"]);
            Fence::ProxyAsync
        } else if c.take("tensormap::generic") {
            c.skip(&["acquire", "release"]);
            c.skip(&scopes);
            if c.left() > 0 {
                c.addr()?;
                c.word()?;
            }
            Fence::ProxyTensormap
        } else {
            c.need("alias")?;
            Fence::Memory
        }
    } else {
        c.skip(&["sc", "acq_rel", "acquire", "release"]);
        if c.peek()
            .is_some_and(|part| part.starts_with("sync_restrict"))
        {
            return Err("sync_restrict is not modelled".to_owned());
        }
        c.skip(&scopes);
        Fence::Memory
    };
    c.finish()?;
    Ok(Op::Fence(fence))
}

/// `griddepcontrol`: launches follow one another completely here.
pub(super) fn grid_dependency(c: &mut Cursor) -> Decoded {
    if !c.take("launch_dependents") {
        c.need("wait")?;
    }
    c.finish()?;
    Ok(Op::Nothing)
}

pub(super) fn max_registers(c: &mut Cursor) -> Decoded {
    let up = c.take("inc");
    if !up {
        c.need("dec")?;
    }
    c.need("sync")?;
    c.need("aligned")?;
    c.need("u32")?;
    let count = c.literal()? as u32;
    c.finish()?;
    if !(24..=256).contains(&count) || !count.is_multiple_of(8) {
        return Err(format!(
            "{count} registers: 24 to 256 in steps of 8 are legal"
        ));
    }
    Ok(Op::SetMaxRegs { count, up })
}

/// `.shared::cta`, `.shared::cluster` or nothing.
fn shared_space(c: &mut Cursor) -> AddrSpace {
    if c.take("shared::cluster") {
        AddrSpace::Cluster
    } else if c.take("shared::cta") || c.take("shared") {
        AddrSpace::Shared
    } else {
        AddrSpace::Generic
    }
}

pub(super) fn mbarrier(c: &mut Cursor) -> Decoded {
    let verb = c.modifier()?;
    let expect = verb != "expect_tx" && c.take("expect_tx");
    let no_complete = c.take("noComplete");
    let parity = c.take("parity");
    let semantics = ["release", "acquire", "relaxed", "cta", "cluster"];
    c.skip(&semantics);
    let noinc = c.take("noinc");
    let space = shared_space(c);
    c.need("b64")?;
    let word = Ty::B(32);
    let (op, addr) = match verb {
        "init" => {
            let addr = c.addr()?;
            (Mbar::Init { count: c.word()? }, addr)
        }
        "inval" => (Mbar::Inval, c.addr()?),
        "expect_tx" => {
            let addr = c.addr()?;
            (Mbar::ExpectTx { tx: c.word()? }, addr)
        }
        "complete_tx" => {
            let addr = c.addr()?;
            (Mbar::CompleteTx { tx: c.word()? }, addr)
        }
        "arrive" if !no_complete => {
            let state = if matches!(c.peek_operand(), Some(crate::parse::Operand::Address(..))) {
                None
            } else {
                c.dst_or_sink()?
            };
            if state.is_some() && space == AddrSpace::Cluster {
                return Err("an arrival in another cube has no state: `_` is wanted".to_owned());
            }
            let addr = c.addr()?;
            let tx = if expect { Some(c.src(word)?) } else { None };
            let count = if c.left() > 0 { c.word()? } else { Src::Imm(1) };
            (Mbar::Arrive { state, count, tx }, addr)
        }
        "test_wait" | "try_wait" => {
            let done = c.dst()?;
            let addr = c.addr()?;
            let phase = if parity {
                PhaseArg::Parity(c.word()?)
            } else {
                PhaseArg::State(c.src(Ty::B(64))?)
            };
            if c.left() > 0 {
                // A time limit; waiting longer is legal.
                c.word()?;
            }
            let blocking = verb == "try_wait";
            (
                Mbar::Wait {
                    done,
                    phase,
                    blocking,
                },
                addr,
            )
        }
        other => return Err(format!("mbarrier.{other} in this form is not modelled")),
    };
    c.finish()?;
    if noinc {
        return Err("`.noinc` cannot stand here".to_owned());
    }
    Ok(Op::Mbar { op, addr, space })
}
