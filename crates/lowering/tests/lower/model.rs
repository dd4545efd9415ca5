//! The cycle model against what was measured and published.

use flashcube_lowering::{
    Arch, BlockWork, Cache, Lowering, Prediction, Rates, Toolkit, find_kernel,
};

use crate::Named;

pub(crate) const WITHOUT_TOOLKIT: &[Named] = &[(
    "model_meets_flash_attention_4_from_its_published_schedule",
    published_schedule,
)];

pub(crate) const WITH_TOOLKIT: &[Named] = &[
    ("model_meets_six_measured_hopper_kernels", six_kernels),
    ("model_predicts_the_blackwell_forward", blackwell_forward),
    ("model_predicts_block_scaled_products", block_scaled),
];

/// How far a prediction may be off.
const WITHIN: f64 = 0.15;

/// Kernel, causal, and the row of docs/performance.md whose first figure is what an H200 reached.
const MEASURED: [(&str, bool, &str); 6] = [
    (
        "attend_forward_bf16_d64",
        false,
        "| b1 h32 s16384 d64 | 526.8 |",
    ),
    (
        "attend_forward_bf16_d64_causal",
        true,
        "| b1 h32 s16384 d64, causal | 503.7 |",
    ),
    (
        "attend_forward_bf16_d128",
        false,
        "| b1 h16 s16384 d128 | 656.3 |",
    ),
    (
        "attend_forward_bf16_d128_causal",
        true,
        "| b1 h16 s16384 d128, causal | 642.0 |",
    ),
    (
        "attend_forward_bf16_d256",
        false,
        "| b1 h8 s16384 d256 | 730.8 |",
    ),
    (
        "attend_forward_bf16_d256_causal",
        true,
        "| b1 h8 s16384 d256, causal | 693.1 |",
    ),
];

const LOG: &str = include_str!("../../../../docs/performance.md");

fn predict(name: &str, arch: Arch) -> Prediction {
    let lowering = Lowering::new(Toolkit::find().unwrap(), Cache::user()).unwrap();
    let blueprint = find_kernel(name, arch).unwrap().blueprint(arch).unwrap();
    let source = blueprint.cuda(arch).unwrap();
    let lowered = lowering.lower(&source, arch).unwrap();
    Prediction::of(&blueprint, arch, &lowered.sass().unwrap()).expect("a kernel of the model's")
}

fn six_kernels() {
    let mut far = Vec::new();
    for (name, causal, row) in MEASURED {
        assert!(LOG.contains(row), "docs/performance.md has no row {row}");
        let seen: f64 = row.split('|').nth(2).unwrap().trim().parse().unwrap();
        let prediction = predict(name, Arch::Sm90a);
        let predicted = prediction.tflops_at(16384, causal);
        let error = predicted / seen - 1.0;
        println!(
            "{name}: {predicted:.0} TFLOP/s predicted, {seen} seen, {:+.1} %",
            100.0 * error
        );
        println!("{prediction}");
        if error.abs() > WITHIN {
            far.push(format!("{name} by {:+.1} %", 100.0 * error));
        }
    }
    assert!(far.is_empty(), "off: {}", far.join(", "));
}

/// FlashAttention-4's forward at d 128 without a mask, 16 bits: two stages of 128 rows, blocks of 128 keys, 10 % of the
/// maxima rescale, 19 % of the exponentials by a polynomial of degree 3 after a split in integer and fraction.
///
/// Of a row's 128 elements: 64 three-input maxima; scale and subtraction, sums and polynomial in packed pairs; a
/// conversion for each pair. A polynomial is a clamp, two additions of the split, three multiplications and an integer
/// shift and addition. O is 128 columns, rescaled in one block of ten.
fn flash_attention_4() -> BlockWork {
    let (polynomial, rescaled) = (0.19 * 128.0, 0.1 * 128.0);
    let exp2 = 128.0 - polynomial;
    let alu = 64.0 + 64.0 + 2.0 * polynomial;
    let pairs = 64.0 + 64.0 + (6.0 * polynomial + rescaled) / 2.0;
    BlockWork {
        streams: 2,
        rows: 128,
        block: 128,
        flop: (2 * 2 * 128 * 128 * 128) as f64,
        as_sixteen_bit: (2 * 2 * 128 * 128 * 128) as f64,
        smem_bytes: (3 * 2 * 128 * 128) as f64,
        issued: exp2 + alu + pairs,
        exp2,
        alu,
        fma: 2.0 * pairs,
    }
}

/// arXiv 2603.05451: up to 1605 TFLOP/s on a B200.
fn published_schedule() {
    let rates = Rates::of(Arch::Sm100a).unwrap();
    let prediction = Prediction::new(&flash_attention_4(), &rates);
    println!("{prediction}");
    // Cycles that the paper gives for a tile of 128 x 128 x 128.
    assert_eq!(prediction.products, 1024.0);
    assert_eq!(flash_attention_4().smem_bytes / rates.smem_bytes, 768.0);
    let error = prediction.tflops / 1605.0 - 1.0;
    println!("{:+.1} % of 1605 TFLOP/s", 100.0 * error);
    assert!(error.abs() <= WITHIN, "{error}");
}

fn blackwell_forward() {
    for name in [
        "attend_forward_bf16_d64",
        "attend_forward_bf16_d128",
        "attend_forward_bf16_d128_causal",
        "attend_forward_bf16_d128_cluster",
    ] {
        let [b200, b300] = [Arch::Sm100a, Arch::Sm103a].map(|arch| predict(name, arch));
        println!("{name}, sm_100a:\n{b200}sm_103a:\n{b300}");
        for prediction in [b200, b300] {
            let busy = 2.0 * prediction.products / prediction.round;
            assert!((0.1..1.0).contains(&busy), "{prediction}");
        }
        assert!(b300.tflops >= b200.tflops);
    }
}

/// Narrower operands take the matrix unit less time, and what makes weights of scores is then the slower part by far.
fn block_scaled() {
    let products = |name: &str| {
        let prediction = predict(name, Arch::Sm100a);
        println!("{name}, sm_100a:\n{prediction}");
        let per_key = prediction.products / prediction.block as f64;
        assert!(prediction.vector > prediction.products, "{prediction}");
        per_key
    };
    let wide = predict("attend_forward_bf16_d128", Arch::Sm100a);
    let wide = wide.products / wide.block as f64;
    let of = |name: &str| products(&format!("attend_operands_bf16_d128_qk_{name}_blackwell"));
    let [eight, half, four] = ["mxfp8_lengths", "nvfp4", "nvfp4_p_nvfp4"].map(of);
    assert!(
        four < half && half < eight && eight < wide,
        "{four} {half} {eight} {wide}"
    );
    of("mxfp4_p_mxfp4_causal".trim_end_matches("_causal"));
}
