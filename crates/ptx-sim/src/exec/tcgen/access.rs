//! tcgen05.ld, tcgen05.st and tcgen05.cp.

use super::super::machine::Machine;
use super::super::task::TensorMemoryOp;
use super::super::warp::{Owner, Warp};
use super::TcgenTask;
use crate::check::{Epoch, Fault};
use crate::decode::{CopyShape, Src, Tcgen, TensorShape};
use crate::matrix::{Major, Matrix};

/// (lane, column) of register `i` of thread `t`, relative to the address.
fn cell(op: &TensorMemoryOp, i: u32, t: u32) -> Result<(u32, u32), Fault> {
    Ok(match op.shape {
        TensorShape::L32B32 => (t, i),
        TensorShape::L16B128 => (t / 4 + 8 * (i % 2), i / 2 * 4 + t % 4),
        TensorShape::L16B256 => (t / 4 + 8 * (i / 2 % 2), i / 4 * 8 + t % 4 * 2 + i % 2),
        TensorShape::L16B64 | TensorShape::L16B32x2 => {
            return Err(Fault::NotModelled {
                what: format!("tensor memory in shape {:?}", op.shape),
            });
        }
    })
}

/// Columns that the operation touches.
fn width(op: &TensorMemoryOp) -> u32 {
    let count = op.registers.len().max(op.values.len()) as u32;
    match op.shape {
        TensorShape::L16B128 | TensorShape::L16B256 => count * 2,
        _ => count,
    }
}

