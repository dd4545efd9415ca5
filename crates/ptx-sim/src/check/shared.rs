//! Shared memory of a cube, and who has touched what.

use super::releases::Releases;
use super::{Fault, Knowledge};

/// Bytes at the start of the window that belong to the system.
pub(crate) const RESERVED: u32 = 1024;

/// Component of accesses that order nothing and need no order: atomics.
const UNORDERED: u16 = u16::MAX;

/// An action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) component: u16,
    pub(crate) time: u32,
}

/// Last write of a word.
#[derive(Clone, Copy, Debug)]
struct Word {
    at: Epoch,
    /// Bytes written.
    mask: u8,
    /// By the generic proxy.
    generic: bool,
    /// Lane, and how often its warp had synchronised.
    lane: u8,
    synced: u32,
}

/// Last read of a word by a warp: its time, and the lanes that read then.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    time: u32,
    lanes: u32,
}

/// Who accesses.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    pub(crate) know: &'a Knowledge,
    pub(crate) warp: usize,
    pub(crate) lane: usize,
    /// Times the warp's lanes have synchronised.
    pub(crate) synced: u32,
}

/// Shared memory with its shadow.
#[derive(Debug)]
pub(crate) struct Shared {
    bytes: Vec<u8>,
    written: Vec<bool>,
    words: Vec<Word>,
    /// Last read of every word by every warp of the cluster.
    reads: Vec<Read>,
    releases: Releases,
    warps: usize,
    /// Unfinished asynchronous writes and reads of every 16 bytes.
    writers: Vec<u16>,
    readers: Vec<u16>,
    /// Base address of this cube in the cluster's window.
    base: u32,
    /// mbarrier objects: offsets.
    mbarriers: Vec<u32>,
}

const SPACE: &str = "shared";

impl Shared {
    pub(crate) fn new(size: usize, warps: usize, base: u32) -> Self {
        let size = size.next_multiple_of(16);
        let nothing = Word {
            at: Epoch {
                component: 0,
                time: 0,
            },
            mask: 0,
            generic: false,
            lane: 0,
            synced: 0,
        };
        Self {
            bytes: vec![0; size],
            written: vec![false; size],
            words: vec![nothing; size / 4],
            reads: vec![Read::default(); size / 4 * warps],
            releases: Releases::new(warps),
            warps,
            writers: vec![0; size / 16],
            readers: vec![0; size / 16],
            base,
            mbarriers: Vec::new(),
        }
    }

    pub(crate) fn bounds(&self, at: u32, bytes: usize) -> Result<(), Fault> {
        let end = u64::from(at) + bytes as u64;
        if at < RESERVED || end > self.bytes.len() as u64 {
            return Err(Fault::OutOfBounds {
                space: SPACE,
                address: u64::from(at | self.base),
                bytes,
                reason: format!(
                    "the cube has addresses {RESERVED:#x} to {:#x}",
                    self.bytes.len()
                ),
            });
        }
        Ok(())
    }

    /// Bounds and alignment.
    pub(crate) fn check(&self, at: u32, bytes: usize, align: usize) -> Result<(), Fault> {
        if !(at as usize).is_multiple_of(align) {
            return Err(Fault::Misaligned {
                space: SPACE,
                address: u64::from(at | self.base),
                align,
            });
        }
        self.bounds(at, bytes)
    }

    fn address(&self, at: usize) -> u64 {
        at as u64 | u64::from(self.base)
    }

    fn race(&self, at: usize, access: &'static str, earlier: String) -> Fault {
        Fault::Race {
            space: SPACE,
            address: self.address(at),
            access,
            earlier,
        }
    }

    fn owned(&self, at: usize, owner: &'static str) -> Fault {
        Fault::MemoryOwned {
            space: SPACE,
            address: self.address(at),
            owner,
        }
    }

    fn who(&self, epoch: Epoch) -> String {
        if (epoch.component as usize) < self.warps {
            format!("warp {}", epoch.component)
        } else {
            "an asynchronous operation".to_owned()
        }
    }

    /// The word's last write is known to the accessor.
    fn ordered_write(
        &self,
        word: usize,
        mask: u8,
        access: &Access,
        what: &'static str,
    ) -> Result<(), Fault> {
        let last = self.words[word];
        if last.mask & mask == 0 || last.at.component == UNORDERED {
            return Ok(());
        }
        if last.at.component as usize == access.warp {
            let lanes = last.generic && last.lane as usize != access.lane;
            if lanes && last.synced == access.synced {
                let earlier = format!("write by lane {} of the same warp", last.lane);
                return Err(self.race(word * 4, what, earlier));
            }
            return Ok(());
        }
        if self.knows_write(word, access.know) {
            return Ok(());
        }
        let earlier = format!("write by {}", self.who(last.at));
        Err(self.race(word * 4, what, earlier))
    }

    /// The word's last write is known, and so that its lane took part when its warp made it known.
    fn knows_write(&self, word: usize, know: &Knowledge) -> bool {
        let last = self.words[word];
        let (component, time) = (last.at.component as usize, last.at.time);
        let lanes = u32::from(last.generic).checked_shl(u32::from(last.lane));
        know.knows(component, time)
            && self
                .releases
                .cover(component, time, know.time(component), lanes.unwrap_or(0))
    }

