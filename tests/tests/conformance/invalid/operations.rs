//! The other operations.

use flashcube::{
    AttendOptions, DType, DequantizeOptions, HadamardOptions, Instruction, InstructionOperands,
    MatrixElement, MergeOptions, PackFormat, PackedWeights, Tensor, WgmmaOperands, attend_backward,
    dequantize_int4, hadamard_transform, merge_partials, run_instruction,
};

use super::{KV, Q, client, f32s, zeros};

#[test]
fn backward_checks_its_own_tensors() {
    let client = client();
    let [q, k, v] = [Q, KV, KV].map(|shape| f32s(&client, shape));
    let (out, lse, d_out) = (f32s(&client, Q), f32s(&client, [2, 4, 5]), f32s(&client, Q));
    let options = AttendOptions::default();
    let complaint = |out, lse, d_out| {
        attend_backward(&client, &q, &k, &v, out, lse, d_out, &options)
            .unwrap_err()
            .to_string()
    };
    let short = f32s(&client, [2, 4, 4, 8]);
    assert_eq!(
        complaint(&short, &lse, &d_out),
        "out: axis s_q is 4, expected 5"
    );
    assert_eq!(
        complaint(&out, &lse, &short),
        "d_out: axis s_q is 4, expected 5"
    );
    let half = zeros(&client, [2, 4, 5], DType::F16);
    assert_eq!(
        complaint(&out, &half, &d_out),
        "lse: dtype f16, expected f32"
    );
}

#[test]
fn merge_checks_its_tensors() {
    let client = client();
    let (outs, lses) = (f32s(&client, [3, 1, 2, 5, 8]), f32s(&client, [3, 1, 2, 5]));
    let complaint = |outs, lses, options: &MergeOptions| {
        merge_partials(&client, outs, lses, options)
            .unwrap_err()
            .to_string()
    };
    let two = f32s(&client, [2, 1, 2, 5]);
    let none = MergeOptions::default();
    assert_eq!(
        complaint(&outs, &two, &none),
        "lses: axis n is 2, expected 3"
    );
    let half = zeros(&client, [3, 1, 2, 5, 8], DType::F16);
    assert_eq!(
        complaint(&half, &lses, &none),
        "outs: dtype f16, expected f32"
    );
    let options = MergeOptions {
        out: Some(f32s(&client, [1, 2, 5, 4])),
        ..none
    };
    assert_eq!(
        complaint(&outs, &lses, &options),
        "out: axis d_v is 4, expected 8"
    );
}

#[test]
fn dequantize_checks_sizes_and_buffers() {
    let client = client();
    let words = |n: usize| client.create_from_slice(&vec![0u8; 4 * n]);
    let weights = PackedWeights {
        format: PackFormat::GptqV1,
        bits: 4,
        k: 64,
        n: 16,
        group: 32,
        qweight: words(128),
        qzeros: words(4),
        scales: words(16),
        g_idx: None,
    };
    let complaint = |weights: PackedWeights| {
        let result = dequantize_int4(&client, &weights, &DequantizeOptions::default());
        result.unwrap_err().to_string()
    };
    let change = |f: fn(&mut PackedWeights)| {
        let mut changed = weights.clone();
        f(&mut changed);
        complaint(changed)
    };
    assert!(change(|w| w.bits = 5).contains("bits = 5"));
    assert!(change(|w| w.group = 0).contains("group = 0"));
    assert!(change(|w| w.k = 65).starts_with("qweight:"));
    let awq = change(|w| (w.format, w.n) = (PackFormat::AwqGemm, 12));
    assert!(awq.contains('8') && awq.contains('n'), "{awq}");
    let three_bits = change(|w| (w.format, w.bits) = (PackFormat::AwqGemm, 3));
    assert!(three_bits.contains("bits = 3"), "{three_bits}");
    let short = PackedWeights {
        qzeros: words(3),
        ..weights.clone()
    };
    assert_eq!(
        complaint(short),
        "qzeros: the view needs 4 elements, its buffer holds 3"
    );
    let short = PackedWeights {
        g_idx: Some(words(63)),
        ..weights.clone()
    };
    assert!(complaint(short).starts_with("g_idx:"));
}

#[test]
fn hadamard_checks_size_and_signs() {
    let client = client();
    let complaint = |x: &Tensor<2>, options: &HadamardOptions<'_>| {
        hadamard_transform(&client, x, options)
            .unwrap_err()
            .to_string()
    };
    let plain = HadamardOptions::default();
    let odd = complaint(&f32s(&client, [3, 12]), &plain);
    assert!(odd.contains("n = 12"), "{odd}");
    let options = HadamardOptions {
        signs: Some(&[true; 4]),
        ..plain
    };
    let signs = complaint(&f32s(&client, [3, 8]), &options);
    assert_eq!(signs, "signs has 4 entries, expected 8");
    let long = complaint(&f32s(&client, [1, 1 << 26]), &HadamardOptions::default());
    assert!(long.contains("shared memory"), "{long}");
}

#[test]
fn instructions_check_their_form_and_operands() {
    let client = client();
    let complaint = |instruction, operands, trials| {
        run_instruction(&client, instruction, operands, trials)
            .unwrap_err()
            .to_string()
    };
    let none = InstructionOperands::default();
    let (element, operands) = (MatrixElement::E4M3, WgmmaOperands::RegistersMn);
    let mma = |k| Instruction::Mma { element, k };
    let wgmma = |n| Instruction::Wgmma {
        element,
        n,
        operands,
    };
    assert_eq!(
        complaint(mma(16), none, 1),
        "k = 16 is out of range, the limit is 32"
    );
    let odd = complaint(wgmma(12), none, 1);
    assert!(odd.contains("n = 12"), "{odd}");
    let transposed = complaint(wgmma(64), none, 1);
    assert!(transposed.contains("MN-major"), "{transposed}");
    let short = InstructionOperands {
        a: &[0; 128],
        b: &[0; 63],
        c: &[0.0; 128],
    };
    assert_eq!(
        complaint(mma(32), short, 1),
        "b has 63 entries, expected 64"
    );
    let many = complaint(mma(32), none, usize::MAX);
    assert!(many.contains("trials"), "{many}");
    let whole = InstructionOperands {
        b: &[0; 64],
        ..short
    };
    let absent = complaint(mma(32), whole, 1);
    assert!(absent.contains("compute capability"), "{absent}");
}
