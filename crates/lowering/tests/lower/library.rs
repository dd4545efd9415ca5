//! The library's own kernels on every architecture.

use std::{
    collections::BTreeSet,
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use flashcube_kernels::{AttendBlueprint, TierName};
use flashcube_lowering::{
    Arch, Blueprint, Cache, ListedKernel, Lowering, LoweringError, Problem, Report, Sass, Toolkit,
    find_kernel, kernels,
};

use crate::Named;

pub(crate) const WITHOUT_TOOLKIT: &[Named] = &[
    ("listed_names_and_blueprints_are_unique", names_are_unique),
    ("every_kernel_that_launches_is_built", every_kernel_is_built),
    (
        "listed_kernel_is_found_by_either_name",
        found_by_either_name,
    ),
    (
        "unknown_kernel_names_the_close_ones",
        unknown_kernel_is_an_error,
    ),
    #[cfg(feature = "wgsl")]
    (
        "wgsl_of_every_listed_kernel_that_fits",
        wgsl_of_every_kernel,
    ),
];

pub(crate) const WITH_TOOLKIT: &[Named] = &[
    ("every_listed_kernel_on_sm_80", || {
        every_kernel_on(Arch::Sm80)
    }),
    ("every_listed_kernel_on_sm_90a", || {
        every_kernel_on(Arch::Sm90a)
    }),
    ("every_listed_kernel_on_sm_100a", || {
        every_kernel_on(Arch::Sm100a)
    }),
    ("every_blackwell_kernel_on_sm_103a", || {
        every_blackwell_kernel_on(Arch::Sm103a)
    }),
    ("every_plane_kernel_on_sm_89", || {
        every_plane_kernel_on(Arch::Sm89)
    }),
    ("every_plane_kernel_on_sm_120a", || {
        every_plane_kernel_on(Arch::Sm120a)
    }),
    ("one_kernel_of_each_kind_on_every_arch", one_of_each_kind),
    (
        "hopper_masks_only_the_blocks_that_hide_keys",
        hopper_interior_is_maskless,
    ),
    (
        "nothing_touches_an_accumulator_before_its_wait",
        nothing_touches_a_pending_accumulator,
    ),
    (
        "plane_masks_only_the_blocks_that_hide_keys",
        plane_interior_is_maskless,
    ),
];

/// Every listed kernel but the instructions that `arch` lacks.
fn kernels_of(arch: Arch) -> Vec<ListedKernel> {
    let mut all = kernels();
    all.retain(|kernel| match kernel.problem {
        Problem::Instruction(form) => form.on(arch.version()),
        _ => true,
    });
    all
}

fn names_are_unique() {
    let all = kernels();
    let names: BTreeSet<_> = all.iter().map(|kernel| &kernel.name).collect();
    assert_eq!(names.len(), all.len());
    // Kernels that ask for a tier by name double others where that tier is the best, those of few queries where tiles are
    // as short for many, those that ask for clusters where there are none, and those of block-scaled operands where they are decoded.
    let by_name = |name: &&&String| {
        let doubles = ["_unit", "_plane", "_cluster", "_blackwell", "_q128"];
        doubles.iter().any(|suffix| name.ends_with(suffix))
    };
    let forced = names.iter().filter(by_name).count();
    for arch in Arch::ALL {
        let all = kernels_of(arch);
        let blueprints: BTreeSet<_> = all
            .iter()
            .map(|kernel| kernel.blueprint(arch).unwrap().to_string())
            .collect();
        assert!(
            blueprints.len() >= all.len() - forced,
            "{arch}: {blueprints:?}"
        );
    }
}

/// A kernel of the library's sources that nothing here builds would never be compiled without a GPU.
fn every_kernel_is_built() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = texts(&here.join("src/kernels")).concat();
    let mut seen = 0;
    for text in texts(&here.join("../../kernels-dsl/src")) {
        for launched in text.split("#[cube(launch").skip(1) {
            let (_, after) = launched.split_once("pub fn ").unwrap();
            let name: String = after
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            assert!(built.contains(&format!("{name}::")), "{name} is not built");
            seen += 1;
        }
    }
    assert!(seen >= 20, "{seen}");
}

