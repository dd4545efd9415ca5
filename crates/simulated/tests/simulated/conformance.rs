//! Problems of the catalogue on simulated GPUs.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use flashcube::{
    AttendOptions, DType, OperandFormat, OperandOptions, Policy, ScaleRule, Tensor, TierName,
    attend_operands, quantize_operand,
};
use flashcube_catalogue::{Attend, Outcome, Problem, Row, Task, problem, problems, run_one};
use flashcube_lowering::Arch;
use flashcube_ptx_sim::Schedule;
use flashcube_simulated::{Edit, Options, Simulated};

use crate::Named;

pub(crate) const TESTS: &[Named] = &[
    ("plane_forward_on_sm_80", || {
        all_pass(Arch::Sm80, Schedule::Latest, &PLANE);
    }),
    ("hopper_forward_on_sm_90a", || {
        all_pass(Arch::Sm90a, Schedule::Latest, &HOPPER);
    }),
    ("hopper_forward_at_random_moments", || {
        all_pass(Arch::Sm90a, Schedule::Random(1), &HOPPER[..1]);
    }),
    ("plane_decodes_on_sm_89", || {
        all_pass(Arch::Sm89, Schedule::Latest, &PLANE_DECODES);
    }),
    ("plane_products_on_sm_80", || {
        all_pass(Arch::Sm80, Schedule::Latest, &PLANE_PRODUCTS);
    }),
    ("hopper_products_on_sm_90a", || {
        all_pass(Arch::Sm90a, Schedule::Latest, &HOPPER_PRODUCTS);
    }),
    ("hopper_pages_at_random_moments", || {
        all_pass(Arch::Sm90a, Schedule::Random(1), &HOPPER_PAGES);
    }),
    ("blackwell_forward_at_random_moments", || {
        all_pass(Arch::Sm100a, Schedule::Random(1), &BLACKWELL);
    }),
    ("block_scaled_blackwell_at_random_moments", || {
        all_pass(Arch::Sm100a, Schedule::Random(1), &BLOCK_SCALED);
    }),
    ("block_scaled_blackwell_on_sm_103a", || {
        all_pass(Arch::Sm103a, Schedule::Latest, &BLOCK_SCALED[..1]);
    }),
    ("block_scaled_planes_on_sm_120a", || {
        all_pass(Arch::Sm120a, Schedule::Latest, &SCALED_PLANES);
    }),
    ("block_scaled_planes_at_random_moments", || {
        all_pass(Arch::Sm120a, Schedule::Random(1), &SCALED_PLANES[..1]);
    }),
    ("blackwell_forward_on_sm_103a", || {
        all_pass(Arch::Sm103a, Schedule::Latest, &BLACKWELL);
    }),
    (
        "blackwell_forward_of_d128_and_s256_is_simulated_in_time",
        simulated_in_time,
    ),
    ("planted_fault_is_an_error_of_the_launch", planted_fault),
    ("buffers_come_and_go", buffers_come_and_go),
    ("nan_query_spoils_its_row_alone", nan_query),
];

