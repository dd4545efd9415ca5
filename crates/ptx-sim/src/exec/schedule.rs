//! Which warp runs next, and when operations finish.

use super::machine::Machine;
use super::step::Flow;
use super::warp::{Group, Wait, Warp};
use crate::check::Fault;
use crate::launch::Schedule;

/// Instructions of a warp in turn.
const TURN: usize = 512;

impl Machine<'_> {
    pub(super) fn schedule(&mut self) -> Result<(), Fault> {
        loop {
            let mut ran = false;
            let count = self.warps.len();
            let start = match self.launch.schedule {
                Schedule::Latest => 0,
                Schedule::Random(_) => self.draw(count),
            };
            for i in 0..count {
                ran |= self.turn((start + i) % count)?;
                if self.launch.schedule != Schedule::Latest && self.draw(4) == 0 {
                    ran |= self.finish_one()?;
                }
            }
            if self.warps.iter().all(|warp| warp.live == 0) {
                return Ok(());
            }
            let polled = std::mem::take(&mut self.polled);
            if !ran || polled {
                let finished = self.finish_one()?;
                if !ran && !finished {
                    return Err(self.deadlock());
                }
            }
        }
    }

    fn deadlock(&self) -> Fault {
        let waiting = self
            .warps
            .iter()
            .flat_map(|warp| warp.groups.iter().map(move |group| (warp, group)))
            .map(|(warp, group)| self.describe(warp, group))
            .collect();
        Fault::Deadlock { waiting }
    }

    fn describe(&self, warp: &Warp, group: &Group) -> String {
        let line = self.kernel.code[group.pc].line;
        let what = match group.wait {
            Some(Wait::Lanes(lanes)) => format!("lanes {lanes:#010x}"),
            Some(Wait::Barrier { id, .. }) => {
                let barrier = &self.cubes[warp.cube].barriers[id];
                format!(
                    "barrier {id}, where {} of {} threads are",
                    barrier.arrived(),
                    barrier.expected()
                )
            }
            Some(Wait::Mbarrier { cube, at, phase }) => match self.cubes[cube].mbarriers.get(&at) {
                Some(object) => format!("phase {phase} of mbarrier {at:#x} ({object})"),
                None => format!("mbarrier {at:#x}, which is gone"),
            },
            Some(Wait::Cluster { .. }) => "the cluster".to_owned(),
            Some(Wait::Allocation) => "tensor memory".to_owned(),
            Some(Wait::Registers(missing)) => format!(
                "{missing} more registers a thread, of which the cube has {}",
                self.cubes[warp.cube].free_registers
            ),
            None => "nothing".to_owned(),
        };
        format!("warp {} at line {line}: {what}", warp.id)
    }

    /// Lets a warp run until it waits or its turn is over; whether it did anything.
    fn turn(&mut self, index: usize) -> Result<bool, Fault> {
        if self.warps[index].live == 0 {
            return Ok(false);
        }
        let length = match self.launch.schedule {
            Schedule::Latest => TURN,
            Schedule::Random(_) => 1 + self.draw(64),
        };
        let mut warp = std::mem::take(&mut self.warps[index]);
        let outcome = self.run_warp(&mut warp, length);
        self.warps[index] = warp;
        outcome
    }

    fn run_warp(&mut self, warp: &mut Warp, length: usize) -> Result<bool, Fault> {
        let mut ran = self.wake(warp)?;
        for _ in 0..length {
            let Some(group) = self.pick(warp) else {
                break;
            };
            self.executed += 1;
            if self.executed > self.launch.max_instructions {
                return Err(Fault::NoEnd {
                    instructions: self.executed,
                });
            }
            ran |= self.advance(warp, group)?;
        }
        Ok(ran)
    }

    /// The group furthest behind, now and then another one, so that no loop starves its warp.
    fn pick(&mut self, warp: &mut Warp) -> Option<usize> {
        if warp.groups.len() > 1 {
            warp.converge();
        }
        let ready = |group: &Group| group.wait.is_none();
        if warp.groups.len() > 1 && self.executed.is_multiple_of(61) {
            let start = self.draw(warp.groups.len());
            let count = warp.groups.len();
            return (0..count)
                .map(|i| (start + i) % count)
                .find(|&i| ready(&warp.groups[i]));
        }
        (0..warp.groups.len())
            .filter(|&i| ready(&warp.groups[i]))
            .min_by_key(|&i| warp.groups[i].pc)
    }

    /// Executes one instruction of a group; whether it did not merely start to wait.
    fn advance(&mut self, warp: &mut Warp, index: usize) -> Result<bool, Fault> {
        let Group { pc, lanes, .. } = warp.groups[index];
        self.at = Some((warp.id, pc));
        if pc >= self.kernel.code.len() {
            self.at = None;
            return Err(Fault::NotModelled {
                what: "the code ends without ret".to_owned(),
            });
        }
        let flow = self.step(warp, pc, lanes).inspect_err(|_| {
            // The place of a fault names the warp, which is not in its list now.
            self.at = Some((warp.id, pc));
        })?;
        match flow {
            Flow::Next => warp.groups[index].pc += 1,
            Flow::Jump { taken, target } => {
                let rest = lanes & !taken;
                warp.groups[index] = Group {
                    pc: target,
                    lanes: taken,
                    wait: None,
                };
                if rest != 0 {
                    warp.groups.push(Group {
                        pc: pc + 1,
                        lanes: rest,
                        wait: None,
                    });
                }
            }
            Flow::Exit { gone } => {
                warp.live &= !gone;
                let rest = lanes & !gone;
                if rest == 0 {
                    warp.groups.swap_remove(index);
                } else {
                    warp.groups[index].lanes = rest;
                    warp.groups[index].pc += 1;
                }
                self.lanes_left(warp, gone)?;
            }
            Flow::Wait(wait) => {
                warp.groups[index].wait = Some(wait);
                return Ok(matches!(wait, Wait::Barrier { .. }));
            }
        }
        Ok(true)
    }

    /// Lanes that others wait for may not exit.
    fn lanes_left(&mut self, warp: &Warp, gone: u32) -> Result<(), Fault> {
        for group in &warp.groups {
            if let Some(Wait::Lanes(needed)) = group.wait
                && needed & gone != 0
            {
                self.at = Some((warp.id, group.pc));
                return Err(Fault::Divergent {
                    missing: needed & gone,
                    why: "they have exited",
                });
            }
        }
        Ok(())
    }

    /// Lets groups go on whose wait is over.
    fn wake(&mut self, warp: &mut Warp) -> Result<bool, Fault> {
        let mut woken = false;
        for index in 0..warp.groups.len() {
            let Some(wait) = warp.groups[index].wait else {
                continue;
            };
            let cube = &self.cubes[warp.cube];
            let (over, skip) = match wait {
                Wait::Lanes(_) => (false, false),
                Wait::Barrier { id, generation } => {
                    let over = cube.barriers[id].passed(generation);
                    if over {
                        warp.know.join(cube.barriers[id].known());
                        warp.synced += 1;
                    }
                    (over, true)
                }
                Wait::Mbarrier { cube, at, phase } => {
                    let object = self.cubes[cube].mbarriers.get(&at);
                    (object.is_none_or(|object| object.phase() > phase), false)
                }
                Wait::Cluster { generation } => {
                    let over = self.cluster_barrier.passed(generation);
                    if over {
                        warp.know.join(self.cluster_barrier.known());
                        warp.synced += 1;
                    }
                    (over, true)
                }
                Wait::Allocation => (cube.tensor.changed(), false),
                Wait::Registers(missing) => (cube.free_registers >= missing, false),
            };
            if over {
                self.counts[warp.groups[index].pc] += u64::from(skip);
                let group = &mut warp.groups[index];
                group.wait = None;
                group.pc += usize::from(skip);
                woken = true;
            }
        }
        Ok(woken)
    }

    /// Lets one operation under way finish; whether there was one.
    fn finish_one(&mut self) -> Result<bool, Fault> {
        let queues: Vec<usize> = (0..self.warps.len())
            .filter(|&i| !self.warps[i].tcgen.is_empty())
            .collect();
        let count = self.tasks.len() + queues.len();
        if count == 0 {
            return Ok(false);
        }
        let pick = match self.launch.schedule {
            Schedule::Latest => 0,
            Schedule::Random(_) => self.draw(count),
        };
        if pick < self.tasks.len() {
            let task = self.tasks.remove(pick);
            self.finish_task(task)?;
        } else {
            self.finish_tcgen(queues[pick - self.tasks.len()])?;
        }
        Ok(true)
    }
}