/// The Rust files below a folder.
fn texts(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let of = |path: PathBuf| match path.is_dir() {
        true => texts(&path),
        false => vec![fs::read_to_string(path).unwrap()],
    };
    paths.flat_map(of).collect()
}

fn found_by_either_name() {
    for kernel in kernels_of(Arch::Sm80) {
        let blueprint = kernel.blueprint(Arch::Sm80).unwrap().to_string();
        assert_eq!(
            find_kernel(&kernel.name, Arch::Sm80).unwrap().name,
            kernel.name
        );
        let found = find_kernel(&blueprint, Arch::Sm80).unwrap();
        assert_eq!(found.blueprint(Arch::Sm80).unwrap().to_string(), blueprint);
    }
}

fn unknown_kernel_is_an_error() {
    let error = find_kernel("merge_partials", Arch::Sm80).unwrap_err();
    assert!(matches!(error, LoweringError::UnknownKernel { .. }));
    assert!(
        error.to_string().contains("merge_partials_f32_d128"),
        "{error}"
    );
    let error = find_kernel("no such kernel", Arch::Sm80).unwrap_err();
    assert!(error.to_string().contains("\"no such kernel\""), "{error}");
}

/// Kernels that bind too much or use a type WGSL lacks say which limit it was; all others print.
#[cfg(feature = "wgsl")]
fn wgsl_of_every_kernel() {
    let (mut printed, mut refused) = (0, 0);
    for kernel in kernels() {
        match kernel.wgsl_blueprint() {
            Ok(blueprint) => {
                let text = blueprint.wgsl().unwrap();
                assert!(text.contains("@compute"), "{}", kernel.name);
                printed += 1;
            }
            Err(LoweringError::NotAvailable { source, .. }) => {
                // The last two: the kernel that addresses 64 bits, which WGSL cannot, and those
                // that ask for a tier of CUDA's.
                let limits = [
                    "dtypes",
                    "storage buffers",
                    "barriers in divergent code",
                    "elements of a tensor",
                    "compute capability",
                ];
                println!("{source}");
                assert!(limits.contains(&source.limit), "{}: {source}", kernel.name);
                refused += 1;
            }
            Err(error) => panic!("{}: {error}", kernel.name),
        }
    }
    println!("{printed} kernels printed as WGSL, {refused} not available there");
    assert!(printed >= 20, "{printed} printed, {refused} refused");
}

fn report(lowering: &Lowering, kernel: &ListedKernel, arch: Arch) -> (Blueprint, Report) {
    let blueprint = kernel.blueprint(arch).unwrap();
    let source = blueprint.cuda(arch).unwrap();
    let report = lowering.lower(&source, arch).unwrap().report().unwrap();
    (blueprint, report)
}

/// Prints what each kernel costs and fails on what its tier forbids.
fn check(lowering: &Lowering, kernels: &[ListedKernel], arch: Arch) {
    let mut failures = Vec::new();
    for kernel in kernels {
        let (blueprint, report) = report(lowering, kernel, arch);
        println!(
            "{arch:<8} {:<44} {:>4} registers {:>5} B stack {:>5} B spilled {:>6} B shared  {blueprint}",
            kernel.name,
            report.registers,
            report.stack_bytes,
            report.spill_store_bytes,
            report.smem_bytes
        );
        if let Err(violations) = report.check(&blueprint.expect()) {
            failures.extend(violations.iter().map(|v| format!("{}: {v}", kernel.name)));
        }
    }
    assert!(failures.is_empty(), "{arch}: {}", failures.join("; "));
}

/// The user's cache, so that only kernels that changed are compiled again.
fn lowering() -> Lowering {
    Lowering::new(Toolkit::find().unwrap(), Cache::user()).unwrap()
}

