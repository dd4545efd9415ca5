//! Faults planted in the text of kernels that pass without them: each must be found.

use flashcube_catalogue::Outcome;
use flashcube_lowering::Arch;
use flashcube_simulated::{Options, Simulated};

use crate::Named;
use crate::conformance::row;

mod pairs;

pub(crate) const TESTS: &[Named] = &[
    ("faults_of_the_blackwell_kernel_are_found", || {
        all_found(Arch::Sm100a, PROBLEM, "tcgen05.mma", plants());
    }),
    ("faults_of_pairs_of_cubes_are_found", || {
        all_found(
            Arch::Sm100a,
            pairs::PROBLEM,
            "cta_group::2",
            pairs::plants(),
        );
    }),
    ("faults_of_block_scaled_products_are_found", || {
        all_found(
            Arch::Sm100a,
            BLOCK_SCALED,
            "tcgen05.mma",
            block_scaled_plants(),
        );
    }),
    ("faults_of_weights_in_four_bits_are_found", || {
        all_found(Arch::Sm100a, FOUR_BITS, "tcgen05.mma", four_bit_plants());
    }),
    ("faults_of_block_scaled_planes_are_found", || {
        all_found(
            Arch::Sm120a,
            SCALED_PLANE,
            "block_scale",
            scaled_plane_plants(),
        );
    }),
    ("faults_of_parts_that_meet_are_found", || {
        all_found(Arch::Sm80, PARTS, "atom", meeting_plants());
    }),
];

/// One and two query stages, up to three blocks, and values past a length, which are zeroed.
const PROBLEM: &str = "attend_forward/blackwell/lengths_both/bf16";

/// The same of operands in NVFP4 and MXFP8.
const BLOCK_SCALED: &str = "attend_operands/blackwell/nvfp4_d64/bf16";

/// The same in NVFP4 throughout.
const FOUR_BITS: &str = "attend_operands/blackwell/nvfp4_p_d64/bf16";

/// Scores in NVFP4, weights and values in MXFP8, by mma.sync.
const SCALED_PLANE: &str = "attend_operands/plane/mxfp8_lengths/bf16";

/// 32 parts of a tile, four a cube, which eight cubes merge.
const PARTS: &str = "attend_decode/plane/n32_q1xkv700/bf16";

/// A change to one line of the text.
type Change = Box<dyn Fn(&str) -> String + Send>;

/// Occurrences (counted from 0) of a needle whose lines change.
struct Plant {
    name: &'static str,
    needle: &'static str,
    which: fn(usize) -> bool,
    change: Change,
    /// What may be found: the fault's name, or `out` where numbers are wrong.
    wanted: &'static [&'static str],
}

fn every(_: usize) -> bool {
    true
}

fn first(nth: usize) -> bool {
    nth == 0
}

fn dropped() -> Change {
    Box::new(|_| String::new())
}

fn with(from: &'static str, to: &'static str) -> Change {
    Box::new(move |line| line.replace(from, to))
}

/// A wait that is over at once.
fn no_wait() -> Change {
    Box::new(|line| {
        let done = line.split_whitespace().nth(1).unwrap_or_default();
        format!("setp.eq.u32 {} 0, 0;", done)
    })
}

impl Plant {
    fn edit(&self, text: &str) -> String {
        let (mut seen, mut changed) = (0, 0);
        let mut edited = String::new();
        for line in text.lines() {
            let found = line.contains(self.needle);
            if found && (self.which)(seen) {
                let other = (self.change)(line);
                changed += usize::from(other != line);
                edited += &other;
            } else {
                edited += line;
            }
            seen += usize::from(found);
            edited.push('\n');
        }
        assert!(
            changed > 0,
            "{}: none of {seen} lines with `{}` changes",
            self.name,
            self.needle
        );
        edited
    }
}

fn plant(
    name: &'static str,
    needle: &'static str,
    which: fn(usize) -> bool,
    change: Change,
    wanted: &'static [&'static str],
) -> Plant {
    Plant {
        name,
        needle,
        which,
        change,
        wanted,
    }
}

