//! CUDA's compilers without CUDA: NVRTC, ptxas and the disassemblers, so that kernels are compiled
//! and inspected for every architecture on machines without a GPU.

use std::fs;
use std::path::{Path, PathBuf};

use super::State;
use crate::failure::Failure;
use crate::machine::{self, Machine};
use crate::staging::Staging;
use crate::wheels;

/// Under flashcube's own data folder.
const FOLDER: &str = "cuda-13.0";

/// Names the wheels inside, so that a later plan replaces an earlier one.
const SENTINEL: &str = "installed-wheels.txt";

/// The toolkit proper: bin, lib, include and nvvm.
const TOOLKIT: &str = "nvidia/cu13";

fn folder(machine: &Machine) -> PathBuf {
    machine.flashcube_dir().join(FOLDER)
}

/// Installs the toolkit unless the sentinel names exactly the planned wheels.
pub(super) fn ensure(machine: &Machine) -> Result<State, Failure> {
    let target = folder(machine);
    let shown = target.join(TOOLKIT).display().to_string();
    if is_complete(&target) {
        return Ok(State::Present(shown));
    }
    if !machine::is_linux() {
        return Err(Failure::LinuxOnly {
            what: "the offline CUDA toolchain",
            instead: "an installed CUDA 13 toolkit serves as well",
        });
    }
    let staging = Staging::beside(&target)?;
    wheels::fetch(&wheels::CUDA, &staging.downloads(), &staging.tree())?;
    complete(&staging.tree())?;
    if is_complete(&target) {
        return Ok(State::Present(shown));
    }
    let tree = staging.tree();
    staging.publish(&tree)?;
    Ok(State::Installed(shown))
}

fn is_complete(target: &Path) -> bool {
    fs::read_to_string(target.join(SENTINEL))
        .is_ok_and(|installed| installed == wheels::manifest(&wheels::CUDA))
}

/// Checks the unpacked tree, makes its programs executable and writes the sentinel last.
fn complete(tree: &Path) -> Result<(), Failure> {
    let toolkit = tree.join(TOOLKIT);
    for (part, package) in [
        ("bin/ptxas", "nvidia-cuda-nvcc"),
        ("bin/cuobjdump", "nvidia-cuda-cuobjdump"),
        ("bin/nvdisasm", "nvidia-cuda-nvdisasm"),
        ("lib/libnvrtc.so.13", "nvidia-cuda-nvrtc"),
        ("include/cuda_fp16.h", "nvidia-cuda-runtime"),
        ("include/cccl", "nvidia-cuda-cccl"),
        ("include/crt", "nvidia-cuda-crt"),
        ("nvvm/bin", "nvidia-nvvm"),
    ] {
        let path = toolkit.join(part);
        if !path.exists() {
            return Err(Failure::Missing { path, package });
        }
    }
    for programs in ["bin", "nvvm/bin"] {
        machine::make_executable(&toolkit.join(programs))?;
    }
    let sentinel = tree.join(SENTINEL);
    fs::write(&sentinel, wheels::manifest(&wheels::CUDA)).map_err(Failure::io("write", sentinel))
}
