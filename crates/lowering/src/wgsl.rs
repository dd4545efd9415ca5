//! A CubeCL kernel to WGSL, without an adapter.

use std::sync::Arc;

use cubecl::{
    WgpuCompilationOptions,
    ir::{
        AddressType, DeviceIdentity, DeviceProperties, ElemType, FloatKind, HardwareProperties,
        IntKind, MemoryDeviceProperties, Type, UIntKind, VectorSize,
        features::{AtomicUsage, Features, TypeUsage},
    },
    prelude::CubeKernel,
    profile::TimingMethod,
};
use cubecl_wgpu::WgslCompiler;

use crate::{LoweringError, error::Result, source::stable_text};

/// What the strictest WebGPU device reports of itself: the default limits of the WebGPU specification (section 3.6.2:
/// 256 units a cube, 16 KiB of shared memory, 8 storage buffers), 32-bit types, and f16 through its `shader-f16` feature.
pub fn wgsl_properties() -> Arc<DeviceProperties> {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 4,
        plane_size_max: 128,
        max_bindings: 8,
        max_shared_memory_size: 16 * 1024,
        max_cube_count: (65535, 65535, 65535),
        max_units_per_cube: 256,
        max_cube_dim: (256, 256, 64),
        num_streaming_multiprocessors: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let mut properties = DeviceProperties::new(
        Features::default(),
        MemoryDeviceProperties::new(128 << 20, 256),
        hardware,
        TimingMethod::System,
        DeviceIdentity {
            name: "offline WebGPU".into(),
            fingerprint: "offline_wgsl".into(),
            physical: None,
        },
    );
    properties.register_address_type(AddressType::U32);
    for kind in [
        ElemType::Index,
        ElemType::UInt(UIntKind::U32),
        ElemType::Int(IntKind::I32),
        ElemType::Float(FloatKind::F16),
        ElemType::Float(FloatKind::F32),
        ElemType::Bool,
    ] {
        properties.register_type_usage(kind, TypeUsage::all());
    }
    for kind in [ElemType::Int(IntKind::I32), ElemType::UInt(UIntKind::U32)] {
        properties.register_atomic_type_usage(
            Type::atomic(kind),
            AtomicUsage::LoadStore | AtomicUsage::Exchange | AtomicUsage::Add,
        );
    }
    Arc::new(properties)
}

/// The WGSL that CubeCL's wgpu runtime would compile for `kernel`, with the values numbered in order of appearance.
///
/// # Errors
/// [`LoweringError::Kernel`] when the kernel's own checks or CubeCL refuse it.
pub fn wgsl_source<K: CubeKernel + ?Sized>(kernel: &K) -> Result<String> {
    let refused = |reason: String| LoweringError::Kernel {
        kernel: kernel.name().to_owned(),
        target: "WGSL",
        reason,
    };
    let definition = cubecl::define_kernel(kernel).map_err(|error| refused(error.to_string()))?;
    let name = definition.settings.kernel_name.clone();
    let shader = cubecl::Compiler::compile(
        &mut WgslCompiler,
        definition,
        &WgpuCompilationOptions::default(),
    )
    .map_err(|error| refused(error.to_string()))?;
    Ok(stable_text(&name, &shader.to_string()))
}
