//! Global memory, shared by all cubes of a launch.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use crate::check::Fault;

/// Address bits below the number of the buffer.
const BUFFER_SHIFT: u32 = 40;

/// A buffer of [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(usize);

#[derive(Debug)]
struct Buffer {
    bytes: usize,
    /// Words, so that loads and stores of 4 bytes do not tear.
    words: Box<[AtomicU32]>,
    /// Bit per byte of each word: written.
    written: Box<[AtomicU8]>,
}

/// Buffers that a kernel can address. Each lies alone in its part of the address space: running out of one never reaches
/// another.
#[derive(Debug, Default)]
pub struct Memory {
    buffers: Vec<Buffer>,
    /// Held by atomics wider than a word.
    wide: Mutex<()>,
}

impl Memory {
    /// No buffers.
    pub fn new() -> Self {
        Self::default()
    }
    /// A buffer with contents.
    pub fn add(&mut self, data: &[u8]) -> BufferId {
        let id = self.reserve(data.len());
        let buffer = &self.buffers[id.0];
        for (i, chunk) in data.chunks(4).enumerate() {
            let mut raw = [0; 4];
            raw[..chunk.len()].copy_from_slice(chunk);
            buffer.words[i].store(u32::from_le_bytes(raw), Relaxed);
            buffer.written[i].store((1 << chunk.len()) - 1, Relaxed);
        }
        id
    }
    /// A buffer of `bytes` that nobody has written: reading it before is a fault.
    pub fn reserve(&mut self, bytes: usize) -> BufferId {
        let words = bytes.div_ceil(4);
        self.buffers.push(Buffer {
            bytes,
            words: (0..words).map(|_| AtomicU32::new(0)).collect(),
            written: (0..words).map(|_| AtomicU8::new(0)).collect(),
        });
        BufferId(self.buffers.len() - 1)
    }
    /// Writes into a buffer from outside.
    ///
    /// # Errors
    /// [`Fault::OutOfBounds`] when `data` does not fit behind `offset`.
    pub fn write(&self, id: BufferId, offset: u64, data: &[u8]) -> Result<(), Fault> {
        self.store(self.address(id, offset), data)
    }
    /// Gives a buffer back: every access to it is out of bounds from then on.
    pub fn release(&mut self, id: BufferId) {
        self.buffers[id.0] = Buffer {
            bytes: 0,
            words: Box::default(),
            written: Box::default(),
        };
    }
    /// Address of byte `offset` of a buffer.
    pub fn address(&self, id: BufferId, offset: u64) -> u64 {
        ((id.0 as u64 + 1) << BUFFER_SHIFT) + offset
    }
    /// Contents of a buffer; bytes that nobody wrote are 0.
    pub fn contents(&self, id: BufferId) -> Vec<u8> {
        let buffer = &self.buffers[id.0];
        let mut bytes: Vec<u8> = buffer
            .words
            .iter()
            .flat_map(|word| word.load(Relaxed).to_le_bytes())
            .collect();
        bytes.truncate(buffer.bytes);
        bytes
    }

    fn find(&self, address: u64, bytes: usize) -> Result<(&Buffer, usize), Fault> {
        let outside = |reason: String| Fault::OutOfBounds {
            space: "global",
            address,
            bytes,
            reason,
        };
        let index = (address >> BUFFER_SHIFT) as usize;
        let buffer = index
            .checked_sub(1)
            .and_then(|i| self.buffers.get(i))
            .ok_or_else(|| outside("no buffer is there".to_owned()))?;
        let at = (address & ((1 << BUFFER_SHIFT) - 1)) as usize;
        if at + bytes > buffer.bytes {
            return Err(outside(format!(
                "offset {at} of buffer {}, which has {} bytes",
                index - 1,
                buffer.bytes
            )));
        }
        Ok((buffer, at))
    }

    pub(crate) fn load(&self, address: u64, out: &mut [u8]) -> Result<(), Fault> {
        let (buffer, at) = self.find(address, out.len())?;
        let mut done = 0;
        while done < out.len() {
            let (word, byte) = ((at + done) / 4, (at + done) % 4);
            let count = (4 - byte).min(out.len() - done);
            let mask = ((1u8 << count) - 1) << byte;
            if buffer.written[word].load(Relaxed) & mask != mask {
                return Err(Fault::Uninitialised {
                    what: format!("global address {:#x}", address + done as u64),
                });
            }
            let raw = buffer.words[word].load(Relaxed).to_le_bytes();
            out[done..done + count].copy_from_slice(&raw[byte..byte + count]);
            done += count;
        }
        Ok(())
    }

    pub(crate) fn store(&self, address: u64, data: &[u8]) -> Result<(), Fault> {
        let (buffer, at) = self.find(address, data.len())?;
        let mut done = 0;
        while done < data.len() {
            let (word, byte) = ((at + done) / 4, (at + done) % 4);
            let count = (4 - byte).min(data.len() - done);
            let part = &data[done..done + count];
            let place = &buffer.words[word];
            let merge = |old: u32| {
                let mut raw = old.to_le_bytes();
                raw[byte..byte + count].copy_from_slice(part);
                u32::from_le_bytes(raw)
            };
            if count == 4 {
                place.store(merge(0), Relaxed);
            } else {
                update(place, merge);
            }
            let mask = ((1u8 << count) - 1) << byte;
            buffer.written[word].fetch_or(mask, Relaxed);
            done += count;
        }
        Ok(())
    }

    /// Read, change and write in one step; 2, 4 or 8 bytes, aligned.
    pub(crate) fn atomic(
        &self,
        address: u64,
        bytes: usize,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, Fault> {
        if !address.is_multiple_of(bytes as u64) {
            return Err(Fault::Misaligned {
                space: "global",
                address,
                align: bytes,
            });
        }
        if bytes == 8 {
            let _alone = self.wide.lock();
            let mut raw = [0; 8];
            self.load(address, &mut raw)?;
            let old = u64::from_le_bytes(raw);
            self.store(address, &change(old).to_le_bytes())?;
            return Ok(old);
        }
        // Checks bounds and that the value exists.
        self.load(address, &mut [0; 4][..bytes])?;
        let (buffer, at) = self.find(address, bytes)?;
        let shift = 8 * (at % 4) as u32;
        let mask = if bytes == 2 { 0xffff } else { u32::MAX };
        let old = update(&buffer.words[at / 4], |old| {
            let value = change(u64::from(old >> shift & mask)) as u32 & mask;
            old & !(mask << shift) | value << shift
        });
        Ok(u64::from(old >> shift & mask))
    }
}

fn update(place: &AtomicU32, change: impl Fn(u32) -> u32) -> u32 {
    let mut old = place.load(Relaxed);
    loop {
        match place.compare_exchange_weak(old, change(old), Relaxed, Relaxed) {
            Ok(_) => return old,
            Err(now) => old = now,
        }
    }
}
