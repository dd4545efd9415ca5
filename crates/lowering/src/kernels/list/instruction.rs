//! Instructions that the matrix tiers build on.

use flashcube_kernels::{CodeFormat, Instruction, MatrixElement, WgmmaOperands};

use crate::kernels::{ListedKernel, Problem};

pub(super) fn instructions(all: &mut Vec<ListedKernel>) {
    let mut add = |name: &str, form: Instruction| {
        all.push(ListedKernel {
            name: format!("{name}_{form}"),
            problem: Problem::Instruction(form),
        });
    };
    use MatrixElement::{BF16, E4M3, E5M2, F16, Tf32};
    for (element, k) in [(F16, 8), (BF16, 16), (Tf32, 8), (E4M3, 32), (E5M2, 32)] {
        add("mma_sync", Instruction::Mma { element, k });
    }
    use WgmmaOperands::{Registers, RegistersMn, Shared};
    for (element, operands) in [
        (BF16, Shared),
        (F16, Registers),
        (BF16, RegistersMn),
        (Tf32, Shared),
        (Tf32, Registers),
        (E4M3, Shared),
        (E5M2, Registers),
    ] {
        for n in [8, 128] {
            let form = Instruction::Wgmma {
                element,
                n,
                operands,
            };
            add("wgmma", form);
        }
    }
    for (count, transposed) in [(1, false), (2, true), (4, true)] {
        add("ldmatrix", Instruction::LoadMatrix { count, transposed });
    }
    for format in [
        CodeFormat::BF16,
        CodeFormat::E4M3,
        CodeFormat::E5M2,
        CodeFormat::E2M1,
    ] {
        add("convert", Instruction::Encode(format));
        if format.bits() < 16 {
            add("convert", Instruction::Decode(format));
        }
    }
}
