//! Products of a pair of cubes (`cta_group::2`): a kernel written by hand, and faults planted in it.

use flashcube_ptx_sim::{Arg, Format, Kernel, Launch, Memory, Schedule, parse, run};

use super::values::{Numbers, bytes, floats};

const SOURCE: &str = include_str!("../fixtures/pair_product.sm_100a.ptx");
const M: usize = 256;
const N: usize = 64;
const K: usize = 32;

/// Rows of d [M, N] = a [M, K] b [N, K]^T that a pair of cubes computes, and those of the exact result.
fn product(source: &str, schedule: Schedule) -> Result<(Vec<f64>, Vec<f64>), String> {
    let mut numbers = Numbers(17);
    let a = numbers.exact(M * K, Format::Bf16);
    let b = numbers.exact(N * K, Format::Bf16);
    let mut memory = Memory::new();
    let [a_id, b_id] = [&a, &b].map(|values| memory.add(&bytes(values, Format::Bf16)));
    let d = memory.reserve(M * N * 4);
    let args = [a_id, b_id, d].map(|id| Arg::Buffer(id, 0)).to_vec();
    let kernel = parse(source)
        .and_then(|module| Kernel::load(&module, None))
        .map_err(|error| format!("{error:?}"))?;
    let mut launch = Launch::new([2, 1, 1], [128, 1, 1], args);
    launch.cluster = [2, 1, 1];
    launch.schedule = schedule;
    launch.max_instructions = 1_000_000;
    run(&kernel, &launch, &memory).map_err(|error| format!("{error:?}"))?;
    let exact = (0..M * N)
        .map(|at| (0..K).map(|k| a[at / N * K + k] * b[at % N * K + k]).sum())
        .collect();
    Ok((floats(&memory.contents(d), Format::F32), exact))
}

fn agree(got: &[f64], exact: &[f64]) -> bool {
    got.iter()
        .zip(exact)
        .all(|(got, exact)| (got - exact).abs() <= K as f64 * 2f64.powi(-22))
}

#[test]
fn a_pair_multiplies_what_both_cubes_hold() {
    for schedule in [Schedule::Latest, Schedule::Random(1), Schedule::Random(2)] {
        let (got, exact) = product(SOURCE, schedule).unwrap();
        assert!(agree(&got, &exact), "{schedule:?}");
    }
}

/// (name, text, its replacement, what finds it).
const FAULTS: &[(&str, &str, &str, &[&str])] = &[
    (
        "commit without multicast",
        ".shared::cluster.multicast::cluster.b64 [%r4], %h1",
        ".shared::cluster.b64 [%r4]",
        &["Deadlock"],
    ),
    (
        "commit to the odd cube alone",
        "mov.u16 %h1, 3",
        "mov.u16 %h1, 2",
        &["Deadlock"],
    ),
    (
        "commit to cubes that do not exist",
        "mov.u16 %h1, 3",
        "mov.u16 %h1, 7",
        &["TensorMemory"],
    ),
    (
        "both cubes load the same half of B",
        "shl.b32 %r6, %r2, 5",
        "shl.b32 %r6, %r2, 31",
        &["Numbers", "OutOfBounds"],
    ),
    (
        "no barrier of the cluster before the product",
        "\tbarrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;",
        "\tbar.sync 0;",
        &["Race", "Uninitialised", "TensorMemory", "Mbarrier"],
    ),
    (
        "no proxy fence",
        "\tfence.proxy.async.shared::cta;",
        "",
        &["MissingProxyFence"],
    ),
    (
        "one cube keeps its columns",
        "\t@%p1 bra END;",
        "\tsetp.ne.u32 %p7, %r2, 0;\n\tor.pred %p1, %p1, %p7;\n\t@%p1 bra END;",
        &["Leak"],
    ),
    (
        "another group in the same kernel",
        "tcgen05.dealloc.cta_group::2",
        "tcgen05.dealloc.cta_group::1",
        &["Instruction"],
    ),
    (
        "columns of the odd cube read without a wait",
        "WAIT:\n\tmbarrier.try_wait.parity.shared.b64 %p6, [%r4], 0;\n\t@!%p6 bra WAIT;",
        "WAIT:",
        &["MemoryOwned", "Race", "Uninitialised"],
    ),
    (
        "the odd cube exits without waiting",
        "WAIT:\n",
        "WAIT:\n\tsetp.ne.u32 %p7, %r2, 0;\n\t@%p7 bra END;\n",
        &["TensorMemory"],
    ),
    (
        "the wrong columns of N",
        "269485200",
        "268960912",
        &["Numbers", "Uninitialised"],
    ),
];

#[test]
fn faults_of_a_pair_are_found() {
    for &(name, text, other, kinds) in FAULTS {
        assert!(SOURCE.contains(text), "{name}: `{text}`");
        let found = match product(&SOURCE.replace(text, other), Schedule::Latest) {
            Ok((got, exact)) if agree(&got, &exact) => "nothing".to_owned(),
            Ok(_) => "Numbers".to_owned(),
            Err(error) => error,
        };
        assert!(
            kinds.iter().any(|kind| found.contains(kind)),
            "{name}: {found}"
        );
    }
}

#[test]
fn a_pair_wants_a_cluster_of_two() {
    let alone = SOURCE.replace(".reqnctapercluster 2\n", "");
    let kernel = Kernel::load(&parse(&alone).unwrap(), None).unwrap();
    let mut memory = Memory::new();
    let buffer = memory.reserve(M * N * 4);
    let args = vec![Arg::Buffer(buffer, 0); 3];
    let launch = Launch::new([1, 1, 1], [128, 1, 1], args);
    let error = run(&kernel, &launch, &memory).unwrap_err().to_string();
    assert!(error.contains("it has no peer"), "{error}");
}
