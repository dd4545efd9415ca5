//! Instruction descriptors of tcgen05.mma (PTX ISA, instruction descriptor).

use super::Major;
use crate::check::Fault;
use crate::decode::TcgenKind;
use crate::number::Format;

/// Format of an operand and how it lies in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) format: Format,
    /// Bits from one element to the next, on average.
    pub(crate) bits: u32,
    /// 16 elements of 4 or 6 bits at the start of 16 bytes each.
    pub(crate) padded: bool,
}

impl Element {
    fn new(format: Format, kind: TcgenKind) -> Self {
        let narrow = format.bits() < 8;
        let padded = narrow && !matches!(kind, TcgenKind::Mxf4 | TcgenKind::Mxf4nvf4);
        let bits = match format {
            _ if padded => 8,
            Format::Tf32 => 32,
            _ => format.bits(),
        };
        Self {
            format,
            bits,
            padded,
        }
    }
    /// (byte, bit in it) of element `k` of a row.
    pub(crate) fn place(self, k: u32) -> (u32, u32) {
        let bits = self.format.bits();
        if self.padded {
            let at = k % 16 * bits;
            (k / 16 * 16 + at / 8, at % 8)
        } else {
            (k * self.bits / 8, k * self.bits % 8)
        }
    }
}

/// What an instruction descriptor says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct InstructionDescriptor {
    pub(crate) m: u32,
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) a: Element,
    pub(crate) b: Element,
    pub(crate) a_major: Major,
    pub(crate) b_major: Major,
    pub(crate) negate: bool,
    /// Format of scale factors and the first byte of a word that holds them.
    pub(crate) scale: Option<(Format, u32, u32)>,
}

impl InstructionDescriptor {
    pub(crate) fn new(bits: u32, kind: TcgenKind, pair: bool) -> Result<Self, Fault> {
        let fault = |problem: String| Fault::Descriptor {
            bits: u64::from(bits),
            problem,
        };
        let field = |at: u32, width: u32| bits >> at & ((1 << width) - 1);
        let scaled = matches!(
            kind,
            TcgenKind::Mxf8f6f4 | TcgenKind::Mxf4 | TcgenKind::Mxf4nvf4
        );
        if field(2, 1) != 0 {
            return Err(fault("sparse products are not modelled".to_owned()));
        }
        if !scaled && field(4, 2) != 1 {
            return Err(fault("results other than f32 are not modelled".to_owned()));
        }
        let format = |code: u32| match (kind, code) {
            (TcgenKind::F16, 0) => Some(Format::F16),
            (TcgenKind::F16, 1) => Some(Format::Bf16),
            (TcgenKind::Tf32, 2) => Some(Format::Tf32),
            (TcgenKind::F8f6f4 | TcgenKind::Mxf8f6f4, 0) => Some(Format::E4m3),
            (TcgenKind::F8f6f4 | TcgenKind::Mxf8f6f4, 1) => Some(Format::E5m2),
            (TcgenKind::F8f6f4 | TcgenKind::Mxf8f6f4, 3) => Some(Format::E2m3),
            (TcgenKind::F8f6f4 | TcgenKind::Mxf8f6f4, 4) => Some(Format::E3m2),
            (TcgenKind::F8f6f4 | TcgenKind::Mxf8f6f4, 5) => Some(Format::E2m1),
            (TcgenKind::Mxf4 | TcgenKind::Mxf4nvf4, 1) => Some(Format::E2m1),
            _ => None,
        };
        let element = |code: u32| {
            format(code)
                .map(|format| Element::new(format, kind))
                .ok_or_else(|| fault(format!("format {code} does not exist for {kind:?}")))
        };
        let (m, n) = (field(24, 5) * 16, field(17, 6) * 8);
        let rows_legal = if pair {
            matches!(m, 128 | 256)
        } else {
            m == 128 || m == 64 && !scaled
        };
        let b = element(field(10, 3))?;
        let transposed = field(16, 1) == 1 && b.bits == 8;
        let step = match (pair, m) {
            // Each cube holds whole eights of rows, and whole 16 bytes of rows of 8 bits along N.
            (true, _) if transposed => 32,
            (true, _) => 16,
            (false, 64) if !transposed => 8,
            (false, _) => 16,
        };
        if !rows_legal || n == 0 || n > 256 || !n.is_multiple_of(step) {
            return Err(fault(format!("m {m}, n {n} does not exist")));
        }
        let k = match kind {
            TcgenKind::F16 => 16,
            TcgenKind::Tf32 => 8,
            TcgenKind::F8f6f4 | TcgenKind::Mxf8f6f4 => 32,
            TcgenKind::Mxf4 | TcgenKind::Mxf4nvf4 => 64,
        };
        let major = |at: u32| {
            if field(at, 1) == 1 {
                Major::Outer
            } else {
                Major::K
            }
        };
        let scale = scaled.then(|| {
            let format = if field(23, 1) == 1 {
                Format::Ue8m0
            } else {
                Format::Ue4m3
            };
            (format, field(29, 2), field(4, 2))
        });
        Ok(Self {
            m,
            n,
            k,
            a: element(field(7, 3))?,
            b,
            a_major: major(15),
            b_major: major(16),
            negate: field(13, 1) != field(14, 1),
            scale,
        })
    }
}
