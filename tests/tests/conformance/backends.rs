//! The reduced set of problems on every backend at hand, and the mutants on the CPU.
//!
//! `FLASHCUBE_REQUIRE_BACKENDS=cpu,lavapipe,swiftshader` turns a backend that is not there into a
//! failure; without it such a test prints why it did not run.

use std::path::{Path, PathBuf};
use std::process::Command;

use flashcube::{Backend, Caps, Fault};
use flashcube_catalogue::{BackendName, Filter, Outcome, Row, mutants, run};

const SEED: u64 = 20_261_201;
const CHILD: &str = "FLASHCUBE_CHILD_BACKEND";

/// Ends the test without a verdict, or fails it if the backend is required.
fn not_run(backend: BackendName, reason: &str) {
    let required = std::env::var("FLASHCUBE_REQUIRE_BACKENDS").unwrap_or_default();
    let is_required = required
        .split(',')
        .any(|name| name.trim() == backend.to_string());
    assert!(!is_required, "{backend} is required, but: {reason}");
    println!("{backend} not run: {reason}");
}

fn print(row: &Row) {
    match &row.outcome {
        Outcome::Passed => {}
        Outcome::Failed(reason) => println!("FAILED {} {:?}: {reason}", row.case, row.blueprint),
        Outcome::NotRun(reason) => println!("not run {}: {reason}", row.case),
    }
}

fn conform(opened: Backend, backend: BackendName) {
    let client = match opened.open() {
        Ok(client) => client,
        Err(error) => return not_run(backend, &error.to_string()),
    };
    assert_eq!(
        BackendName::of(&Caps::of(&client)),
        backend,
        "another driver was opened"
    );
    let filter = Filter {
        core: true,
        ..Filter::default()
    };
    let report = run(&client, &filter, SEED, print);
    println!("{}", report.summary());
    assert!(
        report.required > 30,
        "the list of required rows is too short"
    );
    assert_eq!(
        report.missing,
        Vec::<String>::new(),
        "required rows did not execute"
    );
    assert!(report.passed(), "{}", report.summary());
}

/// Vulkan drivers are chosen once per process, by environment variable.
fn in_process_of_its_own(backend: BackendName, driver: Option<PathBuf>) {
    let Some(driver) = driver else {
        return not_run(backend, "its Vulkan driver is not installed");
    };
    let executable = std::env::current_exe().expect("the path of this test");
    let folder = std::env::temp_dir();
    let output = Command::new(executable)
        .args(["--exact", "backends::child", "--ignored", "--nocapture"])
        .env(CHILD, backend.to_string())
        .env("VK_ICD_FILENAMES", &driver)
        .env("VK_DRIVER_FILES", &driver)
        .env("XDG_RUNTIME_DIR", &folder)
        .output()
        .expect("a child process of this test");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{backend}: {}\n{stderr}",
        output.status
    );
    let executed = String::from_utf8_lossy(&output.stdout).contains("required rows executed");
    assert!(executed, "{backend}: the child ran nothing\n{stderr}");
}

/// First file in `folder` whose name starts with `prefix` and ends in .json.
fn driver(folder: &str, prefix: &str) -> Option<PathBuf> {
    let mut files: Vec<PathBuf> = Path::new(folder)
        .read_dir()
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(prefix) && name.ends_with(".json")
        })
        .collect();
    files.sort();
    files.into_iter().next()
}

#[test]
fn cpu_conforms() {
    conform(Backend::Cpu, BackendName::Cpu);
}

#[test]
fn cuda_conforms() {
    conform(Backend::Cuda, BackendName::Cuda);
}

#[test]
fn lavapipe_conforms() {
    in_process_of_its_own(
        BackendName::Lavapipe,
        driver("/usr/share/vulkan/icd.d", "lvp_icd"),
    );
}

#[test]
fn swiftshader_conforms() {
    let driver = driver("/usr/lib/chromium", "vk_swiftshader_icd");
    in_process_of_its_own(BackendName::Swiftshader, driver);
}

#[test]
#[ignore = "run by its parent in a process of its own"]
fn child() {
    let Ok(wanted) = std::env::var(CHILD) else {
        return println!("not run: {CHILD} is not set");
    };
    let backend = BackendName::ALL
        .into_iter()
        .find(|b| b.to_string() == wanted);
    conform(Backend::Wgpu, backend.expect("a backend name"));
}

#[test]
fn cpu_suite_catches_every_mutant() {
    let client = match Backend::Cpu.open() {
        Ok(client) => client,
        Err(error) => return not_run(BackendName::Cpu, &error.to_string()),
    };
    let results = mutants::run(&client, SEED, |m| {
        println!("{:28} {:48} {:?} {:?}", m.fault, m.case, m.caught, m.error);
    });
    let survivors: Vec<_> = results.iter().filter(|m| !m.passed()).collect();
    assert!(survivors.is_empty(), "not noticed: {survivors:#?}");
}

/// What race detectors are shown: it must end, whatever its result.
#[test]
fn a_kernel_without_a_barrier_ends() {
    let client = Backend::Cpu.open().expect("the CPU backend");
    let planted: Vec<_> = mutants::plant(&client, Fault::BarrierDropped, SEED).collect();
    assert_eq!(planted.len(), 2);
    for mutant in planted {
        assert_eq!(mutant.error, None, "{}", mutant.case);
        let blueprint = mutant.blueprint.expect("a blueprint");
        assert!(blueprint.contains("split-softmax"), "{blueprint}");
        assert!(blueprint.ends_with("FAULT-barrier-dropped"), "{blueprint}");
    }
}
