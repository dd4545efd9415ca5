//! Weights and views that do not fit one another.

use flashcube::{
    DType, LinearWeights, MatmulOptions, ScaleType, Tensor, WeightCodes, ZeroType, matmul_quantized,
};

use super::invalid::{client, zeros};

#[test]
fn products_check_sizes_and_buffers() {
    let client = client();
    let bytes = |n: usize| client.create_from_slice(&vec![0u8; n]);
    let good = LinearWeights {
        bits: 4,
        codes: WeightCodes::Int,
        k: 100,
        n: 20,
        rows: 128,
        group: 64,
        words: bytes(128 * 64 / 2),
        scales: bytes(2 * 64 * 2),
        scale_type: ScaleType::F16,
        scale_range: None,
        factor: 1.0,
        zeros: None,
        zero_type: ZeroType::Point,
        gather: None,
    };
    let x = zeros(&client, [3, 100], DType::F32);
    let complaint = |change: &dyn Fn(&mut LinearWeights)| {
        let mut weights = good.clone();
        change(&mut weights);
        let result = matmul_quantized(&client, &x, &weights, &MatmulOptions::default());
        result.unwrap_err().to_string()
    };
    assert!(matmul_quantized(&client, &x, &good, &MatmulOptions::default()).is_ok());
    for (found, wanted) in [
        (complaint(&|w| w.k = 99), "x: axis k is 100, expected 99"),
        (complaint(&|w| w.bits = 5), "bits = 5"),
        (complaint(&|w| w.codes = WeightCodes::E4M3), "bits = 4"),
        (complaint(&|w| w.group = 48), "group modulo 64 = 48"),
        (complaint(&|w| w.group = 0), "group modulo 64 = 0"),
        (complaint(&|w| w.rows = 100), "rows modulo 64 = 36"),
        (
            complaint(&|w| w.rows = 192),
            "words: axis rows is 192, expected 128",
        ),
        (
            complaint(&|w| w.words = bytes(4092)),
            "words: the view needs 1024 elements, its buffer holds 1023",
        ),
        (
            complaint(&|w| w.scales = bytes(254)),
            "scales: the view needs 128 elements, its buffer holds 127",
        ),
        (
            complaint(&|w| w.group = 16),
            "scales: the view needs 512 elements",
        ),
        (complaint(&|w| w.zeros = Some(bytes(127))), "zeros:"),
        (
            complaint(&|w| {
                w.zeros = Some(bytes(255));
                w.zero_type = ZeroType::Minimum;
            }),
            "zeros:",
        ),
        (complaint(&|w| w.gather = Some(bytes(4 * 127))), "gather:"),
        (
            complaint(&|w| w.factor = f32::NAN),
            "factor = NaN is not finite",
        ),
        (complaint(&|w| w.n = 1 << 31), "n = 2147483648"),
    ] {
        assert!(found.contains(wanted), "{found:?}, expected {wanted:?}");
    }
    let mixed = MatmulOptions {
        bias: Some(zeros(&client, [20], DType::F16)),
        ..MatmulOptions::default()
    };
    let error = matmul_quantized(&client, &x, &good, &mixed)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("bias"), "{error}");
    // An output that names an element twice.
    let twice = MatmulOptions {
        out: Some(Tensor {
            strides: [0, 1],
            ..zeros(&client, [3, 20], DType::F32)
        }),
        ..MatmulOptions::default()
    };
    let error = matmul_quantized(&client, &x, &good, &twice)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("out"), "{error}");
}
