//! Products of a pair of cubes (`cta_group::2`): kernels written by hand, and faults planted in them.

use flashcube_ptx_sim::{
    Arg, BufferId, Format, Kernel, Launch, Memory, Schedule, Swizzle, TensorMap, parse, run,
};

use super::values::{Numbers, bytes, floats};

const SOURCE: &str = include_str!("../fixtures/pair_product.sm_100a.ptx");
/// A lies in tensor memory, B comes by tensor map, and both cubes arrive on the even one's mbarriers.
const TENSOR: &str = include_str!("../fixtures/pair_tensor.sm_100a.ptx");
/// Block-scaled products.
const SCALED: &str = include_str!("../fixtures/pair_scaled.sm_100a.ptx");
const M: usize = 256;
const N: usize = 64;
const K: usize = 32;

/// Rows of d [M, N] = a [M, K] b [N, K]^T that a pair of cubes computes, and those of the exact result.
fn product(source: &str, schedule: Schedule) -> Result<(Vec<f64>, Vec<f64>), String> {
    product_of(source, |b| Arg::Buffer(b, 0), schedule)
}

/// The same, the argument of b made by `pass`.
fn product_of(
    source: &str,
    pass: fn(BufferId) -> Arg,
    schedule: Schedule,
) -> Result<(Vec<f64>, Vec<f64>), String> {
    let mut numbers = Numbers(17);
    let a = numbers.exact(M * K, Format::Bf16);
    let b = numbers.exact(N * K, Format::Bf16);
    let mut memory = Memory::new();
    let [a_id, b_id] = [&a, &b].map(|values| memory.add(&bytes(values, Format::Bf16)));
    let d = memory.reserve(M * N * 4);
    let args = vec![Arg::Buffer(a_id, 0), pass(b_id), Arg::Buffer(d, 0)];
    launch(source, args, schedule, &memory)?;
    let exact = (0..M * N)
        .map(|at| (0..K).map(|k| a[at / N * K + k] * b[at % N * K + k]).sum())
        .collect();
    Ok((floats(&memory.contents(d), Format::F32), exact))
}

