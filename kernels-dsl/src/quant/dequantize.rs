//! Packed integers -> floats: w[k, n] = scale[g, n] * (code[k, n] - zero[g, n]) + minimum[g, n].

use cubecl::prelude::*;

use super::{AWQ_ORDER, PackSizes, PackedMatrix, Packing, WeightCodes, code, number_of};

/// One unit unpacks one run of codes (a word; 3 words for 3 bits; a GGUF block) and writes its weights.
///
/// `code - zero` is an integer below 2^9 and a binary16 scale has 11 bits, so the f32 product is
/// exact and the only rounding is the cast to `E`; a minimum is added with one of f32 before it.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn dequantize_int4_fma<E: Float>(
    codes: &[u32],
    zeros: &[u32],
    scales: &[u32],
    g_idx: &ComptimeOption<Box<[u32]>>,
    out: &mut [E],
    sizes: &PackSizes,
    out_offset: usize,
    out_row: usize,
    total: usize,
    #[comptime] packing: Packing,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS < total {
        unpack_run::<E>(
            codes, zeros, scales, g_idx, out, sizes, out_offset, out_row, packing,
        );
    }
}

#[cube]
fn unpack_run<'a, E: Float>(
    codes: &'a [u32],
    zeros: &'a [u32],
    scales: &'a [u32],
    g_idx: &'a ComptimeOption<Box<[u32]>>,
    out: &mut [E],
    sizes: &'a PackSizes,
    out_offset: usize,
    out_row: usize,
    #[comptime] packing: Packing,
) {
    let matrix = PackedMatrix::<'a> {
        codes,
        zeros,
        scales,
        g_idx,
        sizes,
    };
    let words_per_run = comptime!(packing.run_words() as usize);
    let run_len = comptime!(packing.run());
    // Neighbouring units take neighbouring words where memory has them side by side (GPTQ,
    // AWQ gemm), and write neighbouring columns.
    let across = if comptime!(packing.along_n()) {
        sizes.code_words
    } else {
        sizes.n
    };
    let fast = (ABSOLUTE_POS % across as usize) as u32;
    let slow = (ABSOLUTE_POS / across as usize) as u32;
    let (run, other) = if comptime!(packing.along_n()) {
        (fast, slow)
    } else {
        (slow, fast)
    };
    let mut words = Array::<u32>::new(words_per_run);
    #[unroll]
    for w in 0..words_per_run {
        words[w] = matrix.word(run, other, comptime!(w as u32), packing);
    }
    #[unroll]
    for f in 0..run_len {
        let (k, n) = if comptime!(packing.along_n()) {
            (other, run * run_len + comptime!(AWQ_ORDER[f as usize]))
        } else {
            (run * run_len + f, other)
        };
        if k < sizes.k && n < sizes.n {
            let group = matrix.group(k);
            let number = number_of(
                code(&words, f, packing),
                matrix.zero(group, n, packing),
                comptime!(WeightCodes::Int),
            );
            let mut w = number * matrix.scale(group, n, packing);
            if comptime!(packing.minima()) {
                w += matrix.minimum(group, n);
            }
            out[out_offset + k as usize * out_row + n as usize] = E::cast_from(w);
        }
    }
}
