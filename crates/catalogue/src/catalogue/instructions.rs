//! Instructions that the matrix tiers build on, alone.

use flashcube::{CodeFormat, Instruction, MatrixElement, WgmmaOperands};

use super::Entry;
use crate::problem::Task;

/// Columns of wgmma that the tiers' tiles have, from the least to the most.
const COLUMNS: [u32; 13] = [8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 192, 256];

fn entry(feature: &'static str, instruction: Instruction) -> Entry {
    let entry = Entry::new(
        feature,
        instruction.to_string(),
        Task::Instruction(instruction),
    );
    entry.dtypes(&[instruction.dtype()])
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = mma_sync();
    entries.extend(wgmma());
    for (count, transposed) in [1, 2, 4].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let load = Instruction::LoadMatrix { count, transposed };
        entries.push(entry("ldmatrix", load));
    }
    use CodeFormat::{BF16, E2M1, E4M3, E5M2, F16};
    for format in [F16, BF16, E4M3, E5M2] {
        entries.push(entry("conversions", Instruction::Encode(format)));
    }
    for format in [E4M3, E5M2] {
        entries.push(entry("conversions", Instruction::Decode(format)));
    }
    entries.push(entry("fp4_conversions", Instruction::Encode(E2M1)));
    entries.push(entry("fp4_conversions", Instruction::Decode(E2M1)));
    entries
}

fn mma_sync() -> Vec<Entry> {
    use MatrixElement::{BF16, E4M3, E5M2, F16, Tf32};
    let forms = [
        (F16, 8),
        (F16, 16),
        (BF16, 8),
        (BF16, 16),
        (Tf32, 8),
        (E4M3, 32),
        (E5M2, 32),
    ];
    forms
        .into_iter()
        .map(|(element, k)| entry("mma_sync", Instruction::Mma { element, k }))
        .collect()
}

/// 16-bit products of every width that occurs, in both dtypes where operands lie as attention has them; other
/// element types in one.
fn wgmma() -> Vec<Entry> {
    use MatrixElement::{BF16, E4M3, E5M2, F16, Tf32};
    use WgmmaOperands::{Registers, RegistersMn, Shared};
    let mut forms = Vec::new();
    for n in COLUMNS {
        for element in [F16, BF16] {
            forms.extend([(element, n, Shared), (element, n, RegistersMn)]);
        }
        // Rows of x in products with packed weights.
        if n <= 128 && n.is_power_of_two() {
            forms.extend([(F16, n, Registers), (BF16, n, Registers)]);
        }
    }
    for element in [Tf32, E4M3, E5M2] {
        for n in [64, 128] {
            forms.extend([(element, n, Shared), (element, n, Registers)]);
        }
    }
    let of = |(element, n, operands)| {
        let form = Instruction::Wgmma {
            element,
            n,
            operands,
        };
        entry("wgmma", form)
    };
    forms.into_iter().map(of).collect()
}
