//! Registers that an instruction reads and writes.

use crate::decode::{
    Addr, Bulk, Code, MatrixSource, Mbar, Op, PhaseArg, Src, Tcgen, TensorCopy, Wgmma,
};
use crate::kernel::Uses;

impl Uses {
    fn src(&mut self, src: Src) {
        if let Src::Reg(register) | Src::Not(register) = src {
            self.reads.push(register);
        }
    }
    fn srcs<'a>(&mut self, srcs: impl IntoIterator<Item = &'a Src>) {
        for src in srcs {
            self.src(*src);
        }
    }
    fn addr(&mut self, addr: &Addr) {
        self.src(addr.base);
    }
    fn dst(&mut self, dst: impl Into<Option<u32>>) {
        self.writes.extend(dst.into());
    }
    fn tensor(&mut self, copy: &TensorCopy) {
        self.addr(&copy.map);
        self.srcs(&copy.coords);
        self.addr(&copy.smem);
    }
}

/// Registers of `code`, its guard left out (it is read whether or not the instruction runs). Registers that an
/// asynchronous product owns are left to it.
pub(crate) fn registers_of(code: &Code) -> Uses {
    let mut uses = Uses::default();
    let u = &mut uses;
    match &code.op {
        Op::Alu { dst, srcs, .. } => {
            u.srcs(srcs);
            u.dst(*dst);
        }
        Op::Compare {
            p, q, a, b, with, ..
        } => {
            u.srcs([a, b]);
            u.srcs(with);
            u.dst(*p);
            u.dst(*q);
        }
        Op::Pack { dst, parts, .. } => {
            u.srcs(parts);
            u.dst(*dst);
        }
        Op::Unpack { parts, src, .. } => {
            u.src(*src);
            u.writes.extend(parts.iter().flatten());
        }
        Op::Special { dst, .. } | Op::Activemask { dst } => u.dst(*dst),
        Op::Load { dsts, addr, .. } => {
            u.addr(addr);
            u.writes.extend(dsts.iter().flatten());
        }
        Op::Store { srcs, addr, .. } => {
            u.addr(addr);
            u.srcs(srcs);
        }
        Op::Atomic {
            dsts,
            addr,
            srcs,
            other,
            ..
        } => {
            u.addr(addr);
            u.srcs(srcs);
            u.src(*other);
            u.writes.extend(dsts.iter().flatten());
        }
        Op::Shuffle {
            dst,
            valid,
            value,
            lane,
            clamp,
            members,
            ..
        } => {
            u.srcs([value, lane, clamp, members]);
            u.dst(*dst);
            u.dst(*valid);
        }
        Op::Vote {
            dst,
            value,
            members,
            ..
        }
        | Op::Redux {
            dst,
            value,
            members,
            ..
        } => {
            u.srcs([value, members]);
            u.dst(*dst);
        }
        Op::Match {
            dst,
            pred,
            value,
            members,
            ..
        } => {
            u.srcs([value, members]);
            u.dst(*dst);
            u.dst(*pred);
        }
        Op::Elect {
            lane,
            pred,
            members,
        } => {
            u.src(*members);
            u.dst(*lane);
            u.dst(*pred);
        }
        Op::WarpSync { members } => u.src(*members),
        Op::Bar { id, count, .. } => {
            u.src(*id);
            u.srcs(count);
        }
        Op::Mbar { op, addr, .. } => {
            u.addr(addr);
            mbarrier(u, op);
        }
        Op::MapShared {
            dst, addr, rank, ..
        } => {
            u.srcs([addr, rank]);
            u.dst(*dst);
        }
        Op::CopyAsync {
            dst,
            src,
            read,
            ignore,
            ..
        } => {
            u.addr(dst);
            u.addr(src);
            u.srcs(read);
            u.srcs(ignore);
        }
        Op::Bulk(bulk) => bulk_uses(u, bulk),
        Op::LoadMatrix { dsts, addr, .. } => {
            u.addr(addr);
            u.writes.extend(dsts);
        }
        Op::StoreMatrix { srcs, addr, .. } => {
            u.addr(addr);
            u.srcs(srcs);
        }
        Op::Mma {
            d, a, b, c, scales, ..
        } => {
            u.srcs(a.iter().chain(b).chain(c));
            u.srcs(scales.iter().flatten());
            u.writes.extend(d);
        }
        Op::Wgmma(Wgmma::Mma(mma)) => {
            if let MatrixSource::Descriptor(a) = mma.a {
                u.src(a);
            }
            u.srcs([&mma.b, &mma.accumulate]);
        }
        Op::Tcgen(tcgen) => tcgen_uses(u, tcgen),
        Op::Wgmma(_)
        | Op::Branch { .. }
        | Op::Exit
        | Op::Trap
        | Op::Nothing
        | Op::ClusterArrive
        | Op::ClusterWait
        | Op::Fence(_)
        | Op::CopyCommit
        | Op::CopyWait { .. }
        | Op::SetMaxRegs { .. } => {}
    }
    uses
}

