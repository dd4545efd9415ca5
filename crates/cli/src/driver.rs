//! Software Vulkan drivers, and how a process is tied to one of them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// A Vulkan driver that needs no GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Mesa's, on LLVM.
    Lavapipe,
    /// Chromium's, with the limits of WebGPU.
    Swiftshader,
}

/// Where distributions install driver manifests.
const MANIFEST_FOLDERS: [&str; 3] = [
    "/usr/share/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
    "/etc/vulkan/icd.d",
];

/// Where browsers keep SwiftShader, outside the Vulkan loader's search path.
const BROWSER_FOLDERS: [&str; 4] = [
    "/usr/lib/chromium",
    "/usr/lib/chromium-browser",
    "/usr/lib64/chromium-browser",
    "/opt/google/chrome",
];

impl Driver {
    /// The manifest (JSON) that selects the driver, if it is installed.
    pub(crate) fn manifest(self) -> Option<PathBuf> {
        match self {
            Driver::Lavapipe => find_manifest(&MANIFEST_FOLDERS, "lvp_icd", env::consts::ARCH),
            Driver::Swiftshader => {
                find_manifest(&BROWSER_FOLDERS, "vk_swiftshader_icd", env::consts::ARCH)
            }
        }
    }

    /// What the adapter's name holds when this driver is behind it.
    pub(crate) fn adapter_mark(self) -> &'static str {
        match self {
            Driver::Lavapipe => "llvmpipe",
            Driver::Swiftshader => "SwiftShader",
        }
    }

    /// What to run to get it.
    pub(crate) fn install_hint(self) -> &'static str {
        match self {
            Driver::Lavapipe => {
                "run `cargo xtask bootstrap`, or install mesa-vulkan-drivers and libvulkan1"
            }
            Driver::Swiftshader => {
                "run `cargo xtask bootstrap`, or install chromium and libvulkan1"
            }
        }
    }

    /// The driver behind an adapter of this name, if it is a software one.
    pub(crate) fn behind(adapter: &str) -> Option<Driver> {
        [Driver::Lavapipe, Driver::Swiftshader]
            .into_iter()
            .find(|driver| adapter.contains(driver.adapter_mark()))
    }
}

/// The first `<stem>*.json` of the folders in order; the one for `arch` where a folder has several.
fn find_manifest(folders: &[impl AsRef<Path>], stem: &str, arch: &str) -> Option<PathBuf> {
    folders.iter().find_map(|folder| {
        let mut found: Vec<PathBuf> = fs::read_dir(folder)
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(stem) && name.ends_with(".json")
            })
            .collect();
        found.sort_by_key(|path| (!path.to_string_lossy().contains(arch), path.clone()));
        found.into_iter().next()
    })
}

/// Ties this process to the driver of `manifest`, and gives Mesa a folder for its sockets, without
/// which it complains on every start.
///
/// # Safety
/// No other thread may exist yet: the environment is not guarded against concurrent readers.
pub(crate) unsafe fn select(manifest: Option<&Path>) {
    // SAFETY: the caller promises that this is the only thread.
    unsafe {
        if let Some(manifest) = manifest {
            env::set_var("VK_ICD_FILENAMES", manifest);
            // Newer loaders let this one win over the older name.
            env::set_var("VK_DRIVER_FILES", manifest);
        }
        if env::var_os("XDG_RUNTIME_DIR").is_none() {
            env::set_var("XDG_RUNTIME_DIR", env::temp_dir());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_of_the_first_folder_and_this_processor_wins() {
        let root = env::temp_dir().join(format!("flashcube-driver-{}", std::process::id()));
        let (first, second) = (root.join("first"), root.join("second"));
        for folder in [&first, &second] {
            fs::create_dir_all(folder).unwrap();
        }
        let absent = root.join("absent");
        for path in [
            first.join("lvp_icd.json.bak"),
            first.join("radeon_icd.json"),
            first.join("lvp_icd.other.json"),
            first.join("lvp_icd.this.json"),
            second.join("lvp_icd.json"),
        ] {
            fs::write(path, "{}").unwrap();
        }
        let find = |folders: &[&PathBuf]| find_manifest(folders, "lvp_icd", "this");
        let wanted = first.join("lvp_icd.this.json");
        assert_eq!(find(&[&absent, &first, &second]), Some(wanted));
        assert_eq!(find(&[&second]), Some(second.join("lvp_icd.json")));
        assert_eq!(find(&[&absent]), None);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn software_adapters_are_known_by_name() {
        let llvmpipe = "llvmpipe (LLVM 15.0.6, 256 bits)";
        assert_eq!(Driver::behind(llvmpipe), Some(Driver::Lavapipe));
        let swiftshader = "SwiftShader Device (Subzero)";
        assert_eq!(Driver::behind(swiftshader), Some(Driver::Swiftshader));
        assert_eq!(Driver::behind("NVIDIA H200"), None);
    }
}
