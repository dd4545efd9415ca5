//! Fifth-generation matrix instructions.

use super::Decoded;
use super::cursor::Cursor;
use super::op::{Addr, Op, Src};
use super::tensor::{CopyShape, MatrixSource, Tcgen, TcgenKind, TcgenMma, TensorShape};
use super::ty::Ty;
use crate::parse::Operand;

fn group(c: &mut Cursor) -> Decoded<bool> {
    match c.modifier()? {
        "cta_group::1" => Ok(false),
        "cta_group::2" => Ok(true),
        other => Err(format!("`.{other}` stands where a group is wanted")),
    }
}

pub(super) fn tcgen05(c: &mut Cursor) -> Decoded {
    let op = match c.modifier()? {
        "alloc" => {
            let pair = group(c)?;
            c.need("sync")?;
            c.need("aligned")?;
            c.skip(&["shared::cta"]);
            c.need("b32")?;
            Tcgen::Alloc {
                dst: c.addr()?,
                columns: c.word()?,
                pair,
            }
        }
        "dealloc" => {
            let pair = group(c)?;
            c.need("sync")?;
            c.need("aligned")?;
            c.need("b32")?;
            Tcgen::Dealloc {
                addr: c.word()?,
                columns: c.word()?,
                pair,
            }
        }
        "relinquish_alloc_permit" => {
            let pair = group(c)?;
            c.need("sync")?;
            c.need("aligned")?;
            Tcgen::Relinquish { pair }
        }
        "mma" => Tcgen::Mma(mma(c)?),
        "commit" => commit(c)?,
        "ld" => load(c)?,
        "st" => store(c)?,
        "wait::ld" => {
            c.need("sync")?;
            c.need("aligned")?;
            Tcgen::WaitLoad
        }
        "wait::st" => {
            c.need("sync")?;
            c.need("aligned")?;
            Tcgen::WaitStore
        }
        "fence::before_thread_sync" => Tcgen::FenceBefore,
        "fence::after_thread_sync" => Tcgen::FenceAfter,
        "cp" => copy(c)?,
        other => return Err(format!("tcgen05.{other} is not modelled")),
    };
    c.finish()?;
    Ok(Op::Tcgen(op))
}

fn commit(c: &mut Cursor) -> Decoded<Tcgen> {
    let pair = group(c)?;
    c.need("mbarrier::arrive::one")?;
    c.skip(&["shared::cluster"]);
    let multicast = c.take("multicast::cluster");
    c.need("b64")?;
    let bar = c.addr()?;
    let multicast = if multicast { Some(c.word()?) } else { None };
    Ok(Tcgen::Commit {
        bar,
        pair,
        multicast,
    })
}

fn shape(c: &mut Cursor) -> Decoded<(TensorShape, usize)> {
    c.need("sync")?;
    c.need("aligned")?;
    let (shape, registers) = match c.modifier()? {
        "32x32b" => (TensorShape::L32B32, 1),
        "16x64b" => (TensorShape::L16B64, 1),
        "16x128b" => (TensorShape::L16B128, 2),
        "16x256b" => (TensorShape::L16B256, 4),
        "16x32bx2" => (TensorShape::L16B32x2, 1),
        other => return Err(format!("shape `.{other}` is not modelled")),
    };
    let word = c.modifier()?;
    let times: usize = word
        .strip_prefix('x')
        .and_then(|times| times.parse().ok())
        .filter(|times: &usize| times.is_power_of_two() && *times <= 128)
        .ok_or_else(|| format!("`.{word}` is no repetition"))?;
    Ok((shape, registers * times))
}

fn second_half(c: &mut Cursor, shape: TensorShape) -> Decoded<u32> {
    if shape == TensorShape::L16B32x2 {
        Ok(c.literal()? as u32)
    } else {
        Ok(0)
    }
}

fn load(c: &mut Cursor) -> Decoded<Tcgen> {
    let (shape, wanted) = shape(c)?;
    let pack = c.take("pack::16b");
    c.need("b32")?;
    let dsts = c.registers()?;
    let addr = c.addr()?;
    let offset = second_half(c, shape)?;
    if dsts.len() != wanted {
        return Err(format!("{wanted} registers are wanted"));
    }
    Ok(Tcgen::Load {
        shape,
        dsts,
        addr,
        pack,
        offset,
    })
}

