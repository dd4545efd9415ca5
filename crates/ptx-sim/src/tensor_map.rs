//! Tensor maps: which elements a box holds and where they lie in shared memory.

use crate::check::Fault;
use crate::global::{BufferId, Memory};

/// How rows of a box are permuted in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Not at all.
    None,
    /// 16-byte chunks within 32 bytes, by bit 7 of the address.
    B32,
    /// Within 64 bytes, by bits 7 and 8.
    B64,
    /// Within 128 bytes, by bits 7 to 9.
    B128,
    /// 32-byte chunks within 128 bytes, by bits 8 and 9 (tcgen05's transposed TF32).
    B128Atom32,
}

impl Swizzle {
    /// Bytes of a row that the permutation stays in; None when there is none.
    pub fn span(self) -> Option<u32> {
        match self {
            Swizzle::None => None,
            Swizzle::B32 => Some(32),
            Swizzle::B64 => Some(64),
            Swizzle::B128 | Swizzle::B128Atom32 => Some(128),
        }
    }
    /// Where the byte of linear address `address` lies.
    pub fn apply(self, address: u32) -> u32 {
        match self {
            Swizzle::None => address,
            Swizzle::B32 => address ^ (address >> 3 & 0x10),
            Swizzle::B64 => address ^ (address >> 3 & 0x30),
            Swizzle::B128 => address ^ (address >> 3 & 0x70),
            Swizzle::B128Atom32 => address ^ (address >> 3 & 0x60),
        }
    }
    /// Bytes after which the permutation repeats.
    pub fn period(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 256,
            Swizzle::B64 => 512,
            Swizzle::B128 | Swizzle::B128Atom32 => 1024,
        }
    }
}

/// A tiled tensor map without interleave.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorMap {
    /// Buffer and byte offset of the first element.
    pub base: (BufferId, u64),
    /// Bytes of an element.
    pub element: u32,
    /// Elements along each dimension, the contiguous one first.
    pub dims: Vec<u64>,
    /// Bytes from one element to the next along dimensions 1 and up.
    pub strides: Vec<u64>,
    /// Elements of the box.
    pub tile: Vec<u32>,
    /// Every how many elements one is taken.
    pub steps: Vec<u32>,
    /// Permutation in shared memory.
    pub swizzle: Swizzle,
    /// Elements outside are NaN instead of 0 (float types; the pattern is all ones).
    pub fill_nan: bool,
}

/// A row of a box: contiguous in the tensor and, before the permutation, in shared memory.
pub(crate) struct BoxRow {
    /// Address of its first element, None when the row lies outside.
    pub(crate) global: Option<u64>,
    /// Elements before the first and after the last one that exist, out of the row's.
    pub(crate) before: u32,
    pub(crate) inside: u32,
    /// Offset in the box.
    pub(crate) offset: u32,
}

impl TensorMap {
    /// Bytes of a box.
    pub fn box_bytes(&self) -> u32 {
        self.tile.iter().product::<u32>() * self.element
    }

    /// What the driver refuses when a map is made.
    ///
    /// # Errors
    /// A sentence that names the value and the limit.
    pub fn check(&self) -> Result<(), String> {
        let rank = self.dims.len();
        if !(1..=5).contains(&rank)
            || self.strides.len() + 1 != rank
            || self.tile.len() != rank
            || self.steps.len() != rank
        {
            return Err(format!("rank {rank} with {} strides", self.strides.len()));
        }
        if let Some(&dim) = self.dims.iter().find(|&&dim| dim == 0 || dim > 1 << 32) {
            return Err(format!("dimension {dim}: 1 to 2^32 are legal"));
        }
        if let Some(&size) = self.tile.iter().find(|&&size| size == 0 || size > 256) {
            return Err(format!("box dimension {size}: 1 to 256 are legal"));
        }
        if let Some(stride) = self.strides.iter().find(|&&s| s % 16 != 0 || s >= 1 << 40) {
            return Err(format!(
                "stride {stride}: multiples of 16 below 2^40 are legal"
            ));
        }
        if let Some(step) = self.steps.iter().find(|&&step| step == 0 || step > 8) {
            return Err(format!("element stride {step}: 1 to 8 are legal"));
        }
        if !self.base.1.is_multiple_of(16) {
            return Err(format!("base offset {}: multiples of 16", self.base.1));
        }
        let inner = self.tile[0] * self.element;
        if !inner.is_multiple_of(16) {
            return Err(format!("inner box of {inner} bytes: multiples of 16"));
        }
        match self.swizzle.span() {
            Some(span) if inner > span => Err(format!(
                "inner box of {inner} bytes: at most {span} with this swizzle"
            )),
            _ => Ok(()),
        }
    }

