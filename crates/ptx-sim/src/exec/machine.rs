//! A cluster of cubes.

use std::collections::HashMap;

use super::barrier::{ClusterBarrier, NamedBarrier};
use super::mbarrier::Mbarrier;
use super::task::Task;
use super::tcgen::PairCall;
use super::tmem::TensorMemory;
use super::warp::Warp;
use super::{GLOBALS_WINDOW, RANK_SHIFT};
use crate::check::{Fault, Shared};
use crate::error::{Place, Result, SimError};
use crate::global::Memory;
use crate::kernel::Kernel;
use crate::launch::{Launch, Params, Schedule};

/// A cube of the cluster.
pub(super) struct Cube {
    pub(super) position: [u32; 3],
    pub(super) shared: Shared,
    pub(super) barriers: [NamedBarrier; 16],
    pub(super) mbarriers: HashMap<u32, Mbarrier>,
    pub(super) tensor: TensorMemory,
    /// Calls for tensor memory with `cta_group::2` so far.
    pub(super) pair_calls: Vec<PairCall>,
    /// Registers that warps gave back: those of a thread, added up over warps.
    pub(super) free_registers: u32,
    /// Warps of the machine.
    pub(super) warps: std::ops::Range<usize>,
}

/// Registers that every thread of a cube of `units` starts with, at most: 65,536 are shared out in steps of 8. ptxas may give
/// it fewer, which the text of a kernel does not say.
fn registers_at_entry(units: u32) -> u32 {
    (65_536 / units.max(1)).min(255) / 8 * 8
}

