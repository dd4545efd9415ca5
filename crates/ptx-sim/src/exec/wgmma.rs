//! wgmma: products of a warpgroup, each warp its own 16 rows, finished by wait_group.

use super::machine::Machine;
use super::task::PendingProduct;
use super::warp::{Owner, Warp};
use crate::check::Fault;
use crate::decode::{MatrixSource, Op, Wgmma, WgmmaMma};
use crate::matrix::{Major, Matrix, a_place, acc_place, dot};
use crate::number::{Format, Rounding};

fn major(transposed: bool) -> Major {
    if transposed { Major::Outer } else { Major::K }
}

impl Machine<'_> {
    pub(super) fn wgmma(&mut self, warp: &mut Warp, pc: usize, op: &Wgmma) -> Result<(), Fault> {
        match op {
            Wgmma::Fence => warp.changed.fill(false),
            Wgmma::Commit => warp.products.commit(),
            Wgmma::Wait { groups } => {
                let done = warp.products.wait(*groups as usize);
                for product in &done {
                    self.finish_product(warp, product)?;
                }
                self.claim(warp);
            }
            Wgmma::Mma(mma) => self.issue_product(warp, pc, mma)?,
        }
        Ok(())
    }

    fn issue_product(&mut self, warp: &mut Warp, pc: usize, mma: &WgmmaMma) -> Result<(), Fault> {
        if !warp.full() || !self.cubes[warp.cube].warps.len().is_multiple_of(4) {
            return Err(Fault::NotModelled {
                what: "wgmma in a cube that is not made of whole warpgroups".to_owned(),
            });
        }
        let accumulate = self.uniform(warp, u32::MAX, mma.accumulate)? & 1 == 1;
        self.check_registers(warp, mma, accumulate)?;
        let (mut a, rows) = (0, warp.first / 32 % 4 * 16);
        let mut pieces = Vec::new();
        if let MatrixSource::Descriptor(src) = &mma.a {
            a = self.uniform(warp, u32::MAX, *src)?;
            let matrix = Matrix::wgmma(a, major(mma.transpose_a))?;
            pieces = matrix.pieces(rows, 16, mma.k, mma.a_format.bits());
        }
        let b = self.uniform(warp, u32::MAX, mma.b)?;
        let matrix = Matrix::wgmma(b, major(mma.transpose_b))?;
        pieces.extend(matrix.pieces(0, mma.n, mma.k, mma.b_format.bits()));
        let shared = &mut self.cubes[warp.cube].shared;
        for &piece in &pieces {
            shared.async_read(piece, 16, &warp.know)?;
            shared.hold(piece, true);
        }
        warp.products.open.push(PendingProduct {
            pc,
            a,
            b,
            accumulate,
            pieces,
        });
        own(warp, mma);
        Ok(())
    }

    fn check_registers(&self, warp: &Warp, mma: &WgmmaMma, accumulate: bool) -> Result<(), Fault> {
        let names = &self.kernel.register_names;
        let operands: &[u32] = match &mma.a {
            MatrixSource::Registers(registers) => registers,
            _ => &[],
        };
        warp.readable(operands, u32::MAX, names)?;
        for &register in &mma.d {
            if warp.owner(register) == Owner::Operand {
                return Err(Fault::RegisterOwned {
                    register: names[register as usize].clone(),
                    owner: "wgmma",
                });
            }
        }
        // A product in flight may be continued in its accumulators: it counts as their value.
        let fresh: Vec<u32> = mma
            .d
            .iter()
            .copied()
            .filter(|&register| warp.owner(register) == Owner::Nobody)
            .collect();
        if accumulate {
            warp.readable(&fresh, u32::MAX, names)?;
        }
        let changed = |&&register: &&u32| warp.changed[register as usize];
        if let Some(&register) = mma.d.iter().chain(operands).find(changed) {
            return Err(Fault::MissingWgmmaFence {
                register: names[register as usize].clone(),
            });
        }
        Ok(())
    }

    /// Registers of the products that are still under way.
    fn claim(&self, warp: &mut Warp) {
        let pending: Vec<usize> = warp
            .products
            .groups
            .iter()
            .flatten()
            .chain(&warp.products.open)
            .map(|product| product.pc)
            .collect();
        for pc in pending {
            if let Op::Wgmma(Wgmma::Mma(mma)) = &self.kernel.code[pc].op {
                own(warp, mma);
            }
        }
    }

    fn finish_product(&mut self, warp: &mut Warp, product: &PendingProduct) -> Result<(), Fault> {
        let Op::Wgmma(Wgmma::Mma(mma)) = &self.kernel.code[product.pc].op else {
            return Ok(());
        };
        let time = warp.know.time(warp.id);
        let left = self.left(warp, product, mma)?;
        let right = self.right(warp, product, mma)?;
        let shared = &mut self.cubes[warp.cube].shared;
        for &piece in &product.pieces {
            shared.hold(piece, false);
            shared.note_read(piece, 16, warp.id, time);
        }
        let k = mma.k as usize;
        let sign = if mma.negate_a != mma.negate_b {
            -1.0
        } else {
            1.0
        };
        for lane in 0..32 {
            let value = |i: usize, old: f64| {
                let (row, column) = acc_place(lane as u32, i as u32);
                let (row, column) = (row as usize, column as usize);
                let sum = dot(
                    &left[row * k..(row + 1) * k],
                    &right[column * k..(column + 1) * k],
                );
                sign * sum + if product.accumulate { old } else { 0.0 }
            };
            for (i, &register) in mma.d.iter().enumerate() {
                let word = warp.register(register, lane);
                if mma.d_format == Format::F32 {
                    let old = mma.d_format.decode(word);
                    let new = value(i, old);
                    warp.set_f32(register, lane, new);
                } else {
                    let half = |j: usize| {
                        let old = mma.d_format.decode(word >> (16 * j) & 0xffff);
                        let new = value(2 * i + j, old);
                        mma.d_format.encode(new, 0.0, Rounding::Nearest, false)
                    };
                    let packed = half(0) | half(1) << 16;
                    warp.set(register, lane, packed);
                }
            }
        }
        for &register in &mma.d {
            warp.own(register, Owner::Nobody);
        }
        if let MatrixSource::Registers(registers) = &mma.a {
            for &register in registers {
                warp.own(register, Owner::Nobody);
            }
        }
        let kept: Vec<bool> = mma.d.iter().map(|&r| warp.changed[r as usize]).collect();
        warp.wrote(&mma.d, u32::MAX);
        // The product itself is no change that a fence must order.
        for (&register, kept) in mma.d.iter().zip(kept) {
            warp.changed[register as usize] = kept;
        }
        Ok(())
    }

    /// The warp's 16 rows of A, [row][k].
    fn left(
        &self,
        warp: &Warp,
        product: &PendingProduct,
        mma: &WgmmaMma,
    ) -> Result<Vec<f64>, Fault> {
        let k = mma.k;
        let bits = mma.a_format.bits();
        let mut left = vec![0.0; (16 * k) as usize];
        if let MatrixSource::Registers(registers) = &mma.a {
            let e = 32 / bits;
            for lane in 0..32u32 {
                for (i, &register) in registers.iter().enumerate() {
                    let word = warp.register(register, lane as usize);
                    for j in 0..e {
                        let (row, at) = a_place(e, lane, i as u32, j);
                        let part = crate::decode::zero_extend(word >> (j * bits), bits);
                        left[(row * k + at) as usize] = mma.a_format.decode(part);
                    }
                }
            }
            return Ok(left);
        }
        let matrix = Matrix::wgmma(product.a, major(mma.transpose_a))?;
        let first = warp.first / 32 % 4 * 16;
        for row in 0..16 {
            for at in 0..k {
                let address = matrix.element(first + row, at, bits / 8);
                left[(row * k + at) as usize] = self.number(warp.cube, address, mma.a_format);
            }
        }
        Ok(left)
    }

    /// B, [column][k].
    fn right(
        &self,
        warp: &Warp,
        product: &PendingProduct,
        mma: &WgmmaMma,
    ) -> Result<Vec<f64>, Fault> {
        let matrix = Matrix::wgmma(product.b, major(mma.transpose_b))?;
        let bytes = mma.b_format.bits() / 8;
        let mut right = vec![0.0; (mma.n * mma.k) as usize];
        for column in 0..mma.n {
            for at in 0..mma.k {
                let address = matrix.element(column, at, bytes);
                right[(column * mma.k + at) as usize] =
                    self.number(warp.cube, address, mma.b_format);
            }
        }
        Ok(right)
    }

    /// A float of whole bytes in shared memory.
    pub(super) fn number(&self, cube: usize, at: u32, format: Format) -> f64 {
        let bytes = (format.bits() / 8) as usize;
        let raw = self.cubes[cube].shared.raw(at, bytes);
        let bits = raw
            .iter()
            .rev()
            .fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
        format.decode(bits)
    }
}

/// The product's registers belong to it.
fn own(warp: &mut Warp, mma: &WgmmaMma) {
    if let MatrixSource::Registers(registers) = &mma.a {
        for &register in registers {
            warp.own(register, Owner::Operand);
        }
    }
    for &register in &mma.d {
        warp.own(register, Owner::Accumulator);
    }
}
