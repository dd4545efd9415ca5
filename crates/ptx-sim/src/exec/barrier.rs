//! Named barriers of a cube and the barrier of a cluster.

use super::machine::Machine;
use super::step::Flow;
use super::warp::{Wait, Warp};
use crate::check::{Fault, Knowledge};
use crate::decode::{BarKind, Src};

/// A named barrier.
#[derive(Debug, Default)]
pub(super) struct NamedBarrier {
    arrived: u32,
    expected: u32,
    generation: u64,
    coming: Knowledge,
    known: Knowledge,
}

impl NamedBarrier {
    pub(super) fn passed(&self, generation: u64) -> bool {
        self.generation > generation
    }
    pub(super) fn known(&self) -> &Knowledge {
        &self.known
    }
    pub(super) fn arrived(&self) -> u32 {
        self.arrived
    }
    pub(super) fn expected(&self) -> u32 {
        self.expected
    }
}

/// The cluster's barrier.
#[derive(Debug, Default)]
pub(super) struct ClusterBarrier {
    arrived: usize,
    generation: u64,
    coming: Knowledge,
    known: Knowledge,
    /// Generation that each warp has arrived for and not waited for.
    pending: Vec<(usize, u64)>,
}

impl ClusterBarrier {
    pub(super) fn passed(&self, generation: u64) -> bool {
        self.generation > generation
    }
    pub(super) fn known(&self) -> &Knowledge {
        &self.known
    }
}

impl Machine<'_> {
    /// `lanes` of the warp make known what they did and know.
    pub(super) fn release(&mut self, warp: &mut Warp, lanes: u32) -> Knowledge {
        self.released(warp.id, warp.know.time(warp.id), lanes);
        warp.release()
    }

    /// `lanes` stand behind what the warp did up to `time`.
    pub(super) fn released(&mut self, warp: usize, time: u32, lanes: u32) {
        for cube in &mut self.cubes {
            cube.shared.release(warp, time, lanes);
        }
    }

    pub(super) fn named_barrier(
        &mut self,
        warp: &mut Warp,
        active: u32,
        group: u32,
        kind: BarKind,
        id: Src,
        count: Option<Src>,
    ) -> Result<Flow, Fault> {
        if let Some(wait) = self.members(warp, active, group, warp.live)? {
            return Ok(Flow::Wait(wait));
        }
        let id = self.uniform(warp, active, id)? as usize;
        let fault = |problem: String| {
            Err(Fault::Barrier {
                id: id as u32,
                problem,
            })
        };
        if id > 15 {
            return fault("0 to 15 are legal".to_owned());
        }
        let cube = &self.cubes[warp.cube];
        let all = cube.warps.len() as u32 * 32;
        let expected = match count {
            Some(count) => self.uniform(warp, active, count)? as u32,
            None => all,
        };
        if expected == 0 || !expected.is_multiple_of(32) || expected > all {
            return fault(format!("{expected} threads, the cube has {all}"));
        }
        let known = self.release(warp, u32::MAX);
        let barrier = &mut self.cubes[warp.cube].barriers[id];
        if barrier.arrived > 0 && barrier.expected != expected {
            return fault(format!(
                "{expected} threads where others expect {}",
                barrier.expected
            ));
        }
        barrier.expected = expected;
        barrier.arrived += 32;
        barrier.coming.join(&known);
        let generation = barrier.generation;
        if barrier.arrived == expected {
            barrier.arrived = 0;
            barrier.generation += 1;
            let coming = std::mem::take(&mut barrier.coming);
            barrier.known.join(&coming);
            if kind == BarKind::Sync {
                warp.know.join(&barrier.known);
                warp.synced += 1;
            }
            return Ok(Flow::Next);
        }
        Ok(match kind {
            BarKind::Sync => Flow::Wait(Wait::Barrier { id, generation }),
            BarKind::Arrive => Flow::Next,
        })
    }

    pub(super) fn cluster_arrive(&mut self, warp: &mut Warp) -> Result<(), Fault> {
        let known = self.release(warp, u32::MAX);
        let total = self.warps.len();
        let barrier = &mut self.cluster_barrier;
        if barrier.pending.iter().any(|&(id, _)| id == warp.id) {
            return Err(Fault::Barrier {
                id: 16,
                problem: "the warp arrives at the cluster barrier twice without waiting".to_owned(),
            });
        }
        barrier.pending.push((warp.id, barrier.generation));
        barrier.coming.join(&known);
        barrier.arrived += 1;
        if barrier.arrived == total {
            barrier.arrived = 0;
            barrier.generation += 1;
            let coming = std::mem::take(&mut barrier.coming);
            barrier.known.join(&coming);
        }
        Ok(())
    }

    pub(super) fn cluster_wait(
        &mut self,
        warp: &mut Warp,
        active: u32,
        group: u32,
    ) -> Result<Flow, Fault> {
        if let Some(wait) = self.whole_warp(warp, active, group)? {
            return Ok(Flow::Wait(wait));
        }
        let barrier = &mut self.cluster_barrier;
        let place = barrier.pending.iter().position(|&(id, _)| id == warp.id);
        let Some(place) = place else {
            return Err(Fault::Barrier {
                id: 16,
                problem: "the warp waits at the cluster barrier without having arrived".to_owned(),
            });
        };
        let (_, generation) = barrier.pending.swap_remove(place);
        if barrier.passed(generation) {
            warp.know.join(&barrier.known);
            warp.synced += 1;
            return Ok(Flow::Next);
        }
        Ok(Flow::Wait(Wait::Cluster { generation }))
    }
}