/// Executes a cluster from beginning to end.
pub(crate) struct Machine<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) launch: &'a Launch,
    pub(super) memory: &'a Memory,
    pub(super) params: &'a Params,
    pub(super) cluster: [u32; 3],
    pub(super) cubes: Vec<Cube>,
    pub(super) warps: Vec<Warp>,
    pub(super) cluster_barrier: ClusterBarrier,
    pub(super) tasks: Vec<Task>,
    /// Clock components given out so far.
    pub(super) components: usize,
    pub(super) random: u64,
    pub(super) executed: u64,
    pub(super) counts: Vec<u64>,
    /// A wait that does not block has failed since something finished last.
    pub(super) polled: bool,
    /// Variables of the module, private to the cluster unless they are never written.
    pub(super) globals: Vec<u8>,
    /// Instruction at fault.
    pub(super) at: Option<(usize, usize)>,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(
        kernel: &'a Kernel,
        launch: &'a Launch,
        memory: &'a Memory,
        params: &'a Params,
        cluster: [u32; 3],
    ) -> Self {
        let units = launch.cube.iter().product::<u32>();
        let per_cube = units.div_ceil(32) as usize;
        let count = launch.cluster.iter().product::<u32>() as usize;
        let size = kernel.static_shared + launch.dynamic_shared;
        let mut warps = Vec::new();
        let mut cubes = Vec::new();
        for rank in 0..count {
            let [cx, cy, _] = launch.cluster.map(|n| n as usize);
            let inside = [rank % cx, rank / cx % cy, rank / cx / cy];
            let first = warps.len();
            for warp in 0..per_cube {
                let thread = warp as u32 * 32;
                let mut warp = Warp::new(kernel, first + warp, rank, thread, units - thread);
                warp.max_registers = registers_at_entry(units);
                warps.push(warp);
            }
            cubes.push(Cube {
                position: std::array::from_fn(|i| {
                    cluster[i] * launch.cluster[i] + inside[i] as u32
                }),
                shared: Shared::new(size, per_cube * count, (rank as u32) << RANK_SHIFT),
                barriers: Default::default(),
                mbarriers: HashMap::new(),
                tensor: TensorMemory::default(),
                pair_calls: Vec::new(),
                free_registers: 0,
                warps: first..first + per_cube,
            });
        }
        let seed = match launch.schedule {
            Schedule::Latest => 0,
            Schedule::Random(seed) => seed,
        };
        let mut random = seed ^ 0x9e37_79b9_7f4a_7c15;
        for part in cluster {
            random = random.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ u64::from(part);
        }
        Self {
            kernel,
            launch,
            memory,
            params,
            cluster,
            components: warps.len(),
            cubes,
            warps,
            cluster_barrier: ClusterBarrier::default(),
            tasks: Vec::new(),
            random,
            executed: 0,
            counts: vec![0; kernel.code.len()],
            polled: false,
            globals: kernel.globals.clone(),
            at: None,
        }
    }

    /// Runs to the end; warp-level executions of every instruction.
    pub(crate) fn run(mut self) -> Result<Vec<u64>> {
        match self.schedule().and_then(|()| self.end()) {
            Ok(()) => Ok(self.counts),
            Err(fault) => Err(self.error(fault)),
        }
    }

    fn error(&self, fault: Fault) -> SimError {
        let whole = matches!(fault, Fault::Deadlock { .. } | Fault::Leak { .. });
        let place = match self.at.filter(|_| !whole) {
            Some((warp, pc)) => {
                let warp = &self.warps[warp];
                Place {
                    line: self.kernel.code[pc].line,
                    text: self.kernel.texts[pc].clone(),
                    cube: self.cubes[warp.cube].position,
                    thread: Some(warp.first),
                }
            }
            None => Place {
                line: 0,
                text: String::new(),
                cube: self.cubes[0].position,
                thread: None,
            },
        };
        SimError::Fault {
            place: Box::new(place),
            fault: Box::new(fault),
        }
    }

    /// What must not be left when all threads have exited.
    fn end(&mut self) -> Result<(), Fault> {
        let leak = |problem: String| Err(Fault::Leak { problem });
        if let Some(task) = self.tasks.first() {
            return leak(format!("a copy is still under way: {task:?}"));
        }
        for warp in &self.warps {
            if warp.bulk.iter().any(|bulk| !bulk.is_empty()) {
                return leak(format!(
                    "warp {} has not waited for its bulk stores",
                    warp.id
                ));
            }
            if !warp.products.is_empty() {
                return leak(format!("warp {} has not waited for its wgmma", warp.id));
            }
            if !warp.tcgen.is_empty() || !warp.tensor_ops.is_empty() {
                return leak(format!(
                    "warp {} has not waited for its tcgen05 operations",
                    warp.id
                ));
            }
        }
        for cube in &self.cubes {
            if let Some(columns) = cube.tensor.allocated() {
                return leak(format!("tensor memory is still allocated: {columns}"));
            }
        }
        if let Some(problem) = self.lonely_call() {
            return leak(problem);
        }
        Ok(())
    }

    /// The next pseudo-random number (SplitMix64).
    pub(super) fn draw(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below.max(1) as u64) as usize
    }

    /// A new clock component.
    pub(super) fn component(&mut self) -> usize {
        self.components += 1;
        self.components - 1
    }

    /// Cube and offset of an address in the cluster's window.
    pub(super) fn locate(&self, address: u32) -> Result<(usize, u32), Fault> {
        let rank = (address >> RANK_SHIFT) as usize;
        if rank >= self.cubes.len() {
            return Err(Fault::OutOfBounds {
                space: "shared",
                address: u64::from(address),
                bytes: 0,
                reason: format!("the cluster has {} cubes", self.cubes.len()),
            });
        }
        Ok((rank, address & ((1 << RANK_SHIFT) - 1)))
    }

    /// Offset of an address in the cube's own shared memory.
    pub(super) fn own(&self, cube: usize, address: u32) -> Result<u32, Fault> {
        let (rank, at) = self.locate(address)?;
        if rank == cube {
            return Ok(at);
        }
        Err(Fault::OutOfBounds {
            space: "shared",
            address: u64::from(address),
            bytes: 0,
            reason: format!("it lies in cube {rank} of the cluster, not in this one"),
        })
    }

    pub(super) fn base(&self, cube: usize) -> u32 {
        (cube as u32) << RANK_SHIFT
    }

    /// Bytes of a module's variable.
    pub(super) fn variable(&self, address: u64, bytes: usize) -> Result<usize, Fault> {
        let at = (address - GLOBALS_WINDOW) as usize;
        if at + bytes > self.globals.len() {
            return Err(Fault::OutOfBounds {
                space: "global",
                address,
                bytes,
                reason: "the module's variables end before".to_owned(),
            });
        }
        Ok(at)
    }
}
