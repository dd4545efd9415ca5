//! Kernels that Triton compiled (tests/fixtures/generate.py): PTX this library had no hand in.

use flashcube_ptx_sim::{
    Arg, BufferId, Format, Kernel, Launch, Memory, Schedule, SimError, Swizzle, TensorMap, parse,
    run,
};

use super::attention::{Problem, attend, compare};
use super::values::{Numbers, bytes, floats};

const SCHEDULES: [Schedule; 2] = [Schedule::Latest, Schedule::Random(3)];

fn word(value: u32) -> Arg {
    Arg::Bytes(value.to_le_bytes().to_vec())
}

/// A tensor descriptor: map, shape and strides.
fn descriptor(buffer: BufferId, [rows, columns]: [usize; 2], tile: [u32; 2]) -> Vec<Arg> {
    let map = TensorMap {
        base: (buffer, 0),
        element: 2,
        dims: vec![columns as u64, rows as u64],
        strides: vec![2 * columns as u64],
        tile: vec![tile[1], tile[0]],
        steps: vec![1, 1],
        swizzle: Swizzle::B128,
        fill_nan: false,
    };
    let long = |value: usize| Arg::Bytes((value as u64).to_le_bytes().to_vec());
    vec![
        Arg::TensorMap(map),
        word(rows as u32),
        word(columns as u32),
        long(columns),
        long(1),
    ]
}

fn launch(
    source: &str,
    grid: [u32; 3],
    args: Vec<Arg>,
    shared: usize,
    schedule: Schedule,
    memory: &Memory,
) -> Result<(), SimError> {
    let kernel = Kernel::load(&parse(source)?, None)?;
    let mut launch = Launch::new(grid, [128, 1, 1], args);
    launch.dynamic_shared = shared;
    launch.schedule = schedule;
    launch.max_instructions = 50_000_000;
    launch.init_fence = false;
    run(&kernel, &launch, memory).map(|coverage| eprintln!("{coverage}"))
}

/// |got - exact| within f32 sums of n products and one rounding of the output.
fn close(got: &[f64], a: &[f64], b: &[f64], [m, n, k]: [usize; 3], unit: f64) {
    for i in 0..m {
        for j in 0..n {
            let terms = || (0..k).map(|l| a[i * k + l] * b[l * n + j]);
            let (exact, size): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
            let bound = size * k as f64 * 2f64.powi(-23) + unit * exact.abs() + 1e-30;
            let error = (got[i * n + j] - exact).abs();
            assert!(
                error <= bound,
                "({i}, {j}): {} for {exact}, bound {bound}",
                got[i * n + j]
            );
        }
    }
}

/// c [m, n] = a [m, k] b [k, n], pointers.
fn matmul(source: &str, shared: usize, input: Format, output: Format) {
    for [m, n, k] in [[128, 64, 64], [200, 80, 160], [130, 64, 16]] {
        for schedule in SCHEDULES {
            let mut numbers = Numbers(11);
            let (a, b) = (numbers.exact(m * k, input), numbers.exact(k * n, input));
            let mut memory = Memory::new();
            let (a_id, b_id) = (memory.add(&bytes(&a, input)), memory.add(&bytes(&b, input)));
            let c = memory.reserve(m * n * 2);
            let mut args = vec![
                Arg::Buffer(a_id, 0),
                Arg::Buffer(b_id, 0),
                Arg::Buffer(c, 0),
            ];
            args.extend([m, n, k, k, n, n].map(|value| word(value as u32)));
            args.extend([Arg::Null, Arg::Null]);
            let grid = [m.div_ceil(128) as u32, n.div_ceil(64) as u32, 1];
            launch(source, grid, args, shared, schedule, &memory)
                .unwrap_or_else(|error| panic!("m {m} n {n} k {k} {schedule:?}: {error}"));
            let unit = if output == Format::F16 {
                2f64.powi(-11)
            } else {
                2f64.powi(-8)
            };
            close(
                &floats(&memory.contents(c), output),
                &a,
                &b,
                [m, n, k],
                unit,
            );
        }
    }
}