fn every_kernel_on(arch: Arch) {
    check(&lowering(), &kernels_of(arch), arch);
}

/// What asks for tensor memory. Kernels of other tiers are those of sm_100a.
fn every_blackwell_kernel_on(arch: Arch) {
    let mut some = kernels_of(arch);
    some.retain(|kernel| {
        let tier = kernel.blueprint(arch).unwrap().tier();
        tier == TierName::Blackwell
    });
    assert!(some.len() >= 40, "{}", some.len());
    check(&lowering(), &some, arch);
}

/// The tiles of GPUs with 99 KiB of shared memory.
fn every_plane_kernel_on(arch: Arch) {
    let mut some = kernels();
    some.retain(|kernel| kernel.name.ends_with("_plane"));
    assert!(some.len() >= 20, "{}", some.len());
    check(&lowering(), &some, arch);
}

fn one_of_each_kind() {
    let names = [
        "attend_forward_bf16_d64_causal",
        "attend_backward_keys_f32_d64",
        "merge_partials_f32_d128",
        "dequantize_awq_gemm_b4_f16",
        "hadamard_transform_f32_n128",
    ];
    let lowering = lowering();
    for arch in Arch::ALL {
        let some = names.map(|name| find_kernel(name, arch).unwrap());
        check(&lowering, &some, arch);
    }
}

fn hopper_interior_is_maskless() {
    // Both products of one block: d / 16 instructions for S, block / 16 for O.
    let products = |b: &AttendBlueprint| (b.d + b.block) / 16;
    // A thread holds 2 rows by block / 4 columns of scores.
    let scores = |b: &AttendBlueprint| b.block / 2;
    for name in [
        "attend_forward_bf16_d128_causal",
        "attend_forward_bf16_d128_varlen_causal",
        "attend_forward_bf16_d128_pack4_causal",
    ] {
        interior_is_maskless(name, "HGMMA", products, scores, 2);
    }
}

fn plane_interior_is_maskless() {
    // 32 rows a plane: 2 tiles of 16 rows by 8 columns, 16 deep.
    let products = |b: &AttendBlueprint| 2 * (b.d * b.block + b.block * b.d_v) / 128;
    let scores = |b: &AttendBlueprint| b.block;
    for name in [
        "attend_forward_bf16_d128_causal_plane",
        "attend_forward_bf16_d128_varlen_causal_plane",
        "attend_forward_bf16_d128_pack4_causal_plane",
    ] {
        interior_is_maskless(name, "HMMA", products, scores, 4);
    }
}

/// The innermost loops over key blocks of a causal kernel, shortest first: one compares coordinates
/// for every score, the other for none.
fn interior_is_maskless(
    name: &str,
    instruction: &str,
    products: fn(&AttendBlueprint) -> usize,
    scores: fn(&AttendBlueprint) -> usize,
    rows: usize,
) {
    let kernel = find_kernel(name, Arch::Sm90a).unwrap();
    let Blueprint::AttendForward(blueprint) = kernel.blueprint(Arch::Sm90a).unwrap() else {
        panic!("{name} is no forward kernel");
    };
    let source = Blueprint::AttendForward(blueprint).cuda(Arch::Sm90a);
    let lowered = lowering().lower(&source.unwrap(), Arch::Sm90a).unwrap();
    let sass = Sass::parse(&lowered.assembly.sass).unwrap();
    let count = |range: &RangeInclusive<u64>, pattern: &str| {
        sass.within(range).filter(|i| i.is(pattern)).count()
    };
    let mut loops = sass.loops();
    loops.retain(|range| count(range, instruction) == products(&blueprint));
    loops.sort_by_key(|range| range.end() - range.start());
    let [interior, masked, ..] = &loops[..] else {
        panic!("loops over blocks: {loops:x?}");
    };
    let scores = scores(&blueprint);
    assert!(count(interior, "MUFU.EX2") >= scores);
    // Three selects for each of a thread's rows: the maximum that moves or not, and two for
    // rescaling a row that saw no key. Two compares: the block, the barrier.
    let (selects, compares) = (count(interior, "FSEL"), count(interior, "ISETP"));
    assert!(selects <= 3 * rows, "{selects} FSEL in the interior");
    assert!(compares <= 8, "{compares} ISETP in the interior");
    // Proof that masks would have been counted.
    let (selects, compares) = (count(masked, "FSEL"), count(masked, "ISETP"));
    assert!(
        selects >= scores && compares >= scores,
        "{selects} {compares}"
    );
}

