//! Loads, stores and atomics of single lanes.

use super::address::Place;
use super::machine::Machine;
use super::warp::{Warp, lanes};
use super::{RANK_SHIFT, SHARED_WINDOW};
use crate::check::Fault;
use crate::decode::{Atomic, Op, Src, Ty, zero_extend};
use crate::number::{Format, Rounding, two_sum};

impl Machine<'_> {
    pub(super) fn access_memory(
        &mut self,
        warp: &mut Warp,
        active: u32,
        op: &Op,
    ) -> Result<(), Fault> {
        let base = self.base(warp.cube);
        match op {
            Op::Load {
                space,
                ty,
                dsts,
                addr,
            } => {
                let bytes = ty.bytes();
                let mut data = [0u8; 64];
                let whole = bytes * dsts.len();
                for lane in lanes(active) {
                    let place = self.place(warp, *space, *addr, lane)?;
                    match self.load(warp, lane, place, &mut data[..whole]) {
                        // Compilers load ahead of the branch that decides whether the value counts, and
                        // beside their neighbours those that nobody wants.
                        Err(Fault::Uninitialised { .. }) => {
                            for (i, dst) in dsts.iter().enumerate() {
                                let part = &mut data[i * bytes..(i + 1) * bytes];
                                match self.load(warp, lane, place.plus(i * bytes), part) {
                                    Err(Fault::Uninitialised { .. }) => {
                                        dst.iter().for_each(|&dst| warp.poison(dst, lane));
                                    }
                                    outcome => outcome?,
                                }
                            }
                        }
                        outcome => outcome?,
                    }
                    for (dst, raw) in dsts.iter().zip(data.chunks(bytes)) {
                        let mut value = [0; 8];
                        value[..bytes].copy_from_slice(raw);
                        let value = u64::from_le_bytes(value);
                        if let Some(dst) = dst {
                            warp.set(*dst, lane, extend(*ty, value));
                        }
                    }
                }
            }
            Op::Store {
                space,
                ty,
                srcs,
                addr,
            } => {
                let bytes = ty.bytes();
                let mut data = [0u8; 64];
                let whole = bytes * srcs.len();
                for lane in lanes(active) {
                    for (src, raw) in srcs.iter().zip(data.chunks_mut(bytes)) {
                        let value = warp.get(*src, lane, base).to_le_bytes();
                        raw.copy_from_slice(&value[..bytes]);
                    }
                    let place = self.place(warp, *space, *addr, lane)?;
                    self.store(warp, lane, place, &data[..whole])?;
                }
            }
            Op::Atomic {
                space,
                op,
                ty,
                dsts,
                addr,
                srcs,
                other,
            } => {
                for lane in lanes(active) {
                    let other = warp.get(*other, lane, base);
                    for (i, (dst, src)) in dsts.iter().zip(srcs).enumerate() {
                        let mut addr = *addr;
                        addr.offset += (i * ty.bytes()) as i64;
                        let place = self.place(warp, *space, addr, lane)?;
                        let value = warp.get(*src, lane, base);
                        let old = self.atomic(*op, *ty, place, value, other)?;
                        if let Some(dst) = dst {
                            warp.set(*dst, lane, old);
                        }
                    }
                }
            }
            Op::MapShared {
                dst,
                addr,
                rank,
                generic,
            } => self.map_shared(warp, active, (*dst, *addr, *rank, *generic))?,
            _ => {}
        }
        Ok(())
    }

    fn map_shared(
        &mut self,
        warp: &mut Warp,
        active: u32,
        (dst, addr, rank, generic): (u32, Src, Src, bool),
    ) -> Result<(), Fault> {
        let base = self.base(warp.cube);
        for lane in lanes(active) {
            let address = warp.get(addr, lane, base) as u32;
            let at = self.own(warp.cube, address)?;
            let rank = warp.get(rank, lane, base);
            if rank >= self.cubes.len() as u64 {
                return Err(Fault::OutOfBounds {
                    space: "shared",
                    address: rank,
                    bytes: 0,
                    reason: format!("the cluster has {} cubes", self.cubes.len()),
                });
            }
            let mapped = rank << RANK_SHIFT | u64::from(at);
            let window = if generic { SHARED_WINDOW } else { 0 };
            warp.set(dst, lane, window + mapped);
        }
        Ok(())
    }

    /// Natural alignment of the whole vector is demanded everywhere.
    pub(super) fn load(
        &mut self,
        warp: &Warp,
        lane: usize,
        place: Place,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        aligned(place, out.len())?;
        match place {
            Place::Global(address) => self.memory.load(address, out),
            Place::Variable(address) => {
                let at = self.variable(address, out.len())?;
                out.copy_from_slice(&self.globals[at..at + out.len()]);
                Ok(())
            }
            Place::Shared { cube, at } => self.cubes[cube].shared.load(at, out, &warp.access(lane)),
            Place::Local(at) => {
                let at = local(self.kernel.local_bytes, at, out.len(), lane)?;
                if !warp.local_written[at..at + out.len()].iter().all(|&w| w) {
                    return Err(Fault::Uninitialised {
                        what: "local memory".to_owned(),
                    });
                }
                out.copy_from_slice(&warp.local[at..at + out.len()]);
                Ok(())
            }
            Place::Param(at) => {
                let at = at as usize;
                let bytes = &self.params.bytes;
                let data = bytes.get(at..at + out.len());
                let data = data.ok_or(Fault::OutOfBounds {
                    space: "param",
                    address: at as u64,
                    bytes: out.len(),
                    reason: format!("the parameters have {} bytes", bytes.len()),
                })?;
                out.copy_from_slice(data);
                Ok(())
            }
        }
    }

    pub(super) fn store(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        place: Place,
        data: &[u8],
    ) -> Result<(), Fault> {
        aligned(place, data.len())?;
        match place {
            Place::Global(address) => self.memory.store(address, data),
            Place::Variable(_) => Err(Fault::NotModelled {
                what: "stores to variables of the module".to_owned(),
            }),
            Place::Shared { cube, at } => {
                self.cubes[cube].shared.store(at, data, &warp.access(lane))
            }
            Place::Local(at) => {
                let at = local(self.kernel.local_bytes, at, data.len(), lane)?;
                warp.local[at..at + data.len()].copy_from_slice(data);
                warp.local_written[at..at + data.len()].fill(true);
                Ok(())
            }
            Place::Param(address) => Err(Fault::OutOfBounds {
                space: "param",
                address,
                bytes: data.len(),
                reason: "parameters cannot be written".to_owned(),
            }),
        }
    }

    fn atomic(
        &mut self,
        op: Atomic,
        ty: Ty,
        place: Place,
        value: u64,
        other: u64,
    ) -> Result<u64, Fault> {
        let bytes = ty.bytes();
        let change = |old: u64| combine(op, ty, old, value, other);
        match place {
            Place::Global(address) => self.memory.atomic(address, bytes, change),
            Place::Shared { cube, at } => self.cubes[cube].shared.atomic(at, bytes, change),
            _ => Err(Fault::NotModelled {
                what: format!("atomics at {place:?}"),
            }),
        }
    }
}

