//! GPTQ and AWQ: golden words, a round trip through the packer, bad input.

use flashcube_reference::quant::int::{Format, Packed};
use half::f16;
use proptest::prelude::*;

use crate::cases::Random;
use crate::packing::Matrix;

/// Every format with the bits it allows.
const KINDS: [(Format, u32); 10] = [
    (Format::GptqV1, 2),
    (Format::GptqV1, 3),
    (Format::GptqV1, 4),
    (Format::GptqV1, 8),
    (Format::GptqV2, 2),
    (Format::GptqV2, 3),
    (Format::GptqV2, 4),
    (Format::GptqV2, 8),
    (Format::AwqGemm, 4),
    (Format::AwqGemv, 4),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn packed_matrices_read_back(
        seed: u64,
        kind in 0..KINDS.len(),
        k in 0usize..200,
        n in 0usize..41,
        group in prop_oneof![Just(32usize), Just(64), Just(128), Just(1000), 1usize..50],
    ) {
        let (format, bits) = KINDS[kind];
        let n = if format == Format::AwqGemm { n / 8 * 8 } else { n };
        let (k, group) = match format {
            Format::AwqGemv => (k / 8 * 8, [32, 64, 128, 256][group % 4]),
            _ => (k, group),
        };
        let matrix = Matrix::random(seed, format, bits, k, n, group);
        let packed = matrix.packed();
        prop_assert_eq!(packed.unpack_codes().unwrap(), matrix.codes.clone());
        prop_assert_eq!(packed.unpack_zeros().unwrap(), matrix.zeros.clone());
        prop_assert_eq!(packed.dequantize().unwrap(), matrix.weights());
    }

    #[test]
    fn act_order_reads_the_group_of_each_row(seed: u64, kind in 0usize..8, n in 1usize..20) {
        let (format, bits) = KINDS[kind];
        let mut matrix = Matrix::random(seed, format, bits, 96, n, 32);
        let mut random = Random::new(seed);
        matrix.g_idx = Some((0..96).map(|_| random.below(3) as u32).collect());
        prop_assert_eq!(matrix.packed().dequantize().unwrap(), matrix.weights());
    }
}

#[test]
fn gptq_v1_zero_points_borrow_across_the_word() {
    // z = [0, 5, 8, 8, ...] is stored as fields [15, 3, 7, 7, ...].
    let packed = |format| Packed {
        format,
        bits: 4,
        k: 8,
        n: 8,
        group: 8,
        qweight: &[0x7654_3210; 8],
        qzeros: &[0x7777_773f],
        scales: &[f16::ONE; 8],
        g_idx: None,
    };
    let zeros = packed(Format::GptqV1).unpack_zeros().unwrap();
    assert_eq!(zeros, [0, 5, 8, 8, 8, 8, 8, 8]);
    let zeros = packed(Format::GptqV2).unpack_zeros().unwrap();
    assert_eq!(zeros, [15, 3, 7, 7, 7, 7, 7, 7]);
    let w = packed(Format::GptqV1).dequantize().unwrap();
    // Codes run down k: row r holds r in every column.
    assert_eq!(w[..8], [0.0, -5.0, -8.0, -8.0, -8.0, -8.0, -8.0, -8.0]);
    assert_eq!(w[56..], [7.0, 2.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0]);
}

#[test]
fn symmetric_words_of_v1_and_v2_mean_the_same_zero_point() {
    for (format, word) in [(Format::GptqV1, 0x7777_7777), (Format::GptqV2, 0x8888_8888)] {
        let packed = Packed {
            format,
            bits: 4,
            k: 8,
            n: 8,
            group: 128,
            qweight: &[0; 8],
            qzeros: &[word],
            scales: &[f16::ONE; 8],
            g_idx: None,
        };
        assert_eq!(packed.unpack_zeros(), Ok(vec![8; 8]));
        assert_eq!(packed.dequantize(), Ok(vec![-8.0; 64]));
    }
}

#[test]
fn three_bit_fields_10_and_21_straddle_words() {
    // Value 7 at rows 10 and 21 of 96: bits 30..33 and 63..66.
    for n in [32, 20] {
        let mut qweight = vec![0u32; 9 * n];
        for c in 0..n {
            qweight[c] = 0xc000_0000;
            qweight[n + c] = 0x8000_0001;
            qweight[2 * n + c] = 0x3;
        }
        let words = (n * 3).div_ceil(32);
        let packed = Packed {
            format: Format::GptqV2,
            bits: 3,
            k: 96,
            n,
            group: 96,
            qweight: &qweight,
            qzeros: &vec![0; words],
            scales: &vec![f16::ONE; n],
            g_idx: None,
        };
        let codes = packed.unpack_codes().unwrap();
        for (r, row) in codes.chunks(n).enumerate() {
            let want = if r == 10 || r == 21 { 7 } else { 0 };
            assert!(row.iter().all(|&code| code == want), "row {r}");
        }
        // Stored zero fields mean 1 in v1, 7 wraps to 0.
        let v1 = Packed {
            format: Format::GptqV1,
            ..packed
        };
        assert_eq!(v1.unpack_zeros(), Ok(vec![1; n]));
        let full = Packed {
            qzeros: &vec![u32::MAX; words],
            ..v1
        };
        assert_eq!(full.unpack_zeros(), Ok(vec![0; n]));
    }
}

#[test]
fn awq_gemm_fields_hold_even_columns_first() {
    let packed = Packed {
        format: Format::AwqGemm,
        bits: 4,
        k: 1,
        n: 8,
        group: 128,
        qweight: &[0xf654_3210],
        qzeros: &[0x8000_0001],
        scales: &[f16::ONE; 8],
        g_idx: None,
    };
    assert_eq!(packed.unpack_codes(), Ok(vec![0, 4, 1, 5, 2, 6, 3, 15]));
    assert_eq!(packed.unpack_zeros(), Ok(vec![1, 0, 0, 0, 0, 0, 0, 8]));
}

