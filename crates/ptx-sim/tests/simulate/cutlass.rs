//! A product by pairs of cubes that CUTLASS wrote (tests/fixtures/cutlass_pair.py): tensor boxes to two or four cubes at
//! once that complete on the even cubes' mbarriers, products of 256 rows, commits to all that share operands.

use flashcube_ptx_sim::{
    Arg, BufferId, Format, Kernel, Launch, Memory, Schedule, Swizzle, TensorMap, parse, run,
};

use super::values::{Numbers, bytes, floats};

const SOURCE: &str = include_str!("../fixtures/cutlass_pair.sm_100a.ptx");
/// A cluster of 4 x 2 cubes: two pairs down, two across.
const M: usize = 512;
const N: usize = 128;
const ALPHA: f32 = 0.5;
const BETA: f32 = 2.0;
/// Bytes of A [128 x 64] and B [32 x 64], two mbarriers and the address of tensor memory.
const SHARED: usize = 16_384 + 4_096 + 128;

fn word(value: u32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn words(values: &[usize]) -> Arg {
    Arg::Bytes(values.iter().flat_map(|&v| word(v as u32)).collect())
}

/// The box that one cube brings of a [rows, k] operand.
fn map(buffer: BufferId, rows: usize, k: usize, tile: u32) -> Arg {
    Arg::TensorMap(TensorMap {
        base: (buffer, 0),
        element: 2,
        dims: vec![k as u64, rows as u64],
        strides: vec![2 * k as u64],
        tile: vec![64, tile],
        steps: vec![1, 1],
        swizzle: Swizzle::B128,
        fill_nan: false,
    })
}

/// A row-major f32 matrix with N columns: shape, stride, address.
fn matrix(memory: &Memory, buffer: BufferId) -> Arg {
    let mut raw: Vec<u8> = [M, N, N, 0].iter().flat_map(|&v| word(v as u32)).collect();
    raw.extend(memory.address(buffer, 0).to_le_bytes());
    Arg::Bytes(raw)
}

/// Whether d = ALPHA a b^T + BETA c comes out. The tutorial reads what tcgen05.ld brings without a wait: the register
/// alone orders the two.
fn product(source: &str, k: usize, schedule: Schedule, load_wait: bool) -> Result<bool, String> {
    let mut numbers = Numbers(23);
    let a = numbers.exact(M * k, Format::F16);
    let b = numbers.exact(N * k, Format::F16);
    let c = numbers.exact(M * N, Format::F32);
    let mut memory = Memory::new();
    let [a_id, b_id] = [&a, &b].map(|values| memory.add(&bytes(values, Format::F16)));
    let c_id = memory.add(&bytes(&c, Format::F32));
    let d_id = memory.reserve(M * N * 4);
    // F32 from F16, N at bit 17 in eights, M at bit 24 in sixteens; then whether the first product adds to D.
    let idesc = 1 << 4 | (64 / 8) << 17 | (256 / 16) << 24;
    let args = vec![
        words(&[M, k, 0]),
        words(&[N, k, 0]),
        matrix(&memory, c_id),
        matrix(&memory, d_id),
        Arg::Bytes(vec![0]),
        words(&[idesc, 0]),
        Arg::Bytes(vec![0]),
        map(a_id, M, k, 64),
        map(b_id, N, k, 16),
        Arg::Bytes(ALPHA.to_le_bytes().to_vec()),
        Arg::Bytes(BETA.to_le_bytes().to_vec()),
    ];
    let kernel = parse(source)
        .and_then(|module| Kernel::load(&module, None))
        .map_err(|error| format!("{error:?}"))?;
    let mut launch = Launch::new([4, 2, 1], [128, 1, 1], args);
    launch.cluster = [4, 2, 1];
    launch.dynamic_shared = SHARED;
    launch.schedule = schedule;
    launch.max_instructions = 10_000_000;
    // The tutorial orders its mbarriers by the cluster's barrier alone.
    launch.init_fence = false;
    launch.load_wait = load_wait;
    run(&kernel, &launch, &memory).map_err(|error| format!("{error:?}"))?;
    let got = floats(&memory.contents(d_id), Format::F32);
    Ok((0..M * N).all(|at| {
        let terms = || (0..k).map(|l| a[at / N * k + l] * b[at % N * k + l]);
        let (sum, size): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
        let exact = f64::from(ALPHA) * sum + f64::from(BETA) * c[at];
        let bound = (size + c[at].abs()) * k as f64 * 2f64.powi(-23);
        (got[at] - exact).abs() <= bound
    }))
}

#[test]
fn matmul_of_cutlass_by_pairs() {
    for k in [64, 192, 256] {
        for schedule in [Schedule::Latest, Schedule::Random(1), Schedule::Random(2)] {
            let came = product(SOURCE, k, schedule, false);
            assert_eq!(came, Ok(true), "k {k} {schedule:?}");
        }
    }
}

/// (name, text, its replacement, what finds it).
const FAULTS: &[(&str, &str, &str, &[&str])] = &[
    (
        "copies complete on the mbarrier of the cube that issues them",
        "and.b32  	%r20, %r100, -16777232",
        "mov.b32  	%r20, %r100",
        &["Deadlock"],
    ),
    (
        "copies complete where they arrive",
        "cp.async.bulk.tensor.2d.cta_group::2.",
        "cp.async.bulk.tensor.2d.cta_group::1.",
        &["TensorMap"],
    ),
    (
        "the bytes of one cube expected",
        ", 40960;",
        ", 20480;",
        &["MemoryOwned", "Mbarrier"],
    ),
    ("more bytes expected", ", 40960;", ", 40976;", &["Deadlock"]),
    (
        "no bytes expected",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r100],",
        "mbarrier.arrive.shared::cta.b64 _, [%r100]; //",
        &["MemoryOwned", "Mbarrier"],
    ),
    (
        "A to one pair",
        "mov.b16 	%rs7, 17",
        "mov.b16 	%rs7, 1",
        &["Deadlock"],
    ),
    (
        "B to one pair",
        "mov.b32 	%r85, 5",
        "mov.b32 	%r85, 1",
        &["Deadlock"],
    ),
    (
        "commit to its own pair",
        "mov.b32 	%r90, 51",
        "mov.b32 	%r90, 3",
        &["Deadlock"],
    ),
    (
        "two commits free what three pairs read",
        "mov.b32 	%r94, 3",
        "mov.b32 	%r94, 2",
        &["Mbarrier", "Race", "MemoryOwned"],
    ),
    (
        "no barrier of the cluster",
        "barrier.cluster.arrive.aligned;
	barrier.cluster.wait.aligned;",
        "bar.sync 	0;",
        &["Mbarrier", "Race"],
    ),
    (
        "a lane left out",
        "mov.b32 	%r146, 0",
        "mov.b32 	%r146, 1",
        &["Uninitialised"],
    ),
    (
        "the group of one cube in a commit",
        "tcgen05.commit.cta_group::2",
        "tcgen05.commit.cta_group::1",
        &["Instruction"],
    ),
];

#[test]
fn faults_of_the_pairs_of_cutlass_are_found() {
    for &(name, text, other, kinds) in FAULTS {
        assert!(SOURCE.contains(text), "{name}: `{text}`");
        let changed = SOURCE.replace(text, other);
        let found = match product(&changed, 192, Schedule::Latest, false) {
            Ok(true) => "nothing".to_owned(),
            Ok(false) => "Numbers".to_owned(),
            Err(error) => error,
        };
        assert!(
            kinds.iter().any(|kind| found.contains(kind)),
            "{name}: {found}"
        );
    }
}

#[test]
fn a_load_without_a_wait_is_found() {
    let found = product(SOURCE, 64, Schedule::Latest, true).unwrap_err();
    assert!(found.contains("RegisterOwned"), "{found}");
}
