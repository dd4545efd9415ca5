//! Property tests: what a format packs, it unpacks; what one format unpacks, every other that holds
//! it packs.

use flashcube_formats::*;
use half::f16;
use proptest::collection::vec;
use proptest::prelude::*;

/// Weights of any sizes that the logical form allows; z = 0, negative, zero and subnormal scales
/// included.
pub(crate) fn weights(
    bits: impl Strategy<Value = u32>,
    k: impl Strategy<Value = usize>,
    n: impl Strategy<Value = usize>,
    group: impl Strategy<Value = Option<usize>>,
    act_order: bool,
) -> impl Strategy<Value = IntWeights> {
    (bits, k, n, group, any::<bool>()).prop_flat_map(move |(bits, k, n, group, ordered)| {
        let shape = QuantShape::new(k, n, bits, group).unwrap();
        let code = 0..=shape.max_code();
        let scale = any::<u16>()
            .prop_map(f16::from_bits)
            .prop_filter("finite", |scale| scale.is_finite());
        let groups = shape.groups as u32;
        let g_idx = (act_order && ordered && k > 0).then(|| vec(0..groups.max(1), k));
        (
            vec(code.clone(), k * n),
            vec(code, shape.groups * n),
            vec(scale, shape.groups * n),
            g_idx.map_or(Just(None).boxed(), |g_idx| g_idx.prop_map(Some).boxed()),
        )
            .prop_map(move |(codes, zeros, scales, g_idx)| {
                IntWeights::new(shape, codes, zeros, scales, g_idx).unwrap()
            })
    })
}

pub(crate) fn any_group() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![Just(None), (1usize..40).prop_map(Some), Just(Some(128))]
}

fn bits(list: &'static [u32]) -> impl Strategy<Value = u32> {
    prop::sample::select(list)
}

/// 0, step, 2 step, ... up to `count` of them.
fn multiples(step: usize, count: usize) -> impl Strategy<Value = usize> {
    (0..count).prop_map(move |times| times * step)
}

fn groups(list: &'static [Option<usize>]) -> impl Strategy<Value = Option<usize>> {
    prop::sample::select(list)
}

fn check(weights: &IntWeights, format: Format) -> Result<(), TestCaseError> {
    let packed = PackedLinear::pack(weights, format).unwrap();
    packed.validate().unwrap();
    let layout = format.layout(&weights.shape).unwrap();
    prop_assert_eq!(
        packed.weights.len(),
        layout.weights.iter().product::<usize>()
    );
    let read = packed.unpack().unwrap();
    prop_assert_eq!(
        &read.scales.iter().map(|s| s.to_bits()).collect::<Vec<_>>(),
        &weights
            .scales
            .iter()
            .map(|s| s.to_bits())
            .collect::<Vec<_>>()
    );
    prop_assert_eq!(&read, weights);
    prop_assert_eq!(PackedLinear::pack(&read, format).unwrap(), packed);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn gptq(w in weights(bits(&[2, 3, 4, 8]), 0usize..100, 0usize..42, any_group(), true)) {
        check(&w, Format::GptqV2)?;
        check(&w, Format::GptqV1(V1Zeros::Field))?;
        if w.shape.bits != 3 {
            check(&w, Format::GptqV1(V1Zeros::Word))?;
        }
        let strict = PackedLinear::pack(&w, Format::GptqV1(V1Zeros::Strict));
        match w.zeros.iter().position(|&zero| zero == 0) {
            None => prop_assert_eq!(strict.unwrap().unpack().unwrap(), w),
            Some(at) => {
                let refused = matches!(strict, Err(FormatError::AmbiguousZero { index, .. }) if index == at);
                prop_assert!(refused);
            }
        }
    }

    #[test]
    fn both_readings_of_v1_agree_without_a_zero(
        w in weights(bits(&[2, 4, 8]), 1usize..64, 1usize..40, any_group(), false)
    ) {
        let mut w = w;
        w.zeros.iter_mut().for_each(|zero| *zero = (*zero).max(1));
        let mut packed = PackedLinear::pack(&w, Format::GptqV1(V1Zeros::Word)).unwrap();
        packed.format = Format::GptqV1(V1Zeros::Field);
        prop_assert_eq!(packed.unpack().unwrap(), w);
    }

    #[test]
    fn awq_gemm(w in weights(Just(4), 0usize..100, multiples(8, 6), any_group(), false)) {
        check(&w, Format::AwqGemm)?;
    }

    #[test]
    fn awq_gemv(
        w in weights(
            Just(4),
            multiples(8, 40),
            0usize..12,
            groups(&[Some(32), Some(64), Some(128), Some(200)]),
            false,
        )
    ) {
        check(&w, Format::AwqGemv)?;
    }

    #[test]
    fn compressed_tensors(
        w in weights(bits(&[4, 8]), 0usize..90, 0usize..30, any_group(), false)
    ) {
        check(&w, Format::CompressedTensors)?;
    }

    #[test]
    fn marlin(
        w in weights(Just(4), multiples(128, 3), multiples(64, 3), groups(&[None, Some(128)]), false)
    ) {
        let mut w = w;
        w.zeros.fill(8);
        check(&w, Format::Marlin)?;
    }

    #[test]
    fn one_weight_passes_through_every_format(
        w in weights(Just(4), Just(256), Just(64), Just(Some(128)), false)
    ) {
        let mut w = w;
        w.zeros.fill(8);
        let formats = [
            Format::GptqV2, Format::Marlin, Format::AwqGemm, Format::GptqV1(V1Zeros::Strict),
            Format::CompressedTensors, Format::AwqGemv,
        ];
        let mut read = w.clone();
        for format in formats {
            read = PackedLinear::pack(&read, format).unwrap().unpack().unwrap();
        }
        prop_assert_eq!(read, w);
    }

    #[test]
    fn nvfp4((k, n) in ((0usize..30).prop_map(|k| 2 * k), 0usize..10), seed in any::<u64>()) {
        let byte = |at: usize| (seed.wrapping_mul(at as u64 * 2 + 1) >> 40) as u8;
        let weights = Nvfp4Weights {
            k,
            n,
            codes: (0..k * n).map(|at| byte(at) & 15).collect(),
            scales: (0..k.div_ceil(16) * n).map(|at| byte(at + 7) % 0x7f).collect(),
            encode_factor: 448.0,
        };
        let linear = weights.pack().unwrap();
        prop_assert_eq!(linear.packed.len(), k * n / 2);
        prop_assert_eq!(linear.unpack().unwrap(), weights);
    }

    #[test]
    fn gguf_int_form_dequantizes_alike(q8 in any::<bool>(), bytes in vec(any::<u8>(), 34 * 6)) {
        // Two outputs of three blocks; scales forced finite.
        let kind = if q8 { GgufKind::Q8_0 } else { GgufKind::Q4_0 };
        let mut bytes: Vec<u8> = bytes[..kind.block_bytes() * 6].to_vec();
        bytes.chunks_exact_mut(kind.block_bytes()).for_each(|block| block[1] &= 0xbf);
        let blocks = GgufBlocks::new(kind, 96, 2, bytes).unwrap();
        prop_assert_eq!(blocks.to_int_weights().unwrap().dequantize(), blocks.dequantize());
    }
}
