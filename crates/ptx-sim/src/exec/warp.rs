//! State of a warp.

use std::collections::VecDeque;

use super::task::{BulkStore, Chunk, PendingProduct, TensorMemoryOp};
use super::tcgen::{Held, TcgenTask};
use crate::check::{Access, Fault, Knowledge};
use crate::decode::{Src, zero_extend};
use crate::kernel::Kernel;

/// Why a group of lanes does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// For lanes of its own warp to reach the same instruction.
    Lanes(u32),
    /// For a named barrier to complete this generation.
    Barrier { id: usize, generation: u64 },
    /// For phase `phase` of an mbarrier to complete.
    Mbarrier { cube: usize, at: u32, phase: u64 },
    /// For the other cubes of the cluster.
    Cluster { generation: u64 },
    /// For tensor memory.
    Allocation,
    /// For so many registers a thread that other warps of the cube give back.
    Registers(u32),
}

/// Lanes at one instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) pc: usize,
    pub(super) lanes: u32,
    pub(super) wait: Option<Wait>,
}

/// Who uses a register without the warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Nobody,
    /// Accumulator of wgmma: not to be touched.
    Accumulator,
    /// Left operand of wgmma: not to be written.
    Operand,
    /// Destination of tcgen05.ld: not to be touched.
    TensorLoad,
}

/// Groups of asynchronous operations of a lane: the open one and the committed ones.
#[derive(Debug)]
pub(super) struct Committed<T> {
    pub(super) open: Vec<T>,
    pub(super) groups: VecDeque<Vec<T>>,
}

impl<T> Default for Committed<T> {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            groups: VecDeque::new(),
        }
    }
}

impl<T> Committed<T> {
    pub(super) fn commit(&mut self) {
        let group = std::mem::take(&mut self.open);
        self.groups.push_back(group);
    }
    /// Operations of all groups but the last `left`.
    pub(super) fn wait(&mut self, left: usize) -> Vec<T> {
        let count = self.groups.len().saturating_sub(left);
        self.groups.drain(..count).flatten().collect()
    }
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.groups.iter().all(Vec::is_empty)
    }
}

/// A warp.
#[derive(Debug, Default)]
pub(crate) struct Warp {
    /// Number in the cluster, which is its clock's component.
    pub(super) id: usize,
    pub(super) cube: usize,
    /// Thread number of lane 0 in its cube.
    pub(super) first: u32,
    /// Lanes that exist.
    pub(super) exists: u32,
    /// Lanes that have not exited.
    pub(super) live: u32,
    pub(super) groups: Vec<Group>,
    /// [register][lane].
    registers: Vec<u64>,
    written: Vec<u32>,
    bits: Vec<u32>,
    /// (register, lane) that the current load found unwritten.
    poisoned: Vec<(u32, usize)>,
    owners: Vec<Owner>,
    owned: usize,
    /// Registers changed since the last wgmma.fence.
    pub(super) changed: Vec<bool>,
    pub(super) know: Knowledge,
    /// Times the lanes have synchronised.
    pub(super) synced: u32,
    /// [lane][byte] and whether it was written.
    pub(super) local: Vec<u8>,
    pub(super) local_written: Vec<bool>,
    pub(super) copies: Vec<Committed<Chunk>>,
    pub(super) bulk: Vec<Committed<BulkStore>>,
    pub(super) products: Committed<PendingProduct>,
    /// Unfinished tcgen05.ld and tcgen05.st.
    pub(super) tensor_ops: Vec<TensorMemoryOp>,
    pub(super) tcgen: VecDeque<TcgenTask>,
    /// What finished tcgen05 operations hold until their commit.
    pub(super) held: Held,
    /// Epochs at which earlier commits of the queue ended: a commit tracks all prior operations, those too.
    pub(super) committed: Knowledge,
    /// Registers a thread may use: what it starts with, then what setmaxnreg said last.
    pub(super) max_registers: u32,
}

/// Lanes of a mask.
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            lane
        })
    })
}

impl Warp {
    pub(super) fn new(kernel: &Kernel, id: usize, cube: usize, first: u32, count: u32) -> Self {
        let exists = if count >= 32 {
            u32::MAX
        } else {
            (1 << count) - 1
        };
        let registers = kernel.register_bits.len();
        Self {
            id,
            cube,
            first,
            exists,
            live: exists,
            groups: vec![Group {
                pc: 0,
                lanes: exists,
                wait: None,
            }],
            registers: vec![0; registers * 32],
            written: vec![0; registers],
            bits: kernel.register_bits.clone(),
            owners: vec![Owner::Nobody; registers],
            changed: vec![false; registers],
            know: Knowledge::of(id),
            local: vec![0; kernel.local_bytes * 32],
            local_written: vec![false; kernel.local_bytes * 32],
            copies: (0..32).map(|_| Committed::default()).collect(),
            bulk: (0..32).map(|_| Committed::default()).collect(),
            ..Self::default()
        }
    }

