//! What an instruction is, as plain data.

use core::fmt;

use crate::launch::{DType, TierName};

/// Element type of a matrix unit's operands; it accumulates in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixElement {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
    /// The upper 19 bits of a binary32.
    Tf32,
    /// FP8, 3 bits of mantissa.
    E4M3,
    /// FP8, 2 bits of mantissa.
    E5M2,
}

impl MatrixElement {
    /// Bits of an element in memory.
    pub const fn bits(self) -> u32 {
        match self {
            MatrixElement::F16 | MatrixElement::BF16 => 16,
            MatrixElement::Tf32 => 32,
            MatrixElement::E4M3 | MatrixElement::E5M2 => 8,
        }
    }

    /// Its name in PTX.
    pub const fn ptx(self) -> &'static str {
        match self {
            MatrixElement::F16 => "f16",
            MatrixElement::BF16 => "bf16",
            MatrixElement::Tf32 => "tf32",
            MatrixElement::E4M3 => "e4m3",
            MatrixElement::E5M2 => "e5m2",
        }
    }
}

/// Number format of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CodeFormat {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
    /// FP8, 3 bits of mantissa.
    E4M3,
    /// FP8, 2 bits of mantissa.
    E5M2,
    /// FP4.
    E2M1,
}

impl CodeFormat {
    /// Bits of a code.
    pub const fn bits(self) -> u32 {
        match self {
            CodeFormat::F16 | CodeFormat::BF16 => 16,
            CodeFormat::E4M3 | CodeFormat::E5M2 => 8,
            CodeFormat::E2M1 => 4,
        }
    }

    /// Its name in PTX.
    pub const fn ptx(self) -> &'static str {
        match self {
            CodeFormat::F16 => "f16",
            CodeFormat::BF16 => "bf16",
            CodeFormat::E4M3 => "e4m3",
            CodeFormat::E5M2 => "e5m2",
            CodeFormat::E2M1 => "e2m1",
        }
    }
}

/// Operands of a wgmma.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WgmmaOperands {
    /// Both in shared memory, K-major; C is 0. What Q K^T takes.
    Shared,
    /// A in registers, B K-major. What products with packed weights take.
    Registers,
    /// A in registers, B MN-major, which 16-bit elements alone may be. What P V takes.
    RegistersMn,
}

/// An instruction, or for `Convert` a pair of lanes' conversions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// mma.sync m16n8 by `k`.
    Mma {
        /// Of A and B.
        element: MatrixElement,
        /// Terms of a sum.
        k: u32,
    },
    /// wgmma m64 by `n`, 256 bits of a row deep.
    Wgmma {
        /// Of A and B.
        element: MatrixElement,
        /// Columns, a multiple of 8 up to 256.
        n: u32,
        /// Where they lie.
        operands: WgmmaOperands,
    },
    /// ldmatrix of `count` 8 x 8 matrices of 16-bit elements.
    LoadMatrix {
        /// 1, 2 or 4.
        count: u32,
        /// Lanes get elements of columns.
        transposed: bool,
    },
    /// f32 to codes, to nearest even; those of 8 and 4 bits saturate.
    Encode(CodeFormat),
    /// Codes of 8 and 4 bits to f16.
    Decode(CodeFormat),
}

/// Elements of an instruction's arrays for one trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstructionSizes {
    /// Words of A, of the matrices, or of what is converted.
    pub a: usize,
    /// Words of B.
    pub b: usize,
    /// Floats of C.
    pub c: usize,
    /// Floats of the result.
    pub out: usize,
}

impl Instruction {
    /// (m, n, k) of a product.
    pub const fn product(self) -> Option<(u32, u32, u32)> {
        match self {
            Instruction::Mma { k, .. } => Some((16, 8, k)),
            Instruction::Wgmma { element, n, .. } => Some((64, n, 256 / element.bits())),
            _ => None,
        }
    }

    /// Element type of a product's operands.
    pub const fn element(self) -> Option<MatrixElement> {
        match self {
            Instruction::Mma { element, .. } | Instruction::Wgmma { element, .. } => Some(element),
            _ => None,
        }
    }

    /// Sizes of one trial. Products: A [m, k], B [n, k], elements of a row packed into words, C and the
    /// result [m, n]. ldmatrix: rows of 4 words; for each lane and matrix the lower and the upper half
    /// of its register. Conversions: 64 numbers of 32 lanes, f32 or codes two a word.
    pub fn sizes(self) -> InstructionSizes {
        if let (Some((m, n, k)), Some(element)) = (self.product(), self.element()) {
            let [m, n, words] = [m, n, k * element.bits() / 32].map(|x| x as usize);
            return InstructionSizes {
                a: m * words,
                b: n * words,
                c: m * n,
                out: m * n,
            };
        }
        let (a, out) = match self {
            Instruction::LoadMatrix { count, .. } => (32 * count as usize, 64 * count as usize),
            Instruction::Encode(_) => (64, 64),
            _ => (32, 64),
        };
        InstructionSizes { a, b: 0, c: 0, out }
    }

    /// The tier whose devices have it.
    pub fn tier(self) -> TierName {
        match self {
            Instruction::Wgmma { .. } => TierName::Hopper,
            Instruction::Encode(CodeFormat::E2M1) | Instruction::Decode(CodeFormat::E2M1) => {
                TierName::Blackwell
            }
            _ => TierName::Plane,
        }
    }

    /// Whether CUDA devices of compute capability `sm` have it.
    pub fn on(self, sm: u32) -> bool {
        match self {
            Instruction::Wgmma { .. } => sm == 90,
            Instruction::Mma { element, .. } if element.bits() == 8 => sm >= 89,
            Instruction::Encode(format) | Instruction::Decode(format) => match format.bits() {
                16 => sm >= 80,
                8 => sm >= 89,
                _ => matches!(sm, 100 | 103 | 120),
            },
            _ => sm >= 80,
        }
    }

    /// Its dtype of 16 bits, if its operands or results have one; f32 otherwise.
    pub const fn dtype(self) -> DType {
        match self {
            Instruction::Mma { element, .. } | Instruction::Wgmma { element, .. } => {
                match element {
                    MatrixElement::F16 => DType::F16,
                    MatrixElement::BF16 => DType::BF16,
                    _ => DType::F32,
                }
            }
            Instruction::Encode(CodeFormat::F16)
            | Instruction::Decode(_)
            | Instruction::LoadMatrix { .. } => DType::F16,
            Instruction::Encode(CodeFormat::BF16) => DType::BF16,
            Instruction::Encode(_) => DType::F32,
        }
    }

    /// Units of a cube, which runs one trial.
    pub fn units(self) -> u32 {
        match self {
            Instruction::Wgmma { .. } => 128,
            _ => 32,
        }
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Instruction::Mma { element, k } => write!(f, "m16n8k{k}_{}", element.ptx()),
            Instruction::Wgmma {
                element,
                n,
                operands,
            } => {
                let operands = match operands {
                    WgmmaOperands::Shared => "shared",
                    WgmmaOperands::Registers => "registers",
                    WgmmaOperands::RegistersMn => "registers_mn",
                };
                let k = 256 / element.bits();
                write!(f, "m64n{n}k{k}_{}_{operands}", element.ptx())
            }
            Instruction::LoadMatrix { count, transposed } => {
                let transposed = if *transposed { "_trans" } else { "" };
                write!(f, "x{count}{transposed}")
            }
            Instruction::Encode(format) => write!(f, "f32_to_{}", format.ptx()),
            Instruction::Decode(format) => write!(f, "{}_to_f16", format.ptx()),
        }
    }
}