fn local(size: usize, at: u64, bytes: usize, lane: usize) -> Result<usize, Fault> {
    if at as usize + bytes > size {
        return Err(Fault::OutOfBounds {
            space: "local",
            address: at,
            bytes,
            reason: format!("a thread has {size} bytes"),
        });
    }
    Ok(lane * size + at as usize)
}

fn aligned(place: Place, bytes: usize) -> Result<(), Fault> {
    let (space, address) = match place {
        Place::Global(address) | Place::Variable(address) => ("global", address),
        Place::Shared { at, .. } => ("shared", u64::from(at)),
        Place::Local(at) => ("local", at),
        Place::Param(at) => ("param", at),
    };
    if address.is_multiple_of(bytes as u64) {
        return Ok(());
    }
    Err(Fault::Misaligned {
        space,
        address,
        align: bytes,
    })
}

/// A loaded value as the register gets it: signed types are sign-extended.
fn extend(ty: Ty, value: u64) -> u64 {
    match ty {
        Ty::S(bits) if bits < 64 => ((value << (64 - bits)) as i64 >> (64 - bits)) as u64,
        _ => value,
    }
}

/// New value of an atomic, or of a reduction over lanes.
pub(super) fn combine(op: Atomic, ty: Ty, old: u64, value: u64, other: u64) -> u64 {
    match ty {
        Ty::F(format) if op != Atomic::Exch && op != Atomic::Cas => float(op, format, old, value),
        Ty::F2(format) if op != Atomic::Exch && op != Atomic::Cas => {
            let half = format.bits();
            let part = |shift: u32| {
                let cut = |bits: u64| zero_extend(bits >> shift, half);
                float(op, format, cut(old), cut(value)) << shift
            };
            part(0) | part(half)
        }
        _ => integer(op, ty, old, value, other),
    }
}

fn float(op: Atomic, format: Format, old: u64, value: u64) -> u64 {
    let (a, b) = (format.decode(old), format.decode(value));
    let (result, rest) = match op {
        Atomic::Add => two_sum(a, b),
        Atomic::Min => (a.min(b), 0.0),
        _ => (a.max(b), 0.0),
    };
    format.encode(result, rest, Rounding::Nearest, false)
}

fn integer(op: Atomic, ty: Ty, old: u64, value: u64, other: u64) -> u64 {
    let bits = ty.bits();
    let less = if ty.signed() {
        (extend(ty, old) as i64) < extend(ty, value) as i64
    } else {
        zero_extend(old, bits) < zero_extend(value, bits)
    };
    let result = match op {
        Atomic::Add => old.wrapping_add(value),
        Atomic::Min => {
            if less {
                old
            } else {
                value
            }
        }
        Atomic::Max => {
            if less {
                value
            } else {
                old
            }
        }
        Atomic::And => old & value,
        Atomic::Or => old | value,
        Atomic::Xor => old ^ value,
        Atomic::Exch => value,
        Atomic::Cas => {
            if zero_extend(old, bits) == zero_extend(value, bits) {
                other
            } else {
                old
            }
        }
        Atomic::Inc => {
            if old >= value {
                0
            } else {
                old + 1
            }
        }
        Atomic::Dec => {
            if old == 0 || old > value {
                value
            } else {
                old - 1
            }
        }
    };
    zero_extend(result, bits)
}
