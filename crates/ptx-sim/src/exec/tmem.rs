//! Tensor memory of a cube: 128 lanes of 512 columns of 32 bits.

use crate::check::{Epoch, Fault, Knowledge};

pub(super) const COLUMNS: u32 = 512;
pub(super) const LANES: u32 = 128;

/// Contents, allocations and who uses what.
#[derive(Debug, Default)]
pub(super) struct TensorMemory {
    /// [column][lane], made at the first allocation.
    cells: Vec<u32>,
    written: Vec<bool>,
    /// Last write of each quarter of the lanes of each column, and the queue it came from.
    last: Vec<Option<(Epoch, Option<usize>)>>,
    /// Unfinished instructions that write or read a column's quarter.
    writers: Vec<u16>,
    /// Those of the writers that are tcgen05.st.
    stores: Vec<u16>,
    readers: Vec<u16>,
    /// (first column, columns).
    blocks: Vec<(u32, u32)>,
    relinquished: bool,
    /// Columns of the last allocation, which later ones may not exceed.
    largest: Option<u32>,
    /// Something was given back since an allocation failed.
    freed: bool,
}

fn fault(problem: String) -> Fault {
    Fault::TensorMemory { problem }
}

fn owned(column: u32, owner: &'static str) -> Fault {
    Fault::MemoryOwned {
        space: "tensor",
        address: u64::from(column),
        owner,
    }
}

impl TensorMemory {
    pub(super) fn allocated(&self) -> Option<String> {
        let (first, count) = self.blocks.first()?;
        Some(format!("columns {first} to {}", first + count - 1))
    }
    pub(super) fn changed(&self) -> bool {
        self.freed
    }
    pub(super) fn relinquish(&mut self) {
        self.relinquished = true;
    }

    /// First column of a new block, None when there is no room now.
    pub(super) fn allocate(&mut self, columns: u32) -> Result<Option<u32>, Fault> {
        if !columns.is_power_of_two() || !(32..=COLUMNS).contains(&columns) {
            return Err(fault(format!(
                "{columns} columns: powers of two from 32 to 512 are legal"
            )));
        }
        if self.relinquished {
            return Err(fault("allocation after relinquish_alloc_permit".to_owned()));
        }
        if self.largest.is_some_and(|largest| columns > largest) {
            return Err(fault(format!(
                "{columns} columns after an allocation of fewer: they may not increase"
            )));
        }
        if self.cells.is_empty() {
            let size = (COLUMNS * LANES) as usize;
            self.cells = vec![0; size];
            self.written = vec![false; size];
            self.last = vec![None; COLUMNS as usize * 4];
            self.writers = vec![0; COLUMNS as usize * 4];
            self.stores = vec![0; COLUMNS as usize * 4];
            self.readers = vec![0; COLUMNS as usize * 4];
        }
        let free = |first: u32| {
            self.blocks
                .iter()
                .all(|&(start, count)| first + columns <= start || start + count <= first)
        };
        let first = (0..COLUMNS)
            .step_by(columns as usize)
            .find(|&first| free(first));
        match first {
            Some(first) => {
                self.blocks.push((first, columns));
                self.largest = Some(columns);
            }
            None => self.freed = false,
        }
        Ok(first)
    }

    pub(super) fn free(&mut self, first: u32, columns: u32) -> Result<(), Fault> {
        let place = self.blocks.iter().position(|&b| b == (first, columns));
        let Some(place) = place else {
            return Err(fault(format!(
                "{columns} columns from {first} on were not allocated like this"
            )));
        };
        for column in first..first + columns {
            let at = column as usize * 4;
            if self.writers[at..at + 4].iter().any(|&n| n > 0) {
                return Err(owned(column, "tcgen05 operation"));
            }
        }
        self.blocks.swap_remove(place);
        self.freed = true;
        Ok(())
    }

    /// The columns belong to one allocation.
    pub(super) fn check(&self, first: u32, columns: u32) -> Result<(), Fault> {
        let inside = self
            .blocks
            .iter()
            .any(|&(start, count)| start <= first && first + columns <= start + count);
        if inside {
            return Ok(());
        }
        Err(fault(format!(
            "columns {first} to {} are not allocated",
            first + columns - 1
        )))
    }

    fn slot(column: u32, quarter: u32) -> usize {
        (column * 4 + quarter) as usize
    }

    /// Nobody writes the place any more, and `know` has seen the last write.
    pub(super) fn settled(&self, column: u32, quarter: u32, know: &Knowledge) -> Result<(), Fault> {
        let slot = Self::slot(column, quarter);
        if self.writers[slot] > 0 {
            return Err(owned(column, "tcgen05 operation"));
        }
        self.known(slot, column, know, None)
    }

    fn known(
        &self,
        slot: usize,
        column: u32,
        know: &Knowledge,
        queue: Option<usize>,
    ) -> Result<(), Fault> {
        match self.last[slot] {
            Some((_, from)) if from.is_some() && from == queue => Ok(()),
            Some((epoch, _)) if !know.knows(epoch.component as usize, epoch.time) => {
                Err(Fault::Race {
                    space: "tensor",
                    address: u64::from(column),
                    access: "access",
                    earlier: "last write".to_owned(),
                })
            }
            _ => Ok(()),
        }
    }

    /// As [`TensorMemory::settled`], but the writes of a queue of products, which finish in order, are allowed.
    pub(super) fn queued(
        &self,
        column: u32,
        quarter: u32,
        know: &Knowledge,
        queue: usize,
    ) -> Result<(), Fault> {
        let slot = Self::slot(column, quarter);
        if self.stores[slot] > 0 {
            return Err(owned(column, "tcgen05.st"));
        }
        if self.writers[slot] > 0 {
            return Ok(());
        }
        self.known(slot, column, know, Some(queue))
    }

    /// As [`TensorMemory::hold`] for a tcgen05.st.
    pub(super) fn hold_store(&mut self, column: u32, quarter: u32, hold: bool) {
        self.hold(column, quarter, true, hold);
        let count = &mut self.stores[Self::slot(column, quarter)];
        *count = if hold {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
    }

    pub(super) fn unread(&self, column: u32, quarter: u32) -> Result<(), Fault> {
        if self.readers[Self::slot(column, quarter)] > 0 {
            return Err(owned(column, "tcgen05 operation that reads it"));
        }
        Ok(())
    }

    pub(super) fn hold(&mut self, column: u32, quarter: u32, write: bool, hold: bool) {
        let counts = if write {
            &mut self.writers
        } else {
            &mut self.readers
        };
        let count = &mut counts[Self::slot(column, quarter)];
        *count = if hold {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
    }

    pub(super) fn wrote(&mut self, column: u32, quarter: u32, epoch: Epoch, queue: Option<usize>) {
        self.last[Self::slot(column, quarter)] = Some((epoch, queue));
    }

    pub(super) fn get(&self, lane: u32, column: u32) -> Result<u32, Fault> {
        let at = (column * LANES + lane) as usize;
        if !self.written[at] {
            return Err(Fault::Uninitialised {
                what: format!("tensor memory lane {lane} column {column}"),
            });
        }
        Ok(self.cells[at])
    }
    pub(super) fn set(&mut self, lane: u32, column: u32, value: u32) {
        let at = (column * LANES + lane) as usize;
        self.cells[at] = value;
        self.written[at] = true;
    }
}
