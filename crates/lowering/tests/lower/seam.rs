//! CubeCL kernels to source text: no toolkit needed.

use std::{collections::BTreeSet, process::Command};

use flashcube_lowering::{Arch, LoweringError, properties};

use crate::{Named, kernels};

/// With this variable set the test binary prints [`hash_of_every_kernel`] and ends.
pub(crate) const PRINT_HASH: &str = "FLASHCUBE_PRINT_SOURCE_HASH";

pub(crate) const TESTS: &[Named] = &[
    (
        "source_names_the_kernel_and_its_shared_memory",
        source_names_the_kernel,
    ),
    (
        "source_is_the_same_in_every_process",
        source_is_the_same_in_every_process,
    ),
    (
        "refusing_kernel_is_an_error_with_its_message",
        refusing_kernel_is_an_error,
    ),
    (
        "properties_follow_the_architecture",
        properties_follow_the_architecture,
    ),
    #[cfg(feature = "wgsl")]
    ("wgsl_needs_no_adapter", wgsl_needs_no_adapter),
];

fn source_names_the_kernel() {
    for arch in Arch::ALL {
        let source = kernels::weigh_reversed_source(arch).unwrap();
        assert_eq!(source.kernel, "weigh_reversed");
        assert_eq!(source.dynamic_smem_bytes, 2048);
        assert!(source.text.contains(" weigh_reversed("), "{}", source.text);
        assert!(source.text.contains("__launch_bounds__(128)"));
        assert!(source.text.contains("__nv_bfloat16"));
    }
}

/// Hashes of the sources of the kernels with shared memory and with scalars, on one line.
pub(crate) fn hash_of_every_kernel() -> String {
    [
        kernels::saxpy_source(Arch::Sm90a),
        kernels::weigh_reversed_source(Arch::Sm90a),
    ]
    .map(|source| source.unwrap().sha256())
    .join(" ")
}

fn source_is_the_same_in_every_process() {
    // Hash maps are seeded anew in each process, so only other processes can show a dependence on their order.
    let program = std::env::current_exe().unwrap();
    let hashes: BTreeSet<String> = (0..4)
        .map(|_| {
            let output = Command::new(&program)
                .env(PRINT_HASH, "1")
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        })
        .chain([hash_of_every_kernel()])
        .collect();
    assert_eq!(hashes.len(), 1, "{hashes:?}");
}

fn refusing_kernel_is_an_error() {
    let error = kernels::refuse_source(Arch::Sm80).unwrap_err();
    assert!(matches!(error, LoweringError::Kernel { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("tile is 0, expected at least 1"), "{text}");
}

fn properties_follow_the_architecture() {
    for arch in Arch::ALL {
        let properties = properties(arch);
        assert_eq!(properties.hardware.plane_size_max, 32);
        let features = &properties.features;
        assert_eq!(features.cube_cluster, arch >= Arch::Sm90a, "{arch}");
        assert_eq!(features.tma.is_empty(), arch < Arch::Sm90a, "{arch}");
        assert!(!features.matmul.mma.is_empty(), "{arch}");
        assert_eq!(
            features.matmul.scaled_mma.is_empty(),
            arch != Arch::Sm120a,
            "{arch}"
        );
    }
    assert_eq!(
        properties(Arch::Sm90a).hardware.max_shared_memory_size,
        232_448
    );
    assert_eq!(
        properties(Arch::Sm80).hardware.max_shared_memory_size,
        166_912
    );
    assert_eq!(
        properties(Arch::Sm89).hardware.max_shared_memory_size,
        101_376
    );
}

#[cfg(feature = "wgsl")]
fn wgsl_needs_no_adapter() {
    let text = kernels::saxpy_wgsl().unwrap();
    assert!(text.contains("fn saxpy("), "{text}");
    assert!(text.contains("@workgroup_size(64, 1, 1)"), "{text}");
    assert!(text.contains("fma("), "{text}");
    assert_eq!(text, kernels::saxpy_wgsl().unwrap());
}