fn matmul_tma(source: &str, shared: usize) {
    let [m, n, k] = [256, 128, 192];
    for schedule in SCHEDULES {
        let mut numbers = Numbers(12);
        let (a, b) = (
            numbers.exact(m * k, Format::Bf16),
            numbers.exact(k * n, Format::Bf16),
        );
        let mut memory = Memory::new();
        let [a_id, b_id] = [&a, &b].map(|values| memory.add(&bytes(values, Format::Bf16)));
        let c = memory.reserve(m * n * 2);
        let mut args = descriptor(a_id, [m, k], [128, 64]);
        args.extend(descriptor(b_id, [k, n], [64, 64]));
        args.extend(descriptor(c, [m, n], [128, 64]));
        args.extend([word(k as u32), Arg::Null, Arg::Null]);
        launch(source, [2, 2, 1], args, shared, schedule, &memory)
            .unwrap_or_else(|error| panic!("{schedule:?}: {error}"));
        let got = floats(&memory.contents(c), Format::Bf16);
        close(&got, &a, &b, [m, n, k], 2f64.powi(-8));
    }
}

pub(crate) fn attention(
    source: &str,
    shared: usize,
    causal: bool,
    schedule: Schedule,
) -> Result<(), String> {
    let (s, d) = (256, 64);
    let mut numbers = Numbers(13);
    let [q, k, v] = [(); 3].map(|()| numbers.exact(s * d, Format::Bf16));
    let mut memory = Memory::new();
    let [q_id, k_id, v_id] = [&q, &k, &v].map(|values| memory.add(&bytes(values, Format::Bf16)));
    let out = memory.reserve(s * d * 2);
    let scale = std::f32::consts::LOG2_E / 8.0;
    let mut args = descriptor(q_id, [s, d], [128, 64]);
    args.extend(descriptor(k_id, [s, d], [64, 64]));
    args.extend(descriptor(v_id, [s, d], [64, 64]));
    args.extend(descriptor(out, [s, d], [128, 64]));
    args.extend([word(scale.to_bits()), word(s as u32), Arg::Null, Arg::Null]);
    launch(source, [2, 1, 1], args, shared, schedule, &memory)
        .map_err(|error| format!("{error} {:?}", error.fault()))?;
    let problem = Problem {
        s_q: s,
        s_kv: s,
        d,
        scale: 0.125,
        causal,
    };
    compare(&attend(&problem, &q, &k, &v), &memory.contents(out), None)
}

/// c [m, n] = (a scaled) (b scaled)^T with one UE8M0 factor for 32 values along k.
fn block_scaled(source: &str, shared: usize, format: Format) {
    let [m, n, k] = [128, 256, 256];
    for schedule in SCHEDULES {
        let mut numbers = Numbers(14);
        let mut memory = Memory::new();
        let mut operand = |rows: usize| {
            let values = numbers.exact(rows * k, format);
            let scales: Vec<u8> = (0..rows * k / 32)
                .map(|_| 120 + numbers.below(14) as u8)
                .collect();
            let codes: Vec<u8> = if format == Format::E2m1 {
                let code = |value: f64| {
                    format.encode(value, 0.0, flashcube_ptx_sim::Rounding::Nearest, true) as u8
                };
                values
                    .chunks(2)
                    .map(|pair| code(pair[0]) | code(pair[1]) << 4)
                    .collect()
            } else {
                bytes(&values, format)
            };
            let scaled: Vec<f64> = values
                .iter()
                .enumerate()
                .map(|(i, value)| value * Format::Ue8m0.decode(u64::from(scales[i / 32])))
                .collect();
            (scaled, memory.add(&codes), memory.add(&scales))
        };
        let (a, a_id, a_scales) = operand(m);
        let (b, b_id, b_scales) = operand(n);
        let c = memory.reserve(m * n * 4);
        let mut args: Vec<Arg> = [a_id, b_id, a_scales, b_scales, c]
            .map(|id| Arg::Buffer(id, 0))
            .into();
        args.extend([word(k as u32), Arg::Null, Arg::Null]);
        launch(source, [1, 2, 1], args, shared, schedule, &memory)
            .unwrap_or_else(|error| panic!("{schedule:?}: {error}"));
        let transposed: Vec<f64> = (0..k * n).map(|i| b[i % n * k + i / n]).collect();
        close(
            &floats(&memory.contents(c), Format::F32),
            &a,
            &transposed,
            [m, n, k],
            2f64.powi(-23),
        );
    }
}

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../fixtures/triton_", $name, ".ptx"))
    };
}
pub(crate) const ATTN_SM100: &str = fixture!("attn_st3.sm_100");
pub(crate) const ATTN_SM100_SHARED: usize = 65_632;
pub(crate) const MATMUL_SM100: &str = fixture!("matmul_st3.sm_100");

