//! What selection is told about a device that is not there.

use cubecl::ir::{AddressType, DeviceProperties, ElemType, FloatKind};
use flashcube_kernels::{Caps, DType, Family};

use crate::{Arch, cubecl::properties};

/// The capabilities of a GPU of `arch` under CubeCL's CUDA runtime.
pub fn cuda_caps(arch: Arch) -> Caps {
    Caps {
        sm: Some(arch.version()),
        divergent_barriers: true,
        ..caps(&properties(arch), Family::Cuda)
    }
}

/// The capabilities of the strictest WebGPU device, see [`crate::wgsl_properties`].
#[cfg(feature = "wgsl")]
pub fn wgsl_caps() -> Caps {
    caps(&crate::wgsl_properties(), Family::Wgpu)
}

fn caps(properties: &DeviceProperties, family: Family) -> Caps {
    let hardware = &properties.hardware;
    Caps {
        device: properties.identity.name.clone(),
        family,
        sm: None,
        plane: (hardware.plane_size_min, hardware.plane_size_max),
        units_per_cube: hardware.max_units_per_cube,
        shared_memory: hardware.max_shared_memory_size,
        multiprocessors: hardware.num_streaming_multiprocessors,
        bindings: hardware.max_bindings,
        cube_count: hardware.max_cube_count,
        vector: hardware.max_vector_size,
        address_64: properties.supports_address(AddressType::U64),
        divergent_barriers: false,
        dtypes: DType::ALL
            .into_iter()
            .filter(|&dtype| properties.supports_type(elem(dtype)))
            .collect(),
    }
}

/// CubeCL's name of a dtype.
pub(super) fn elem(dtype: DType) -> ElemType {
    ElemType::Float(match dtype {
        DType::F32 => FloatKind::F32,
        DType::F16 => FloatKind::F16,
        DType::BF16 => FloatKind::BF16,
        DType::E4M3 => FloatKind::E4M3,
    })
}
