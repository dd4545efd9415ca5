//! Bad weights: every one a typed error that names tensor, value and limit.

use flashcube_formats::*;
use half::f16;

use crate::golden::{config, open};

fn weights() -> IntWeights {
    let shape = QuantShape::new(64, 64, 4, Some(32)).unwrap();
    IntWeights::new(
        shape,
        vec![3; 64 * 64],
        vec![8; 128],
        vec![f16::ONE; 128],
        None,
    )
    .unwrap()
}

fn message(result: Result<impl std::fmt::Debug, FormatError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn values_out_of_range_are_named() {
    let mut w = weights();
    w.codes[70] = 16;
    assert_eq!(
        message(w.validate()),
        "tensor `codes`, element 70: 16 is not in 0..16"
    );
    let mut w = weights();
    w.zeros[5] = 200;
    assert_eq!(
        message(PackedLinear::pack(&w, Format::GptqV2)),
        "tensor `zeros`, element 5: 200 is not in 0..16"
    );
    for bad in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
        let mut w = weights();
        w.scales[9] = bad;
        assert!(matches!(
            w.validate(),
            Err(FormatError::NotFinite { index: 9, .. })
        ));
    }
    let mut w = weights();
    w.g_idx = Some((0..64).map(|row| row / 16).collect());
    assert_eq!(
        message(w.validate()),
        "tensor `g_idx`, element 32: 2 is not in 0..2"
    );
}

#[test]
fn truncated_buffers_are_named() {
    let formats = [
        Format::GptqV1(V1Zeros::Word),
        Format::GptqV2,
        Format::AwqGemm,
        Format::AwqGemv,
        Format::CompressedTensors,
    ];
    for format in formats {
        let mut w = weights();
        w.zeros[0] = 9;
        let packed = PackedLinear::pack(&w, format).unwrap();
        let mut short = packed.clone();
        short.weights.pop();
        assert!(
            message(short.unpack()).starts_with("tensor `weights` has shape [511]"),
            "{format}"
        );
        let mut short = packed.clone();
        short.zeros.as_mut().unwrap().pop();
        assert!(
            message(short.unpack()).starts_with("tensor `zeros` has shape ["),
            "{format}"
        );
        let mut short = packed.clone();
        short.scales.pop();
        assert!(
            message(short.unpack()).starts_with("tensor `scales` has shape ["),
            "{format}"
        );
        let mut nan = packed.clone();
        nan.scales[1] = f16::NAN;
        assert!(
            matches!(nan.unpack(), Err(FormatError::NotFinite { index: 1, .. })),
            "{format}"
        );
    }
    let mut missing = PackedLinear::pack(&weights(), Format::GptqV2).unwrap();
    missing.zeros = None;
    assert_eq!(
        message(missing.unpack()),
        "tensor `zeros` has shape [0], expected [2, 8]"
    );
}

#[test]
fn formats_refuse_what_they_cannot_hold() {
    let refused = |k, n, bits, group, format: Format| {
        let shape = QuantShape::new(k, n, bits, group).unwrap();
        let Err(FormatError::Unsupported { what, value, .. }) = format.layout(&shape) else {
            panic!("{format} took {shape:?}");
        };
        format!("{what} = {value}")
    };
    assert_eq!(refused(64, 20, 4, None, Format::AwqGemm), "n = 20");
    assert_eq!(refused(64, 64, 8, None, Format::AwqGemm), "bits = 8");
    assert_eq!(refused(60, 64, 4, None, Format::AwqGemv), "k = 60");
    assert_eq!(refused(64, 64, 4, Some(16), Format::AwqGemv), "group = 16");
    assert_eq!(refused(64, 64, 8, None, Format::Marlin), "bits = 8");
    assert_eq!(refused(72, 64, 4, None, Format::Marlin), "k = 72");
    assert_eq!(refused(64, 96, 4, None, Format::Marlin), "n = 96");
    assert_eq!(refused(64, 64, 4, Some(32), Format::Marlin), "group = 32");
    assert_eq!(refused(192, 64, 4, Some(128), Format::Marlin), "k = 192");
    assert_eq!(
        refused(64, 64, 3, None, Format::CompressedTensors),
        "bits = 3"
    );
    assert_eq!(
        refused(64, 64, 3, None, Format::GptqV1(V1Zeros::Word)),
        "word-wise zero points at bits = 3"
    );

    let mut act_order = weights();
    act_order.g_idx = Some(vec![1; 64]);
    for format in [Format::AwqGemm, Format::AwqGemv, Format::CompressedTensors] {
        assert!(
            message(PackedLinear::pack(&act_order, format)).contains("act-order"),
            "{format}"
        );
    }
    let shape = QuantShape::new(64, 64, 4, None).unwrap();
    let mut asym =
        IntWeights::new(shape, vec![0; 4096], vec![8; 64], vec![f16::ONE; 64], None).unwrap();
    asym.zeros[63] = 7;
    let refusal = message(PackedLinear::pack(&asym, Format::Marlin));
    assert_eq!(
        refusal,
        "marlin cannot hold zero point = 7: symmetric weights: 8"
    );
}

