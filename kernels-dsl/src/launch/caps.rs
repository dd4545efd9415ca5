//! What a device offers, as plain data, so that selection can be tested for devices not at hand.

use cubecl::ir::AddressType;
use cubecl::prelude::Client;

use super::DType;

/// Which family of drivers a device belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// CubeCL's LLVM JIT on the host's cores.
    Cpu,
    /// wgpu through WGSL: Vulkan, Metal, DirectX 12, WebGPU.
    Wgpu,
    /// NVIDIA through CUDA C++.
    Cuda,
    /// Any other CubeCL runtime.
    Other,
}

/// Limits and features that selection looks at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caps {
    /// Name for messages.
    pub device: String,
    /// Driver family.
    pub family: Family,
    /// CUDA compute capability as major * 10 + minor (90 for Hopper).
    pub sm: Option<u32>,
    /// Units of a plane, smallest and largest.
    pub plane: (u32, u32),
    /// Most units of a cube. On the CPU JIT this is the number of cores, and larger cubes would
    /// spin on every barrier.
    pub units_per_cube: u32,
    /// Shared memory of a cube in bytes.
    pub shared_memory: usize,
    /// Streaming multiprocessors, where the driver counts them: what a persistent kernel fills.
    pub multiprocessors: Option<u32>,
    /// Storage buffers a kernel may bind.
    pub bindings: u32,
    /// Largest cube counts along x, y, z.
    pub cube_count: (u32, u32, u32),
    /// Widest vector load in elements.
    pub vector: usize,
    /// Whether kernels may address more than 2^32 elements.
    pub address_64: bool,
    /// Whether a cube's barrier may be reached from different places of the code.
    pub divergent_barriers: bool,
    /// Dtypes that arithmetic and buffers support.
    pub dtypes: Vec<DType>,
}

impl Caps {
    /// Reads the limits of the device behind `client`.
    pub fn of(client: &Client) -> Self {
        let properties = client.properties();
        let hardware = &properties.hardware;
        let family = match client.name() {
            name if name.contains("cpu") => Family::Cpu,
            name if name.contains("wgpu") => Family::Wgpu,
            name if name.contains("cuda") => Family::Cuda,
            _ => Family::Other,
        };
        Self {
            device: format!("{} ({})", properties.identity.name, client.name()),
            family,
            sm: compute_capability(&properties.identity.fingerprint),
            plane: (hardware.plane_size_min, hardware.plane_size_max),
            units_per_cube: hardware.max_units_per_cube,
            shared_memory: hardware.max_shared_memory_size,
            multiprocessors: hardware.num_streaming_multiprocessors,
            bindings: hardware.max_bindings,
            cube_count: hardware.max_cube_count,
            vector: hardware.max_vector_size,
            address_64: properties.supports_address(AddressType::U64),
            divergent_barriers: matches!(family, Family::Cpu | Family::Cuda),
            dtypes: DType::ALL
                .into_iter()
                .filter(|d| properties.supports_type(d.elem()))
                .collect(),
        }
    }

    /// Whether kernels may use `dtype`.
    pub fn supports(&self, dtype: DType) -> bool {
        self.dtypes.contains(&dtype)
    }
}

/// The number behind "sm" in a CUDA compilation target such as `ptx_sm90`.
fn compute_capability(fingerprint: &str) -> Option<u32> {
    let digits = fingerprint.split_once("_sm")?.1;
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::compute_capability;

    #[test]
    fn compute_capability_when_cuda_is_its_number() {
        assert_eq!(compute_capability("ptx_sm90"), Some(90));
        assert_eq!(compute_capability("sm_100a"), None);
        assert_eq!(compute_capability("spirv"), None);
    }
}
