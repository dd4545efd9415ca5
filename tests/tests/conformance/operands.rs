//! Operands of block-scaled products: what is refused, and that the bounds of encoded weights notice sabotage.

use cubecl::prelude::Client;
use flashcube::*;
use flashcube_catalogue::{Inputs, Operands, Outputs, Task, check, problem};
use flashcube_reference::quant::direct::WeightFormat;
use flashcube_reference::quant::operand::{self, round_columns, round_rows};
use flashcube_reference::{self as reference, Options, Tensor4};

const NVFP4: OperandFormat = OperandFormat::Nvfp4 { exponent: 0 };
const MXFP4: OperandFormat = OperandFormat::Mxfp4(ScaleRule::Ceil);
const MXFP8: OperandFormat = OperandFormat::Mxfp8(ScaleRule::Ceil);

fn client() -> Client {
    Backend::Cpu.open().expect("the CPU backend")
}

fn tensor(client: &Client, shape: [usize; 4]) -> Tensor<4> {
    let n: usize = shape.iter().product();
    let bytes: Vec<u8> = (0..n)
        .flat_map(|i| ((i % 7) as f32 - 3.0).to_le_bytes())
        .collect();
    Tensor::contiguous(client.create_from_slice(&bytes), shape, DType::F32)
}

fn message<T>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::InvalidProblem(reason)) => reason.to_string(),
        Err(other) => panic!("another kind of error: {other}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn formats_that_no_instruction_multiplies_are_named() {
    let client = client();
    let x = tensor(&client, [1, 1, 32, 16]);
    let of = |options: &OperandOptions<'_>| quantize_operand(&client, &x, options).unwrap();
    let (rows, columns) = (OperandOptions::rows, OperandOptions::columns);
    let attend = |q: &Operand, k: &Operand, v: &Operand, dtype, options: &AttendOptions<'_>| {
        message(attend_operands(&client, [q, k, v], dtype, options).map(drop))
    };
    let (q, v, plain) = (
        of(&rows(NVFP4)),
        of(&columns(NVFP4)),
        AttendOptions::default(),
    );
    let k = of(&rows(MXFP4));
    let told = attend(&q, &k, &v, DType::F32, &plain);
    assert_eq!(
        told,
        "k: Mxfp4(Ceil), expected that of q, Nvfp4 { exponent: 0 }"
    );
    let told = attend(&q, &q, &q, DType::F32, &plain);
    assert_eq!(told, "v: groups along D, expected groups along S");
    let told = attend(&q, &v, &v, DType::F32, &plain);
    assert_eq!(told, "k: groups along S, expected groups along D");
    let told = attend(&q, &q, &v, DType::F16, &plain);
    assert!(
        told.starts_with("out: dtype f16, expected f32 or bf16"),
        "{told}"
    );
    let sinks = AttendOptions {
        sinks: Some(&[0.0]),
        ..plain.clone()
    };
    let told = attend(&q, &q, &v, DType::F32, &sinks);
    assert_eq!(told, "sinks cannot be combined with encoded weights");
    // Groups of v start where sequences do.
    let packed = AttendOptions {
        cu_seqlens: Some((&[0, 20, 32], &[0, 20, 32])),
        ..plain.clone()
    };
    let told = attend(&q, &q, &v, DType::F32, &packed);
    assert_eq!(
        told,
        "sequences that v was quantized by[1] = 32 is out of range, the limit is 0"
    );
    let cut = of(&OperandOptions {
        lengths: Some(&[9]),
        ..columns(NVFP4)
    });
    let told = attend(&q, &q, &cut, DType::F32, &plain);
    assert!(
        told.ends_with("[0] = 32 is out of range, the limit is 9"),
        "{told}"
    );
}