#[test]
fn hostile_sizes_do_not_overflow() {
    assert!(matches!(
        QuantShape::new(usize::MAX, 2, 4, Some(1)),
        Err(FormatError::TooLarge { .. })
    ));
    assert!(matches!(
        QuantShape::new(4, 4, 5, None),
        Err(FormatError::Unsupported { what: "bits", .. })
    ));
    assert!(matches!(
        QuantShape::new(4, 4, 4, Some(0)),
        Err(FormatError::Unsupported { what: "group", .. })
    ));
    let mut packed = PackedLinear::pack(&weights(), Format::GptqV2).unwrap();
    packed.shape.k = usize::MAX / 2;
    assert!(matches!(packed.unpack(), Err(FormatError::TooLarge { .. })));
    let mut packed = PackedLinear::pack(&weights(), Format::GptqV2).unwrap();
    packed.shape.group = 0;
    assert!(packed.unpack().is_err());
    let mut packed = PackedLinear::pack(&weights(), Format::GptqV2).unwrap();
    packed.shape.groups = 1;
    assert!(packed.unpack().is_err());
    assert!(GgufBlocks::new(GgufKind::Q8_0, usize::MAX - 31, 2, vec![]).is_err());
}

#[test]
fn gguf_and_nvfp4_blocks_are_checked() {
    assert!(message(GgufBlocks::new(GgufKind::Q4_0, 33, 1, vec![0; 18])).contains("k = 33"));
    let short = message(GgufBlocks::new(GgufKind::Q4_1, 64, 1, vec![0; 39]));
    assert_eq!(short, "tensor `blocks` has shape [39], expected [1, 2, 20]");
    let mut bytes = vec![0; 40];
    bytes[22..24].copy_from_slice(&f16::NAN.to_le_bytes());
    let nan = GgufBlocks::new(GgufKind::Q4_1, 64, 1, bytes);
    assert!(matches!(nan, Err(FormatError::NotFinite { index: 1, .. })));

    let good = Nvfp4Weights {
        k: 16,
        n: 1,
        codes: vec![1; 16],
        scales: vec![0x38],
        encode_factor: 1.0,
    };
    assert_eq!(good.dequantize(), [0.5; 16]);
    let broken: [fn(&mut Nvfp4Weights); 6] = [
        |w| w.k = 15,
        |w| w.codes[3] = 16,
        |w| w.scales[0] = 0xff,
        |w| w.encode_factor = 0.0,
        |w| w.encode_factor = f32::NAN,
        |w| w.scales.clear(),
    ];
    for breaks in broken {
        let mut bad = good.clone();
        breaks(&mut bad);
        assert!(bad.pack().is_err(), "{bad:?}");
    }
    let mut linear = good.pack().unwrap();
    linear.packed.pop();
    assert!(message(linear.unpack()).contains("`weight_packed` has shape [7], expected [1, 8]"));
}

#[test]
fn a_checkpoint_without_the_tensors_of_its_config_is_refused() {
    let awq = open("awq_gemm_w4");
    let gptq = open("gptq_v2_w4");
    let missing = PackedLinear::load(&awq, "absent", &config(&awq));
    assert!(message(missing).contains("no tensor `absent.qweight`"));
    // AWQ tensors under a GPTQ config, and a group size that is not the file's.
    assert!(matches!(
        PackedLinear::load(&awq, "linear", &config(&gptq)),
        Err(FormatError::WrongShape { .. })
    ));
    let mut wrong = config(&gptq);
    wrong.group_size = Some(16);
    let error = message(PackedLinear::load(&gptq, "linear", &wrong));
    assert!(error.contains("expected [4, "), "{error}");
    let mut wrong = config(&gptq);
    wrong.packing = Packing::Nvfp4;
    assert!(matches!(
        PackedLinear::load(&gptq, "linear", &wrong),
        Err(FormatError::Unsupported { .. })
    ));
    assert!(matches!(
        Nvfp4Linear::load(&gptq, "linear"),
        Err(FormatError::MissingTensor { .. })
    ));
}
