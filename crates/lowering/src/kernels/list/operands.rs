//! Attention over operands of block-scaled products.

use flashcube_kernels::attention::{LogitFeatures, WeightFormat};
use flashcube_kernels::{DType, OperandFormat, Policy, ScaleRule};

use super::{attention, feature_sets, width};
use crate::kernels::{AttendProblem, ListedKernel, Problem};

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
    let fp8 = OperandFormat::Fp8 { exponent: 0 };
    let lengths = LogitFeatures {
        lengths: true,
        ..plain
    };
    let varlen = LogitFeatures {
        varlen: true,
        ..lengths
    };
    let (e4m3, two) = (
        WeightFormat::E4m3,
        WeightFormat::Mxfp4(ScaleRule::default()),
    );
    for (name, format, weights, d, features) in [
        ("nvfp4", nvfp4, e4m3, 64, plain),
        ("nvfp4", nvfp4, e4m3, 128, plain),
        ("nvfp4_causal", nvfp4, e4m3, 128, causal),
        ("nvfp4_softcap", nvfp4, e4m3, 128, softcap),
        ("nvfp4", nvfp4, e4m3, 256, plain),
        ("mxfp4", mxfp4, e4m3, 128, plain),
        ("mxfp4_lengths", mxfp4, e4m3, 256, lengths),
        ("mxfp8", mxfp8, e4m3, 64, plain),
        ("mxfp8_causal", mxfp8, e4m3, 128, causal),
        ("mxfp8_lengths", mxfp8, e4m3, 128, lengths),
        ("fp8", fp8, e4m3, 64, plain),
        ("fp8", fp8, e4m3, 128, plain),
        ("fp8_causal", fp8, e4m3, 128, causal),
        ("fp8_softcap", fp8, e4m3, 128, softcap),
        ("fp8_varlen", fp8, e4m3, 128, varlen),
        ("fp8", fp8, e4m3, 256, plain),
        // P in four bits.
        ("nvfp4_p_nvfp4", nvfp4, WeightFormat::Nvfp4, 64, plain),
        ("nvfp4_p_nvfp4", nvfp4, WeightFormat::Nvfp4, 128, plain),
        (
            "nvfp4_p_nvfp4_lengths",
            nvfp4,
            WeightFormat::Nvfp4,
            128,
            lengths,
        ),
        (
            "nvfp4_p_nvfp4_softcap",
            nvfp4,
            WeightFormat::Nvfp4,
            128,
            softcap,
        ),
        ("nvfp4_p_nvfp4", nvfp4, WeightFormat::Nvfp4, 256, plain),
        ("mxfp4_p_mxfp4", mxfp4, two, 64, plain),
        ("mxfp4_p_mxfp4", mxfp4, two, 128, plain),
        ("mxfp4_p_mxfp4_causal", mxfp4, two, 256, causal),
        // Packed sequences.
        ("nvfp4_varlen", nvfp4, e4m3, 128, varlen),
        ("mxfp8_varlen", mxfp8, e4m3, 64, varlen),
        (
            "nvfp4_p_nvfp4_varlen",
            nvfp4,
            WeightFormat::Nvfp4,
            128,
            varlen,
        ),
        ("mxfp4_p_mxfp4_varlen", mxfp4, two, 64, varlen),
    ] {
        all.push(coded(name, (format, weights), d, features, None));
    }
    // Packed heads.
    for (name, weights, features) in [
        ("nvfp4_heads", e4m3, causal),
        ("nvfp4_p_nvfp4_heads", WeightFormat::Nvfp4, plain),
        ("nvfp4_p_nvfp4_heads_varlen", WeightFormat::Nvfp4, varlen),
    ] {
        all.push(coded(name, (nvfp4, weights), 128, features, Some(true)));
    }
}

/// Operands of the Blackwell tier, of groups of 4 heads where they are packed.
fn coded(
    name: &str,
    (format, weights): (OperandFormat, WeightFormat),
    d: usize,
    features: LogitFeatures,
    pack: Option<bool>,
) -> ListedKernel {
    let features = LogitFeatures {
        weights,
        operands: Some(format),
        ..features
    };
    let plain = attention(DType::BF16, d, d, features);
    let problem = match pack {
        Some(true) => AttendProblem {
            group: 4,
            policy: Policy {
                pack,
                ..plain.policy
            },
            ..plain
        },
        _ => plain,
    };
    ListedKernel {
        name: format!("attend_operands_{}_qk_{name}_blackwell", width(&problem)),
        problem: Problem::AttendForward(problem),
    }
}
