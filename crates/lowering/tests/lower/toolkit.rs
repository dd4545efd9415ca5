//! Source text to machine code: these need the CUDA toolkit, and still no GPU.

use std::{fs, os::unix::fs::MetadataExt, path::PathBuf};

use flashcube_lowering::{
    Arch, Cache, CudaSource, Expect, Lowered, Lowering, LoweringError, Toolkit, Violation, assemble,
};

use crate::{Named, kernels};

pub(crate) const TESTS: &[Named] = &[
    ("nvrtc_loads_from_the_toolkit_folder", nvrtc_loads),
    ("saxpy_is_clean_on_every_arch", saxpy_is_clean_on_every_arch),
    (
        "shared_memory_is_reported_on_every_arch",
        shared_memory_is_reported,
    ),
    ("loop_holds_its_comparison", loop_holds_its_comparison),
    (
        "register_pressure_is_seen_as_spill",
        register_pressure_is_seen_as_spill,
    ),
    ("local_array_is_seen_as_stack", local_array_is_seen_as_stack),
    (
        "serialized_wgmma_is_a_performance_warning",
        serialized_wgmma_is_seen,
    ),
    (
        "missing_instruction_is_a_violation",
        missing_instruction_is_a_violation,
    ),
    (
        "syntax_error_gives_the_nvrtc_log",
        syntax_error_gives_the_nvrtc_log,
    ),
    (
        "instruction_of_another_arch_names_it",
        instruction_of_another_arch_names_it,
    ),
    (
        "wrong_ptx_gives_the_ptxas_log",
        wrong_ptx_gives_the_ptxas_log,
    ),
    (
        "second_lowering_reads_the_cache",
        second_lowering_reads_the_cache,
    ),
];

/// Without a cache, so that every test runs the compilers.
fn lowering() -> Lowering {
    Lowering::new(Toolkit::find().unwrap(), Cache::none()).unwrap()
}

fn lower(source: CudaSource, arch: Arch) -> Lowered {
    lowering().lower(&source, arch).unwrap()
}

fn nvrtc_loads() {
    let toolkit = Toolkit::find().unwrap();
    let nvrtc = flashcube_lowering::Nvrtc::load(&toolkit).unwrap();
    let (major, _) = nvrtc.version().unwrap();
    let file = toolkit.nvrtc_library().to_str().unwrap();
    assert!(file.ends_with(&format!(".so.{major}")), "{file}: {major}");
}

fn saxpy_is_clean_on_every_arch() {
    let lowering = lowering();
    for arch in Arch::ALL {
        let source = kernels::saxpy_source(arch).unwrap();
        let lowered = lowering.lower(&source, arch).unwrap();
        assert!(lowered.ptx.text.contains(&format!(".target {arch}")));
        let report = lowered.report().unwrap();
        let required = &["FFMA|FFMA2", "LDG", "STG", "EXIT"];
        let expect = Expect {
            required,
            ..Expect::CLEAN
        };
        assert_eq!(report.check(&expect), Ok(()), "{report}");
        assert_eq!(report.kernel, "saxpy");
        assert_eq!(report.arch, arch);
        assert!((8..=64).contains(&report.registers), "{report}");
        assert_eq!(report.smem_bytes, 0, "{report}");
    }
}

fn shared_memory_is_reported() {
    let lowering = lowering();
    for arch in Arch::ALL {
        let source = kernels::weigh_reversed_source(arch).unwrap();
        let report = lowering.lower(&source, arch).unwrap().report().unwrap();
        let required = &["FFMA|FFMA2", "LDS", "STS", "BAR"];
        let expect = Expect {
            required,
            ..Expect::CLEAN
        };
        assert_eq!(report.check(&expect), Ok(()), "{report}");
        assert_eq!(report.smem_bytes, 2048, "{report}");
        assert_eq!(report.barriers, 1, "{report}");
    }
}

fn loop_holds_its_comparison() {
    let sass = lower(kernels::saxpy_source(Arch::Sm90a).unwrap(), Arch::Sm90a)
        .sass()
        .unwrap();
    let inner = sass
        .loops()
        .into_iter()
        .find(|range| sass.within(range).any(|i| i.is("FFMA")))
        .expect("the grid-stride loop is a loop in the machine code");
    assert!(sass.within(&inner).any(|i| i.is("ISETP")));
    assert!(
        sass.within(&inner)
            .all(|i| !i.is("EXIT") || i.predicate.is_some())
    );
}

fn register_pressure_is_seen_as_spill() {
    let source = kernels::crowd_registers_source(Arch::Sm80).unwrap();
    let report = lower(source, Arch::Sm80).report().unwrap();
    assert!(report.registers <= 64, "{report}");
    assert!(
        report.spill_store_bytes > 0 && report.spill_load_bytes > 0,
        "{report}"
    );
    let violations = report.check(&Expect::CLEAN).unwrap_err();
    assert!(matches!(violations[0], Violation::Spill { stores, .. } if stores > 0));
    assert!(
        report.count("STL") > 0 && report.count("LDL") > 0,
        "{report}"
    );
}

