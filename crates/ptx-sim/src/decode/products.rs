//! Matrix loads and products of a warp and of a warpgroup.

use super::Decoded;
use super::cursor::Cursor;
use super::op::{Op, Src};
use super::tensor::{MatrixSource, Wgmma, WgmmaMma};
use super::ty::Ty;
use crate::matrix::{BlockScale, MmaShape};
use crate::number::Format;
use crate::parse::Operand;

fn matrices(c: &mut Cursor) -> Decoded<(usize, bool)> {
    c.need("sync")?;
    c.need("aligned")?;
    c.need("m8n8")?;
    let count = match c.modifier()? {
        "x1" => 1,
        "x2" => 2,
        "x4" => 4,
        other => return Err(format!("`.{other}` is no number of matrices")),
    };
    let transpose = c.take("trans");
    c.skip(&["shared", "shared::cta"]);
    c.need("b16")?;
    Ok((count, transpose))
}

pub(super) fn load_matrix(c: &mut Cursor) -> Decoded {
    let (count, transpose) = matrices(c)?;
    let dsts = c.registers()?;
    let addr = c.addr()?;
    c.finish()?;
    if dsts.len() != count {
        return Err(format!("{count} registers are wanted"));
    }
    Ok(Op::LoadMatrix {
        count,
        transpose,
        dsts,
        addr,
    })
}

pub(super) fn store_matrix(c: &mut Cursor) -> Decoded {
    let (count, transpose) = matrices(c)?;
    let addr = c.addr()?;
    let srcs = c.srcs(Ty::B(32))?;
    c.finish()?;
    if srcs.len() != count {
        return Err(format!("{count} registers are wanted"));
    }
    Ok(Op::StoreMatrix {
        count,
        transpose,
        srcs,
        addr,
    })
}

pub(super) fn mma(c: &mut Cursor) -> Decoded {
    c.need("sync")?;
    c.need("aligned")?;
    let k = match c.modifier()? {
        "m16n8k8" => 8,
        "m16n8k16" => 16,
        "m16n8k32" => 32,
        "m16n8k64" => 64,
        other => return Err(format!("shape `.{other}` is not modelled")),
    };
    c.need("row")?;
    c.need("col")?;
    let kind = c.try_parse(|word| word.strip_prefix("kind::").map(str::to_owned));
    let scaled = c.take("block_scale");
    let per_row = c
        .try_parse(|word| match word {
            "scale_vec::1X" => Some(1),
            "scale_vec::2X" => Some(2),
            "scale_vec::4X" => Some(4),
            _ => None,
        })
        .unwrap_or(1);
    let [d, a, b, acc] = [c.format()?, c.format()?, c.format()?, c.format()?];
    let scale = if scaled {
        Some(BlockScale {
            per_row,
            format: c.format()?,
        })
    } else {
        None
    };
    let shape = MmaShape {
        k,
        d,
        a,
        b,
        c: acc,
        scale,
        kind,
    };
    shape.check()?;
    let d = c.registers()?;
    let a = c.srcs(Ty::B(32))?;
    let b = c.srcs(Ty::B(32))?;
    let acc = c.srcs(Ty::F(acc_format(&shape)))?;
    let scales = if scaled { Some(scale_args(c)?) } else { None };
    c.finish()?;
    let wanted = shape.registers();
    let found = [d.len(), a.len(), b.len(), acc.len()];
    if wanted != found {
        return Err(format!(
            "{wanted:?} registers are wanted, {found:?} are there"
        ));
    }
    Ok(Op::Mma {
        shape,
        d,
        a,
        b,
        c: acc,
        scales,
    })
}

fn acc_format(shape: &MmaShape) -> Format {
    if shape.c == Format::F32 {
        Format::F32
    } else {
        // Packed pairs have no literals of their own.
        Format::Tf32
    }
}

/// `sa, {byte, thread}, sb, {byte, thread}`.
fn scale_args(c: &mut Cursor) -> Decoded<[Src; 6]> {
    let mut all = [Src::Imm(0); 6];
    for i in 0..2 {
        all[3 * i] = c.word()?;
        let ids = c.srcs(Ty::B(32))?;
        let [byte, thread] = ids.as_slice() else {
            return Err("{byte id, thread id} is wanted".to_owned());
        };
        all[3 * i + 1] = *byte;
        all[3 * i + 2] = *thread;
    }
    Ok(all)
}

pub(super) fn wgmma(c: &mut Cursor) -> Decoded {
    let verb = c.modifier()?;
    c.need("sync")?;
    c.need("aligned")?;
    let op = match verb {
        "fence" => Wgmma::Fence,
        "commit_group" => Wgmma::Commit,
        "wait_group" => Wgmma::Wait {
            groups: c.literal()? as u32,
        },
        "mma_async" => Wgmma::Mma(wgmma_mma(c)?),
        other => return Err(format!("wgmma.{other} is not modelled")),
    };
    c.finish()?;
    Ok(Op::Wgmma(op))
}

fn wgmma_mma(c: &mut Cursor) -> Decoded<WgmmaMma> {
    let shape = c.modifier()?;
    let (n, k) = shape
        .strip_prefix("m64n")
        .and_then(|rest| rest.split_once('k'))
        .and_then(|(n, k)| Some((n.parse().ok()?, k.parse().ok()?)))
        .ok_or_else(|| format!("shape `.{shape}` is not modelled"))?;
    let [d_format, a_format, b_format] = [c.format()?, c.format()?, c.format()?];
    let wanted_k = match a_format {
        Format::F16 | Format::Bf16 => 16,
        Format::Tf32 => 8,
        Format::E4m3 | Format::E5m2 => 32,
        other => return Err(format!("operands of {other:?} are not modelled")),
    };
    if k != wanted_k || n == 0 || n % 8 != 0 || n > 256 {
        return Err(format!("shape `.{shape}` does not exist for {a_format:?}"));
    }
    let d = c.registers()?;
    let per_register = if d_format == Format::F16 { 2 } else { 1 };
    let wanted = n as usize / 2 / per_register;
    if d.len() != wanted {
        return Err(format!("{wanted} accumulators are wanted"));
    }
    let a = match c.peek_operand() {
        Some(Operand::Vector(_)) => MatrixSource::Registers(c.registers()?),
        _ => MatrixSource::Descriptor(c.src(Ty::B(64))?),
    };
    let b = c.src(Ty::B(64))?;
    let accumulate = c.pred()?;
    let mut flags = [1i64; 4];
    flags[2] = 0;
    flags[3] = 0;
    let from_registers = matches!(a, MatrixSource::Registers(_));
    let places: &[usize] = match (c.left(), from_registers) {
        (0, _) => &[],
        (2, _) => &[0, 1],
        (3, true) => &[0, 1, 3],
        (4, false) => &[0, 1, 2, 3],
        _ => return Err("scales and transposes are incomplete".to_owned()),
    };
    for &place in places {
        flags[place] = c.literal()? as i64;
    }
    Ok(WgmmaMma {
        n,
        k,
        d_format,
        a_format,
        b_format,
        d,
        a,
        b,
        accumulate,
        negate_a: flags[0] == -1,
        negate_b: flags[1] == -1,
        transpose_a: flags[2] == 1,
        transpose_b: flags[3] == 1,
    })
}
