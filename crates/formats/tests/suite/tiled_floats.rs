//! Small floats in tiles: back to their source, through files, against the reference.

use std::collections::BTreeMap;

use flashcube_formats::*;
use proptest::prelude::*;

use crate::tiled::reference;

/// Weights of one of the four formats, from a seed.
fn drawn(kind: usize, k: usize, n: usize, seed: u64) -> FloatWeights {
    let mut state = seed;
    let mut draw = |limit: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 33) % limit) as u8
    };
    let mut bytes =
        |count: usize, limit: u64| -> Vec<u8> { (0..count).map(|_| draw(limit)).collect() };
    let floats = |bytes: Vec<u8>| -> Vec<f32> {
        bytes
            .into_iter()
            .map(|byte| f32::from(byte) * 1e-5)
            .collect()
    };
    let weights = match kind {
        0 => {
            let k = k.next_multiple_of(2);
            FloatWeights::nvfp4(&Nvfp4Weights {
                k,
                n,
                codes: bytes(k * n, 16),
                scales: bytes(k.div_ceil(16) * n, 0x7f),
                encode_factor: 1000.3,
            })
        }
        1 => FloatWeights::mxfp4(k, n, bytes(k * n, 16), bytes(k.div_ceil(32) * n, 240)),
        2 => {
            let codes = bytes(k * n, 0x7f);
            FloatWeights::fp8(
                k,
                n,
                codes,
                Some(128),
                &floats(bytes(k.div_ceil(128) * n, 256)),
            )
        }
        // Groups that tiles hold only with padding.
        _ => {
            let codes = bytes(k * n, 16);
            FloatWeights::nf4(k, n, codes, 48, &floats(bytes(k.div_ceil(48) * n, 256)))
        }
    };
    weights.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn tiles_give_floats_back(kind in 0usize..4, k in 0usize..200, n in 0usize..100, seed: u64) {
        let weights = drawn(kind, k, n, seed);
        let linear = QuantizedLinear::from_floats(&weights).unwrap();
        prop_assert_eq!(&linear.unpack_floats().unwrap(), &weights);
        let refused = matches!(linear.unpack(), Err(FormatError::Unsupported { .. }));
        prop_assert!(refused);
        // The divisor's reciprocal, the scale and the product are rounded once each.
        for (got, expected) in weights.dequantize().into_iter().zip(reference(&linear)) {
            prop_assert!((f64::from(got) - expected).abs() <= expected.abs() * 2e-7 + 1e-44, "{got} {expected}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let tensors: BTreeMap<_, _> = linear.tensors("layer.q_proj").unwrap().into_iter().collect();
        save(&path, &tensors, &BTreeMap::new()).unwrap();
        let read = QuantizedLinear::load(&Checkpoint::open(&path).unwrap(), "layer.q_proj").unwrap();
        prop_assert_eq!(read, linear);
    }
}

#[test]
fn nvfp4_comes_back_bit_for_bit() {
    let weights = drawn(0, 48, 5, 7);
    let GroupScales::E4M3(scales) = &weights.scales else {
        panic!("{:?}", weights.scales);
    };
    let source = Nvfp4Weights {
        k: 48,
        n: 5,
        codes: weights.codes.clone(),
        scales: scales.clone(),
        encode_factor: 1000.3,
    };
    assert_eq!(weights.dequantize(), source.dequantize());
    assert_eq!(FloatWeights::nvfp4(&source).unwrap(), weights);
}

/// Packed codes and scales take no more than 5 % beyond what the source has of them.
#[test]
fn tiles_are_as_small_as_their_source() {
    for (kind, bits) in [(0, 4.5), (1, 4.25), (2, 8.125)] {
        let linear = QuantizedLinear::from_floats(&drawn(kind, 1024, 256, 1)).unwrap();
        let bytes = 4 * linear.words.len() + linear.scales.to_bytes().len();
        let source = 1024.0 * 256.0 * bits / 8.0;
        assert!(
            bytes as f64 <= 1.05 * source,
            "{kind}: {bytes} for {source}"
        );
    }
}

#[test]
fn scales_too_far_apart_for_f16_are_named() {
    let scales = [1.0, 1e-12];
    let error = FloatWeights::fp8(1, 2, vec![1, 1], None, &scales).unwrap_err();
    assert!(
        matches!(error, FormatError::Inexact { index: 1, .. }),
        "{error}"
    );
    // Far from 1, but together.
    let weights = FloatWeights::fp8(1, 2, vec![0x38, 0x38], None, &[1e-12, 2.5e-12]).unwrap();
    for (got, expected) in weights.dequantize().into_iter().zip([1e-12f32, 2.5e-12]) {
        assert!((got - expected).abs() < expected / 2048.0, "{got:e}");
    }
}

#[test]
fn bad_floats_are_named() {
    let nan_code = FloatWeights::fp8(1, 2, vec![1, 0xff], None, &[1.0, 1.0]);
    assert!(matches!(
        nan_code,
        Err(FormatError::NotFinite { index: 1, .. })
    ));
    let infinite = FloatWeights::nf4(1, 1, vec![1], 64, &[f32::INFINITY]);
    assert!(matches!(infinite, Err(FormatError::NotFinite { .. })));
    let nan_scale = FloatWeights::mxfp4(1, 1, vec![1], vec![255]);
    assert!(matches!(nan_scale, Err(FormatError::NotFinite { .. })));
    let wide = FloatWeights::mxfp4(1, 1, vec![16], vec![127]);
    assert!(matches!(
        wide,
        Err(FormatError::OutOfRange { value: 16, .. })
    ));
    let short = FloatWeights::mxfp4(33, 1, vec![1; 33], vec![127]);
    assert!(matches!(short, Err(FormatError::WrongShape { .. })));
    let good = QuantizedLinear::from_floats(&drawn(2, 64, 64, 3)).unwrap();
    type Damage<'a> = &'a dyn Fn(&mut QuantizedLinear);
    let damages: [Damage; 4] = [
        &|l| l.words[5] |= 0x7f00,
        &|l| l.divisor = 0.0,
        &|l| l.code_type = CodeType::E2M1,
        &|l| l.scales = GroupScales::E8M0(vec![255; l.scales.len()]),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let mut bad = good.clone();
        damage(&mut bad);
        assert!(bad.validate().is_err(), "{number}");
    }
}
