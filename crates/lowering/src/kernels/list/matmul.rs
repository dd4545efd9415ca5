//! Products with packed weights.

use flashcube_kernels::quant::WeightTiles;
use flashcube_kernels::{DType, MatmulPolicy, ScaleType, Scaling, TierName, WeightCodes, ZeroType};

use crate::kernels::problem::LONG;
use crate::kernels::{ListedKernel, MatmulProblem, Problem};

/// Every loader, and every block of rows of each tier.
pub(super) fn matmul(all: &mut Vec<ListedKernel>) {
    let plain = WeightTiles {
        bits: 4,
        codes: WeightCodes::Int,
        scales: ScaleType::F16,
        zeros: None,
        groups: 1,
        gathered: false,
    };
    let zeros = WeightTiles {
        zeros: Some(ZeroType::Point),
        ..plain
    };
    let minima = WeightTiles {
        zeros: Some(ZeroType::Minimum),
        groups: 2,
        ..plain
    };
    let gathered = WeightTiles {
        gathered: true,
        ..zeros
    };
    let halves = WeightTiles { groups: 2, ..zeros };
    let bits = |bits| WeightTiles { bits, ..zeros };
    let b3_gathered = WeightTiles {
        bits: 3,
        ..gathered
    };
    let mut add_columns = |label: &str, tier: Option<TierName>, dtype, m, n, tiles: WeightTiles| {
        let policy = MatmulPolicy {
            tier,
            splits: Some(2),
            // Where they are not asked for, scales go into weights on the tier that can.
            scaling: label.ends_with("_sums").then_some(Scaling::Sums),
            ..MatmulPolicy::default()
        };
        let suffix = tier.map_or(String::new(), |tier| format!("_{tier}"));
        all.push(ListedKernel {
            name: format!("w4a16_{label}_{dtype}_m{m}{suffix}"),
            problem: Problem::Matmul(MatmulProblem {
                dtype,
                m,
                n,
                tiles,
                chunks: !tiles.gathered,
                policy,
            }),
        });
    };
    let (unit, plane) = (Some(TierName::Unit), Some(TierName::Plane));
    // Cubes of fewer planes where there are more columns.
    for dtype in [DType::F16, DType::BF16] {
        for n in [11_008, 28_672] {
            for m in [8, 16] {
                add_columns(&format!("b4_n{n}"), None, dtype, m, n, plain);
                add_columns(&format!("b4_zeros_n{n}"), None, dtype, m, n, zeros);
                add_columns(&format!("b4_minima_n{n}"), None, dtype, m, n, minima);
            }
        }
    }
    let mut add =
        |label: &str, tier, dtype, m, tiles| add_columns(label, tier, dtype, m, LONG, tiles);
    for dtype in DType::ALL {
        add("b4", unit, dtype, 4, plain);
        add("b3_gathered", unit, dtype, 1, b3_gathered);
        add("b4_minima", unit, dtype, 4, minima);
    }
    for dtype in [DType::F16, DType::BF16] {
        for m in [8, 16, 32, 64, 128] {
            add("b4_minima", None, dtype, m, minima);
            for (label, tiles) in [("b4", plain), ("b4_zeros", zeros)] {
                add(label, None, dtype, m, tiles);
                if m > 16 {
                    add(&format!("{label}_sums"), None, dtype, m, tiles);
                }
                if m == 64 {
                    add(label, plane, dtype, m, tiles);
                }
            }
        }
        for m in [8, 128] {
            add("b4_gathered", None, dtype, m, gathered);
            add("b4_g32", None, dtype, m, halves);
            for width in [2, 3, 8] {
                add(&format!("b{width}_zeros"), None, dtype, m, bits(width));
            }
        }
        add("b8_zeros", plane, dtype, 64, bits(8));
        add("b4_minima", plane, dtype, 64, minima);
        for (label, tiles) in floats(plain) {
            for m in [8, 128] {
                add(label, None, dtype, m, tiles);
            }
            add(label, plane, dtype, 64, tiles);
        }
    }
}

/// The formats of small floats.
fn floats(plain: WeightTiles) -> [(&'static str, WeightTiles); 4] {
    let of = |codes, bits, scales, groups| WeightTiles {
        codes,
        bits,
        scales,
        groups,
        ..plain
    };
    [
        ("nf4", of(WeightCodes::Nf4, 4, ScaleType::F16, 1)),
        ("fp8", of(WeightCodes::E4M3, 8, ScaleType::F16, 1)),
        ("nvfp4", of(WeightCodes::E2M1, 4, ScaleType::E4M3, 4)),
        ("mxfp4", of(WeightCodes::E2M1, 4, ScaleType::E8M0, 2)),
    ]
}
