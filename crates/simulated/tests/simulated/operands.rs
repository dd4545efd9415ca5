//! Block-scaled operands that hold more than attention may see.

use flashcube::{
    AttendOptions, DType, OperandFormat, OperandOptions, Policy, ScaleRule, Tensor, TierName,
    attend_operands, quantize_operand,
};
use flashcube_lowering::Arch;
use flashcube_simulated::{Options, Simulated};

use crate::Named;

pub(crate) const TESTS: &[Named] = &[(
    "values_behind_a_length_stay_out_of_block_scaled_products",
    hidden_values,
)];

/// Two batch entries, a query head on a key head, 40 queries, 200 keys.
const SHAPE: [usize; 4] = [2, 1, 200, 64];
const LENGTHS: [usize; 2] = [47, 129];
/// Groups of 32 end here behind the lengths: values from these keys on share no scale with a visible one.
const BEHIND: [usize; 2] = [64, 160];

/// Values with NaN in groups that no query sees, quantized whole, give the same bits as zeros there.
fn hidden_values() {
    let gpu = Simulated::open(Options::new(Arch::Sm100a)).unwrap();
    let client = &gpu.client;
    let tensor = |shape: [usize; 4], hidden: f32| {
        let [_, h, s, d] = shape;
        let of = |i: usize| {
            let (entry, key) = (i / (h * s * d), i / d % s);
            match key >= BEHIND[entry] {
                true => hidden,
                false => ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0,
            }
        };
        let n: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..n).flat_map(|i| of(i).to_le_bytes()).collect();
        Tensor::contiguous(client.create_from_slice(&bytes), shape, DType::F32)
    };
    let rows = OperandOptions::rows(OperandFormat::Nvfp4 { exponent: 0 });
    let [b, h, _, d] = SHAPE;
    let q = quantize_operand(client, &tensor([b, h, 40, d], 0.0), &rows).unwrap();
    let k = quantize_operand(client, &tensor(SHAPE, 0.0), &rows).unwrap();
    for format in [
        OperandFormat::Nvfp4 { exponent: 0 },
        OperandFormat::Mxfp4(ScaleRule::Ceil),
        OperandFormat::Mxfp8(ScaleRule::Ceil),
    ] {
        let attended = |hidden: f32| {
            let columns = OperandOptions::columns(format);
            let v = quantize_operand(client, &tensor(SHAPE, hidden), &columns).unwrap();
            let options = AttendOptions {
                lengths_kv: Some(&LENGTHS),
                policy: Policy {
                    tier: Some(TierName::Blackwell),
                    ..Policy::default()
                },
                ..AttendOptions::default()
            };
            let attended = attend_operands(client, [&q, &k, &v], DType::BF16, &options).unwrap();
            client.read_one(attended.out.handle).unwrap().to_vec()
        };
        let (zeros, nan) = (attended(0.0), attended(f32::NAN));
        assert!(zeros.iter().any(|&byte| byte != 0));
        assert!(zeros == nan, "{format:?}");
    }
}