fn launch(source: &str, args: Vec<Arg>, schedule: Schedule, memory: &Memory) -> Result<(), String> {
    let kernel = parse(source)
        .and_then(|module| Kernel::load(&module, None))
        .map_err(|error| format!("{error:?}"))?;
    let mut launch = Launch::new([2, 1, 1], [128, 1, 1], args);
    launch.cluster = [2, 1, 1];
    launch.schedule = schedule;
    launch.max_instructions = 1_000_000;
    run(&kernel, &launch, memory)
        .map(|_| ())
        .map_err(|error| format!("{error:?}"))
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
type Planted = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

const FAULTS: &[Planted] = &[
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

/// The same text with 64 rows a cube: those of A at 64 to 127 are left out, and a lane holds 32 columns, the second half
/// of them in lanes 64 to 127.
fn of_64_rows() -> String {
    let words = |n: usize| {
        (0..n)
            .map(|i| format!("%f{i}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let kept = |line: &&str| {
        let register = line.rsplit("%f").next().unwrap_or_default();
        let number = register.trim_end_matches(';').parse::<usize>();
        !(line.contains("st.global.b32") && number.is_ok_and(|number| number >= 32))
    };
    let lines: Vec<&str> = SOURCE.lines().filter(kept).collect();
    lines
        .join("\n")
        .replace(&words(64), &words(32))
        .replace("32x32b.x64", "32x32b.x32")
        .replace("mov.u32 %r16, 269485200", "mov.u32 %r16, 135267472")
}

fn agrees_of_64_rows(got: &[f64], exact: &[f64]) -> bool {
    let half = N / 2;
    (0..M * half).all(|at| {
        let (row, column) = (at / half, at % half);
        let (cube, lane) = (row / 128, row % 128);
        let wanted = exact[(cube * 128 + lane % 64) * N + lane / 64 * half + column];
        (got[row * N + column] - wanted).abs() <= K as f64 * 2f64.powi(-22)
    })
}

#[test]
fn a_pair_with_64_rows_a_cube_folds_the_columns() {
    for schedule in [Schedule::Latest, Schedule::Random(1), Schedule::Random(2)] {
        let (got, exact) = product(&of_64_rows(), schedule).unwrap();
        assert!(agrees_of_64_rows(&got, &exact), "{schedule:?}");
    }
}

#[test]
fn a_pair_steps_n_by_16() {
    // N 48 and N 40, of the 64 columns that are read.
    let narrow =
        |n: u32| SOURCE.replace("269485200", &(269_485_200 - ((64 - n) << 14)).to_string());
    let error = product(&narrow(40), Schedule::Latest).unwrap_err();
    assert!(error.contains("Descriptor"), "{error}");
    let error = product(&narrow(48), Schedule::Latest).unwrap_err();
    assert!(error.contains("Uninitialised"), "{error}");
}

/// As [`product`] for 64 of K in E4M3, scaled in both operands; whether the result is right.
fn scaled(source: &str, schedule: Schedule) -> Result<bool, String> {
    let k = 2 * K;
    let factor = |row: usize, [p, q]: [usize; 2], [least, other]: [i32; 2], half: usize| {
        let power = [(row % p) as i32 + least, (row % q) as i32 + other][half];
        2f64.powi(power)
    };
    let mut numbers = Numbers(19);
    let a = numbers.exact(M * k, Format::E4m3);
    let b = numbers.exact(N * k, Format::E4m3);
    let mut memory = Memory::new();
    let [a_id, b_id] = [&a, &b].map(|values| memory.add(&bytes(values, Format::E4m3)));
    let d = memory.reserve(M * N * 4);
    let args = [a_id, b_id, d].map(|id| Arg::Buffer(id, 0)).to_vec();
    launch(source, args, schedule, &memory)?;
    let got = floats(&memory.contents(d), Format::F32);
    Ok((0..M * N).all(|at| {
        let (row, column) = (at / N, at % N);
        let terms = || {
            (0..k).map(|l| {
                let of_a = factor(row, [7, 5], [-7, -7], l / 32);
                let of_b = factor(column, [3, 4], [-6, -8], l / 32);
                a[row * k + l] * of_a * b[column * k + l] * of_b
            })
        };
        let (exact, size): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
        (got[at] - exact).abs() <= size * k as f64 * 2f64.powi(-23)
    }))
}

#[test]
fn a_pair_scales_by_the_factors_of_each_cube() {
    for schedule in [Schedule::Latest, Schedule::Random(1), Schedule::Random(2)] {
        assert_eq!(scaled(SCALED, schedule), Ok(true), "{schedule:?}");
    }
    // Factors of the other rows of A, none for the second half of N, the same ones for both halves of K.
    for (text, other) in [
        ("shl.b32 %t1, %r2, 7", "shl.b32 %t1, %r2, 6"),
        ("x2.b32 [%t6], {%s4, %s5}", "x2.b32 [%t6], {%s4, %s4}"),
        ("mov.u32 %r19, 814743568", "mov.u32 %r19, %r16"),
    ] {
        assert!(SCALED.contains(text), "{text}");
        let came = scaled(&SCALED.replace(text, other), Schedule::Latest);
        assert_eq!(came, Ok(false), "{text}");
    }
}

#[test]
fn faults_of_a_pair_are_found() {
    found(SOURCE, FAULTS, |source| product(source, Schedule::Latest));
}

type Outcome = Result<(Vec<f64>, Vec<f64>), String>;

fn found(source: &str, faults: &[Planted], run: fn(&str) -> Outcome) {
    for &(name, text, other, kinds) in faults {
        assert!(source.contains(text), "{name}: `{text}`");
        let found = match run(&source.replace(text, other)) {
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

/// Half of the rows of b a cube, 64 bytes each.
fn half_of_b(b: BufferId) -> Arg {
    Arg::TensorMap(TensorMap {
        base: (b, 0),
        element: 2,
        dims: vec![K as u64, N as u64],
        strides: vec![2 * K as u64],
        tile: vec![K as u32, N as u32 / 2],
        steps: vec![1, 1],
        swizzle: Swizzle::B64,
        fill_nan: false,
    })
}

#[test]
fn a_pair_multiplies_what_lies_in_tensor_memory() {
    for schedule in [Schedule::Latest, Schedule::Random(1), Schedule::Random(2)] {
        let (got, exact) = product_of(TENSOR, half_of_b, schedule).unwrap();
        assert!(agree(&got, &exact), "{schedule:?}");
    }
}

const TENSOR_FAULTS: &[Planted] = &[
    (
        "an arrival without its bytes",
        "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r8], %r11;",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];",
        &["Mbarrier", "MemoryOwned"],
    ),
    (
        "bytes expected in the odd cube",
        "mapa.shared::cluster.u32 %r8, %r4, 0;",
        "mapa.shared::cluster.u32 %r8, %r4, 1;",
        &["Mbarrier", "Deadlock"],
    ),
    (
        "arrivals in the odd cube",
        "mapa.shared::cluster.u32 %r9, %r5, 0;",
        "mapa.shared::cluster.u32 %r9, %r5, 1;",
        &["Deadlock"],
    ),
    (
        "a cube that the cluster lacks",
        "mapa.shared::cluster.u32 %r9, %r5, 0;",
        "mapa.shared::cluster.u32 %r9, %r5, 2;",
        &["OutOfBounds"],
    ),
    (
        "every cube arrives in its own",
        "mapa.shared::cluster.u32 %r9, %r5, 0;",
        "mov.u32 %r9, %r5;",
        &["Deadlock"],
    ),
    (
        "copies complete in the cube that issues them",
        "and.b32 %r12, %r4, 0xfeffffff;",
        "mov.u32 %r12, %r4;",
        &["Mbarrier", "Deadlock"],
    ),
    (
        "the other cube's mbarrier without the group",
        "complete_tx::bytes.cta_group::2",
        "complete_tx::bytes",
        &["TensorMap"],
    ),
    (
        "no wait for the copies",
        "FULL:
	mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p6, [%r4], 0;
	@!%p6 bra FULL;",
        "FULL:",
        &["MemoryOwned", "Race"],
    ),
    (
        "no wait for the other cube's stores",
        "STORED:
	mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p6, [%r5], 0;
	@!%p6 bra STORED;",
        "STORED:",
        &["MemoryOwned", "Race", "Uninitialised"],
    ),
    (
        "an arrival before the stores are over",
        "	tcgen05.wait::st.sync.aligned;
",
        "",
        &["MemoryOwned", "Race", "Leak"],
    ),
    (
        "a wait in another cube",
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p6, [%r6], 0;",
        "mapa.shared::cluster.u32 %r25, %r6, 0;
	mbarrier.try_wait.parity.acquire.cluster.shared::cluster.b64 %p6, [%r25], 0;",
        &["Mbarrier"],
    ),
    (
        "a state of an arrival elsewhere",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9];",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 %rd9, [%r9];",
        &["Instruction"],
    ),
    (
        "the same columns of A twice",
        "add.u32 %r23, %r10, 72;",
        "add.u32 %r23, %r10, 64;",
        &["Numbers"],
    ),
    (
        "both cubes copy the same half of B",
        "shl.b32 %r13, %r2, 5;",
        "mov.u32 %r13, 0;",
        &["Numbers"],
    ),
    (
        "an accumulator that overlaps A",
        "add.u32 %r17, %r16, 64;",
        "add.u32 %r17, %r16, 32;",
        &["Numbers", "Uninitialised"],
    ),
];

#[test]
fn faults_of_a_pair_with_tensor_memory_are_found() {
    found(TENSOR, TENSOR_FAULTS, |source| {
        product_of(source, half_of_b, Schedule::Latest)
    });
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