/// Two query stages of d 64, blocks of 128 keys.
fn block_scaled_plants() -> Vec<Plant> {
    vec![
        plant(
            "copies of scale factors",
            "tcgen05.cp",
            every,
            dropped(),
            &["Uninitialised"],
        ),
        plant(
            "scale factors of 32 keys for those of the next 32",
            "add.u32 id1",
            every,
            with("143654928", "143654912"),
            &["Numbers"],
        ),
        plant(
            "scale factors of scores read as powers of two",
            "add.u32 id0",
            every,
            with("136316032", "144704640"),
            &["Numbers"],
        ),
        plant(
            "weights scaled by 2",
            "2139062143",
            every,
            with("2139062143", "2139062144"),
            &["Numbers"],
        ),
        plant(
            "scale factors of keys not counted",
            ", 16896;",
            every,
            with(", 16896;", ", 16384;"),
            &["MemoryOwned", "Mbarrier"],
        ),
    ]
}

/// Two steps of 32 values share a word of scale factors.
fn scaled_plane_plants() -> Vec<Plant> {
    vec![
        plant(
            "scale factors of 32 values for those of the next",
            "one, {0, 0}",
            every,
            with("{1, 0};", "{0, 0};"),
            &["Numbers"],
        ),
        plant(
            "halves of a step of values swapped",
            "one, {0, 0}",
            every,
            with("{b0, b1}", "{b1, b0}"),
            &["Numbers"],
        ),
        plant(
            "scale factors of other keys",
            "scale1, [",
            every,
            with("+32]", "+0]"),
            &["Numbers"],
        ),
        plant(
            "scale factors of queries 32 rows on",
            "q_scale0, [",
            every,
            with("+0]", "+4]"),
            &["Numbers"],
        ),
        plant(
            "waits for copies",
            "cp.async.wait_group",
            every,
            dropped(),
            &["MemoryOwned", "Race", "Uninitialised"],
        ),
    ]
}

/// A cube's barriers: before its parts are merged, before it counts itself, before it looks whether it was the last.
fn meeting_plants() -> Vec<Plant> {
    vec![
        plant(
            "barrier before a cube's parts are merged",
            "bar.sync",
            first,
            dropped(),
            &["Race", "Uninitialised"],
        ),
        plant(
            "barrier before the flag is read",
            "bar.sync",
            |nth| nth == 2,
            dropped(),
            &["Race", "Uninitialised"],
        ),
        plant(
            "counter left for the next launch",
            "atom.global.exch",
            every,
            dropped(),
            &["Numbers"],
        ),
    ]
}

/// Weights as codes with scale factors of their own, which go through shared memory.
fn four_bit_plants() -> Vec<Plant> {
    vec![
        plant(
            "fence after scale factors of weights",
            "fence.proxy.async",
            |nth| nth > 0,
            dropped(),
            &["MissingProxyFence"],
        ),
        plant(
            "scale factors of weights",
            "st.shared.b32",
            every,
            dropped(),
            &["Uninitialised"],
        ),
        plant(
            "scale factors of 64 weights for those of the next",
            " + 8], b1, id1",
            every,
            with("+ 4], [", "+ 0], ["),
            &["Numbers"],
        ),
        plant(
            "codes of four weights for those of the next",
            "halves0, halves1, 0x5410",
            every,
            with("0x5410", "0x1054"),
            &["Numbers"],
        ),
    ]
}

