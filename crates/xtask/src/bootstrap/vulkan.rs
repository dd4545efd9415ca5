//! Software Vulkan drivers: wgpu is checked on them where there is no GPU.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use super::{State, apt};
use crate::failure::Failure;

/// A driver that needs no GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Mesa's, on LLVM.
    Lavapipe,
    /// Chromium's, with the limits of WebGPU.
    Swiftshader,
}

/// Where distributions install Vulkan's driver manifests.
const MANIFEST_FOLDERS: [&str; 3] = [
    "/usr/share/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
    "/etc/vulkan/icd.d",
];

/// Where browsers keep SwiftShader, outside the loader's search path.
const BROWSER_FOLDERS: [&str; 4] = [
    "/usr/lib/chromium",
    "/usr/lib/chromium-browser",
    "/usr/lib64/chromium-browser",
    "/opt/google/chrome",
];

impl Driver {
    fn packages(self) -> [&'static str; 2] {
        match self {
            Self::Lavapipe => ["mesa-vulkan-drivers", "libvulkan1"],
            Self::Swiftshader => ["chromium", "libvulkan1"],
        }
    }

    /// The manifest (JSON) that VK_ICD_FILENAMES names to select this driver.
    pub(crate) fn manifest(self) -> Option<PathBuf> {
        match self {
            Self::Lavapipe => find_manifest(&MANIFEST_FOLDERS, "lvp_icd"),
            Self::Swiftshader => find_manifest(&BROWSER_FOLDERS, "vk_swiftshader_icd"),
        }
    }
}

/// Installs the driver and the Vulkan loader unless both are there.
pub(super) fn ensure(driver: Driver) -> Result<State, Failure> {
    let present = || driver.manifest().filter(|_| has_loader());
    if let Some(manifest) = present() {
        return Ok(State::Present(manifest.display().to_string()));
    }
    apt::install(&driver.packages())?;
    match present() {
        Some(manifest) => Ok(State::Installed(manifest.display().to_string())),
        None => Err(Failure::Missing {
            path: format!("driver manifest of {driver:?}").into(),
            package: driver.packages()[0],
        }),
    }
}

/// The first `<stem>*.json`; the one of this processor where a machine has several.
fn find_manifest(folders: &[impl AsRef<Path>], stem: &str) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(stem) && name.ends_with(".json")
        })
        .collect();
    found.sort_by_key(|path| (!path.to_string_lossy().contains(ARCH), path.clone()));
    found.into_iter().next()
}

/// True when the dynamic linker's usual folders hold the Vulkan loader.
fn has_loader() -> bool {
    let multiarch = format!("/usr/lib/{ARCH}-linux-gnu");
    [
        multiarch.as_str(),
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    ]
    .iter()
    .any(|folder| Path::new(folder).join("libvulkan.so.1").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_of_this_processor_comes_first() {
        let folder = std::env::temp_dir().join(format!("flashcube-icd-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let absent = folder.join("absent");
        let own = format!("lvp_icd.{ARCH}.json");
        for name in [
            "lvp_icd.a_first.json",
            &own,
            "lvp_icd.json.bak",
            "radeon_icd.json",
        ] {
            fs::write(folder.join(name), "{}").unwrap();
        }
        let found = find_manifest(&[absent.as_path(), folder.as_path()], "lvp_icd");
        assert_eq!(found, Some(folder.join(own)));
        assert_eq!(find_manifest(&[absent], "lvp_icd"), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