    /// `lanes` of the warp make known what they did up to `time`.
    pub(crate) fn release(&mut self, warp: usize, time: u32, lanes: u32) {
        self.releases.add(warp, time, lanes);
    }

    /// All reads of the word are known to the accessor.
    fn ordered_reads(
        &self,
        word: usize,
        know: &Knowledge,
        own: Option<usize>,
        what: &'static str,
    ) -> Result<(), Fault> {
        let reads = &self.reads[word * self.warps..(word + 1) * self.warps];
        for (warp, &Read { time, lanes }) in reads.iter().enumerate() {
            if time == 0 || Some(warp) == own {
                continue;
            }
            let known =
                know.knows(warp, time) && self.releases.cover(warp, time, know.time(warp), lanes);
            if !known {
                return Err(self.race(word * 4, what, format!("read by warp {warp}")));
            }
        }
        Ok(())
    }

    fn no_mbarrier(&self, at: u32, bytes: usize) -> Result<(), Fault> {
        for &object in &self.mbarriers {
            if object < at + bytes as u32 && at < object + 8 {
                return Err(Fault::Mbarrier {
                    address: object | self.base,
                    problem: "a live object is accessed as data".to_owned(),
                });
            }
        }
        Ok(())
    }

    pub(crate) fn add_mbarrier(&mut self, at: u32) {
        self.mbarriers.push(at);
    }
    pub(crate) fn remove_mbarrier(&mut self, at: u32) {
        self.mbarriers.retain(|&object| object != at);
    }

    /// Ordinary load into `out`.
    pub(crate) fn load(&mut self, at: u32, out: &mut [u8], access: &Access) -> Result<(), Fault> {
        self.bounds(at, out.len())?;
        self.no_mbarrier(at, out.len())?;
        let at = at as usize;
        if let Some(i) = (at..at + out.len()).find(|&i| !self.written[i]) {
            if self.writers[i / 16] > 0 {
                return Err(self.owned(i, "asynchronous copy"));
            }
            return Err(Fault::Uninitialised {
                what: format!("shared address {:#x}", self.address(i)),
            });
        }
        for word in at / 4..(at + out.len()).div_ceil(4) {
            if self.writers[word / 4] > 0 {
                return Err(self.owned(word * 4, "asynchronous copy"));
            }
            self.ordered_write(word, bytes_of(word, at, out.len()), access, "read")?;
            let time = access.know.time(access.warp);
            let last = &mut self.reads[word * self.warps + access.warp];
            let earlier = if last.time == time { last.lanes } else { 0 };
            let lanes = earlier | 1 << access.lane;
            *last = Read { time, lanes };
        }
        out.copy_from_slice(&self.bytes[at..at + out.len()]);
        Ok(())
    }

    /// Ordinary store.
    pub(crate) fn store(&mut self, at: u32, data: &[u8], access: &Access) -> Result<(), Fault> {
        self.bounds(at, data.len())?;
        self.no_mbarrier(at, data.len())?;
        let start = at as usize;
        for word in start / 4..(start + data.len()).div_ceil(4) {
            let mask = bytes_of(word, start, data.len());
            if self.writers[word / 4] > 0 {
                return Err(self.owned(word * 4, "asynchronous copy"));
            }
            if self.readers[word / 4] > 0 {
                return Err(self.owned(word * 4, "asynchronous read"));
            }
            self.ordered_write(word, mask, access, "write")?;
            self.ordered_reads(word, access.know, Some(access.warp), "write")?;
            let at = Epoch {
                component: access.warp as u16,
                time: access.know.time(access.warp),
            };
            let last = &mut self.words[word];
            let same = last.at == at && last.generic && last.lane as usize == access.lane;
            *last = Word {
                at,
                mask: if same { last.mask | mask } else { mask },
                generic: true,
                lane: access.lane as u8,
                synced: access.synced,
            };
        }
        self.bytes[start..start + data.len()].copy_from_slice(data);
        self.written[start..start + data.len()].fill(true);
        Ok(())
    }

    /// The word's last write was not one by the generic proxy.
    pub(crate) fn not_generic(&mut self, at: u32) {
        self.words[at as usize / 4].generic = false;
    }