fn attends(source: &str, shared: usize, causal: bool) {
    for schedule in SCHEDULES {
        attention(source, shared, causal, schedule)
            .unwrap_or_else(|error| panic!("{schedule:?}: {error}"));
    }
}

#[test]
fn matmul_of_ampere() {
    matmul(
        fixture!("matmul_st3.sm_80"),
        49_152,
        Format::Bf16,
        Format::Bf16,
    );
}
#[test]
fn matmul_of_hopper() {
    matmul(
        fixture!("matmul_st3.sm_90"),
        73_728,
        Format::Bf16,
        Format::Bf16,
    );
}
#[test]
fn matmul_of_hopper_in_fp8() {
    matmul(
        fixture!("matmul_f8.sm_90"),
        20_480,
        Format::E4m3,
        Format::F16,
    );
}
#[test]
fn matmul_of_hopper_with_tensor_maps() {
    matmul_tma(fixture!("matmul_tma_st3.sm_90"), 73_752);
}
#[test]
fn attention_of_hopper() {
    attends(fixture!("attn_st1.sm_90"), 24_584, false);
    attends(fixture!("attn_st3.sm_90"), 65_592, false);
    attends(fixture!("attn_causal.sm_90"), 49_184, true);
}
#[test]
fn matmul_of_blackwell() {
    matmul(MATMUL_SM100, 73_744, Format::Bf16, Format::Bf16);
}
#[test]
fn matmul_of_blackwell_in_fp8() {
    matmul(
        fixture!("matmul_f8.sm_100"),
        24_592,
        Format::E4m3,
        Format::F16,
    );
}
#[test]
fn matmul_of_blackwell_with_tensor_maps() {
    matmul_tma(fixture!("matmul_tma_st3.sm_100"), 73_776);
}
#[test]
fn attention_of_blackwell() {
    attends(fixture!("attn_st1.sm_100"), 24_584, false);
    attends(ATTN_SM100, ATTN_SM100_SHARED, false);
    attends(fixture!("attn_causal.sm_100"), 49_216, true);
}
#[test]
fn block_scaled_matmul_of_blackwell() {
    block_scaled(fixture!("mx_e4m3.sm_100"), 33_280, Format::E4m3);
    block_scaled(fixture!("mx_e5m2.sm_100"), 33_280, Format::E5m2);
    block_scaled(fixture!("mx_e2m1.sm_100"), 16_896, Format::E2m1);
}
#[test]
fn block_scaled_matmul_of_consumer_blackwell() {
    block_scaled(fixture!("mx_e4m3.sm_120"), 32_768, Format::E4m3);
    block_scaled(fixture!("mx_e5m2.sm_120"), 32_768, Format::E5m2);
    block_scaled(fixture!("mx_e2m1.sm_120"), 16_384, Format::E2m1);
}
