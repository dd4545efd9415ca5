//! Problems of the catalogue on simulated GPUs.

use std::time::Instant;

use flashcube_catalogue::{Outcome, Row, problem, run_one};
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
    ("planted_fault_is_an_error_of_the_launch", planted_fault),
    ("buffers_come_and_go", buffers_come_and_go),
];

const PLANE: [&str; 3] = [
    "attend_forward/plane/q193xkv130/bf16",
    "attend_forward/plane/q66xkv0/bf16",
    "attend_forward/plane/causal_bottom_right_q129xkv300/f16",
];
const HOPPER: [&str; 3] = [
    "attend_forward/hopper/q193xkv130/bf16",
    "attend_forward/hopper/q66xkv0/bf16",
    "attend_forward/hopper/causal_bottom_right_q129xkv300/f16",
];

/// One problem of the catalogue, launched twice, which must give the same bits.
pub(crate) fn row(gpu: &Simulated, name: &str) -> Row {
    let start = Instant::now();
    let problem = problem(name).unwrap_or_else(|| panic!("no problem {name}"));
    let row = run_one(&gpu.client, &problem, 42);
    let took = start.elapsed();
    println!("{name}: {:?}, {:?}, {took:.1?}", row.outcome, row.blueprint);
    row
}

fn all_pass(arch: Arch, schedule: Schedule, names: &[&str]) {
    let options = Options {
        schedule,
        ..Options::new(arch)
    };
    let gpu = Simulated::open(options).unwrap();
    let failures: Vec<String> = names
        .iter()
        .map(|name| (name, row(&gpu, name).outcome))
        .filter(|(_, outcome)| *outcome != Outcome::Passed)
        .map(|(name, outcome)| format!("{name}: {outcome:?}"))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    println!("{arch} {schedule:?}\n{}", gpu.coverage());
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
    let gpu = Simulated::open(Options::new(Arch::Sm80)).unwrap();
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
