//! Marlin, 4-bit symmetric: words in the order in which a warp's mma.m16n8k16 fragments want them.
//!
//! Weights [k/16, 2 n]: 16 x 16 tiles, four neighbours of a row make 1024 fields that are permuted
//! and packed 8 to a word. Scales [groups, n], columns permuted in runs of 64, per channel in runs
//! of 32. Source: Marlin's `Layer.pack` as AutoGPTQ ships it,
//! `nn_modules/qlinear/qlinear_marlin.py`.

use crate::error::FormatError;
use crate::int_weights::{IntWeights, QuantShape};
use crate::packed::{Format, Layout, PackedLinear};

/// Fields that are permuted together: four 16 x 16 tiles.
const CHUNK: usize = 1024;
/// Codes are stored as q, meaning q - 8.
const ZERO: u8 = 8;

pub(crate) fn layout(shape: &QuantShape) -> Result<Layout, FormatError> {
    let refuse = |what, value: usize, limit| {
        Err(FormatError::unsupported(Format::Marlin, what, value, limit))
    };
    if shape.bits != 4 {
        return refuse("bits", shape.bits as usize, "4 bits");
    }
    if !shape.k.is_multiple_of(16) {
        return refuse("k", shape.k, "a multiple of 16");
    }
    if !shape.n.is_multiple_of(64) {
        return refuse("n", shape.n, "a multiple of 64");
    }
    if !shape.is_per_channel() && shape.group != 128 {
        return refuse("group", shape.group, "128, or one group for all rows");
    }
    if !shape.is_per_channel() && !shape.k.is_multiple_of(128) {
        return refuse("k", shape.k, "a multiple of the group of 128");
    }
    Ok(Layout {
        weights: [shape.k / 16, 2 * shape.n],
        zeros: None,
        scales: [shape.groups, shape.n],
    })
}

/// Where the field at `stored` of a permuted chunk comes from: a position tile * 256 + row * 16 +
/// column.
///
/// Word w = stored / 8 belongs to lane w / 4 and tile w % 4. A lane owns column lane/4 of the
/// tile's halves and the rows 2(lane%4) + {0, 1, 8, 9} of each: 8 fields, which the word holds in
/// the order 0 2 4 6 1 3 5 7.
fn source(stored: usize) -> usize {
    const INTERLEAVE: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let (word, field) = (stored / 8, INTERLEAVE[stored % 8]);
    let (lane, tile) = (word / 4, word % 4);
    let (half, row) = (field / 4, 2 * (lane % 4) + [0, 1, 8, 9][field % 4]);
    tile * 256 + row * 16 + lane / 4 + 8 * half
}

/// Calls `each(word, shift, code position)` for every field.
fn visit(shape: &QuantShape, mut each: impl FnMut(usize, usize, usize)) {
    let from: Vec<usize> = (0..CHUNK).map(source).collect();
    let chunks = shape.n / 64;
    for band in 0..shape.k / 16 {
        for chunk in 0..chunks {
            for (stored, &from) in from.iter().enumerate() {
                let row = band * 16 + from % 256 / 16;
                let column = chunk * 64 + from / 256 * 16 + from % 16;
                let word = (band * chunks + chunk) * (CHUNK / 8) + stored / 8;
                each(word, 4 * (stored % 8), row * shape.n + column);
            }
        }
    }
}

/// The scale column that lies at `stored`.
fn scale_source(shape: &QuantShape, stored: usize) -> usize {
    if shape.is_per_channel() {
        const OFFSET: [usize; 8] = [0, 1, 8, 9, 16, 17, 24, 25];
        let (run, at) = (stored / 32 * 32, stored % 32);
        run + 2 * (at / 8) + OFFSET[at % 8]
    } else {
        let (run, at) = (stored / 64 * 64, stored % 64);
        run + at / 8 + 8 * (at % 8)
    }
}

pub(crate) fn pack(weights: &IntWeights) -> Result<PackedLinear, FormatError> {
    let shape = weights.shape;
    if let Some(&zero) = weights.zeros.iter().find(|&&zero| zero != ZERO) {
        return Err(FormatError::unsupported(
            Format::Marlin,
            "zero point",
            zero,
            "symmetric weights: 8",
        ));
    }
    let mut words = vec![0u32; shape.k * shape.n / 8];
    visit(&shape, |word, shift, at| {
        words[word] |= u32::from(weights.codes[at]) << shift
    });
    let scale =
        |at: usize| weights.scales[at / shape.n * shape.n + scale_source(&shape, at % shape.n)];
    Ok(PackedLinear {
        format: Format::Marlin,
        shape,
        weights: words,
        zeros: None,
        scales: (0..weights.scales.len()).map(scale).collect(),
        g_idx: None,
    })
}

pub(crate) fn unpack(packed: &PackedLinear) -> IntWeights {
    let shape = packed.shape;
    let mut codes = vec![0; shape.k * shape.n];
    visit(&shape, |word, shift, at| {
        codes[at] = (packed.weights[word] >> shift & 15) as u8
    });
    let mut scales = packed.scales.clone();
    for (at, &scale) in packed.scales.iter().enumerate() {
        scales[at / shape.n * shape.n + scale_source(&shape, at % shape.n)] = scale;
    }
    IntWeights {
        shape,
        codes,
        zeros: vec![ZERO; shape.groups * shape.n],
        scales,
        g_idx: None,
        minima: None,
    }
}
