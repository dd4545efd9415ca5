//! LLVM for CubeCL's code generators, where their build script looks for it.
//!
//! The build script downloads a release from GitHub unless its folder holds a sentinel file. The
//! same libraries come from PyPI, which more networks reach. The sentinel's time stamp is watched:
//! once it is there it must never be written again, or four large packages are compiled anew.

use std::fs;
use std::path::{Path, PathBuf};

use super::State;
use crate::failure::Failure;
use crate::machine::{self, Machine};
use crate::staging::Staging;
use crate::wheels;

/// Named after the release the build script would download.
const FOLDER: &str = "tracel/tracel-llvm-23.1.0-4";

/// An empty file that marks the folder as complete.
const SENTINEL: &str = ".tracel-llvm-installed";

/// Both wheels unpack to this folder, whose contents belong directly into [`FOLDER`].
const CONTENT: &str = "mlc_llvm_static/static";

fn folder(machine: &Machine) -> PathBuf {
    machine.data_dir.join(FOLDER)
}

/// Installs LLVM unless the sentinel is there.
pub(super) fn ensure(machine: &Machine) -> Result<State, Failure> {
    let target = folder(machine);
    let shown = target.display().to_string();
    if target.join(SENTINEL).exists() {
        return Ok(State::Present(shown));
    }
    if !machine::is_linux() {
        return Err(Failure::LinuxOnly {
            what: "LLVM",
            instead: "the build downloads it from GitHub by itself",
        });
    }
    let staging = Staging::beside(&target)?;
    wheels::fetch(&wheels::LLVM, &staging.downloads(), &staging.tree())?;
    let content = staging.tree().join(CONTENT);
    complete(&content)?;
    // Another run may have finished meanwhile: its sentinel stays.
    if target.join(SENTINEL).exists() {
        return Ok(State::Present(shown));
    }
    staging.publish(&content)?;
    Ok(State::Installed(shown))
}

/// Checks the unpacked folder, marks its scripts executable (zip files lose that) and writes the
/// sentinel last.
fn complete(content: &Path) -> Result<(), Failure> {
    for part in [
        "bin/llvm-config",
        "include/llvm-c",
        "lib/libLLVMCore.a",
        "lib/libLLVMNVPTXCodeGen.a",
    ] {
        let path = content.join(part);
        if !path.exists() {
            return Err(Failure::Missing {
                path,
                package: "mlc-llvm-static",
            });
        }
    }
    machine::make_executable(&content.join("bin"))?;
    let sentinel = content.join(SENTINEL);
    fs::write(&sentinel, "").map_err(Failure::io("write", sentinel))
}