    /// Rows of the box at `coords`.
    pub(crate) fn rows(&self, coords: &[i32], memory: &Memory) -> Vec<BoxRow> {
        let inner = self.tile[0];
        let count: u32 = self.tile[1..].iter().product();
        let first = i64::from(coords[0]);
        let exists = |i: u32| {
            let at = first + i64::from(i) * i64::from(self.steps[0]);
            at >= 0 && at < self.dims[0] as i64
        };
        let before = (0..inner).take_while(|&i| !exists(i)).count() as u32;
        let inside = (before..inner).take_while(|&i| exists(i)).count() as u32;
        (0..count)
            .map(|row| {
                let mut rest = row;
                let mut address = memory.address(self.base.0, self.base.1) as i64
                    + (first + i64::from(before) * i64::from(self.steps[0]))
                        * i64::from(self.element);
                let mut exists = inside > 0;
                let outer = coords[1..].iter().zip(&self.tile[1..]);
                let steps = self.steps[1..].iter().zip(&self.dims[1..]);
                for ((&coord, &size), ((&step, &dim), &stride)) in
                    outer.zip(steps.zip(&self.strides))
                {
                    let at = i64::from(coord) + i64::from(rest % size) * i64::from(step);
                    rest /= size;
                    exists &= at >= 0 && at < dim as i64;
                    address = address.wrapping_add(at.wrapping_mul(stride as i64));
                }
                BoxRow {
                    global: exists.then_some(address as u64),
                    before,
                    inside,
                    offset: row * inner * self.element,
                }
            })
            .collect()
    }

    /// The box at `coords` as it lies in shared memory before the permutation.
    pub(crate) fn gather(&self, coords: &[i32], memory: &Memory) -> Result<Vec<u8>, Fault> {
        let fill = if self.fill_nan { 0xff } else { 0 };
        let mut data = vec![fill; self.box_bytes() as usize];
        let element = self.element as usize;
        for row in self.rows(coords, memory) {
            let Some(address) = row.global else { continue };
            let at = row.offset as usize + row.before as usize * element;
            let step = self.steps[0] as usize;
            if step == 1 {
                let bytes = row.inside as usize * element;
                memory.load(address, &mut data[at..at + bytes])?;
            } else {
                for i in 0..row.inside as usize {
                    let place = at + i * element..at + (i + 1) * element;
                    memory.load(address + (i * step * element) as u64, &mut data[place])?;
                }
            }
        }
        Ok(data)
    }

    /// Writes a box, leaving out what lies outside.
    pub(crate) fn scatter(
        &self,
        coords: &[i32],
        data: &[u8],
        memory: &Memory,
    ) -> Result<(), Fault> {
        let element = self.element as usize;
        for row in self.rows(coords, memory) {
            let Some(address) = row.global else { continue };
            let at = row.offset as usize + row.before as usize * element;
            let step = self.steps[0] as usize;
            for i in 0..row.inside as usize {
                let place = at + i * element..at + (i + 1) * element;
                memory.store(address + (i * step * element) as u64, &data[place])?;
            }
        }
        Ok(())
    }
}