#[test]
fn awq_zero_point_of_zero_stays_zero() {
    let mut matrix = Matrix::random(1, Format::AwqGemm, 4, 64, 16, 32);
    matrix.zeros.fill(0);
    matrix.pack();
    let w = matrix.packed().dequantize().unwrap();
    for (at, w) in w.into_iter().enumerate() {
        let scale = matrix.scales[at / 16 / 32 * 16 + at % 16].to_f64();
        assert_eq!(w, scale * f64::from(matrix.codes[at]));
    }
}

#[test]
fn gguf_blocks_have_minima() {
    // One column of two blocks: scale 1/2 and minimum -3, every low half row mod 16, every high one 15 less that;
    // then scale -1, minimum 1/4, codes 0.
    let head = |scale: f32, minimum: f32| {
        let [scale, minimum] = [scale, minimum].map(|x| u32::from(f16::from_f32(x).to_bits()));
        scale | minimum << 16
    };
    let mut qweight = vec![head(0.5, -3.0)];
    qweight.extend([0xc3d2_e1f0, 0x8796_a5b4, 0x4b5a_6978, 0x0f1e_2d3c]);
    qweight.extend([head(-1.0, 0.25), 0, 0, 0, 0]);
    let packed = Packed {
        format: Format::GgufQ4_1,
        bits: 4,
        k: 64,
        n: 1,
        group: 32,
        qweight: &qweight,
        qzeros: &[],
        scales: &[],
        g_idx: None,
    };
    let expected: Vec<f64> = (0..64)
        .map(|row| match row {
            0..16 => 0.5 * f64::from(row) - 3.0,
            16..32 => 0.5 * f64::from(31 - row) - 3.0,
            _ => 0.25,
        })
        .collect();
    assert_eq!(packed.dequantize().unwrap(), expected);
    let short = Packed {
        qweight: &qweight[..9],
        ..packed
    };
    assert!(short.dequantize().is_err());
    assert!(Packed { k: 40, ..packed }.dequantize().is_err());
    assert!(
        Packed {
            group: 64,
            ..packed
        }
        .dequantize()
        .is_err()
    );
}

#[test]
fn short_last_group_has_its_own_scale() {
    for (k, group) in [(192, 128), (4304, 32), (768, 512)] {
        let matrix = Matrix::random(k as u64, Format::GptqV2, 4, k, 8, group);
        assert_eq!(matrix.scales.len(), k.div_ceil(group) * 8);
        assert_eq!(matrix.packed().dequantize().unwrap(), matrix.weights());
    }
}

#[test]
fn shards_index_the_groups_of_the_whole_matrix() {
    let mut whole = Matrix::random(5, Format::GptqV1, 4, 256, 16, 32);
    let mut random = Random::new(6);
    whole.g_idx = Some((0..256).map(|_| random.below(8) as u32).collect());
    let all = whole.packed().dequantize().unwrap();
    for half in 0..2 {
        let shard = Packed {
            k: 128,
            qweight: &whole.qweight[half * 256..(half + 1) * 256],
            g_idx: whole
                .g_idx
                .as_ref()
                .map(|g| &g[half * 128..(half + 1) * 128]),
            ..whole.packed()
        };
        let rows = half * 128 * 16..(half + 1) * 128 * 16;
        assert_eq!(shard.dequantize().unwrap(), all[rows]);
    }
}

#[test]
fn bad_input_is_named() {
    let matrix = Matrix::random(7, Format::GptqV1, 4, 64, 16, 32);
    let good = matrix.packed();
    let refuse = |packed: Packed<'_>| packed.dequantize().unwrap_err().to_string();
    assert_eq!(
        refuse(Packed { bits: 5, ..good }),
        "bits is 5, it must be 2, 3, 4 or 8 for GPTQ"
    );
    assert_eq!(
        refuse(Packed { k: 72, ..good }),
        "qweight: 128 elements, its shape asks for 144"
    );
    assert_eq!(
        refuse(Packed { group: 16, ..good }),
        "qzeros: 4 elements, its shape asks for 8"
    );
    assert_eq!(
        refuse(Packed { group: 0, ..good }),
        "group is 0, it must be at least 1"
    );
    let scales = &good.scales[1..];
    assert_eq!(
        refuse(Packed { scales, ..good }),
        "scales: 31 elements, its shape asks for 32"
    );
    let mut g_idx = vec![0; 64];
    g_idx[9] = 2;
    let g_idx = Some(&g_idx[..]);
    assert_eq!(refuse(Packed { g_idx, ..good }), "g_idx[9] is 2, at most 1");

    let format = Format::AwqGemm;
    assert_eq!(
        refuse(Packed {
            format,
            bits: 3,
            ..good
        }),
        "bits is 3, it must be 4 for AWQ and GGUF"
    );
    assert_eq!(
        refuse(Packed {
            format,
            n: 12,
            ..good
        }),
        "n is 12, it must be a multiple of 8 for AWQ GEMM"
    );
    assert_eq!(
        refuse(Packed {
            format,
            g_idx,
            ..good
        }),
        "length of g_idx is 64, it must be absent for AWQ and GGUF"
    );
    let format = Format::AwqGemv;
    assert_eq!(
        refuse(Packed {
            format,
            k: 60,
            ..good
        }),
        "k is 60, it must be a multiple of 8 for AWQ GEMV"
    );
    assert_eq!(
        refuse(Packed {
            format,
            group: 16,
            ..good
        }),
        "group is 16, it must be 32, 64 or at least 128 for AWQ GEMV"
    );
}
