//! One instruction of one group of lanes.

use super::machine::Machine;
use super::warp::{Wait, Warp, lanes};
use crate::check::Fault;
use crate::decode::{Fence, LaneMask, Op, Special, Src};

/// Where the group goes.
pub(super) enum Flow {
    Next,
    Jump {
        taken: u32,
        target: usize,
    },
    Exit {
        gone: u32,
    },
    /// The instruction has not happened yet, or not for everybody.
    Wait(Wait),
}

impl Machine<'_> {
    pub(super) fn step(&mut self, warp: &mut Warp, pc: usize, group: u32) -> Result<Flow, Fault> {
        let kernel = self.kernel;
        let code = &kernel.code[pc];
        let mut active = group;
        if let Some((register, negated)) = code.guard {
            warp.readable(&[register], group, &kernel.register_names)?;
            for lane in lanes(group) {
                if (warp.register(register, lane) & 1 == 1) == negated {
                    active &= !(1 << lane);
                }
            }
        }
        if active == 0 {
            return Ok(Flow::Next);
        }
        let uses = &kernel.uses[pc];
        if !self.launch.load_wait && warp.loads(&uses.reads) {
            self.finish_accesses(warp, false)?;
        }
        warp.admit(&code.op, uses, active, &kernel.register_names)?;
        warp.writable(&uses.writes, &kernel.register_names)?;
        let flow = self.execute(warp, pc, active, group, &code.op)?;
        if !matches!(flow, Flow::Wait(_)) {
            self.counts[pc] += 1;
            warp.wrote(&uses.writes, active);
        }
        Ok(flow)
    }

    fn execute(
        &mut self,
        warp: &mut Warp,
        pc: usize,
        active: u32,
        group: u32,
        op: &Op,
    ) -> Result<Flow, Fault> {
        let base = self.base(warp.cube);
        match op {
            Op::Alu { alu, dst, srcs } => {
                for lane in lanes(active) {
                    let values = srcs.map(|src| warp.get(src, lane, base));
                    warp.set(*dst, lane, alu.eval(values));
                }
            }
            Op::Compare {
                compare,
                p,
                q,
                a,
                b,
                with,
            } => {
                for lane in lanes(active) {
                    let holds = compare.eval(warp.get(*a, lane, base), warp.get(*b, lane, base));
                    let with = with.map(|src| warp.get(src, lane, base) & 1 == 1);
                    let combine = |value: bool| match (compare.combine, with) {
                        (Some(combine), Some(with)) => combine.apply(value, with),
                        _ => value,
                    };
                    if let Some(p) = p {
                        warp.set(*p, lane, u64::from(combine(holds)));
                    }
                    if let Some(q) = q {
                        warp.set(*q, lane, u64::from(combine(!holds)));
                    }
                }
            }
            Op::Pack { dst, parts, bits } => {
                for lane in lanes(active) {
                    let packed = parts.iter().enumerate().fold(0, |packed, (i, src)| {
                        let part = crate::decode::zero_extend(warp.get(*src, lane, base), *bits);
                        packed | part << (i as u32 * bits)
                    });
                    warp.set(*dst, lane, packed);
                }
            }
            Op::Unpack { parts, src, bits } => {
                for lane in lanes(active) {
                    let value = warp.get(*src, lane, base);
                    for (i, part) in parts.iter().enumerate() {
                        if let Some(part) = part {
                            warp.set(*part, lane, value >> (i as u32 * bits));
                        }
                    }
                }
            }
            Op::Special { dst, name } => {
                for lane in lanes(active) {
                    let value = self.special(warp, *name, lane);
                    warp.set(*dst, lane, value);
                }
            }
            Op::Branch { target } => {
                return Ok(Flow::Jump {
                    taken: active,
                    target: *target,
                });
            }
            Op::Exit => return Ok(Flow::Exit { gone: active }),
            Op::Trap => return Err(Fault::Trap),
            Op::Nothing => {}
            Op::Activemask { dst } => {
                for lane in lanes(active) {
                    warp.set(*dst, lane, u64::from(active));
                }
            }
            Op::Fence(fence) => self.fence(warp, *fence),
            Op::SetMaxRegs { count, .. } => {
                if let Some(wait) = self.whole_warp(warp, active, group)? {
                    return Ok(Flow::Wait(wait));
                }
                return Ok(self.set_registers(warp, *count));
            }
            _ => return self.execute_more(warp, pc, active, group, op),
        }
        Ok(Flow::Next)
    }

    /// Gives registers back to the cube, or takes some once there are enough.
    fn set_registers(&mut self, warp: &mut Warp, count: u32) -> Flow {
        let free = &mut self.cubes[warp.cube].free_registers;
        match (*free + warp.max_registers).checked_sub(count) {
            Some(left) => {
                *free = left;
                warp.max_registers = count;
                Flow::Next
            }
            None => Flow::Wait(Wait::Registers(count - warp.max_registers)),
        }
    }

    fn execute_more(
        &mut self,
        warp: &mut Warp,
        pc: usize,
        active: u32,
        group: u32,
        op: &Op,
    ) -> Result<Flow, Fault> {
        match op {
            Op::Load { .. } | Op::Store { .. } | Op::Atomic { .. } | Op::MapShared { .. } => {
                self.access_memory(warp, active, op)?;
            }
            Op::Shuffle { .. }
            | Op::Vote { .. }
            | Op::Match { .. }
            | Op::Redux { .. }
            | Op::Elect { .. }
            | Op::WarpSync { .. } => return self.lane_op(warp, active, group, op),
            Op::Bar { kind, id, count } => {
                return self.named_barrier(warp, active, group, *kind, *id, *count);
            }
            Op::ClusterArrive => {
                if let Some(wait) = self.whole_warp(warp, active, group)? {
                    return Ok(Flow::Wait(wait));
                }
                self.cluster_arrive(warp)?;
            }
            Op::ClusterWait => return self.cluster_wait(warp, active, group),
            Op::Mbar { op, addr, space } => {
                return self.mbarrier(warp, active, op, *addr, *space);
            }
            Op::CopyAsync { .. } | Op::CopyCommit | Op::CopyWait { .. } => {
                self.copy_async(warp, active, op)?;
            }
            Op::Bulk(bulk) => self.bulk(warp, active, bulk)?,
            Op::LoadMatrix { .. } | Op::StoreMatrix { .. } | Op::Mma { .. } => {
                if let Some(wait) = self.whole_warp(warp, active, group)? {
                    return Ok(Flow::Wait(wait));
                }
                self.warp_product(warp, op)?;
            }
            Op::Wgmma(wgmma) => {
                if let Some(wait) = self.whole_warp(warp, active, group)? {
                    return Ok(Flow::Wait(wait));
                }
                self.wgmma(warp, pc, wgmma)?;
            }
            Op::Tcgen(tcgen) => return self.tcgen(warp, pc, active, group, tcgen),
            _ => {
                return Err(Fault::NotModelled {
                    what: format!("{op:?}"),
                });
            }
        }
        Ok(Flow::Next)
    }

    /// The warp's lanes execute this together: what they wait for, if some are still elsewhere.
    pub(super) fn whole_warp(
        &self,
        warp: &Warp,
        active: u32,
        group: u32,
    ) -> Result<Option<Wait>, Fault> {
        if warp.live != warp.exists {
            return Err(Fault::Divergent {
                missing: warp.exists & !warp.live,
                why: "they have exited",
            });
        }
        self.members(warp, active, group, warp.exists)
    }

    /// `needed` lanes execute this together.
    pub(super) fn members(
        &self,
        warp: &Warp,
        active: u32,
        group: u32,
        needed: u32,
    ) -> Result<Option<Wait>, Fault> {
        let needed = needed & warp.exists;
        let missing = needed & !active;
        if missing == 0 {
            return Ok(None);
        }
        if missing & group != 0 {
            return Err(Fault::Divergent {
                missing: missing & group,
                why: "their guard is false",
            });
        }
        if missing & !warp.live != 0 {
            return Err(Fault::Divergent {
                missing: missing & !warp.live,
                why: "they have exited",
            });
        }
        Ok(Some(Wait::Lanes(needed)))
    }

    fn fence(&mut self, warp: &mut Warp, fence: Fence) {
        match fence {
            Fence::ProxyAsync => warp.know.fence(),
            Fence::MbarrierInit => self.fence_objects(warp),
            Fence::Memory | Fence::ProxyTensormap => return,
        }
        warp.know.advance(warp.id);
    }

    /// A value that all active lanes share.
    pub(super) fn uniform(&self, warp: &Warp, active: u32, src: Src) -> Result<u64, Fault> {
        let base = self.base(warp.cube);
        let mut all = lanes(active).map(|lane| warp.get(src, lane, base));
        let first = all.next().unwrap_or(0);
        if all.all(|value| value == first) {
            return Ok(first);
        }
        Err(Fault::NotModelled {
            what: "an operand that must be the same in all lanes differs".to_owned(),
        })
    }

    fn special(&self, warp: &Warp, name: Special, lane: usize) -> u64 {
        let thread = warp.first + lane as u32;
        let [nx, ny, _] = self.launch.cube;
        let tid = [thread % nx, thread / nx % ny, thread / nx / ny];
        let cube = &self.cubes[warp.cube];
        let [cx, cy, _] = self.launch.cluster;
        let rank = warp.cube as u32;
        let inside = [rank % cx, rank / cx % cy, rank / cx / cy];
        let own = 1u32 << lane;
        let value = match name {
            Special::Tid(i) => tid[i],
            Special::Ntid(i) => self.launch.cube[i],
            Special::Ctaid(i) => cube.position[i],
            Special::Nctaid(i) => self.launch.grid[i],
            Special::Lane => lane as u32,
            Special::Warp => thread / 32,
            Special::NWarp => cube.warps.len() as u32,
            Special::LaneMask(LaneMask::Eq) => own,
            Special::LaneMask(LaneMask::Lt) => own - 1,
            Special::LaneMask(LaneMask::Le) => own | (own - 1),
            Special::LaneMask(LaneMask::Gt) => !(own | (own - 1)),
            Special::LaneMask(LaneMask::Ge) => !(own - 1),
            Special::ClusterCtaid(i) => inside[i],
            Special::ClusterNctaid(i) => self.launch.cluster[i],
            Special::ClusterId(i) => self.cluster[i],
            Special::NClusterId(i) => self.launch.grid[i] / self.launch.cluster[i],
            Special::ClusterRank => rank,
            Special::ClusterSize => self.cubes.len() as u32,
            Special::Sm => {
                let [x, y, z] = cube.position;
                x + self.launch.grid[0] * (y + self.launch.grid[1] * z)
            }
            Special::NSm => 132,
            Special::Clock => return self.executed,
            Special::DynamicShared => self.launch.dynamic_shared as u32,
            Special::TotalShared => (self.kernel.static_shared + self.launch.dynamic_shared) as u32,
        };
        u64::from(value)
    }
}