fn plants() -> Vec<Plant> {
    vec![
        plant(
            "deallocation",
            "tcgen05.dealloc",
            every,
            dropped(),
            &["Leak"],
        ),
        plant(
            "too few columns allocated",
            "tcgen05.alloc",
            every,
            with(", 512;", ", 256;"),
            &["TensorMemory"],
        ),
        plant(
            "wait for scores' loads",
            "tcgen05.wait::ld",
            first,
            dropped(),
            &["RegisterOwned"],
        ),
        plant(
            "waits for weights' stores",
            "tcgen05.wait::st",
            |nth| nth < 2,
            dropped(),
            &["MemoryOwned"],
        ),
        plant("commits", "tcgen05.commit", every, dropped(), &["Deadlock"]),
        plant(
            "fence after rows were zeroed",
            "fence.proxy.async",
            |nth| nth > 0,
            dropped(),
            &["MissingProxyFence"],
        ),
        plant(
            "barrier after the start",
            "bar.sync",
            first,
            dropped(),
            &["Race", "Mbarrier", "Uninitialised"],
        ),
        plant(
            "warp barriers before arrivals",
            "bar.warp.sync",
            every,
            dropped(),
            &["Race"],
        ),
        plant(
            "fences after barriers were made",
            "fence.",
            |nth| nth < 2,
            dropped(),
            &["Mbarrier"],
        ),
        plant(
            "arrivals of warps",
            "mbarrier.arrive.shared",
            every,
            dropped(),
            &["Deadlock"],
        ),
        plant(
            "wait for scores",
            "try_wait",
            |nth| nth < 2,
            no_wait(),
            &["MemoryOwned", "Race", "Uninitialised"],
        ),
        plant(
            "wait for factors",
            "try_wait",
            |nth| nth == 2,
            no_wait(),
            &["Race", "Uninitialised", "MemoryOwned"],
        ),
        plant(
            "wait for finished rows",
            "try_wait",
            |nth| nth == 3,
            no_wait(),
            &["Race", "Uninitialised"],
        ),
        plant(
            "wait for outputs",
            "try_wait",
            |nth| nth == 4,
            no_wait(),
            &["MemoryOwned", "Race", "Uninitialised"],
        ),
        plant(
            "wait for queries",
            "try_wait",
            |nth| nth == 5,
            no_wait(),
            &["MemoryOwned", "Race", "Uninitialised"],
        ),
        plant(
            "waits of products and loads",
            "try_wait",
            |nth| nth > 5,
            no_wait(),
            &["MemoryOwned", "Race", "Uninitialised", "Mbarrier"],
        ),
        plant(
            "too few bytes of queries",
            "mov.b32",
            every,
            with("32768", "16384"),
            &["Mbarrier"],
        ),
        plant(
            "too many bytes of queries",
            "mov.b32",
            every,
            with("32768", "65536"),
            &["Deadlock"],
        ),
        plant(
            "half the keys in scores",
            "mov.b32 id",
            every,
            with("136316048", "135267472"),
            &["Uninitialised"],
        ),
        plant(
            "values read as K-major",
            "mov.b32 id",
            every,
            with("135333008", "135267472"),
            &["Numbers", "Uninitialised", "Race"],
        ),
        plant(
            "a product that does not add",
            " + 8], v1, id, yes;",
            every,
            with("yes;", "first;"),
            &["Numbers"],
        ),
        plant(
            "weights a step too far",
            " + 8], v1",
            every,
            with(" + 8]", " + 16]"),
            &["Numbers"],
        ),
    ]
}

/// Plants them in the kernels whose text contains `mark`; the others of a problem are left alone.
fn all_found(arch: Arch, problem: &str, mark: &'static str, plants: Vec<Plant>) {
    let mut missed = Vec::new();
    for plant in plants {
        let Plant { name, wanted, .. } = plant;
        let options = Options {
            max_instructions: 20_000_000,
            edit: Some(Box::new(move |text| match text.contains(mark) {
                true => plant.edit(text),
                false => text.to_owned(),
            })),
            ..Options::new(arch)
        };
        let gpu = Simulated::open(options).unwrap();
        let fault = match row(&gpu, problem).outcome {
            Outcome::Failed(reason) => match reason.split_once(" Some(") {
                Some((_, fault)) => fault.to_owned(),
                None => format!("Numbers: {reason}"),
            },
            other => format!("nothing: {other:?}"),
        };
        println!("{name}: {}", fault.chars().take(200).collect::<String>());
        if !wanted.iter().any(|wanted| fault.starts_with(wanted)) {
            missed.push(format!("{name}: wanted {wanted:?}, found {fault}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
