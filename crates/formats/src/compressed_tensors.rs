//! compressed-tensors `pack-quantized`: signed codes plus 2^(bits-1), packed along k per output.
//!
//! Weights [n, ceil(k*bits/32)]; zeros [ceil(n*bits/32), groups], packed down n, absent for
//! symmetric weights; scales [n, groups]. Source: compressed-tensors, `compressors/pack_quantized`.

use crate::error::FormatError;
use crate::int_weights::{IntWeights, QuantShape};
use crate::packed::{Format, Layout, PackedLinear, transpose};
use crate::words::{Order, Runs, plain, words_for};

pub(crate) fn layout(shape: &QuantShape) -> Result<Layout, FormatError> {
    if !matches!(shape.bits, 4 | 8) {
        // Older releases padded fields that do not divide a word, newer ones pack them densely.
        return Err(FormatError::unsupported(
            Format::CompressedTensors,
            "bits",
            shape.bits,
            "4 or 8 bits",
        ));
    }
    Ok(Layout {
        weights: [shape.n, words_for(shape.k, shape.bits)],
        zeros: Some([words_for(shape.n, shape.bits), shape.groups]),
        scales: [shape.n, shape.groups],
    })
}

fn weight_runs(shape: &QuantShape) -> Runs {
    Runs {
        runs: shape.n,
        fields: shape.k,
        bits: shape.bits,
        order: Order::Along,
    }
}

fn zero_runs(shape: &QuantShape) -> Runs {
    Runs {
        runs: shape.groups,
        fields: shape.n,
        bits: shape.bits,
        order: Order::Down,
    }
}

pub(crate) fn pack(weights: &IntWeights) -> PackedLinear {
    let shape = weights.shape;
    let n = shape.n;
    let zeros = || zero_runs(&shape).pack(plain, |group, column| weights.zeros[group * n + column]);
    PackedLinear {
        format: Format::CompressedTensors,
        shape,
        weights: weight_runs(&shape).pack(plain, |column, row| weights.codes[row * n + column]),
        zeros: (!weights.is_symmetric()).then(zeros),
        scales: transpose(&weights.scales, shape.groups, n),
        g_idx: None,
    }
}

pub(crate) fn unpack(packed: &PackedLinear) -> IntWeights {
    let shape = packed.shape;
    let n = shape.n;
    let mut codes = vec![0; shape.k * n];
    weight_runs(&shape).unpack(&packed.weights, plain, |column, row, code| {
        codes[row * n + column] = code
    });
    let mut zeros = vec![shape.mid_code(); shape.groups * n];
    if let Some(words) = &packed.zeros {
        zero_runs(&shape).unpack(words, plain, |group, column, code| {
            zeros[group * n + column] = code
        });
    }
    let scales = transpose(&packed.scales, n, shape.groups);
    IntWeights {
        shape,
        codes,
        zeros,
        scales,
        g_idx: packed.g_idx.clone(),
        minima: None,
    }
}