const PLANE: [&str; 3] = [
    "attend_forward/plane/q193xkv130/bf16",
    "attend_forward/plane/q66xkv0/bf16",
    "attend_forward/plane/causal_bottom_right_q129xkv300/f16",
];
/// Parts of one cube, of eight cubes, of cubes of one part, and of codes.
const PLANE_DECODES: [&str; 4] = [
    "attend_decode/plane/n4_q1xkv700/f16",
    "attend_decode/plane/n32_q1xkv700/bf16",
    "attend_decode/plane/n5_q1xkv700/bf16",
    "attend_decode/plane_e4m3/page64_by_head_n8_d128/bf16",
];
const HOPPER: [&str; 4] = [
    "attend_forward/hopper/q193xkv130/bf16",
    "attend_forward/hopper/q66xkv0/bf16",
    "attend_forward/hopper/causal_bottom_right_q129xkv300/f16",
    // Slots of tiles are used again.
    "attend_forward/hopper/many_tiles/f16",
];
const PLANE_PRODUCTS: [&str; 5] = [
    "w4a16/plane/m9n127k1024g128_zeros/f16",
    "w4a16/plane/nf4_m2/bf16",
    "w4a16/plane/fp8_m40/f16",
    "w4a16/plane/nvfp4_m40/bf16",
    "w4a16/plane/mxfp4_m2/f16",
];
const HOPPER_PRODUCTS: [&str; 7] = [
    "w4a16/hopper/m17n200k208g128_zeros/f16",
    "w4a16/hopper/nf4_m40/f16",
    "w4a16/hopper/fp8_m2/bf16",
    "w4a16/hopper/nvfp4_m40/f16",
    "w4a16/hopper/mxfp4_m40/bf16",
    // Stages are used again, and cubes share a block.
    "w4a16/hopper/splits2_m4n200k4160/f16",
    "w4a16/hopper_sums/m17n200k208g128_zeros/f16",
];
const HOPPER_PAGES: [&str; 2] = [
    "attend_decode/hopper_pages/device_pages16/bf16",
    "attend_decode/hopper_pages/device_pages64/f16",
];
const BLACKWELL: [&str; 3] = [
    "attend_forward/blackwell/q193xkv130/bf16",
    "attend_forward/blackwell_pairs/lengths/bf16",
    "attend_forward/blackwell/causal_d128v128/bf16",
];
const BLOCK_SCALED: [&str; 3] = [
    "attend_operands/blackwell/nvfp4_p_d64/bf16",
    "attend_operands/blackwell/nvfp4_causal/bf16",
    "attend_operands/blackwell/mxfp8_d64/bf16",
];
/// P in E2M1 with scale factors of 16 and of 32 keys, in E4M3; values behind lengths, bands.
const SCALED_PLANES: [&str; 8] = [
    "attend_operands/plane/nvfp4_d64/bf16",
    "attend_operands/plane/nvfp4_lengths/bf16",
    "attend_operands/plane/mxfp4_d128/bf16",
    "attend_operands/plane/mxfp8_causal/bf16",
    "attend_operands/plane/mxfp8_few_keys/bf16",
    "attend_operands/plane/scores_mxfp8_lengths_hidden/bf16",
    "attend_operands/plane/nvfp4_packed_heads/bf16",
    "attend_operands/plane/mxfp4_odd/bf16",
];
/// Problems of the Blackwell tier that every run takes: tails, bands, lengths, packed sequences and heads, hooks and head
/// dimensions, one of each kernel that differs.
const ALWAYS: [&str; 46] = [
    "blackwell/q1xkv130/bf16",
    "blackwell/q193xkv130/bf16",
    "blackwell/q193xkv130/f16",
    "blackwell/q385xkv130/bf16",
    "blackwell/q66xkv0/bf16",
    "blackwell/q66xkv1/bf16",
    "blackwell/q66xkv257/bf16",
    "blackwell/q0xkv41/bf16",
    "blackwell/h9on3/bf16",
    "blackwell/causal_bottom_right_q300xkv129/bf16",
    "blackwell/causal_top_left_q129xkv300/bf16",
    "blackwell/causal_d128v128/bf16",
    "blackwell/left_130_right_140/bf16",
    "blackwell/lengths_both_causal/bf16",
    "blackwell/every_hook/bf16",
    "blackwell/scale_negative/bf16",
    "blackwell/large_logits/f16",
    "blackwell/ascending/bf16",
    "blackwell/d40v40_q129xkv129/bf16",
    "blackwell/d256v256_q129xkv65/bf16",
    "blackwell/tile128x32_d128/bf16",
    "blackwell_varlen/causal/bf16",
    "blackwell_pairs/q300xkv129/f16",
    "blackwell_pairs/d192v128_q300xkv161/bf16",
    "blackwell_pairs/d256v256_q300xkv161/bf16",
    "blackwell_pairs/tile512x32/bf16",
    "blackwell_pairs/hooks/bf16",
    "blackwell_pairs/varlen_causal/bf16",
    "blackwell_pairs/packed_heads_causal/bf16",
    "attend_operands/blackwell/nvfp4_d64/bf16",
    "attend_operands/blackwell/nvfp4_causal/bf16",
    "attend_operands/blackwell/nvfp4_ascending/bf16",
    "attend_operands/blackwell/mxfp4_d256/bf16",
    "attend_operands/blackwell/mxfp8_hooks/bf16",
    "attend_operands/blackwell/mxfp8_index_v/bf16",
    "attend_operands/blackwell/mxfp8_lengths/bf16",
    "attend_operands/blackwell/nvfp4_p_d128/bf16",
    "attend_operands/blackwell/nvfp4_p_lengths/bf16",
    "attend_operands/blackwell/mxfp4_p_d256/bf16",
    "attend_operands/blackwell/mxfp4_p_tile256x64/bf16",
    "attend_operands/blackwell/fp8_d128/bf16",
    "attend_operands/blackwell/fp8_lengths_hidden/bf16",
    "attend_operands/blackwell/mxfp8_varlen/bf16",
    "attend_operands/blackwell/nvfp4_p_varlen_hidden/bf16",
    "attend_operands/blackwell/nvfp4_heads_causal/bf16",
    "attend_operands/blackwell/nvfp4_p_heads_varlen/bf16",
];

