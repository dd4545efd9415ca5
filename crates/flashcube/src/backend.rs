//! Opening a device by name.

use core::fmt;
use core::str::FromStr;

use cubecl::prelude::Client;

/// A driver family this build can talk to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The host's cores through CubeCL's LLVM JIT; needs nothing installed.
    Cpu,
    /// The first adapter wgpu finds, through WGSL.
    Wgpu,
    /// The first CUDA device.
    Cuda,
}

/// Why a backend could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Built without the feature.
    #[error("backend {0} is not part of this build: enable the feature of that name")]
    NotBuilt(Backend),
    /// No device or driver on this machine.
    #[error("backend {backend}: {reason}")]
    NoDevice {
        /// Backend asked for.
        backend: Backend,
        /// What was looked for and what would help.
        reason: String,
    },
    /// A name that is none of `cpu`, `wgpu`, `cuda`.
    #[error("unknown backend {0:?}: expected cpu, wgpu or cuda")]
    Unknown(String),
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Backend::Cpu => "cpu",
            Backend::Wgpu => "wgpu",
            Backend::Cuda => "cuda",
        })
    }
}

impl FromStr for Backend {
    type Err = BackendError;

    fn from_str(name: &str) -> Result<Self, BackendError> {
        Self::ALL
            .into_iter()
            .find(|b| b.to_string() == name)
            .ok_or_else(|| BackendError::Unknown(name.into()))
    }
}

impl Backend {
    /// Every backend, best first.
    pub const ALL: [Backend; 3] = [Backend::Cuda, Backend::Wgpu, Backend::Cpu];

    /// A client of the backend's first device.
    ///
    /// # Errors
    /// [`BackendError`] when the build lacks the feature or the machine the device.
    pub fn open(self) -> Result<Client, BackendError> {
        match self {
            Backend::Cpu => cpu(),
            Backend::Wgpu => wgpu(),
            Backend::Cuda => cuda(),
        }
    }
}

#[cfg(feature = "cpu")]
fn cpu() -> Result<Client, BackendError> {
    use cubecl_runtime::runtime::Runtime;
    Ok(cubecl_cpu::CpuRuntime::client(&Default::default()))
}

#[cfg(not(feature = "cpu"))]
fn cpu() -> Result<Client, BackendError> {
    Err(BackendError::NotBuilt(Backend::Cpu))
}

#[cfg(feature = "wgpu")]
fn wgpu() -> Result<Client, BackendError> {
    first_device::<cubecl_wgpu::WgpuRuntime>(
        Backend::Wgpu,
        "wgpu finds no adapter: install a Vulkan, Metal or DirectX 12 driver \
         (on Debian, mesa-vulkan-drivers brings the software driver lavapipe)",
    )
}

#[cfg(not(feature = "wgpu"))]
fn wgpu() -> Result<Client, BackendError> {
    Err(BackendError::NotBuilt(Backend::Wgpu))
}

#[cfg(feature = "cuda")]
fn cuda() -> Result<Client, BackendError> {
    first_device::<cubecl_cuda::CudaRuntime>(
        Backend::Cuda,
        "no CUDA device: libcuda is missing or lists none",
    )
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Client, BackendError> {
    Err(BackendError::NotBuilt(Backend::Cuda))
}

/// Asks before opening: opening a device that is not there panics in the driver layer.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn first_device<R: cubecl_runtime::runtime::Runtime>(
    backend: Backend,
    reason: &str,
) -> Result<Client, BackendError> {
    if R::enumerate_all_devices().is_empty() {
        return Err(BackendError::NoDevice {
            backend,
            reason: reason.into(),
        });
    }
    Ok(R::client(&R::Device::default()))
}
