//! Attention over operands of block-scaled products.

use flashcube_kernels::attention::{LogitFeatures, WeightFormat};
use flashcube_kernels::{DType, OperandFormat, ScaleRule};

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
    block_scaled(all);
}

/// Products that multiply operands as they are, on the tier that does: elsewhere some are the same.
fn block_scaled(all: &mut Vec<ListedKernel>) {
    let [(_, plain), (_, causal), _] = feature_sets();
    let softcap = LogitFeatures {
        softcap: true,
        ..causal
    };
    let nvfp4 = OperandFormat::Nvfp4 { exponent: 0 };
    let mxfp4 = OperandFormat::Mxfp4(ScaleRule::Ceil);
    let mxfp8 = OperandFormat::Mxfp8(ScaleRule::Ceil);
    for (name, format, d, features) in [
        ("nvfp4", nvfp4, 64, plain),
        ("nvfp4", nvfp4, 128, plain),
        ("nvfp4_causal", nvfp4, 128, causal),
        ("nvfp4_softcap", nvfp4, 128, softcap),
        ("nvfp4", nvfp4, 256, plain),
        ("mxfp4", mxfp4, 128, plain),
        ("mxfp8", mxfp8, 64, plain),
        ("mxfp8_causal", mxfp8, 128, causal),
    ] {
        let features = LogitFeatures {
            weights: WeightFormat::E4m3,
            operands: Some(format),
            ..features
        };
        let problem = attention(DType::BF16, d, d, features);
        all.push(ListedKernel {
            name: format!("attend_operands_{}_qk_{name}_blackwell", width(&problem)),
            problem: Problem::AttendForward(problem),
        });
    }
}
