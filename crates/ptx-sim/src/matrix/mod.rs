//! Layouts of matrices over registers and shared memory, and their products.
//!
//! A product is computed in f64 from exact products and rounded once: matrix units, which cut addends off, differ from it
//! by what docs/numerics.md allows them.

mod descriptor;
mod instruction;

pub(crate) use descriptor::{Major, Matrix};
pub(crate) use instruction::{Element, InstructionDescriptor};

use crate::number::Format;

/// Scale factors of `mma.sync` with block scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockScale {
    /// Factors of a row.
    pub(crate) per_row: u32,
    pub(crate) format: Format,
}

/// Shape of `mma.sync`: m 16, n 8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MmaShape {
    pub(crate) k: u32,
    pub(crate) d: Format,
    pub(crate) a: Format,
    pub(crate) b: Format,
    pub(crate) c: Format,
    pub(crate) scale: Option<BlockScale>,
    pub(crate) kind: Option<String>,
}

impl MmaShape {
    /// Elements of a register.
    pub(crate) fn packed(&self) -> u32 {
        32 / self.a.bits()
    }
    /// Registers of d, a, b, c.
    pub(crate) fn registers(&self) -> [usize; 4] {
        let acc = |format: Format| if format == Format::F32 { 4 } else { 2 };
        let a = (16 * self.k / 32 / self.packed()) as usize;
        [acc(self.d), a, a / 2, acc(self.c)]
    }
    /// Whether this is a shape that is modelled.
    pub(crate) fn check(&self) -> Result<(), String> {
        let wide = self.k * self.a.bits();
        let kind = self.kind.as_deref();
        let known = match self.a {
            Format::F16 | Format::Bf16 => self.a == self.b && matches!(wide, 128 | 256),
            Format::Tf32 => self.a == self.b && wide == 256,
            Format::E4m3 | Format::E5m2 => {
                matches!(self.b, Format::E4m3 | Format::E5m2)
                    && wide == 256
                    && matches!(kind, None | Some("f8f6f4" | "mxf8f6f4"))
            }
            Format::E2m1 => {
                self.a == self.b && wide == 256 && matches!(kind, Some("mxf4" | "mxf4nvf4"))
            }
            _ => false,
        };
        let acc = |format: Format| {
            format == Format::F32 || format == Format::F16 && self.a == Format::F16
        };
        let scaled = self.scale.is_some() == kind.is_some_and(|kind| kind.starts_with("mx"));
        if known && acc(self.c) && acc(self.d) && scaled {
            return Ok(());
        }
        Err(format!(
            "k {} of {:?} and {:?} into {:?} is not modelled",
            self.k, self.a, self.b, self.d
        ))
    }
    /// (row, k) of element `j` of register `i` of A in `lane`.
    pub(crate) fn a_place(&self, lane: u32, i: u32, j: u32) -> (u32, u32) {
        a_place(self.packed(), lane, i, j)
    }
    /// (k, column) of element `j` of register `i` of B.
    pub(crate) fn b_place(&self, lane: u32, i: u32, j: u32) -> (u32, u32) {
        let e = self.packed();
        (lane % 4 * e + i * 4 * e + j, lane / 4)
    }
}

/// (row of 16, k) of element `j` of register `i` of a left operand with `e` elements a register.
pub(crate) fn a_place(e: u32, lane: u32, i: u32, j: u32) -> (u32, u32) {
    (lane / 4 + 8 * (i % 2), lane % 4 * e + i / 2 * 4 * e + j)
}

/// (row of 16, column) of f32 accumulator `i` of `lane`, eight columns after eight.
pub(crate) fn acc_place(lane: u32, i: u32) -> (u32, u32) {
    (
        lane / 4 + 8 * (i / 2 % 2),
        8 * (i / 4) + lane % 4 * 2 + i % 2,
    )
}

/// sum_k a[k] b[k].
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}