/// Between a wgmma and the wait that ends it nothing touches its accumulator: a move there would wait for the product.
fn nothing_touches_a_pending_accumulator() {
    let lowering = lowering();
    for name in [
        "attend_forward_bf16_d64",
        "attend_forward_bf16_d128",
        "attend_forward_bf16_d128_causal",
        "attend_forward_bf16_d256",
        "attend_forward_f16_d128_lengths",
        "attend_forward_bf16_d128_varlen_causal",
    ] {
        let kernel = find_kernel(name, Arch::Sm90a).unwrap();
        let source = kernel.blueprint(Arch::Sm90a).unwrap().cuda(Arch::Sm90a);
        let lowered = lowering.lower(&source.unwrap(), Arch::Sm90a).unwrap();
        let listing = &lowered.assembly.sass;
        let (products, touching) = touching_pending(&Sass::parse(listing).unwrap());
        assert!(products >= 2, "{name}: {products} products waited for");
        assert_eq!(touching, Vec::<String>::new(), "{name}");
        // Proof that a move would have been seen.
        let commit = listing.lines().find(|line| line.contains("gsb0 ;"));
        let commit = commit.expect("a product that ends a group");
        let word = commit.split_whitespace().nth(2).unwrap();
        let first = word.trim_end_matches(',');
        let moved = format!("{commit}\n /*0000*/ MOV R2, {first} ;");
        let planted = listing.replacen(commit, &moved, 1);
        let (_, touching) = touching_pending(&Sass::parse(&planted).unwrap());
        assert_eq!(touching, [format!("MOV R2, {first}")], "{name}");
    }
}

/// Groups of products waited for, and the other instructions that use an accumulator in between, in the order of the code.
fn touching_pending(sass: &Sass) -> (usize, Vec<String>) {
    let (mut open, mut groups) = (Vec::new(), Vec::new());
    let (mut waited, mut touching) = (0, Vec::new());
    for i in sass.instructions() {
        let registers = registers(&i.operands);
        if i.is("HGMMA") {
            // 64 rows by n columns of f32 in 128 units: n / 2 registers each.
            let n = i.opcode.split(['.', 'x']).nth(2).unwrap().parse::<u32>();
            open.push(registers[0]..registers[0] + n.unwrap() / 2);
            if i.operands.contains("gsb0") {
                groups.push(std::mem::take(&mut open));
            }
        } else if i.is("WARPGROUP.DEPBAR") {
            let (_, left) = i.operands.rsplit_once("0x").unwrap();
            let over = groups.len().saturating_sub(left.parse().unwrap());
            waited += groups.drain(..over).count();
        } else {
            let pending: Vec<_> = open.iter().chain(groups.iter().flatten()).collect();
            if registers
                .iter()
                .any(|r| pending.iter().any(|range| range.contains(r)))
            {
                touching.push(format!("{} {}", i.opcode, i.operands));
            }
        }
    }
    (waited, touching)
}

/// Numbers of the vector registers that the operands name.
fn registers(operands: &str) -> Vec<u32> {
    let words = operands.split(|c: char| !c.is_ascii_alphanumeric());
    let numbers = words.filter_map(|word| word.strip_prefix('R')?.parse().ok());
    numbers.collect()
}