    /// The whole warp, without lanes that do not exist.
    pub(super) fn full(&self) -> bool {
        self.exists == u32::MAX
    }

    pub(super) fn register(&self, register: u32, lane: usize) -> u64 {
        self.registers[register as usize * 32 + lane]
    }
    /// `base`: address of the cube's shared memory in its cluster's window.
    pub(super) fn get(&self, src: Src, lane: usize, base: u32) -> u64 {
        match src {
            Src::Reg(register) => self.registers[register as usize * 32 + lane],
            Src::Imm(value) => value,
            Src::Shared(at) => u64::from(at | base),
            Src::Not(register) => self.registers[register as usize * 32 + lane] ^ 1,
        }
    }
    pub(super) fn set(&mut self, register: u32, lane: usize, value: u64) {
        let at = register as usize;
        self.registers[at * 32 + lane] = zero_extend(value, self.bits[at]);
    }
    pub(super) fn set_f32(&mut self, register: u32, lane: usize, value: f64) {
        self.set(register, lane, u64::from((value as f32).to_bits()));
    }

    pub(super) fn own(&mut self, register: u32, owner: Owner) {
        let place = &mut self.owners[register as usize];
        if *place == Owner::Nobody && owner != Owner::Nobody {
            self.owned += 1;
        } else if *place != Owner::Nobody && owner == Owner::Nobody {
            self.owned -= 1;
        }
        *place = owner;
    }
    /// Lanes that have written the register.
    pub(super) fn written(&self, register: u32) -> u32 {
        self.written[register as usize]
    }
    pub(super) fn owner(&self, register: u32) -> Owner {
        self.owners[register as usize]
    }

    /// Whether a tcgen05.ld under way brings one of these registers.
    pub(super) fn loads(&self, reads: &[u32]) -> bool {
        self.owned > 0
            && reads
                .iter()
                .any(|&read| self.owner(read) == Owner::TensorLoad)
    }

    /// The lanes may read these registers.
    pub(super) fn readable(
        &self,
        reads: &[u32],
        active: u32,
        names: &[String],
    ) -> Result<(), Fault> {
        for &register in reads {
            let at = register as usize;
            if self.owned > 0 && !matches!(self.owners[at], Owner::Nobody | Owner::Operand) {
                return Err(self.owned_fault(register, names));
            }
            if self.written[at] & active != active {
                return Err(Fault::Uninitialised {
                    what: format!("register {}", names[at]),
                });
            }
        }
        Ok(())
    }
    pub(super) fn writable(&self, writes: &[u32], names: &[String]) -> Result<(), Fault> {
        if self.owned > 0 {
            for &register in writes {
                if self.owners[register as usize] != Owner::Nobody {
                    return Err(self.owned_fault(register, names));
                }
            }
        }
        Ok(())
    }
    fn owned_fault(&self, register: u32, names: &[String]) -> Fault {
        let owner = match self.owners[register as usize] {
            Owner::TensorLoad => "tcgen05.ld",
            _ => "wgmma",
        };
        Fault::RegisterOwned {
            register: names[register as usize].clone(),
            owner,
        }
    }
    /// The lanes have written these registers.
    pub(super) fn wrote(&mut self, writes: &[u32], active: u32) {
        for &register in writes {
            self.written[register as usize] |= active;
            self.changed[register as usize] = true;
        }
        for (register, lane) in std::mem::take(&mut self.poisoned) {
            self.written[register as usize] &= !(1 << lane);
        }
    }
    /// The register holds nothing: using it is a fault, having loaded it is none.
    pub(super) fn poison(&mut self, register: u32, lane: usize) {
        self.poisoned.push((register, lane));
    }

    pub(super) fn access(&self, lane: usize) -> Access<'_> {
        Access {
            know: &self.know,
            warp: self.id,
            lane,
            synced: self.synced,
        }
    }
    /// What follows is ordered after what others take over from here on.
    pub(super) fn release(&mut self) -> Knowledge {
        let known = self.know.clone();
        self.know.advance(self.id);
        known
    }

    /// Joins groups that stand at one instruction and can go on together.
    pub(super) fn converge(&mut self) {
        let open = |group: &Group| matches!(group.wait, None | Some(Wait::Lanes(_)));
        let mut at = 0;
        while at < self.groups.len() {
            let mut next = at + 1;
            while next < self.groups.len() {
                let (a, b) = (self.groups[at], self.groups[next]);
                if a.pc == b.pc && open(&a) && open(&b) {
                    self.groups[at].lanes |= b.lanes;
                    self.groups[at].wait = None;
                    self.groups.swap_remove(next);
                } else {
                    next += 1;
                }
            }
            at += 1;
        }
    }
}