#[test]
fn bad_groupings_are_named() {
    let client = client();
    let x = tensor(&client, [2, 1, 32, 16]);
    let told = |options: OperandOptions<'_>| message(quantize_operand(&client, &x, &options));
    let columns = OperandOptions::columns;
    let far = OperandFormat::Nvfp4 { exponent: 65 };
    assert_eq!(
        told(OperandOptions::rows(far)),
        "exponent = 65 is out of range, the limit is 64"
    );
    let rows = OperandOptions {
        lengths: Some(&[1, 2]),
        ..OperandOptions::rows(NVFP4)
    };
    assert_eq!(told(rows), "lengths cannot be combined with groups along d");
    let long = OperandOptions {
        lengths: Some(&[1, 33]),
        ..columns(MXFP8)
    };
    assert_eq!(
        told(long),
        "lengths[1] = 33 is out of range, the limit is 32"
    );
    let few = OperandOptions {
        lengths: Some(&[1]),
        ..columns(MXFP4)
    };
    assert_eq!(told(few), "lengths has 1 entries, expected 2");
    let apart = OperandOptions {
        pack: 2,
        ..OperandOptions::rows(NVFP4)
    };
    assert_eq!(told(apart), "pack = 2 is out of range, the limit is 1");
    let packed = OperandOptions {
        cu_seqlens: Some(&[0, 32]),
        ..columns(MXFP4)
    };
    assert_eq!(
        told(packed),
        "cu_seqlens cannot be combined with lengths or b > 1"
    );
}

#[test]
fn decoded_operands_are_quantized_to_the_same_codes() {
    let client = client();
    let x = tensor(&client, [2, 3, 40, 24]);
    for format in [NVFP4, MXFP4, MXFP8] {
        for options in [
            OperandOptions::rows(format),
            OperandOptions::columns(format),
        ] {
            let first = quantize_operand(&client, &x, &options).unwrap();
            let values = Tensor::empty(&client, x.shape, DType::F32);
            dequantize_operand(&client, &first, &values).unwrap();
            let again = quantize_operand(&client, &values, &options).unwrap();
            let [first, again] = [first, again].map(|operand| {
                let bytes = client.read_one(operand.words.clone()).unwrap();
                bytes[..4 * operand.len()].to_vec()
            });
            // -0 keeps its sign in the codes, and values keep it.
            assert!(first == again, "{options:?}");
        }
    }
}

/// A kernel of the host on the problem's quantized inputs.
fn host(sizes: &Operands, inputs: &Inputs, sabotage: Sabotage) -> Outputs {
    let read = |name: &str| {
        let array = inputs.get(name).unwrap();
        let shape = [0, 1, 2, 3].map(|axis| array.shape[axis]);
        Tensor4::from_slice(shape, &array.values()).unwrap()
    };
    let format = |_| operand::OperandFormat::Nvfp4 { exponent: 0 };
    let a = &sizes.attend;
    let [q, k] = ["q", "k"].map(|name| round_rows(&read(name), format(())).unwrap());
    let sequences = vec![vec![0..a.s_kv; 1]; a.b];
    let v = round_columns(&read("v"), &sequences, format(())).unwrap();
    let scale = f64::from(a.scale());
    let (mut out, mut lse) = (Vec::new(), Vec::new());
    for (b, h, i) in
        (0..a.b * a.h_q * a.s_q).map(|row| (row / a.s_q / a.h_q, row / a.s_q % a.h_q, row % a.s_q))
    {
        let kv = h / (a.h_q / a.h_kv);
        let dot = |j| -> f64 {
            let products = q
                .row(b, h, i)
                .iter()
                .zip(k.row(b, kv, j))
                .map(|(q, k)| q * k);
            scale * products.sum::<f64>() * std::f64::consts::LOG2_E
        };
        let x: Vec<f64> = (0..a.s_kv).map(dot).collect();
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max).ceil();
        let (mut sum, mut row) = (0.0, vec![0.0; a.d_v]);
        let mut first_top = None;
        for group in (0..a.s_kv).step_by(16) {
            let keys = group..a.s_kv.min(group + 16);
            let mut p = WeightFormat::Nvfp4.encode(&x[keys.clone()], max, true);
            let top = x[keys.clone()]
                .iter()
                .copied()
                .fold(f64::NEG_INFINITY, f64::max);
            let first_top = *first_top.get_or_insert(top);
            if sabotage == Sabotage::ScaleOfFirstGroup {
                p.iter_mut().for_each(|p| *p *= (first_top - top).exp2());
            }
            for (j, p) in keys.zip(p) {
                sum += match sabotage {
                    Sabotage::SumOfExactWeights => 1536.0 * (x[j] - max).exp2(),
                    _ => p,
                };
                row.iter_mut()
                    .zip(v.row(b, kv, j))
                    .for_each(|(o, v)| *o += p * v);
            }
        }
        out.extend(row.iter().map(|o| (o / sum) as f32));
        lse.push(((max + (sum / 1536.0).log2()) * std::f64::consts::LN_2) as f32);
    }
    Outputs::default().with("out", out).with("lse", lse)
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Sabotage {
    None,
    ScaleOfFirstGroup,
    SumOfExactWeights,
}

