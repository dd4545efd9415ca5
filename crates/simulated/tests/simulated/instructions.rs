//! Single matrix instructions and conversions: correctly rounded sums, exact moves, and rows that notice another instruction.

use flashcube::TierName;
use flashcube_catalogue::{Kernel, Outcome, Problem, Row, problem, problems, run_one};
use flashcube_lowering::Arch;
use flashcube_simulated::{Edit, Options, Schedule, Simulated};

use crate::Named;
use crate::conformance::gpu;

pub(crate) const TESTS: &[Named] = &[
    ("instructions_of_sm_90a_round_once", || {
        let on_blackwell = |p: &Problem| p.tier() == TierName::Blackwell;
        round_once(Arch::Sm90a, |p| !on_blackwell(p));
    }),
    ("fp4_conversions_of_sm_100a_are_exact", || {
        round_once(Arch::Sm100a, |p| p.feature == "fp4_conversions");
    }),
    ("other_instructions_are_noticed", others_are_noticed),
];

/// Every instruction of `arch` passes, products with one rounding of their sum.
fn round_once(arch: Arch, wanted: impl Fn(&Problem) -> bool) {
    let gpu = gpu(arch, Schedule::Latest);
    let of_arch = |p: &Problem| p.kernel() == Kernel::MatrixInstruction && wanted(p);
    let rows: Vec<Row> = problems()
        .iter()
        .filter(|p| of_arch(p))
        .map(|p| run_one(&gpu.client, p, 42))
        .collect();
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!(row.outcome, Outcome::Passed, "{}", row.case);
        for measure in row.measures {
            let largest = measure.relative.map_or(measure.max, |r| r.largest);
            // 2^-24, and what naming it in f64 costs.
            assert!(
                largest <= 5.97e-8,
                "{} {}: {largest:e}",
                row.case,
                measure.output
            );
        }
    }
}

/// (problem, part of its kernel's text, what takes its place): the instruction of another kind.
const OTHERS: [(&str, &str, &str); 8] = [
    ("mma_sync/m16n8k16_f16/f16", "f32.f16.f16", "f32.bf16.bf16"),
    (
        "mma_sync/m16n8k32_e4m3/f32",
        "f32.e4m3.e4m3",
        "f32.e4m3.e5m2",
    ),
    // B taken for K-major, A negated, nothing accumulated.
    (
        "wgmma/m64n64k16_bf16_registers_mn/bf16",
        ", 1, 1, 1, 1;",
        ", 1, 1, 1, 0;",
    ),
    (
        "wgmma/m64n64k16_f16_registers/f16",
        ", 1, 1, 1, 0;",
        ", 1, -1, 1, 0;",
    ),
    (
        "wgmma/m64n64k32_e4m3_registers/f32",
        ", 1, 1, 1;",
        ", 0, 1, 1;",
    ),
    ("ldmatrix/x4_trans/f16", ".x4.trans", ".x4"),
    ("conversions/f32_to_e5m2/f32", "e5m2x2", "e4m3x2"),
    (
        "conversions/f32_to_bf16/bf16",
        "cvt.rn.bf16x2",
        "cvt.rz.bf16x2",
    ),
];

fn others_are_noticed() {
    for (name, from, to) in OTHERS {
        let edit: Edit = Box::new(move |ptx| {
            let edited = ptx.replace(from, to);
            assert_ne!(edited, ptx, "{name} has no {from}");
            edited
        });
        let options = Options {
            edit: Some(edit),
            ..Options::new(Arch::Sm90a)
        };
        let gpu = Simulated::open(options).unwrap();
        let problem = problem(&format!("matrix_instruction/{name}")).unwrap();
        match run_one(&gpu.client, &problem, 42).outcome {
            Outcome::Failed(reason) => {
                let found = ["expected", "Uninitialised"].map(|what| reason.contains(what));
                assert!(found.contains(&true), "{name}: {reason}");
            }
            other => panic!("{name} with {to}: {other:?}"),
        }
    }
}
