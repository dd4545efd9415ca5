//! tcgen05.mma: D [m x n] in tensor memory = A B^T (+ D), with or without block scales.

use super::super::machine::Machine;
use super::super::warp::Warp;
use super::pair::cubes_of;
use super::{Held, TcgenTask};
use crate::check::{Epoch, Fault};
use crate::decode::{MatrixSource, Op, Tcgen, TcgenMma, zero_extend};
use crate::matrix::{Element, InstructionDescriptor, Major, Matrix, dot};
use crate::number::Format;

/// An issued product.
#[derive(Clone, Debug)]
pub(in super::super) struct PendingTcgen {
    pc: usize,
    idesc: u32,
    d: u32,
    /// Descriptor, or address in tensor memory.
    a: u64,
    b: u64,
    scales: (u32, u32),
    /// Lanes that are not written, of the first cube in words 0 to 3.
    disabled: [u32; 8],
    accumulate: bool,
    /// What it reads and writes.
    held: Held,
}

/// Lane of row `row` of a cube's `m` rows.
fn lane_of(row: u32, m: u32) -> u32 {
    if m == 64 {
        row / 16 * 32 + row % 16
    } else {
        row
    }
}

/// (lane, column) of element (`row`, `column`) of D in a cube that has `rows` rows of it. Of 64 rows of a pair, the second
/// half of the columns lies in lanes 64 to 127.
fn result_cell((row, column): (u32, u32), rows: u32, n: u32, pair: bool) -> (u32, u32) {
    if pair && rows == 64 {
        (column / (n / 2) * 64 + row, column % (n / 2))
    } else {
        (lane_of(row, rows), column)
    }
}

/// Columns of scale factors of `rows` rows.
fn scale_columns(rows: u32) -> u32 {
    rows.div_ceil(32)
}