fn store(c: &mut Cursor) -> Decoded<Tcgen> {
    let (shape, wanted) = shape(c)?;
    let unpack = c.take("unpack::16b");
    c.need("b32")?;
    let addr = c.addr()?;
    let offset = second_half(c, shape)?;
    let srcs = c.srcs(Ty::B(32))?;
    if srcs.len() != wanted {
        return Err(format!("{wanted} registers are wanted"));
    }
    Ok(Tcgen::Store {
        shape,
        srcs,
        addr,
        unpack,
        offset,
    })
}

fn copy(c: &mut Cursor) -> Decoded<Tcgen> {
    let pair = group(c)?;
    let shape = match c.modifier()? {
        "128x256b" => CopyShape::L128B256,
        "4x256b" => CopyShape::L4B256,
        "128x128b" => CopyShape::L128B128,
        "64x128b" => {
            let lower = c.take("warpx2::02_13");
            if !lower {
                c.need("warpx2::01_23")?;
            }
            CopyShape::L64B128 { lower }
        }
        "32x128b" => {
            c.need("warpx4")?;
            CopyShape::L32B128
        }
        other => return Err(format!("shape `.{other}` is not modelled")),
    };
    Ok(Tcgen::Copy {
        shape,
        addr: c.addr()?,
        descriptor: c.src(Ty::B(64))?,
        pair,
    })
}

fn mma(c: &mut Cursor) -> Decoded<TcgenMma> {
    let pair = group(c)?;
    let (kind, block) = match c.modifier()? {
        "kind::f16" => (TcgenKind::F16, 0),
        "kind::tf32" => (TcgenKind::Tf32, 0),
        "kind::f8f6f4" => (TcgenKind::F8f6f4, 0),
        "kind::mxf8f6f4" => (TcgenKind::Mxf8f6f4, 32),
        "kind::mxf4" => (TcgenKind::Mxf4, 32),
        "kind::mxf4nvf4" => (TcgenKind::Mxf4nvf4, 16),
        other => return Err(format!("`.{other}` is not modelled")),
    };
    let mut per_scale = block;
    if block > 0 {
        c.need("block_scale")?;
        per_scale = match c.peek() {
            Some("scale_vec::1X" | "block32") => 32,
            Some("scale_vec::2X") => 32,
            Some("scale_vec::4X" | "block16") => 16,
            _ => block,
        };
        c.skip(&[
            "scale_vec::1X",
            "scale_vec::2X",
            "scale_vec::4X",
            "block16",
            "block32",
        ]);
    }
    c.skip(&[
        "collector::a::discard",
        "collector::a::lastuse",
        "collector::a::fill",
    ]);
    let d = c.addr()?;
    let a = match c.peek_operand() {
        Some(Operand::Address(..)) => MatrixSource::Tensor(c.addr()?),
        _ => MatrixSource::Descriptor(c.src(Ty::B(64))?),
    };
    let b = c.src(Ty::B(64))?;
    let idesc = c.word()?;
    let scales: Option<(Addr, Addr, u32)> = if block > 0 {
        Some((c.addr()?, c.addr()?, per_scale))
    } else {
        None
    };
    let mut disabled = Vec::new();
    if matches!(c.peek_operand(), Some(Operand::Vector(_))) {
        disabled = c.srcs(Ty::B(32))?;
        let wanted = if pair { 8 } else { 4 };
        if block > 0 || disabled.len() != wanted {
            return Err(format!(
                "{} words of lanes that are left out: {wanted}, and none with block scales, are legal",
                disabled.len()
            ));
        }
    }
    let accumulate = if c.left() > 0 { c.pred()? } else { Src::Imm(0) };
    if c.left() > 0 {
        return Err("scale-input-d is not modelled".to_owned());
    }
    Ok(TcgenMma {
        kind,
        pair,
        d,
        a,
        b,
        idesc,
        scales,
        disabled,
        accumulate,
    })
}
