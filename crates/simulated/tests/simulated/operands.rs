//! Block-scaled operands that hold more than attention may see.

use cubecl_runtime::client::Client;
use flashcube::{
    AttendOptions, DType, OperandFormat, OperandOptions, Policy, ScaleRule, Tensor, TierName,
    attend_operands, quantize_operand,
};
use flashcube_lowering::Arch;
use flashcube_simulated::{Edit, Options, Simulated};

use crate::Named;

pub(crate) const TESTS: &[Named] = &[(
    "values_behind_a_length_stay_out_of_block_scaled_products",
    || {
        hidden_values(Arch::Sm100a, TierName::Blackwell, "and.b32 x");
        hidden_values(Arch::Sm120a, TierName::Plane, "and.b32 scale");
    },
)];

/// Two batch entries, a query head on a key head, 40 queries, 200 keys.
const SHAPE: [usize; 4] = [2, 1, 200, 64];
const LENGTHS: [usize; 2] = [47, 129];
/// Groups of 32 end here behind the lengths: values from these keys on share no scale with a visible one.
const BEHIND: [usize; 2] = [64, 160];

/// Values with NaN in groups that no query sees, quantized whole, give the same bits as zeros there; without the mask on
/// their scale factors, an instruction `mask`, they do not.
fn hidden_values(arch: Arch, tier: TierName, mask: &'static str) {
    let gpu = Simulated::open(Options::new(arch)).unwrap();
    let formats = [
        OperandFormat::Nvfp4 { exponent: 0 },
        OperandFormat::Mxfp4(ScaleRule::Ceil),
        OperandFormat::Mxfp8(ScaleRule::Ceil),
    ];
    for format in formats {
        let (zeros, nan) = (
            attended(&gpu, tier, format, 0.0),
            attended(&gpu, tier, format, f32::NAN),
        );
        assert!(zeros.iter().any(|&byte| byte != 0));
        assert!(zeros == nan, "{format:?}");
    }
    let edit: Edit = Box::new(move |ptx| ptx.replace(mask, &format!("// {mask}")));
    let gpu = Simulated::open(Options {
        edit: Some(edit),
        ..Options::new(arch)
    });
    let gpu = gpu.unwrap();
    let [nvfp4, ..] = formats;
    assert!(attended(&gpu, tier, nvfp4, 0.0) != attended(&gpu, tier, nvfp4, f32::NAN));
}

/// Values that are `hidden` behind the lengths.
fn tensor(client: &Client, shape: [usize; 4], hidden: f32) -> Tensor<4> {
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
}

/// Bytes of the outputs.
fn attended(gpu: &Simulated, tier: TierName, format: OperandFormat, hidden: f32) -> Vec<u8> {
    let client = &gpu.client;
    let rows = OperandOptions::rows(OperandFormat::Nvfp4 { exponent: 0 });
    let columns = OperandOptions::columns(format);
    let [b, h, _, d] = SHAPE;
    let quantize = |shape, hidden, options: &OperandOptions<'_>| {
        quantize_operand(client, &tensor(client, shape, hidden), options).unwrap()
    };
    let q = quantize([b, h, 40, d], 0.0, &rows);
    let k = quantize(SHAPE, 0.0, &rows);
    let v = quantize(SHAPE, hidden, &columns);
    let options = AttendOptions {
        lengths_kv: Some(&LENGTHS),
        policy: Policy {
            tier: Some(tier),
            ..Policy::default()
        },
        ..AttendOptions::default()
    };
    let attended = attend_operands(client, [&q, &k, &v], DType::BF16, &options).unwrap();
    client.read_one(attended.out.handle).unwrap().to_vec()
}
