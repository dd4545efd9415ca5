//! Bulk copies: tensor boxes and plain bytes.

use super::machine::Machine;
use super::task::{BulkStore, Target, Task};
use super::warp::{Warp, lanes};
use crate::check::Fault;
use crate::decode::{Addr, AddrSpace, Bulk, Src, TensorCopy};
use crate::launch::MAP_MAGIC;
use crate::tensor_map::TensorMap;

impl Machine<'_> {
    pub(super) fn bulk(&mut self, warp: &mut Warp, active: u32, bulk: &Bulk) -> Result<(), Fault> {
        for lane in lanes(active) {
            self.bulk_one(warp, lane, bulk)?;
        }
        Ok(())
    }

    fn bulk_one(&mut self, warp: &mut Warp, lane: usize, bulk: &Bulk) -> Result<(), Fault> {
        let base = self.base(warp.cube);
        match bulk {
            Bulk::TensorPrefetch => Ok(()),
            Bulk::Commit => {
                warp.bulk[lane].commit();
                Ok(())
            }
            Bulk::Wait { groups, .. } => {
                for store in warp.bulk[lane].wait(*groups as usize) {
                    self.finish_store(warp, store)?;
                }
                Ok(())
            }
            Bulk::TensorLoad {
                copy,
                bar,
                multicast,
                pair,
            } => {
                let (map, coords) = self.tensor_args(warp, lane, copy)?;
                let bytes = self.params.maps[map].box_bytes();
                let align = self.box_alignment(map);
                let targets = self.targets(warp, lane, copy.smem, (*bar, *pair), *multicast)?;
                self.begin(warp, &targets, bytes, align)?;
                self.tasks.push(Task::Tensor {
                    map,
                    coords,
                    targets,
                });
                Ok(())
            }
            Bulk::Load {
                dst,
                src,
                bytes,
                bar,
                multicast,
            } => {
                let bytes = self.bulk_bytes(warp, lane, *bytes)?;
                let from = self.bulk_global(warp, lane, *src, bytes)?;
                let targets = self.targets(warp, lane, *dst, (*bar, false), *multicast)?;
                self.begin(warp, &targets, bytes, 16)?;
                self.tasks.push(Task::Bytes {
                    from,
                    bytes,
                    targets,
                });
                Ok(())
            }
            Bulk::ToCluster {
                dst,
                src,
                bytes,
                bar,
            } => {
                let bytes = self.bulk_bytes(warp, lane, *bytes)?;
                let from = self.shared_offset(warp, *src, lane)?;
                self.read_source(warp, from, bytes)?;
                let to = self.address(warp, *dst, lane) as u32;
                let bar = self.address(warp, *bar, lane) as u32;
                let ((cube, to), (bar_cube, bar)) = (self.locate(to)?, self.locate(bar)?);
                let target = Target {
                    cube,
                    to,
                    bar_cube,
                    bar,
                };
                self.begin(warp, &[target], bytes, 16)?;
                self.tasks.push(Task::Between {
                    from: (warp.cube, from),
                    bytes,
                    target,
                });
                Ok(())
            }
            Bulk::TensorStore { copy, .. } => {
                let (map, coords) = self.tensor_args(warp, lane, copy)?;
                let from = self.shared_offset(warp, copy.smem, lane)?;
                let bytes = self.params.maps[map].box_bytes();
                self.aligned_box(from, self.box_alignment(map))?;
                self.read_source(warp, from, bytes)?;
                warp.bulk[lane]
                    .open
                    .push(BulkStore::Tensor { map, coords, from });
                Ok(())
            }
            Bulk::Store { dst, src, bytes } => {
                let bytes = self.bulk_bytes(warp, lane, *bytes)?;
                let from = self.shared_offset(warp, *src, lane)?;
                let to = warp
                    .get(dst.base, lane, base)
                    .wrapping_add_signed(dst.offset);
                self.read_source(warp, from, bytes)?;
                warp.bulk[lane]
                    .open
                    .push(BulkStore::Bytes { to, from, bytes });
                Ok(())
            }
        }
    }

    fn bulk_bytes(&self, warp: &Warp, lane: usize, bytes: Src) -> Result<u32, Fault> {
        let bytes = warp.get(bytes, lane, self.base(warp.cube)) as u32;
        if bytes == 0 || !bytes.is_multiple_of(16) {
            return Err(Fault::Misaligned {
                space: "bulk copy size",
                address: u64::from(bytes),
                align: 16,
            });
        }
        Ok(bytes)
    }

    fn bulk_global(&self, warp: &Warp, lane: usize, addr: Addr, bytes: u32) -> Result<u64, Fault> {
        let from = self.address(warp, addr, lane);
        if !from.is_multiple_of(16) {
            return Err(Fault::Misaligned {
                space: "global",
                address: from,
                align: 16,
            });
        }
        self.memory.load(from, &mut vec![0; bytes as usize])?;
        Ok(from)
    }

    /// Number of the tensor map and coordinates.
    fn tensor_args(
        &mut self,
        warp: &Warp,
        lane: usize,
        copy: &TensorCopy,
    ) -> Result<(usize, Vec<i32>), Fault> {
        let base = self.base(warp.cube);
        let place = self.place(warp, AddrSpace::Generic, copy.map, lane)?;
        let mut raw = [0; 16];
        self.load(warp, lane, place, &mut raw)?;
        let number = |at: usize| u64::from_le_bytes(raw[at..at + 8].try_into().unwrap_or_default());
        let map = number(8) as usize;
        let fault = |problem: String| Err(Fault::TensorMap { problem });
        if number(0) != MAP_MAGIC || map >= self.params.maps.len() {
            return fault(format!("there is none at {place:?}"));
        }
        let coords: Vec<i32> = copy
            .coords
            .iter()
            .map(|&coord| warp.get(coord, lane, base) as i32)
            .collect();
        let rank = self.params.maps[map].dims.len();
        if coords.len() != rank {
            return fault(format!(
                "{} coordinates for a tensor of rank {rank}",
                coords.len()
            ));
        }
        Ok((map, coords))
    }

    /// A box lies where its permutation starts over.
    fn box_alignment(&self, map: usize) -> u32 {
        self.params.maps[map].swizzle.period().max(128)
    }

    fn aligned_box(&self, at: u32, align: u32) -> Result<(), Fault> {
        if at.is_multiple_of(align.min(128)) {
            return Ok(());
        }
        Err(Fault::Misaligned {
            space: "shared",
            address: u64::from(at),
            align: 128,
        })
    }

    /// Where a copy goes: the given place, or the same offsets in every cube of the mask. Of a pair, the mbarriers are
    /// those of the cubes with the parity of the given one.
    fn targets(
        &self,
        warp: &Warp,
        lane: usize,
        to: Addr,
        (bar, pair): (Addr, bool),
        multicast: Option<Src>,
    ) -> Result<Vec<Target>, Fault> {
        let (cube, to) = self.locate(self.address(warp, to, lane) as u32)?;
        let (bar_cube, bar) = self.locate(self.address(warp, bar, lane) as u32)?;
        let reach = usize::from(pair);
        if cube ^ bar_cube > reach {
            return Err(Fault::TensorMap {
                problem: format!(
                    "the mbarrier lies in cube {bar_cube} of the cluster, the destination in cube {cube}: only \
                     .cta_group::2 may name the other cube of a pair"
                ),
            });
        }
        let Some(mask) = multicast else {
            return Ok(vec![Target {
                cube,
                to,
                bar_cube,
                bar,
            }]);
        };
        let mask = warp.get(mask, lane, self.base(warp.cube)) & 0xffff;
        if mask == 0 || mask >> self.cubes.len() != 0 {
            return Err(Fault::TensorMap {
                problem: format!(
                    "multicast mask {mask:#x} in a cluster of {} cubes",
                    self.cubes.len()
                ),
            });
        }
        Ok((0..self.cubes.len())
            .filter(|rank| mask >> rank & 1 == 1)
            .map(|rank| Target {
                cube: rank,
                to,
                bar_cube: if pair { rank & !1 | bar_cube & 1 } else { rank },
                bar,
            })
            .collect())
    }

    fn begin(
        &mut self,
        warp: &Warp,
        targets: &[Target],
        bytes: u32,
        align: u32,
    ) -> Result<(), Fault> {
        for target in targets {
            self.aligned_box(target.to, align)?;
            self.fenced_object(warp, target.bar_cube, target.bar)?;
            self.cubes[target.cube].shared.begin_write(
                target.to,
                bytes as usize,
                &warp.know,
                None,
            )?;
        }
        Ok(())
    }

    /// A copy reads shared memory from now on.
    fn read_source(&mut self, warp: &Warp, from: u32, bytes: u32) -> Result<(), Fault> {
        let shared = &mut self.cubes[warp.cube].shared;
        shared.async_read(from, bytes as usize, &warp.know)?;
        for piece in (from..from + bytes).step_by(16) {
            shared.hold(piece, true);
        }
        Ok(())
    }

    fn source_read(&mut self, warp: &Warp, from: u32, bytes: u32) -> Vec<u8> {
        let shared = &mut self.cubes[warp.cube].shared;
        for piece in (from..from + bytes).step_by(16) {
            shared.hold(piece, false);
        }
        shared.note_read(from, bytes as usize, warp.id, warp.know.time(warp.id));
        shared.raw(from, bytes as usize).to_vec()
    }

    fn finish_store(&mut self, warp: &Warp, store: BulkStore) -> Result<(), Fault> {
        match store {
            BulkStore::Tensor { map, coords, from } => {
                let map = &self.params.maps[map];
                let data = self.source_read(warp, from, map.box_bytes());
                let linear = permute(map, from, |at| data[at as usize]);
                map.scatter(&coords, &linear, self.memory)
            }
            BulkStore::Bytes { to, from, bytes } => {
                let data = self.source_read(warp, from, bytes);
                self.memory.store(to, &data)
            }
        }
    }

    pub(super) fn finish_task(&mut self, task: Task) -> Result<(), Fault> {
        match task {
            Task::Tensor {
                map,
                coords,
                targets,
            } => {
                let map = &self.params.maps[map];
                let linear = map.gather(&coords, self.memory)?;
                for target in targets {
                    let data = unpermute(map, target.to, &linear);
                    self.deliver(target, &data)?;
                }
                Ok(())
            }
            Task::Bytes {
                from,
                bytes,
                targets,
            } => {
                let mut data = vec![0; bytes as usize];
                self.memory.load(from, &mut data)?;
                for target in targets {
                    self.deliver(target, &data)?;
                }
                Ok(())
            }
            Task::Between {
                from: (cube, from),
                bytes,
                target,
            } => {
                let shared = &mut self.cubes[cube].shared;
                for piece in (from..from + bytes).step_by(16) {
                    shared.hold(piece, false);
                }
                let data = shared.raw(from, bytes as usize).to_vec();
                self.deliver(target, &data)
            }
            Task::Arrive {
                chunks,
                warp,
                lane,
                bar,
            } => {
                let known = self.warps[warp].release();
                let cube = self.warps[warp].cube;
                let time = known.time(warp);
                self.released(warp, time, 1 << lane);
                for chunk in &chunks {
                    self.finish_chunk(chunk, cube, warp, time, lane)?;
                }
                self.arrive(cube, bar, &known)
            }
        }
    }

    /// Data arrives in shared memory and its bytes at the mbarrier.
    fn deliver(&mut self, target: Target, data: &[u8]) -> Result<(), Fault> {
        let epoch = self.object(target.bar_cube, target.bar)?.epoch();
        self.cubes[target.cube]
            .shared
            .finish_write(target.to, data, epoch, false, 0);
        self.complete(target.bar_cube, target.bar, data.len() as u32)
    }
}

/// Linear box from shared memory at `from`, whose byte at offset `i` from `from` is `read(i)`.
fn permute(map: &TensorMap, from: u32, read: impl Fn(u32) -> u8) -> Vec<u8> {
    (0..map.box_bytes())
        .map(|i| read(map.swizzle.apply(from + i) - from))
        .collect()
}

/// Bytes of shared memory at `to` from a linear box.
fn unpermute(map: &TensorMap, to: u32, linear: &[u8]) -> Vec<u8> {
    let mut data = vec![0; linear.len()];
    for (i, piece) in linear.chunks(16).enumerate() {
        let at = (map.swizzle.apply(to + 16 * i as u32) - to) as usize;
        data[at..at + piece.len()].copy_from_slice(piece);
    }
    data
}
