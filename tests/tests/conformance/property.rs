//! Random problems on the CPU JIT against the reference. Few blueprints (head dimensions, loads of
//! 4 or 1, a dozen sets of hooks), many shapes.

use std::sync::OnceLock;

use cubecl::prelude::Client;
use flashcube::attention::MaskWidth;
use flashcube::{Alignment, Backend, DType, PackFormat};
use flashcube_catalogue::{
    Attend, HadamardSizes, Memory, MergeSizes, Outcome, PackedSizes, Problem, Task, Values, run_one,
};
use proptest::prelude::*;
use proptest::test_runner::Config;

/// One client for all cases, so that each blueprint compiles once.
fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| Backend::Cpu.open().expect("the CPU backend"))
}

fn conforms(task: Task, values: Values, memory: Memory, dtype: DType, seed: u64) {
    let problem = Problem {
        name: "property".into(),
        feature: "property",
        task,
        dtype,
        values,
        memory,
        core: false,
    };
    let row = run_one(client(), &problem, seed);
    assert_eq!(
        row.outcome,
        Outcome::Passed,
        "{problem:#?} ran {:?}",
        row.blueprint
    );
}

/// Layouts that leave loads of 4 possible, and one that does not.
fn memory() -> impl Strategy<Value = Memory> {
    prop_oneof![
        Just(Memory::Dense),
        Just(Memory::Poisoned),
        Just(Memory::HeadsInside),
        (0usize..5).prop_map(|n| Memory::Offset(4 * n)),
        (1usize..5).prop_map(|n| Memory::PaddedRows(4 * n)),
        (1usize..9).prop_map(Memory::PaddedRows),
        (1usize..9).prop_map(Memory::Offset),
    ]
}

fn values() -> impl Strategy<Value = Values> {
    prop_oneof![
        3 => Just(Values::Normal),
        1 => Just(Values::Outliers),
        1 => Just(Values::IndexV),
        1 => Just(Values::HiddenNan),
    ]
}

/// Sizes, zero included, and one of eight sets of hooks.
fn attend() -> impl Strategy<Value = Attend> {
    let sizes = (0usize..4, 1usize..4, 1usize..3, 0usize..70, 0usize..70);
    let numbers = (any::<bool>(), 0usize..80, 0usize..80, any::<u64>());
    (sizes, 0u8..8, numbers).prop_map(|(sizes, hooks, numbers)| {
        let (b, group, h_kv, s_q, s_kv) = sizes;
        let (top_left, left, right, bits) = numbers;
        let mut a = Attend::plain(b, (group * h_kv, h_kv), (s_q, s_kv), (8, 8));
        if top_left {
            a.alignment = Alignment::TopLeft;
        }
        // One bit each: which axes of a mask or bias are broadcast.
        let full = [b, group * h_kv, s_q, s_kv];
        let shape = std::array::from_fn(|axis| if bits >> axis & 1 == 1 { 1 } else { full[axis] });
        let length = |shift: u64, limit: usize| (bits >> shift) as usize % (limit + 1);
        let lengths = |limit| (0..b).map(|i| length(8 + 7 * i as u64, limit)).collect();
        match hooks {
            0 => {}
            1 => a.causal = true,
            2 => (a.window_left, a.window_right) = (Some(left), Some(right)),
            3 => {
                a.causal = true;
                a.lengths_q = Some(lengths(s_q));
                a.lengths_kv = Some(lengths(s_kv));
            }
            4 => (a.documents, a.scattered) = (Some(1 + (left % 5) as u32), top_left),
            5 => a.mask = Some((MaskWidth::U8, shape)),
            6 => a.bias = Some(shape),
            _ => (a.alibi, a.causal, a.softcap) = (true, true, Some(3.0)),
        }
        a
    })
}

/// Packed sequences, empty ones included, and rows of none, with every hook that they take.
fn packed() -> impl Strategy<Value = Attend> {
    let lengths = prop::collection::vec((0usize..40, 0usize..40), 0..5);
    let spare = (0usize..3, 0usize..3);
    let heads = (1usize..4, 1usize..3);
    let band = (0u8..4, any::<bool>(), 0usize..40, 0usize..40);
    (lengths, spare, heads, band).prop_map(|(lengths, spare, (group, h_kv), band)| {
        let mut a = Attend::packed(&lengths, spare, (group * h_kv, h_kv), (8, 8));
        let (hooks, top_left, left, right) = band;
        if top_left {
            a.alignment = Alignment::TopLeft;
        }
        match hooks {
            0 => {}
            1 => a.causal = true,
            2 => (a.window_left, a.window_right) = (Some(left), Some(right)),
            _ => (a.alibi, a.causal, a.softcap) = (true, true, Some(3.0)),
        }
        a
    })
}

proptest! {
    #![proptest_config(Config { cases: 64, failure_persistence: None, ..Config::default() })]

    #[test]
    fn packed_sequences_conform(
        a in packed(),
        v in values(),
        m in memory(),
        seed in any::<u64>(),
    ) {
        conforms(Task::Forward(a), v, m, DType::F32, seed);
    }
}

proptest! {
    #![proptest_config(Config { cases: 64, failure_persistence: None, ..Config::default() })]

    #[test]
    fn forward_conforms(a in attend(), v in values(), m in memory(), seed in any::<u64>()) {
        conforms(Task::Forward(a), v, m, DType::F32, seed);
    }
}

proptest! {
    #![proptest_config(Config { cases: 32, failure_persistence: None, ..Config::default() })]

    #[test]
    fn backward_conforms(a in attend(), v in values(), m in memory(), seed in any::<u64>()) {
        conforms(Task::Backward(a), v, m, DType::F32, seed);
    }

    #[test]
    fn merge_conforms(
        (n, b, h, s) in (0usize..9, 0usize..3, 0usize..4, 0usize..20),
        (d_v, empty) in (0usize..3, 0usize..4),
        m in memory(),
        seed in any::<u64>(),
    ) {
        let sizes = MergeSizes { n, b, h, s, d_v: [0, 7, 16][d_v], empty };
        conforms(Task::Merge(sizes), Values::HiddenNan, m, DType::F32, seed);
    }

    #[test]
    fn dequantize_conforms(
        format in 0usize..4,
        (k, n, group) in (0usize..30, 0usize..12, 0usize..3),
        act_order in any::<bool>(),
        m in memory(),
        seed in any::<u64>(),
    ) {
        let formats = [
            PackFormat::GptqV1,
            PackFormat::GptqV2,
            PackFormat::AwqGemm,
            PackFormat::AwqGemv,
        ];
        let format = formats[format];
        let gptq = format == PackFormat::GptqV1 || format == PackFormat::GptqV2;
        // AWQ packs whole words.
        let unit = if gptq { 1 } else { 8 };
        let sizes = PackedSizes {
            format,
            bits: 4,
            k: k * if gptq { 3 } else { 8 },
            n: n * unit + if gptq { 1 } else { 0 },
            group: [32, 64, 128][group],
            act_order: act_order && gptq && k > 0,
        };
        conforms(Task::Dequantize(sizes), Values::Normal, m, DType::F16, seed);
    }

    #[test]
    fn hadamard_conforms(
        (rows, n) in (0usize..20, 0u32..7),
        (signs, inverse) in (any::<bool>(), any::<bool>()),
        m in memory(),
        seed in any::<u64>(),
    ) {
        let sizes = HadamardSizes { rows, n: 1 << n, signs, inverse };
        conforms(Task::Hadamard(sizes), Values::Normal, m, DType::F32, seed);
    }
}