/// Every problem of the Blackwell tier, and whether every run takes it.
pub(crate) fn blackwell() -> Vec<(String, bool)> {
    let of_tier = |problem: &Problem| problem.tier() == TierName::Blackwell;
    let is = |name: &str, always: &str| name == always || name.ends_with(&format!("/{always}"));
    let always = |name: &str| ALWAYS.iter().any(|always| is(name, always));
    let all: Vec<(String, bool)> = problems()
        .into_iter()
        .filter(of_tier)
        .map(|problem| (problem.name.clone(), always(&problem.name)))
        .collect();
    for name in ALWAYS {
        let known = all.iter().any(|(all, _)| is(all, name));
        assert!(known, "the catalogue has no problem {name}");
    }
    all
}

pub(crate) fn blackwell_passes(name: &str) {
    all_pass(Arch::Sm100a, Schedule::Latest, &[name]);
}

/// One problem of the catalogue, launched twice, which must give the same bits.
pub(crate) fn row(gpu: &Simulated, name: &str) -> Row {
    let start = Instant::now();
    let problem = problem(name).unwrap_or_else(|| panic!("no problem {name}"));
    let row = run_one(&gpu.client, &problem, 42);
    let took = start.elapsed();
    println!("{name}: {:?}, {:?}, {took:.1?}", row.outcome, row.blueprint);
    row
}

/// The one GPU of a kind that all tests share: problems share kernels, each of which is then compiled once, and an open
/// GPU keeps a thread that polls.
pub(crate) fn gpu(arch: Arch, schedule: Schedule) -> Simulated {
    static OPEN: Mutex<Vec<(Arch, Schedule, Simulated)>> = Mutex::new(Vec::new());
    // A test that failed while it opened one leaves the list as it was.
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = open.iter().find(|(a, s, _)| (*a, *s) == (arch, schedule));
    if let Some((_, _, gpu)) = found {
        return gpu.clone();
    }
    let options = Options {
        schedule,
        ..Options::new(arch)
    };
    let gpu = Simulated::open(options).unwrap();
    open.push((arch, schedule, gpu.clone()));
    gpu
}

fn all_pass(arch: Arch, schedule: Schedule, names: &[&str]) {
    let gpu = gpu(arch, schedule);
    let failures: Vec<String> = names
        .iter()
        .map(|name| (name, row(&gpu, name).outcome))
        .filter(|(_, outcome)| *outcome != Outcome::Passed)
        .map(|(name, outcome)| format!("{name}: {outcome:?}"))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let (ran, all) = gpu.coverage().instructions;
    println!("{arch} {schedule:?}: {ran} of {all} instructions ran so far");
}

/// One head, once.
fn simulated_in_time() {
    let mut problem = problem(BLACKWELL[0]).unwrap();
    if let Task::Forward(attend) = &mut problem.task {
        *attend = Attend {
            policy: attend.policy,
            ..Attend::plain(1, (1, 1), (256, 256), (128, 128))
        };
    }
    let gpu = Simulated::open(Options::new(Arch::Sm100a)).unwrap();
    // The first run compiles.
    for first in [true, false] {
        let start = Instant::now();
        let row = run_one(&gpu.client, &problem, 42);
        // Two launches and their inputs and reference.
        let took = start.elapsed();
        println!("s 256, d 128, one head: {:?}, {took:?}", row.outcome);
        assert_eq!(row.outcome, Outcome::Passed);
        assert!(first || took.as_secs() < 20, "{took:?}");
    }
}

