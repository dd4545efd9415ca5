//! Packing at the sizes that broke other packers: fields across words, odd n, short groups, zero
//! sizes, shards.

use flashcube_formats::*;
use half::f16;

fn uniform(shape: QuantShape, code: u8, zero: u8) -> IntWeights {
    let scales = vec![f16::ONE; shape.groups * shape.n];
    IntWeights::new(
        shape,
        vec![code; shape.k * shape.n],
        vec![zero; shape.groups * shape.n],
        scales,
        None,
    )
    .unwrap()
}

#[test]
fn three_bit_fields_10_and_21_cross_words() {
    let shape = QuantShape::new(96, 32, 3, Some(96)).unwrap();
    let mut weights = uniform(shape, 0, 0);
    for row in [10, 21, 32 + 10, 64 + 21] {
        weights.codes[row * 32 + 5] = 7;
    }
    let packed = PackedLinear::pack(&weights, Format::GptqV2).unwrap();
    assert_eq!(packed.weights.len(), 9 * 32);
    let column: Vec<u32> = packed.weights.iter().copied().skip(5).step_by(32).collect();
    // Field 10 is bits 30..33, field 21 bits 63..66 of each 96.
    assert_eq!(
        column,
        [3 << 30, 1 | 1 << 31, 3, 3 << 30, 1, 0, 0, 1 << 31, 3]
    );
    assert_eq!(packed.unpack().unwrap(), weights);
}

#[test]
fn three_bit_zero_points_of_20_columns_take_two_words() {
    let shape = QuantShape::new(40, 20, 3, Some(16)).unwrap();
    let packed = PackedLinear::pack(&uniform(shape, 5, 6), Format::GptqV2).unwrap();
    let layout = Format::GptqV2.layout(&shape).unwrap();
    assert_eq!(
        (layout.weights, layout.zeros, layout.scales),
        ([4, 20], Some([3, 2]), [3, 20])
    );
    // 20 fields of 0b110 are 60 bits: 10 and two thirds of the 11th in word 0.
    assert_eq!(
        packed.zeros.as_ref().unwrap()[..2],
        [0b10_110110110110110110110110110110, 0x0db6_db6d]
    );
}

#[test]
fn symmetric_words_are_the_known_constants() {
    let shape = QuantShape::new(8, 8, 4, None).unwrap();
    let zeros = |format| {
        PackedLinear::pack(&uniform(shape, 0, 8), format)
            .unwrap()
            .zeros
    };
    assert_eq!(
        zeros(Format::GptqV1(V1Zeros::Word)),
        Some(vec![0x7777_7777])
    );
    assert_eq!(
        zeros(Format::GptqV1(V1Zeros::Field)),
        Some(vec![0x7777_7777])
    );
    assert_eq!(zeros(Format::GptqV2), Some(vec![0x8888_8888]));
    assert_eq!(zeros(Format::CompressedTensors), None);
}

#[test]
fn last_short_group_has_its_own_scale() {
    for (k, group) in [(192, 128), (48, 32), (40, 16), (5, 4)] {
        let shape = QuantShape::new(k, 8, 4, Some(group)).unwrap();
        let mut weights = uniform(shape, 9, 8);
        let last = (shape.groups - 1) * 8;
        weights.scales[last..].fill(f16::from_f32(4.0));
        let weight = PackedLinear::pack(&weights, Format::AwqGemm)
            .unwrap()
            .unpack()
            .unwrap()
            .dequantize();
        let first_of_last = (shape.groups - 1) * group;
        assert!(weight[..first_of_last * 8].iter().all(|&w| w == 1.0));
        assert!(weight[first_of_last * 8..].iter().all(|&w| w == 4.0));
    }
}

#[test]
fn zero_sizes_pack_to_empty_buffers() {
    let formats = [
        Format::GptqV1(V1Zeros::Word),
        Format::GptqV2,
        Format::AwqGemm,
        Format::AwqGemv,
        Format::Marlin,
        Format::CompressedTensors,
    ];
    for format in formats {
        for (k, n) in [(0, 0), (0, 64), (128, 0)] {
            for group in [None, Some(128)] {
                let weights = uniform(QuantShape::new(k, n, 4, group).unwrap(), 0, 8);
                let packed = PackedLinear::pack(&weights, format).unwrap();
                assert!(packed.weights.is_empty(), "{format} {k} {n}");
                assert_eq!(packed.unpack().unwrap(), weights, "{format} {k} {n}");
                assert!(weights.dequantize().is_empty());
            }
        }
    }
    assert!(
        GgufBlocks::new(GgufKind::Q4_1, 0, 3, vec![])
            .unwrap()
            .dequantize()
            .is_empty()
    );
    assert!(
        GgufBlocks::new(GgufKind::Q4_0, 32, 0, vec![])
            .unwrap()
            .to_int_weights()
            .is_ok()
    );
}

#[test]
fn shards_of_an_act_order_layer_index_the_groups_of_the_whole() {
    let (k, n, group) = (256, 8, 32);
    let whole = QuantShape::new(k, n, 4, Some(group)).unwrap();
    let g_idx: Vec<u32> = (0..k as u32).map(|row| row * 5 % 8).collect();
    let codes: Vec<u8> = (0..k * n).map(|at| (at * 11 % 16) as u8).collect();
    let scales: Vec<f16> = (0..8 * n)
        .map(|at| f16::from_f32(1.0 + at as f32))
        .collect();
    let zeros = vec![3; 8 * n];
    let full = IntWeights::new(
        whole,
        codes.clone(),
        zeros.clone(),
        scales.clone(),
        Some(g_idx.clone()),
    )
    .unwrap();
    let mut joined = Vec::new();
    for half in 0..2 {
        let rows = half * k / 2..(half + 1) * k / 2;
        let shape = QuantShape { k: k / 2, ..whole };
        let codes = codes[rows.start * n..rows.end * n].to_vec();
        let shard = IntWeights::new(
            shape,
            codes,
            zeros.clone(),
            scales.clone(),
            Some(g_idx[rows].to_vec()),
        )
        .unwrap();
        let packed = PackedLinear::pack(&shard, Format::GptqV2).unwrap();
        joined.extend(packed.unpack().unwrap().dequantize());
    }
    assert_eq!(joined, full.dequantize());
}
