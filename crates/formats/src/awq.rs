//! AWQ, 4 bits, in AutoAWQ's two layouts: GEMM packs along n in the order that its kernel unpacks
//! with one mask per pair of halves, GEMV packs along k in plain order. Source: AutoAWQ,
//! `awq/modules/linear/{gemm,gemv}.py`.

use half::f16;

use crate::error::FormatError;
use crate::int_weights::{IntWeights, QuantShape};
use crate::packed::{Format, Layout, PackedLinear, transpose};
use crate::words::{Order, Runs, plain};

/// The field of each of 8 columns: fields 0..7 hold columns 0 2 4 6 1 3 5 7.
fn interleaved(column: usize) -> usize {
    const FIELD: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
    column / 8 * 8 + FIELD[column % 8]
}

fn check(
    format: Format,
    shape: &QuantShape,
    packed: usize,
    axis: &'static str,
) -> Result<(), FormatError> {
    if shape.bits != 4 {
        return Err(FormatError::unsupported(
            format, "bits", shape.bits, "4 bits",
        ));
    }
    if !packed.is_multiple_of(8) {
        return Err(FormatError::unsupported(
            format,
            axis,
            packed,
            "a multiple of 8",
        ));
    }
    Ok(())
}

pub(crate) fn gemm_layout(shape: &QuantShape) -> Result<Layout, FormatError> {
    check(Format::AwqGemm, shape, shape.n, "n")?;
    Ok(Layout {
        weights: [shape.k, shape.n / 8],
        zeros: Some([shape.groups, shape.n / 8]),
        scales: [shape.groups, shape.n],
    })
}

pub(crate) fn pack_gemm(weights: &IntWeights) -> PackedLinear {
    let shape = weights.shape;
    let pack = |rows: usize, codes: &[u8]| {
        let runs = Runs {
            runs: rows,
            fields: shape.n,
            bits: 4,
            order: Order::Along,
        };
        runs.pack(interleaved, |row, column| codes[row * shape.n + column])
    };
    PackedLinear {
        format: Format::AwqGemm,
        shape,
        weights: pack(shape.k, &weights.codes),
        zeros: Some(pack(shape.groups, &weights.zeros)),
        scales: weights.scales.clone(),
        g_idx: None,
    }
}

pub(crate) fn unpack_gemm(packed: &PackedLinear) -> IntWeights {
    let shape = packed.shape;
    let unpack = |rows: usize, words: &[u32]| {
        let mut codes = vec![0; rows * shape.n];
        let runs = Runs {
            runs: rows,
            fields: shape.n,
            bits: 4,
            order: Order::Along,
        };
        runs.unpack(words, interleaved, |row, column, code| {
            codes[row * shape.n + column] = code
        });
        codes
    };
    IntWeights {
        shape,
        codes: unpack(shape.k, &packed.weights),
        zeros: unpack(shape.groups, packed.zero_words()),
        scales: packed.scales.clone(),
        g_idx: None,
        minima: None,
    }
}

/// Zero-point words per output: ceil(groups / 8), rounded up so that the kernel's 16-byte steps
/// over k stay aligned.
fn zero_words(shape: &QuantShape) -> Result<usize, FormatError> {
    let multiple = match shape.group {
        _ if shape.groups == 0 => 1,
        128.. => 1,
        64 => 2,
        32 => 4,
        group => {
            let limit = "a group of 32, 64, or 128 and more";
            return Err(FormatError::unsupported(
                Format::AwqGemv,
                "group",
                group,
                limit,
            ));
        }
    };
    Ok(shape.groups.div_ceil(8).next_multiple_of(multiple))
}

pub(crate) fn gemv_layout(shape: &QuantShape) -> Result<Layout, FormatError> {
    check(Format::AwqGemv, shape, shape.k, "k")?;
    let words = zero_words(shape)?;
    Ok(Layout {
        weights: [shape.n, shape.k / 8],
        zeros: Some([shape.n, words]),
        scales: [shape.n, 8 * words],
    })
}

/// Codes along k, zero points along the padded group axis: n runs of each.
fn gemv_runs(shape: &QuantShape, fields: usize) -> Runs {
    Runs {
        runs: shape.n,
        fields,
        bits: 4,
        order: Order::Along,
    }
}

pub(crate) fn pack_gemv(weights: &IntWeights) -> Result<PackedLinear, FormatError> {
    let shape = weights.shape;
    let (n, padded) = (shape.n, 8 * zero_words(&shape)?);
    let zero = |column: usize, group: usize| match group < shape.groups {
        true => weights.zeros[group * n + column],
        false => 0,
    };
    let mut scales = vec![f16::ZERO; n * padded];
    for (at, &scale) in weights.scales.iter().enumerate() {
        scales[at % n * padded + at / n] = scale;
    }
    Ok(PackedLinear {
        format: Format::AwqGemv,
        shape,
        weights: gemv_runs(&shape, shape.k)
            .pack(plain, |column, row| weights.codes[row * n + column]),
        zeros: Some(gemv_runs(&shape, padded).pack(plain, zero)),
        scales,
        g_idx: None,
    })
}

pub(crate) fn unpack_gemv(packed: &PackedLinear) -> Result<IntWeights, FormatError> {
    let shape = packed.shape;
    let (n, padded) = (shape.n, 8 * zero_words(&shape)?);
    let mut codes = vec![0; shape.k * n];
    gemv_runs(&shape, shape.k).unpack(&packed.weights, plain, |column, row, code| {
        codes[row * n + column] = code
    });
    let mut zeros = vec![0; padded * n];
    gemv_runs(&shape, padded).unpack(packed.zero_words(), plain, |column, group, code| {
        zeros[group * n + column] = code;
    });
    // The padded groups are the last rows of both: cut them off.
    zeros.truncate(shape.groups * n);
    let mut scales = transpose(&packed.scales, n, padded);
    scales.truncate(shape.groups * n);
    Ok(IntWeights {
        shape,
        codes,
        zeros,
        scales,
        g_idx: None,
        minima: None,
    })
}
