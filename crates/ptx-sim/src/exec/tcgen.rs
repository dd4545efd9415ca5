//! tcgen05: tensor memory, its loads and stores, and the products that fill it.

mod access;
mod pair;
mod product;

use super::address::Place;
use super::machine::Machine;
use super::step::Flow;
use super::warp::{Wait, Warp, lanes};
use crate::check::Fault;
use crate::decode::{Addr, AddrSpace, CopyShape, Src, Tcgen, zero_extend};
pub(super) use pair::PairCall;
pub(super) use product::PendingTcgen;

/// An operation in the queue of the thread that issued it; they finish in order.
#[derive(Clone, Debug)]
pub(super) enum TcgenTask {
    Product(PendingTcgen),
    Copy {
        shape: CopyShape,
        column: u32,
        descriptor: u64,
        pieces: Vec<u32>,
    },
    Commit {
        /// Cubes and offsets of the mbarriers.
        bars: Vec<(usize, u32)>,
    },
}

/// What finished operations still hold until the commit after them.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    /// (column, quarter).
    pub(super) written: Vec<(usize, u32, u32)>,
    pub(super) read: Vec<(usize, u32, u32)>,
    pub(super) pieces: Vec<(usize, u32)>,
}

impl Machine<'_> {
    pub(super) fn tcgen(
        &mut self,
        warp: &mut Warp,
        pc: usize,
        active: u32,
        group: u32,
        op: &Tcgen,
    ) -> Result<Flow, Fault> {
        match op {
            Tcgen::Mma(_) | Tcgen::Commit { .. } | Tcgen::Copy { .. } => {
                if active.count_ones() != 1 {
                    return Err(Fault::TensorMemory {
                        problem: format!("{} threads issue the instruction", active.count_ones()),
                    });
                }
            }
            Tcgen::FenceBefore | Tcgen::FenceAfter => return Ok(Flow::Next),
            _ => {
                if let Some(wait) = self.whole_warp(warp, active, group)? {
                    return Ok(Flow::Wait(wait));
                }
            }
        }
        let lane = active.trailing_zeros() as usize;
        match op {
            Tcgen::Alloc { dst, columns, pair } => {
                let columns = self.uniform(warp, active, *columns)? as u32;
                let place = self.place(warp, AddrSpace::Shared, *dst, lane)?;
                let tensor = &mut self.cubes[warp.cube].tensor;
                let Some(first) = tensor.allocate(columns)? else {
                    return Ok(Flow::Wait(Wait::Allocation));
                };
                if *pair {
                    self.pair_call(warp.cube, PairCall::Alloc { first, columns })?;
                }
                self.store(warp, lane, place, &first.to_le_bytes())?;
                if let Place::Shared { cube, at } = place {
                    // No ordinary store: an asynchronous copy may overwrite it without a proxy fence.
                    self.cubes[cube].shared.not_generic(at);
                }
            }
            Tcgen::Dealloc {
                addr,
                columns,
                pair,
            } => {
                let first = self.uniform(warp, active, *addr)? as u32;
                let columns = self.uniform(warp, active, *columns)? as u32;
                self.cubes[warp.cube].tensor.free(first, columns)?;
                if *pair {
                    self.pair_call(warp.cube, PairCall::Dealloc { first, columns })?;
                }
            }
            Tcgen::Relinquish { pair } => {
                self.cubes[warp.cube].tensor.relinquish();
                if *pair {
                    self.pair_call(warp.cube, PairCall::Relinquish)?;
                }
            }
            Tcgen::Mma(mma) => self.issue_tcgen(warp, pc, lane, mma)?,
            Tcgen::Commit {
                bar,
                multicast,
                pair,
            } => self.commit(warp, lane, *bar, *multicast, *pair)?,
            Tcgen::Copy {
                shape,
                addr,
                descriptor,
                pair,
            } => {
                let column = self.address(warp, *addr, lane) as u32;
                self.issue_copy(warp, lane, *shape, column, *descriptor, *pair)?;
            }
            Tcgen::Load { .. } | Tcgen::Store { .. } => self.issue_access(warp, active, op)?,
            Tcgen::WaitLoad => self.finish_accesses(warp, false)?,
            Tcgen::WaitStore => self.finish_accesses(warp, true)?,
            Tcgen::FenceBefore | Tcgen::FenceAfter => {}
        }
        Ok(Flow::Next)
    }

    /// The mbarriers of a commit: a shared address, given as such or in the generic space.
    fn commit(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        bar: Addr,
        multicast: Option<Src>,
        pair: bool,
    ) -> Result<(), Fault> {
        if pair {
            self.peer(warp.cube)?;
        }
        let address = self.address(warp, bar, lane);
        let (cube, at) = if address < 1 << 32 {
            self.locate(zero_extend(address, 32) as u32)?
        } else {
            match self.generic(address)? {
                Place::Shared { cube, at } => (cube, at),
                place => {
                    return Err(Fault::NotModelled {
                        what: format!("an mbarrier at {place:?}"),
                    });
                }
            }
        };
        let bars = match multicast {
            None => vec![(cube, at)],
            Some(mask) => {
                let mask = warp.get(mask, lane, self.base(warp.cube)) as u32 & 0xffff;
                let cubes = self.cubes.len();
                if mask == 0 || mask >> cubes != 0 {
                    return Err(Fault::TensorMemory {
                        problem: format!("commit to cubes {mask:#x} of a cluster of {cubes}"),
                    });
                }
                lanes(mask).map(|rank| (rank, at)).collect()
            }
        };
        for &(cube, at) in &bars {
            self.object(cube, at)?;
        }
        warp.tcgen.push_back(TcgenTask::Commit { bars });
        Ok(())
    }

    /// The oldest operation of the warp's queue finishes.
    pub(super) fn finish_tcgen(&mut self, index: usize) -> Result<(), Fault> {
        let Some(task) = self.warps[index].tcgen.pop_front() else {
            return Ok(());
        };
        match task {
            TcgenTask::Product(product) => self.finish_tcgen_product(index, product),
            TcgenTask::Copy {
                shape,
                column,
                descriptor,
                pieces,
            } => self.finish_copy(index, shape, column, descriptor, pieces),
            TcgenTask::Commit { bars } => {
                let held = std::mem::take(&mut self.warps[index].held);
                let mut known = self.warps[index].know.clone();
                known.join(&self.warps[index].committed);
                // What was produced is known by the first mbarrier; the others make the same known.
                let (cube, at) = bars[0];
                let epoch = self.object(cube, at)?.epoch();
                self.release_held(&held, epoch, index);
                let time = epoch.time;
                let committed = &mut self.warps[index].committed;
                committed.learn(epoch.component as usize, time);
                for &(cube, at) in &bars {
                    self.alive(index, cube)?;
                    let mut known = known.clone();
                    known.learn(epoch.component as usize, epoch.time);
                    self.arrive(cube, at, &known)?;
                }
                Ok(())
            }
        }
    }
}