    /// Read, change and write in one step.
    pub(crate) fn atomic(
        &mut self,
        at: u32,
        bytes: usize,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Fault> {
        self.check(at, bytes, bytes)?;
        self.no_mbarrier(at, bytes)?;
        let start = at as usize;
        if !self.written[start..start + bytes].iter().all(|&done| done) {
            return Err(Fault::Uninitialised {
                what: format!("shared address {:#x}", self.address(start)),
            });
        }
        let mut raw = [0; 8];
        raw[..bytes].copy_from_slice(&self.bytes[start..start + bytes]);
        let old = u64::from_le_bytes(raw);
        let new = change(old).to_le_bytes();
        self.bytes[start..start + bytes].copy_from_slice(&new[..bytes]);
        for word in start / 4..(start + bytes).div_ceil(4) {
            self.words[word].at.component = UNORDERED;
        }
        Ok(old)
    }

    /// A read by the asynchronous proxy may begin.
    pub(crate) fn async_read(&self, at: u32, bytes: usize, know: &Knowledge) -> Result<(), Fault> {
        self.bounds(at, bytes)?;
        let start = at as usize;
        if self.writers[start / 16] > 0 {
            return Err(self.owned(start, "asynchronous copy"));
        }
        if let Some(i) = (start..start + bytes).find(|&i| !self.written[i]) {
            return Err(Fault::Uninitialised {
                what: format!("shared address {:#x}", self.address(i)),
            });
        }
        for word in start / 4..(start + bytes).div_ceil(4) {
            self.async_order(
                word,
                bytes_of(word, start, bytes),
                know,
                "asynchronous read",
            )?;
        }
        Ok(())
    }

    fn async_order(
        &self,
        word: usize,
        mask: u8,
        know: &Knowledge,
        what: &'static str,
    ) -> Result<(), Fault> {
        let last = self.words[word];
        if last.mask & mask == 0 || last.at.component == UNORDERED {
            return Ok(());
        }
        let (component, time) = (last.at.component as usize, last.at.time);
        if !self.knows_write(word, know) {
            let earlier = format!("write by {}", self.who(last.at));
            return Err(self.race(word * 4, what, earlier));
        }
        if last.generic && !know.fenced(component, time) {
            return Err(Fault::MissingProxyFence {
                address: self.address(word * 4),
            });
        }
        Ok(())
    }

    /// A write by the asynchronous proxy may begin; until [`Shared::finish_write`] the bytes belong to it.
    pub(crate) fn begin_write(
        &mut self,
        at: u32,
        bytes: usize,
        know: &Knowledge,
        own: Option<usize>,
    ) -> Result<(), Fault> {
        self.bounds(at, bytes)?;
        self.no_mbarrier(at, bytes)?;
        let start = at as usize;
        for word in start / 4..(start + bytes).div_ceil(4) {
            if self.writers[word / 4] > 0 && own.is_none() {
                return Err(self.owned(word * 4, "asynchronous copy"));
            }
            if self.readers[word / 4] > 0 {
                return Err(self.owned(word * 4, "asynchronous read"));
            }
            match own {
                // cp.async writes through the generic proxy on behalf of its thread.
                Some(warp) => {
                    let last = self.words[word];
                    let component = last.at.component as usize;
                    let known = component == warp || self.knows_write(word, know);
                    if last.mask > 0 && last.at.component != UNORDERED && !known {
                        let earlier = format!("write by {}", self.who(last.at));
                        return Err(self.race(word * 4, "asynchronous write", earlier));
                    }
                }
                None => self.async_order(word, 0xf, know, "asynchronous write")?,
            }
            self.ordered_reads(word, know, own, "asynchronous write")?;
        }
        self.own(at, bytes, true);
        Ok(())
    }

    fn own(&mut self, at: u32, bytes: usize, take: bool) {
        let start = at as usize;
        for chunk in start / 16..(start + bytes).div_ceil(16) {
            let count = &mut self.writers[chunk];
            *count = if take {
                *count + 1
            } else {
                count.saturating_sub(1)
            };
        }
    }

    /// The write is done: its epoch is `at`.
    pub(crate) fn finish_write(
        &mut self,
        at: u32,
        data: &[u8],
        epoch: Epoch,
        generic: bool,
        lane: u8,
    ) {
        let start = at as usize;
        self.own(at, data.len(), false);
        self.bytes[start..start + data.len()].copy_from_slice(data);
        self.written[start..start + data.len()].fill(true);
        for word in start / 4..(start + data.len()).div_ceil(4) {
            self.words[word] = Word {
                at: epoch,
                mask: 0xf,
                generic,
                lane,
                synced: u32::MAX,
            };
        }
    }

    /// An unfinished instruction reads the 16 bytes at `at`, or no longer does.
    pub(crate) fn hold(&mut self, at: u32, hold: bool) {
        let count = &mut self.readers[at as usize / 16];
        *count = if hold {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
    }

    /// A finished asynchronous read counts as one by `warp`.
    pub(crate) fn note_read(&mut self, at: u32, bytes: usize, warp: usize, time: u32) {
        for word in at as usize / 4..(at as usize + bytes).div_ceil(4) {
            // An asynchronous read: no lane has to be heard of.
            self.reads[word * self.warps + warp] = Read { time, lanes: 0 };
        }
    }

    /// Bytes without any check.
    pub(crate) fn raw(&self, at: u32, bytes: usize) -> &[u8] {
        &self.bytes[at as usize..at as usize + bytes]
    }
}

/// Which bytes of `word` lie in [at, at + bytes).
fn bytes_of(word: usize, at: usize, bytes: usize) -> u8 {
    let first = at.saturating_sub(word * 4).min(4);
    let end = (at + bytes).saturating_sub(word * 4).min(4);
    ((1u16 << end) - (1u16 << first)) as u8
}
