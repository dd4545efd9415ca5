//! Backends by the names of the command line, and opening their devices.

use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;
use cubecl::prelude::Client;
use flashcube::{Backend, Caps};
use serde::{Deserialize, Serialize};

use crate::driver::{self, Driver};
use crate::failure::{Failure, Result};
use crate::probe::BackendReport;

/// A place to run kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BackendName {
    /// The host's cores through CubeCL's LLVM JIT; always there.
    Cpu,
    /// Mesa's software Vulkan driver, through WGSL.
    Lavapipe,
    /// Chromium's software Vulkan driver, through WGSL; the limits of WebGPU.
    Swiftshader,
    /// The first adapter wgpu finds, through WGSL.
    Wgpu,
    /// The first CUDA device.
    Cuda,
}

/// An open device.
pub(crate) struct Device {
    pub(crate) backend: BackendName,
    pub(crate) client: Client,
    pub(crate) caps: Caps,
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            BackendName::Cpu => "cpu",
            BackendName::Lavapipe => "lavapipe",
            BackendName::Swiftshader => "swiftshader",
            BackendName::Wgpu => "wgpu",
            BackendName::Cuda => "cuda",
        })
    }
}

impl BackendName {
    pub(crate) const ALL: [BackendName; 5] = [
        BackendName::Cpu,
        BackendName::Lavapipe,
        BackendName::Swiftshader,
        BackendName::Wgpu,
        BackendName::Cuda,
    ];

    /// The software Vulkan driver that the name stands for.
    pub(crate) fn driver(self) -> Option<Driver> {
        match self {
            BackendName::Lavapipe => Some(Driver::Lavapipe),
            BackendName::Swiftshader => Some(Driver::Swiftshader),
            _ => None,
        }
    }

    fn uses_vulkan(self) -> bool {
        matches!(
            self,
            BackendName::Lavapipe | BackendName::Swiftshader | BackendName::Wgpu
        )
    }

    fn family(self) -> Backend {
        match self {
            BackendName::Cpu => Backend::Cpu,
            BackendName::Cuda => Backend::Cuda,
            _ => Backend::Wgpu,
        }
    }

    /// cuda, else a GPU through wgpu, else cpu.
    pub(crate) fn best() -> Result<Self> {
        let gpu = |backend| -> Result<bool> {
            let report = BackendReport::elsewhere(backend)?;
            Ok(report.device().is_some_and(|device| !device.software))
        };
        Ok(if gpu(BackendName::Cuda)? {
            BackendName::Cuda
        } else if gpu(BackendName::Wgpu)? {
            BackendName::Wgpu
        } else {
            BackendName::Cpu
        })
    }

    /// What to do where the backend is not there.
    pub(crate) fn install_hint(self) -> &'static str {
        match self {
            BackendName::Cpu => "build with the feature cpu",
            BackendName::Lavapipe => Driver::Lavapipe.install_hint(),
            BackendName::Swiftshader => Driver::Swiftshader.install_hint(),
            BackendName::Wgpu => {
                "install a Vulkan, Metal or DirectX 12 driver; `cargo xtask bootstrap` brings \
                 software ones"
            }
            BackendName::Cuda => "needs an NVIDIA GPU and its driver",
        }
    }

    /// Opens the first device; [`prepare`] must have been called with this backend.
    ///
    /// # Errors
    /// [`Failure::Missing`] when there is none, or another driver answered.
    pub(crate) fn open(self) -> Result<Device> {
        let missing = |what: String| Failure::missing(what, self.install_hint());
        if let Some(driver) = self.driver()
            && driver.manifest().is_none()
        {
            return Err(missing(format!(
                "backend {self}: the driver is not installed"
            )));
        }
        let client = self.family().open().map_err(|e| missing(e.to_string()))?;
        let caps = Caps::of(&client);
        if let Some(driver) = self.driver()
            && !caps.device.contains(driver.adapter_mark())
        {
            let what = format!("backend {self}: another driver answered, {}", caps.device);
            return Err(missing(what));
        }
        Ok(Device {
            backend: self,
            client,
            caps,
        })
    }
}

impl Device {
    /// Backend and device for tables.
    pub(crate) fn title(&self) -> String {
        format!("{} ({})", self.backend, self.adapter())
    }

    /// The device's own name.
    pub(crate) fn adapter(&self) -> &str {
        &self.client.properties().identity.name
    }

    /// Whether the host's cores do the work.
    pub(crate) fn is_software(&self) -> bool {
        self.backend == BackendName::Cpu || Driver::behind(&self.caps.device).is_some()
    }
}

/// Ties the process to the Vulkan driver that `backends` need. Every command calls this first, from
/// the main thread, before it opens a device or starts a thread.
///
/// # Errors
/// [`Failure::Usage`] when they need more than one.
pub(crate) fn prepare(backends: &[BackendName]) -> Result<()> {
    let mut vulkan: Vec<BackendName> = Vec::new();
    for &backend in backends {
        if backend.uses_vulkan() && !vulkan.contains(&backend) {
            vulkan.push(backend);
        }
    }
    if let [first, second, ..] = vulkan[..] {
        return Err(Failure::usage(
            format!("{first} and {second} in one run: a process can use one Vulkan driver"),
            "run the command once for each",
        ));
    }
    let manifest = vulkan
        .first()
        .and_then(|backend| backend.driver()?.manifest());
    // SAFETY: commands call this before anything else, when only the main thread exists.
    unsafe { driver::select(manifest.as_deref()) };
    #[cfg(feature = "persistent-cache")]
    if let Some(folder) = kernel_cache() {
        flashcube::keep_compiled(&folder).map_err(Failure::failed)?;
    }
    Ok(())
}

/// Where compiled kernels are kept: `FLASHCUBE_KERNEL_CACHE`, or the user's cache folder. `None` in
/// builds without the feature `persistent-cache`, and where there is no such folder.
pub(crate) fn kernel_cache() -> Option<PathBuf> {
    if !cfg!(feature = "persistent-cache") {
        return None;
    }
    let folder = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    folder("FLASHCUBE_KERNEL_CACHE").or_else(|| {
        let home = || Some(folder("HOME")?.join(".cache"));
        let cache = folder("XDG_CACHE_HOME").or_else(home)?;
        Some(cache.join("flashcube").join("kernels"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for backend in BackendName::ALL {
            let name = backend.to_string();
            assert_eq!(BackendName::from_str(&name, false).unwrap(), backend);
            assert_eq!(
                serde_json::to_string(&backend).unwrap(),
                format!("\"{name}\"")
            );
        }
    }

    #[test]
    fn two_vulkan_drivers_are_refused() {
        let two = [BackendName::Lavapipe, BackendName::Cpu, BackendName::Wgpu];
        let failure = prepare(&two).unwrap_err();
        assert_eq!(failure.code(), 2);
        assert!(
            failure.to_string().contains("lavapipe and wgpu"),
            "{failure}"
        );
    }
}