fn local_array_is_seen_as_stack() {
    let source = kernels::index_locals_source(Arch::Sm90a).unwrap();
    let report = lower(source, Arch::Sm90a).report().unwrap();
    assert!(report.stack_bytes >= 1024, "{report}");
    assert_eq!(report.spill_store_bytes, 0, "{report}");
    let bytes = report.stack_bytes;
    assert_eq!(
        report.check(&Expect::CLEAN),
        Err(vec![Violation::Stack { bytes }])
    );
}

/// The accumulator is read between issue and wait, so ptxas must wait for every wgmma at once.
const SERIALIZED: &str = r#"
extern "C" __global__ void __launch_bounds__(128) serialized(float* out, unsigned long long a, unsigned long long b) {
    float d0 = 0.0f, d1 = 0.0f, d2 = 0.0f, d3 = 0.0f;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int i = 0; i < 4; ++i) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
            : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "l"(a + i), "l"(b + i));
        d0 = d0 * 1.5f + d1;
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    out[threadIdx.x] = d0 + d1 + d2 + d3;
}
"#;

fn serialized_wgmma_is_seen() {
    let report = lower(CudaSource::new("serialized", SERIALIZED, 0), Arch::Sm90a)
        .report()
        .unwrap();
    assert!(report.count("HGMMA") > 0, "{report}");
    let violations = report.check(&Expect::CLEAN).unwrap_err();
    assert!(matches!(&violations[0], Violation::Performance { text } if text.contains("C75")));
    // The same without the read in between is not serialised.
    let overlapped = SERIALIZED.replace("d0 = d0 * 1.5f + d1;", "");
    let report = lower(CudaSource::new("serialized", &overlapped, 0), Arch::Sm90a)
        .report()
        .unwrap();
    assert_eq!(report.check(&Expect::CLEAN), Ok(()), "{report}");
}

fn missing_instruction_is_a_violation() {
    let report = lower(kernels::saxpy_source(Arch::Sm90a).unwrap(), Arch::Sm90a)
        .report()
        .unwrap();
    let expect = Expect {
        required: &["HGMMA"],
        ..Expect::default()
    };
    let violations = report.check(&expect).unwrap_err();
    assert!(matches!(&violations[..], [Violation::Missing { pattern, .. }] if pattern == "HGMMA"));
}

fn syntax_error_gives_the_nvrtc_log() {
    let text = "extern \"C\" __global__ void broken(float* x) {\n  x[0] = undeclared_name;\n}";
    let error = lowering()
        .lower(&CudaSource::new("broken", text, 0), Arch::Sm80)
        .unwrap_err();
    let LoweringError::Cuda { kernel, arch, log } = &error else {
        panic!("{error}");
    };
    assert_eq!((kernel.as_str(), *arch), ("broken", Arch::Sm80));
    assert!(
        log.contains("(2)") && log.contains("undeclared_name"),
        "{log}"
    );
    let nul = CudaSource::new("broken", "a\0b", 0);
    assert!(matches!(
        lowering().lower(&nul, Arch::Sm80),
        Err(LoweringError::Nvrtc { .. })
    ));
}

fn instruction_of_another_arch_names_it() {
    // wgmma is an instruction of sm_90a alone.
    let error = lowering()
        .lower(&CudaSource::new("serialized", SERIALIZED, 0), Arch::Sm80)
        .unwrap_err();
    let LoweringError::Cuda { arch, log, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*arch, Arch::Sm80);
    assert!(log.contains("wgmma.mma_async"), "{log}");
}

fn wrong_ptx_gives_the_ptxas_log() {
    let source = kernels::saxpy_source(Arch::Sm90a).unwrap();
    let ptx = lowering().ptx(&source, Arch::Sm90a).unwrap().text;
    let toolkit = Toolkit::find().unwrap();
    let broken = ptx.replace("ret;", "retreat;");
    assert_ne!(broken, ptx);
    for (ptx, arch, told) in [
        (&broken, Arch::Sm90a, "retreat"),
        (&ptx, Arch::Sm80, "SM version"),
    ] {
        let error = assemble(&toolkit, "saxpy", ptx, arch).unwrap_err();
        let LoweringError::Ptx { kernel, log, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(kernel, "saxpy");
        assert!(log.contains(told), "{log}");
    }
}

fn second_lowering_reads_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let lower = || {
        Lowering::new(Toolkit::find().unwrap(), Cache::at(folder.path()))
            .unwrap()
            .lower(&kernels::saxpy_source(Arch::Sm80).unwrap(), Arch::Sm80)
            .unwrap()
    };
    let entries = || {
        let mut paths: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        paths
    };
    let first = lower();
    assert_eq!(entries().len(), 2, "PTX and machine code");
    // An entry written again is another file: reading only changes the time of one.
    let file = |path: PathBuf| fs::metadata(path).unwrap().ino();
    let written: Vec<_> = entries().into_iter().map(file).collect();
    let second = lower();
    assert_eq!(second.assembly, first.assembly);
    assert_eq!(entries().into_iter().map(file).collect::<Vec<_>>(), written);
    for path in entries() {
        fs::write(path, "damaged").unwrap();
    }
    assert_eq!(lower().assembly, first.assembly);
}
