//! The library's own kernels on every architecture.

use std::collections::BTreeSet;

use flashcube_lowering::{
    Arch, Blueprint, Cache, ListedKernel, Lowering, LoweringError, Report, Toolkit, find_kernel,
    kernels,
};

use crate::Named;

pub(crate) const WITHOUT_TOOLKIT: &[Named] = &[
    ("listed_names_and_blueprints_are_unique", names_are_unique),
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
    ("one_kernel_of_each_kind_on_every_arch", one_of_each_kind),
];

fn names_are_unique() {
    let all = kernels();
    let names: BTreeSet<_> = all.iter().map(|kernel| &kernel.name).collect();
    assert_eq!(names.len(), all.len());
    // Where the best tier is the unit tier, the kernels that ask for it by name double the others.
    let forced = names.iter().filter(|name| name.ends_with("_unit")).count();
    for arch in Arch::ALL {
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

fn found_by_either_name() {
    for kernel in kernels() {
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
                let limits = ["dtypes", "storage buffers", "barriers in divergent code"];
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
    check(&lowering(), &kernels(), arch);
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