impl Machine<'_> {
    pub(super) fn issue_access(
        &mut self,
        warp: &mut Warp,
        active: u32,
        op: &Tcgen,
    ) -> Result<(), Fault> {
        let (store, shape, addr, packed) = match op {
            Tcgen::Load {
                shape, addr, pack, ..
            } => (false, *shape, *addr, *pack),
            Tcgen::Store {
                shape,
                addr,
                unpack,
                ..
            } => (true, *shape, *addr, *unpack),
            _ => return Ok(()),
        };
        if packed {
            return Err(Fault::NotModelled {
                what: "packed 16-bit access to tensor memory".to_owned(),
            });
        }
        let base = self.uniform(warp, active, addr.base)?;
        let address = base.wrapping_add_signed(addr.offset) as u32;
        let mut access = TensorMemoryOp {
            store,
            shape,
            registers: Vec::new(),
            values: Vec::new(),
            lane: address >> 16,
            column: address & 0xffff,
        };
        match op {
            Tcgen::Load { dsts, .. } => access.registers.clone_from(dsts),
            Tcgen::Store { srcs, .. } => {
                let window = self.base(warp.cube);
                access.values = srcs
                    .iter()
                    .map(|&src| std::array::from_fn(|lane| warp.get(src, lane, window) as u32))
                    .collect();
            }
            _ => {}
        }
        self.check_access(warp, &access)?;
        let quarter = access.lane / 32;
        let tensor = &mut self.cubes[warp.cube].tensor;
        for column in access.column..access.column + width(&access) {
            if store {
                tensor.hold_store(column, quarter, true);
            } else {
                tensor.hold(column, quarter, false, true);
            }
        }
        for &register in &access.registers {
            warp.own(register, Owner::TensorLoad);
        }
        warp.tensor_ops.push(access);
        Ok(())
    }

    fn check_access(&self, warp: &Warp, access: &TensorMemoryOp) -> Result<(), Fault> {
        let quarter = warp.first / 32 % 4;
        let rows = if access.shape == TensorShape::L32B32 {
            32
        } else {
            16
        };
        if access.lane / 32 != quarter || !access.lane.is_multiple_of(rows) {
            return Err(Fault::TensorMemory {
                problem: format!(
                    "lane {} is not among those of warp {quarter} of its warpgroup",
                    access.lane
                ),
            });
        }
        cell(access, 0, 0)?;
        let tensor = &self.cubes[warp.cube].tensor;
        tensor.check(access.column, width(access))?;
        for column in access.column..access.column + width(access) {
            tensor.settled(column, quarter, &warp.know)?;
            if access.store {
                tensor.unread(column, quarter)?;
            }
        }
        Ok(())
    }

    pub(in super::super) fn finish_accesses(
        &mut self,
        warp: &mut Warp,
        store: bool,
    ) -> Result<(), Fault> {
        let all = std::mem::take(&mut warp.tensor_ops);
        let (done, rest) = all.into_iter().partition(|op| op.store == store);
        warp.tensor_ops = rest;
        let done: Vec<TensorMemoryOp> = done;
        for access in done {
            let quarter = access.lane / 32;
            let epoch = Epoch {
                component: warp.id as u16,
                time: warp.know.time(warp.id),
            };
            let tensor = &mut self.cubes[warp.cube].tensor;
            for column in access.column..access.column + width(&access) {
                if store {
                    tensor.hold_store(column, quarter, false);
                    tensor.wrote(column, quarter, epoch, None);
                } else {
                    tensor.hold(column, quarter, false, false);
                }
            }
            for (i, values) in access.values.iter().enumerate() {
                for (t, &value) in values.iter().enumerate() {
                    let (lane, column) = cell(&access, i as u32, t as u32)?;
                    tensor.set(access.lane + lane, access.column + column, value);
                }
            }
            for (i, &register) in access.registers.iter().enumerate() {
                for t in 0..32 {
                    let (lane, column) = cell(&access, i as u32, t)?;
                    let value = tensor.get(access.lane + lane, access.column + column)?;
                    warp.set(register, t as usize, u64::from(value));
                }
                warp.own(register, Owner::Nobody);
            }
        }
        Ok(())
    }

    pub(super) fn issue_copy(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        shape: CopyShape,
        column: u32,
        descriptor: Src,
        pair: bool,
    ) -> Result<(), Fault> {
        if pair || column >> 16 != 0 {
            return Err(Fault::NotModelled {
                what: "tcgen05.cp by pairs, or to lanes other than 0".to_owned(),
            });
        }
        let descriptor = warp.get(descriptor, lane, self.base(warp.cube));
        let (rows, columns, quarters) = copied(shape)?;
        let matrix = Matrix::tcgen05(descriptor, Major::K)?;
        let pieces = matrix.pieces(0, rows, columns * 4, 8);
        let cube = &mut self.cubes[warp.cube];
        cube.tensor.check(column, columns)?;
        for &piece in &pieces {
            cube.shared.async_read(piece, 16, &warp.know)?;
            cube.shared.hold(piece, true);
        }
        for at in column..column + columns {
            for quarter in quarters.iter().flatten() {
                cube.tensor.queued(at, *quarter, &warp.know, warp.id)?;
                cube.tensor.hold(at, *quarter, true, true);
            }
        }
        warp.tcgen.push_back(TcgenTask::Copy {
            shape,
            column,
            descriptor,
            pieces,
        });
        Ok(())
    }

    pub(super) fn finish_copy(
        &mut self,
        index: usize,
        shape: CopyShape,
        column: u32,
        descriptor: u64,
        pieces: Vec<u32>,
    ) -> Result<(), Fault> {
        let rank = self.warps[index].cube;
        let (rows, columns, quarters) = copied(shape)?;
        let matrix = Matrix::tcgen05(descriptor, Major::K)?;
        let cube = &mut self.cubes[rank];
        for row in 0..rows {
            for at in 0..columns {
                let address = matrix.address(row, at * 4);
                let raw = cube.shared.raw(address, 4);
                let word = u32::from_le_bytes(raw.try_into().unwrap_or_default());
                for quarter in &quarters[(row / 32) as usize] {
                    cube.tensor.set(quarter * 32 + row % 32, column + at, word);
                }
            }
        }
        let held = &mut self.warps[index].held;
        for at in column..column + columns {
            for quarter in quarters.iter().flatten() {
                held.written.push((rank, at, *quarter));
            }
        }
        held.pieces.extend(pieces.into_iter().map(|at| (rank, at)));
        Ok(())
    }
}

/// Rows and columns of a copy, and the quarters of the lanes that each 32 rows go to.
fn copied(shape: CopyShape) -> Result<(u32, u32, Vec<Vec<u32>>), Fault> {
    let straight = || (0..4).map(|quarter| vec![quarter]).collect();
    Ok(match shape {
        CopyShape::L128B256 => (128, 8, straight()),
        CopyShape::L128B128 => (128, 4, straight()),
        CopyShape::L64B128 { lower: true } => (64, 4, vec![vec![0, 2], vec![1, 3]]),
        CopyShape::L64B128 { lower: false } => (64, 4, vec![vec![0, 1], vec![2, 3]]),
        CopyShape::L32B128 => (32, 4, vec![vec![0, 1, 2, 3]]),
        CopyShape::L4B256 => {
            return Err(Fault::NotModelled {
                what: "tcgen05.cp.4x256b".to_owned(),
            });
        }
    })
}
