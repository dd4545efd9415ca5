//! Integer weights that the dequantize and packer benchmarks share.

use flashcube_formats::{Format, IntWeights, PackedLinear, QuantShape};
use flashcube_reference::quant::int;
use half::f16;

use crate::{integers, normal};

/// Weights [k, n] in groups along k, the same for the same seed. A `symmetric` weight has the
/// zero point 2^(bits-1) everywhere.
pub fn draw(shape: QuantShape, symmetric: bool, seed: u64) -> IntWeights {
    let QuantShape { k, n, groups, .. } = shape;
    let codes_below = u32::from(shape.max_code()) + 1;
    let bytes = |count, seed| -> Vec<u8> {
        let values = integers(count, codes_below, seed);
        values.into_iter().map(|code| code as u8).collect()
    };
    let zeros = if symmetric {
        vec![shape.mid_code(); groups * n]
    } else {
        bytes(groups * n, seed + 1)
    };
    let scales = normal(groups * n, seed + 2);
    let scales = scales
        .into_iter()
        .map(|x| f16::from_f32(x / 64.0))
        .collect();
    IntWeights::new(shape, bytes(k * n, seed), zeros, scales, None).expect("the weights are valid")
}

/// Act-order: every row of k names its group, in no order.
pub fn with_group_index(weights: IntWeights, seed: u64) -> IntWeights {
    let groups = integers(weights.shape.k, weights.shape.groups as u32, seed);
    IntWeights {
        g_idx: Some(groups),
        ..weights
    }
}

/// The reference's reading of a packed weight, W [k, n]; `None` for layouts it does not state.
pub fn reference_weights(packed: &PackedLinear) -> Option<Vec<f64>> {
    let format = match packed.format {
        Format::GptqV1(_) => int::Format::GptqV1,
        Format::GptqV2 => int::Format::GptqV2,
        Format::AwqGemm => int::Format::AwqGemm,
        Format::AwqGemv => int::Format::AwqGemv,
        _ => return None,
    };
    let view = int::Packed {
        format,
        bits: packed.shape.bits,
        k: packed.shape.k,
        n: packed.shape.n,
        group: packed.shape.group,
        qweight: &packed.weights,
        qzeros: packed.zeros.as_deref().unwrap_or_default(),
        scales: &packed.scales,
        g_idx: packed.g_idx.as_deref(),
    };
    Some(
        view.dequantize()
            .expect("the reference reads what was packed"),
    )
}
