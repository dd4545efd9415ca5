//! Attention over operands of block-scaled products.

use flashcube_kernels::attention::{LogitFeatures, WeightFormat};
use flashcube_kernels::{DType, ScaleRule};

use super::{attention, feature_sets, width};
use crate::kernels::{ListedKernel, Problem};

/// Weights encoded before they multiply V, as block-scaled operands want them.
pub(super) fn attend_operands(all: &mut Vec<ListedKernel>) {
    let [(_, plain), (_, causal), _] = feature_sets();
    let encoded = |weights, features| LogitFeatures {
        weights,
        ..features
    };
    let mxfp4 = WeightFormat::Mxfp4(ScaleRule::Ceil);
    for (name, dtype, d, features) in [
        ("nvfp4", DType::F32, 64, encoded(WeightFormat::Nvfp4, plain)),
        (
            "nvfp4",
            DType::BF16,
            64,
            encoded(WeightFormat::Nvfp4, plain),
        ),
        (
            "nvfp4",
            DType::BF16,
            128,
            encoded(WeightFormat::Nvfp4, plain),
        ),
        ("mxfp4", DType::BF16, 128, encoded(mxfp4, plain)),
        (
            "e4m3_causal",
            DType::BF16,
            128,
            encoded(WeightFormat::E4m3, causal),
        ),
        (
            "nvfp4",
            DType::BF16,
            256,
            encoded(WeightFormat::Nvfp4, plain),
        ),
    ] {
        let problem = attention(dtype, d, d, features);
        all.push(ListedKernel {
            name: format!("attend_operands_{}_p_{name}", width(&problem)),
            problem: Problem::AttendForward(problem),
        });
    }
}