/// The interpreter's finding reaches the caller of the kernel.
fn planted_fault() {
    let edit: Edit = Box::new(|ptx| {
        let cut = ptx.replace("wgmma.fence.sync.aligned;", "");
        assert_ne!(cut, ptx);
        cut
    });
    let options = Options {
        edit: Some(edit),
        ..Options::new(Arch::Sm90a)
    };
    let gpu = Simulated::open(options).unwrap();
    match row(&gpu, HOPPER[0]).outcome {
        Outcome::Failed(reason) => assert!(reason.contains("MissingWgmmaFence"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

fn buffers_come_and_go() {
    let gpu = gpu(Arch::Sm80, Schedule::Latest);
    let client = &gpu.client;
    let kept = client.create_from_slice(&[7; 40]);
    for size in 1..100usize {
        let bytes: Vec<u8> = (0..size as u8).collect();
        let handle = client.create_from_slice(&bytes);
        assert_eq!(client.read_one(handle).unwrap().to_vec(), bytes);
    }
    let part = kept.clone().offset_start(8).offset_end(30);
    assert_eq!(client.read_one(part).unwrap().to_vec(), [7; 2]);
    assert_eq!(client.read_one(kept).unwrap().to_vec(), [7; 40]);
}

/// A query that is NaN makes its own row NaN, its weights being NaN in E4M3 as in f32, and no other: the other
/// rows of the tile keep their bits.
fn nan_query() {
    const S: usize = 130;
    let gpu = gpu(Arch::Sm100a, Schedule::Latest);
    let client = &gpu.client;
    let attend = |spoilt: bool| -> [Vec<f32>; 2] {
        let tensor = |factor: f32, spoilt: bool| {
            let value = |at: usize| ((at * 7 + at / 64 * 3) % 17) as f32 * factor - 1.0;
            let mut values: Vec<f32> = (0..S * 64).map(value).collect();
            if spoilt {
                values[5 * 64] = f32::NAN;
            }
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            Tensor::contiguous(client.create_from_slice(&bytes), [1, 1, S, 64], DType::F32)
        };
        let mxfp8 = OperandFormat::Mxfp8(ScaleRule::Ceil);
        let (rows, columns) = (OperandOptions::rows(mxfp8), OperandOptions::columns(mxfp8));
        let operand = |x: &Tensor<4>, options| quantize_operand(client, x, options).unwrap();
        let q = operand(&tensor(0.1, spoilt), &rows);
        let k = operand(&tensor(0.12, false), &rows);
        let v = operand(&tensor(0.15, false), &columns);
        let policy = Policy {
            tier: Some(TierName::Blackwell),
            ..Policy::default()
        };
        let options = AttendOptions {
            policy,
            ..AttendOptions::default()
        };
        let attended = attend_operands(client, [&q, &k, &v], DType::BF16, &options).unwrap();
        let read = |handle| client.read_one(handle).unwrap().to_vec();
        // bf16 is the upper half of an f32.
        let out = read(attended.out.handle);
        let lse = read(attended.lse.handle);
        let wide = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
        [
            out.chunks_exact(2).take(S * 64).map(wide).collect(),
            lse.chunks_exact(4)
                .take(S)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
        ]
    };
    let ([out, lse], [sound_out, sound_lse]) = (attend(true), attend(false));
    for row in 0..S {
        let (of, sound) = (&out[row * 64..][..64], &sound_out[row * 64..][..64]);
        assert!(sound.iter().all(|x| x.is_finite()), "row {row}");
        if row == 5 {
            assert!(of.iter().all(|x| x.is_nan()), "{of:?}");
            assert!(lse[row].is_nan(), "{}", lse[row]);
        } else {
            assert_eq!((of, lse[row]), (sound, sound_lse[row]), "row {row}");
        }
    }
}
