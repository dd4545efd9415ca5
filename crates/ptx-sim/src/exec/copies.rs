//! cp.async: copies of 4, 8 or 16 bytes by single lanes.

use super::machine::Machine;
use super::task::Chunk;
use super::warp::{Warp, lanes};
use crate::check::{Epoch, Fault};
use crate::decode::Op;

impl Machine<'_> {
    pub(super) fn copy_async(
        &mut self,
        warp: &mut Warp,
        active: u32,
        op: &Op,
    ) -> Result<(), Fault> {
        match op {
            Op::CopyAsync { .. } => {
                for lane in lanes(active) {
                    self.start_chunk(warp, lane, op)?;
                }
            }
            Op::CopyCommit => {
                for lane in lanes(active) {
                    warp.copies[lane].commit();
                }
            }
            Op::CopyWait { groups } => {
                for lane in lanes(active) {
                    for chunk in warp.copies[lane].wait(*groups as usize) {
                        let time = warp.know.time(warp.id);
                        self.finish_chunk(&chunk, warp.cube, warp.id, time, lane)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn start_chunk(&mut self, warp: &mut Warp, lane: usize, op: &Op) -> Result<(), Fault> {
        let Op::CopyAsync {
            dst,
            src,
            bytes,
            read,
            ignore,
        } = op
        else {
            return Ok(());
        };
        let base = self.base(warp.cube);
        let to = self.shared_offset(warp, *dst, lane)?;
        let shared = &mut self.cubes[warp.cube].shared;
        shared.check(to, *bytes as usize, *bytes as usize)?;
        let from = warp
            .get(src.base, lane, base)
            .wrapping_add_signed(src.offset);
        let mut count = read.map_or(*bytes, |read| warp.get(read, lane, base) as u32);
        if ignore.is_some_and(|ignore| warp.get(ignore, lane, base) & 1 == 1) {
            count = 0;
        }
        if count > *bytes {
            return Err(Fault::OutOfBounds {
                space: "global",
                address: from,
                bytes: count as usize,
                reason: format!("cp.async copies {bytes} bytes"),
            });
        }
        if !from.is_multiple_of(u64::from(*bytes)) {
            return Err(Fault::Misaligned {
                space: "global",
                address: from,
                align: *bytes as usize,
            });
        }
        // The addresses must be right now, whenever the bytes are fetched.
        if count > 0 {
            self.memory.load(from, &mut [0; 16][..count as usize])?;
        }
        shared.begin_write(to, *bytes as usize, &warp.know, Some(warp.id))?;
        warp.copies[lane].open.push(Chunk {
            to,
            from,
            bytes: *bytes,
            read: count,
        });
        Ok(())
    }

    /// The bytes arrive, as if the lane had stored them now.
    pub(super) fn finish_chunk(
        &mut self,
        chunk: &Chunk,
        cube: usize,
        warp: usize,
        time: u32,
        lane: usize,
    ) -> Result<(), Fault> {
        let mut data = [0; 16];
        if chunk.read > 0 {
            let wanted = &mut data[..chunk.read as usize];
            self.memory.load(chunk.from, wanted)?;
        }
        let epoch = Epoch {
            component: warp as u16,
            time,
        };
        self.cubes[cube].shared.finish_write(
            chunk.to,
            &data[..chunk.bytes as usize],
            epoch,
            // Triton lets wgmma and tcgen05.mma read what cp.async brought without a proxy fence; whether the
            // ISA allows it has not been checked.
            false,
            lane as u8,
        );
        Ok(())
    }
}