impl Machine<'_> {
    pub(super) fn issue_tcgen(
        &mut self,
        warp: &mut Warp,
        pc: usize,
        lane: usize,
        mma: &TcgenMma,
    ) -> Result<(), Fault> {
        let base = self.base(warp.cube);
        let idesc = warp.get(mma.idesc, lane, base) as u32;
        let shape = InstructionDescriptor::new(idesc, mma.kind, mma.pair)?;
        if mma.pair {
            self.pair_product(warp.cube, mma, &shape)?;
        }
        let d = self.address(warp, mma.d, lane) as u32;
        if d >> 16 != 0 {
            return Err(Fault::NotModelled {
                what: format!("an accumulator at lane {}", d >> 16),
            });
        }
        let a = match &mma.a {
            MatrixSource::Descriptor(src) => warp.get(*src, lane, base),
            MatrixSource::Tensor(addr) => self.address(warp, *addr, lane),
            MatrixSource::Registers(_) => 0,
        };
        let scales = mma.scales.as_ref().map_or((0, 0), |(a, b, _)| {
            let at = |addr| self.address(warp, addr, lane) as u32;
            (at(*a), at(*b))
        });
        let mut product = PendingTcgen {
            pc,
            idesc,
            d,
            a,
            b: warp.get(mma.b, lane, base),
            scales,
            disabled: std::array::from_fn(|word| {
                mma.disabled
                    .get(word)
                    .map_or(0, |&src| warp.get(src, lane, base) as u32)
            }),
            accumulate: warp.get(mma.accumulate, lane, base) & 1 == 1,
            held: Held::default(),
        };
        product.held = self.touched(warp.cube, mma, &shape, &product)?;
        self.take(warp, &product)?;
        warp.tcgen.push_back(TcgenTask::Product(product));
        Ok(())
    }

    /// What of products of pairs is modelled: the even cube issues; 64 rows a cube have A in shared memory and no
    /// block scales.
    fn pair_product(
        &self,
        cube: usize,
        mma: &TcgenMma,
        shape: &InstructionDescriptor,
    ) -> Result<(), Fault> {
        self.peer(cube)?;
        let problem = if cube % 2 == 1 {
            "issued by the odd cube of the pair"
        } else if shape.m == 128 && matches!(mma.a, MatrixSource::Tensor(_)) {
            "with 64 rows a cube and A in tensor memory"
        } else if shape.m == 128 && mma.scales.is_some() {
            "with 64 rows a cube and block scales"
        } else {
            return Ok(());
        };
        Err(Fault::NotModelled {
            what: format!("tcgen05.mma.cta_group::2 {problem}"),
        })
    }

    /// What the product reads and writes: of a pair, each cube holds half of the rows of A and D and half of those of B,
    /// at the same addresses.
    fn touched(
        &self,
        cube: usize,
        mma: &TcgenMma,
        shape: &InstructionDescriptor,
        product: &PendingTcgen,
    ) -> Result<Held, Fault> {
        let mut held = Held::default();
        let cubes = cubes_of(cube, mma.pair);
        let (m, n) = (shape.m / cubes.len() as u32, shape.n / cubes.len() as u32);
        for cube in cubes {
            let tensor = &self.cubes[cube].tensor;
            let columns = |list: &mut Vec<(usize, u32, u32)>, first: u32, count: u32| {
                tensor.check(first, count)?;
                for column in first..first + count {
                    list.extend((0..4).map(|quarter| (cube, column, quarter)));
                }
                Ok::<(), Fault>(())
            };
            let halves = if mma.pair && m == 64 { 2 } else { 1 };
            columns(&mut held.written, product.d, shape.n / halves)?;
            let mut pieces = Vec::new();
            if let MatrixSource::Tensor(_) = &mma.a {
                let count = shape.k * shape.a.bits / 32;
                columns(&mut held.read, product.a as u32 & 0xffff, count)?;
            } else {
                let matrix = Matrix::tcgen05(product.a, shape.a_major)?;
                pieces.extend(matrix.pieces(0, m, shape.k, shape.a.bits));
            }
            if mma.scales.is_some() {
                let (a, b) = product.scales;
                columns(&mut held.read, a & 0xffff, scale_columns(m))?;
                columns(&mut held.read, b & 0xffff, scale_columns(shape.n))?;
            }
            let matrix = Matrix::tcgen05(product.b, shape.b_major)?;
            pieces.extend(matrix.pieces(0, n, shape.k, shape.b.bits));
            held.pieces.extend(pieces.into_iter().map(|at| (cube, at)));
        }
        Ok(held)
    }

    fn take(&mut self, warp: &Warp, product: &PendingTcgen) -> Result<(), Fault> {
        for &(cube, at) in &product.held.pieces {
            let shared = &mut self.cubes[cube].shared;
            shared.async_read(at, 16, &warp.know)?;
            shared.hold(at, true);
        }
        for &(cube, column, quarter) in &product.held.read {
            let tensor = &mut self.cubes[cube].tensor;
            tensor.queued(column, quarter, &warp.know, warp.id)?;
            tensor.hold(column, quarter, false, true);
        }
        for &(cube, column, quarter) in &product.held.written {
            let tensor = &mut self.cubes[cube].tensor;
            tensor.queued(column, quarter, &warp.know, warp.id)?;
            tensor.hold(column, quarter, true, true);
        }
        Ok(())
    }

    pub(super) fn release_held(&mut self, held: &Held, epoch: Epoch, queue: usize) {
        for &(cube, at) in &held.pieces {
            self.cubes[cube].shared.hold(at, false);
        }
        for &(cube, column, quarter) in &held.read {
            self.cubes[cube].tensor.hold(column, quarter, false, false);
        }
        for &(cube, column, quarter) in &held.written {
            let tensor = &mut self.cubes[cube].tensor;
            tensor.hold(column, quarter, true, false);
            tensor.wrote(column, quarter, epoch, Some(queue));
        }
    }

    pub(super) fn finish_tcgen_product(
        &mut self,
        index: usize,
        product: PendingTcgen,
    ) -> Result<(), Fault> {
        let Op::Tcgen(Tcgen::Mma(mma)) = &self.kernel.code[product.pc].op else {
            return Ok(());
        };
        let cube = self.warps[index].cube;
        let shape = InstructionDescriptor::new(product.idesc, mma.kind, mma.pair)?;
        let cubes = cubes_of(cube, mma.pair);
        let (m, n, k) = (
            shape.m / cubes.len() as u32,
            shape.n / cubes.len() as u32,
            shape.k,
        );
        let mut right = Vec::with_capacity((shape.n * k) as usize);
        for cube in cubes.clone() {
            right.extend(self.smem_operand(cube, product.b, shape.b_major, shape.b, n, k)?);
        }
        for cube in cubes {
            self.alive(index, cube)?;
            let mut left = match &mma.a {
                MatrixSource::Tensor(_) => {
                    self.tensor_operand(cube, &shape, m, product.a as u32)?
                }
                _ => self.smem_operand(cube, product.a, shape.a_major, shape.a, m, k)?,
            };
            let mut right = right.clone();
            if let (Some((_, _, block)), Some((format, a, b))) = (&mma.scales, shape.scale) {
                // Those of A are of the cube's rows, those of B of all N: each cube has them.
                let (at, other) = product.scales;
                self.scale(cube, &mut left, (m, k, *block), (at, a, format))?;
                self.scale(cube, &mut right, (shape.n, k, *block), (other, b, format))?;
            }
            self.accumulate((cube, mma.pair), &shape, &product, (&left, &right))?;
        }
        let held = &mut self.warps[index].held;
        held.written.extend(product.held.written);
        held.read.extend(product.held.read);
        held.pieces.extend(product.held.pieces);
        Ok(())
    }

    /// D = left right^T (+ D) in the tensor memory of one cube: left [rows][k], right [n][k].
    fn accumulate(
        &mut self,
        (cube, pair): (usize, bool),
        shape: &InstructionDescriptor,
        product: &PendingTcgen,
        (left, right): (&[f64], &[f64]),
    ) -> Result<(), Fault> {
        let k = shape.k as usize;
        let rows = (left.len() / k) as u32;
        let tensor = &mut self.cubes[cube].tensor;
        let sign = if shape.negate { -1.0 } else { 1.0 };
        for (row, a) in left.chunks(k).enumerate() {
            for (column, b) in right.chunks(k).enumerate() {
                let cell = (row as u32, column as u32);
                let (lane, column) = result_cell(cell, rows, shape.n, pair);
                let word = if pair { cube % 2 * 4 } else { 0 } + lane as usize / 32;
                if product.disabled[word] >> (lane % 32) & 1 == 1 {
                    continue;
                }
                let at = product.d + column;
                let old = if product.accumulate {
                    f64::from(f32::from_bits(tensor.get(lane, at)?))
                } else {
                    0.0
                };
                let sum = (old + sign * dot(a, b)) as f32;
                tensor.set(lane, at, sum.to_bits());
            }
        }
        Ok(())
    }

    /// [outer][k] from shared memory.
    fn smem_operand(
        &self,
        cube: usize,
        descriptor: u64,
        major: Major,
        element: Element,
        outer: u32,
        k: u32,
    ) -> Result<Vec<f64>, Fault> {
        let matrix = Matrix::tcgen05(descriptor, major)?;
        if major == Major::Outer && element.bits < 8 {
            return Err(Fault::Descriptor {
                bits: descriptor,
                problem: "elements below 8 bits must be K-major".to_owned(),
            });
        }
        let shared = &self.cubes[cube].shared;
        let mut all = Vec::with_capacity((outer * k) as usize);
        for row in 0..outer {
            for at in 0..k {
                if major == Major::Outer || element.bits >= 8 && !element.padded {
                    let address = matrix.element(row, at, element.bits / 8);
                    all.push(self.number(cube, address, element.format));
                } else {
                    let (byte, bit) = element.place(at);
                    let low = shared.raw(matrix.address(row, byte), 1)[0];
                    let mut bits = u64::from(low) >> bit;
                    if bit + element.format.bits() > 8 {
                        let high = shared.raw(matrix.address(row, byte + 1), 1)[0];
                        bits |= u64::from(high) << (8 - bit);
                    }
                    let value = zero_extend(bits, element.format.bits());
                    all.push(element.format.decode(value));
                }
            }
        }
        Ok(all)
    }

    /// [row][k] from tensor memory: elements packed along columns.
    fn tensor_operand(
        &self,
        cube: usize,
        shape: &InstructionDescriptor,
        rows: u32,
        address: u32,
    ) -> Result<Vec<f64>, Fault> {
        let tensor = &self.cubes[cube].tensor;
        let bits = shape.a.bits;
        let per = 32 / bits;
        let mut all = Vec::with_capacity((rows * shape.k) as usize);
        for row in 0..rows {
            for k in 0..shape.k {
                let word = tensor.get(lane_of(row, rows), (address & 0xffff) + k / per)?;
                let value = zero_extend(u64::from(word) >> (k % per * bits), bits);
                all.push(shape.a.format.decode(value));
            }
        }
        Ok(all)
    }

    /// Multiplies rows by their scale factors: those of 32 rows lie in a column, one lane a row, one byte for `block`
    /// elements of K; every quarter of the lanes holds a copy.
    fn scale(
        &self,
        cube: usize,
        values: &mut [f64],
        (rows, k, block): (u32, u32, u32),
        (address, id, format): (u32, u32, Format),
    ) -> Result<(), Fault> {
        let tensor = &self.cubes[cube].tensor;
        for row in 0..rows {
            let quarter = row / 32 % 4;
            let column = (address & 0xffff) + row / 32;
            // The quarter that a row's lane belongs to reads its own copy of the factors.
            let word = tensor.get(quarter * 32 + row % 32, column)?;
            for part in 0..k / block {
                let byte = id + part;
                let factor = format.decode(u64::from(word) >> (8 * byte) & 0xff);
                let start = (row * k + part * block) as usize;
                for value in &mut values[start..start + block as usize] {
                    *value *= factor;
                }
            }
        }
        Ok(())
    }
}