#[test]
fn bounds_take_an_independent_kernel_and_notice_sabotage() {
    for name in ["q37xkv64", "peak", "one_hot_v"] {
        let problem = problem(&format!("attend_operands/nvfp4/{name}/f32")).unwrap();
        let Task::Operands(sizes) = &problem.task else {
            panic!("another task");
        };
        let passed = |sabotage| {
            let verdict = check(&problem, 5, |inputs| host(sizes, inputs, sabotage));
            verdict.unwrap().passed()
        };
        assert!(passed(Sabotage::None), "{name}");
        assert!(!passed(Sabotage::ScaleOfFirstGroup), "{name}");
        assert!(!passed(Sabotage::SumOfExactWeights), "{name}");
        // Attention that encodes nothing is no attention of these operands.
        let exact = check(&problem, 5, |inputs| exact(sizes, inputs));
        assert!(!exact.unwrap().passed(), "{name}");
    }
}

fn exact(sizes: &Operands, inputs: &Inputs) -> Outputs {
    let read = |name: &str| {
        let array = inputs.get(name).unwrap();
        let shape = [0, 1, 2, 3].map(|axis| array.shape[axis]);
        Tensor4::from_slice(shape, &array.values()).unwrap()
    };
    let options = Options {
        scale: f64::from(sizes.attend.scale()),
        ..Options::default()
    };
    let [q, k, v] = ["q", "k", "v"].map(read);
    let got = reference::forward(&q, &k, &v, &options).unwrap();
    let narrow = |values: &[f64]| values.iter().map(|&x| x as f32).collect::<Vec<_>>();
    Outputs::default()
        .with("out", narrow(&got.out.data))
        .with("lse", narrow(&got.lse))
}

#[test]
fn selection_refuses_blocks_that_cut_groups_and_tiers_without_encoded_weights() {
    let caps = Caps::of(&client());
    let features = attention::LogitFeatures {
        weights: attention::WeightFormat::Nvfp4,
        ..Default::default()
    };
    let key = AttendKey {
        op: AttendOp::Forward,
        dtype: DType::BF16,
        d: 64,
        d_v: 64,
        s_q: 512,
        group: 1,
        vector: 4,
        chunks: true,
        tma: true,
        positive_scale: true,
        reach: 1,
        features,
    };
    let card = Caps {
        family: Family::Cuda,
        sm: Some(90),
        plane: (32, 32),
        units_per_cube: 1024,
        shared_memory: 227 << 10,
        ..caps
    };
    let with = |tier, tile| {
        let policy = Policy {
            tier,
            tile,
            ..Policy::default()
        };
        select_attend(&key, &card, &policy)
    };
    // The hopper tier has no encoded weights: the plane tier is the fastest that has.
    assert_eq!(with(None, None).unwrap().tier, TierName::Plane);
    let refused = with(Some(TierName::Hopper), None).unwrap_err();
    assert_eq!(refused.limit, "hopper tier's weights");
    let refused = select_attend(
        &key,
        &Caps {
            sm: Some(100),
            ..card.clone()
        },
        &Policy {
            tier: Some(TierName::Blackwell),
            ..Policy::default()
        },
    );
    assert_eq!(refused.unwrap_err().limit, "blackwell tier's weights");
    assert!(with(Some(TierName::Plane), Some((64, 48))).is_ok());
    let mxfp4 = AttendKey {
        features: attention::LogitFeatures {
            weights: attention::WeightFormat::Mxfp4(ScaleRule::Ceil),
            ..features
        },
        ..key
    };
    let policy = Policy {
        tier: Some(TierName::Plane),
        tile: Some((64, 48)),
        ..Policy::default()
    };
    let refused = select_attend(&mxfp4, &card, &policy).unwrap_err();
    assert_eq!(
        refused.limit,
        "keys of a block that groups of weights divide"
    );
    assert_eq!(refused.needed, "32");
    for d in [64, 96, 128, 192, 256] {
        let chosen = select_attend(&AttendKey { d, d_v: d, ..mxfp4 }, &card, &Policy::default());
        assert!(chosen.unwrap().block.is_multiple_of(32), "{d}");
    }
}