fn mbarrier(u: &mut Uses, op: &Mbar) {
    match op {
        Mbar::Init { count } => u.src(*count),
        Mbar::Arrive { state, count, tx } => {
            u.src(*count);
            u.srcs(tx);
            u.dst(*state);
        }
        Mbar::ExpectTx { tx } | Mbar::CompleteTx { tx } => u.src(*tx),
        Mbar::Wait { done, phase, .. } => {
            let (PhaseArg::Parity(src) | PhaseArg::State(src)) = phase;
            u.src(*src);
            u.dst(*done);
        }
        Mbar::Inval | Mbar::ArriveAsync { .. } => {}
    }
}

fn bulk_uses(u: &mut Uses, bulk: &Bulk) {
    match bulk {
        Bulk::TensorLoad {
            copy,
            bar,
            multicast,
            ..
        } => {
            u.tensor(copy);
            u.addr(bar);
            u.srcs(multicast);
        }
        Bulk::TensorStore { copy, .. } => u.tensor(copy),
        Bulk::Load {
            dst,
            src,
            bytes,
            bar,
            multicast,
        } => {
            for addr in [dst, src, bar] {
                u.addr(addr);
            }
            u.src(*bytes);
            u.srcs(multicast);
        }
        Bulk::Store { dst, src, bytes } => {
            u.addr(dst);
            u.addr(src);
            u.src(*bytes);
        }
        Bulk::ToCluster {
            dst,
            src,
            bytes,
            bar,
        } => {
            for addr in [dst, src, bar] {
                u.addr(addr);
            }
            u.src(*bytes);
        }
        Bulk::TensorPrefetch | Bulk::Commit | Bulk::Wait { .. } => {}
    }
}

fn tcgen_uses(u: &mut Uses, tcgen: &Tcgen) {
    match tcgen {
        Tcgen::Alloc { dst, columns, .. } => {
            u.addr(dst);
            u.src(*columns);
        }
        Tcgen::Dealloc { addr, columns, .. } => u.srcs([addr, columns]),
        Tcgen::Mma(mma) => {
            u.addr(&mma.d);
            match &mma.a {
                MatrixSource::Descriptor(a) => u.src(*a),
                MatrixSource::Tensor(addr) => u.addr(addr),
                MatrixSource::Registers(_) => {}
            }
            u.srcs([&mma.b, &mma.idesc, &mma.accumulate]);
            u.srcs(&mma.disabled);
            if let Some((a, b, _)) = &mma.scales {
                u.addr(a);
                u.addr(b);
            }
        }
        Tcgen::Commit { bar, multicast, .. } => {
            u.addr(bar);
            u.srcs(multicast);
        }
        Tcgen::Load { dsts, addr, .. } => {
            u.addr(addr);
            u.writes.extend(dsts);
        }
        Tcgen::Store { srcs, addr, .. } => {
            u.addr(addr);
            u.srcs(srcs);
        }
        Tcgen::Copy {
            addr, descriptor, ..
        } => {
            u.addr(addr);
            u.src(*descriptor);
        }
        Tcgen::Relinquish { .. }
        | Tcgen::WaitLoad
        | Tcgen::WaitStore
        | Tcgen::FenceBefore
        | Tcgen::FenceAfter => {}
    }
}
