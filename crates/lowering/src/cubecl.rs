//! A CubeCL kernel to source text, without a device: the properties a device would have reported are written here.

use std::sync::Arc;

use cubecl::{
    CubeDim,
    ir::{
        AddressType, ContiguousElements, DeviceIdentity, DeviceProperties, ElemType, FloatKind,
        HardwareProperties, MemoryDeviceProperties, MmaProperties, OpaqueType, TargetProperties,
        Type, VectorSize,
        features::{AtomicUsage, Features, Plane, Tma, TypeUsage},
    },
    prelude::{CubeKernel, ExecutionMode, KernelSettings},
    profile::TimingMethod,
};
use cubecl_cpp::{
    cuda::{
        arch::CudaArchitecture,
        mma::{CudaCmmaCompiler, manual::contiguous_elements_cuda},
        supported_mma_combinations, supported_scaled_mma_combinations,
    },
    shared::{
        CompilationOptions, CppCompiler, CppSupportedFeatures, register_mma_features,
        register_scaled_mma_features, register_supported_types, register_wmma_features,
    },
    target::Cuda,
};

use crate::{Arch, CudaSource, LoweringError, error::Result};

/// Settings of an unchecked launch with `units` units along x and 32-bit addresses: the first argument of the struct
/// that the launch macro makes of a kernel.
pub fn settings(units: u32) -> KernelSettings {
    KernelSettings::new(
        *CubeDim::new_1d(units),
        ExecutionMode::Unchecked,
        AddressType::U32,
    )
}

/// What a device of `arch` reports of itself under CubeCL's CUDA runtime: plane size 32, the architecture's shared memory,
/// types, matrix instructions, TMA and clusters. The second argument of a kernel's struct.
pub fn properties(arch: Arch) -> Arc<DeviceProperties> {
    let version = arch.version();
    let mut properties = DeviceProperties::new(
        Features::default(),
        MemoryDeviceProperties::new(u64::MAX, 512),
        hardware(arch),
        TimingMethod::Device,
        DeviceIdentity {
            name: format!("offline {arch}"),
            fingerprint: format!("ptx_sm{version}"),
            physical: None,
        },
    );
    register_supported_types(&mut properties);
    register_atomics(&mut properties, version);
    register_types(&mut properties, version);
    let features = &mut properties.features;
    features.memory_reinterpret = true;
    features.alignment = true;
    features.device_memory_scope = true;
    features.copy_async = true;
    features.plane.insert(Plane::Ops);
    features.plane.insert(Plane::Sync);
    features.plane.insert(Plane::NonUniformControlFlow);
    for half in [FloatKind::F16, FloatKind::BF16] {
        features.matmul.ldmatrix.insert(ElemType::Float(half));
        if version >= 90 {
            features.matmul.stmatrix.insert(ElemType::Float(half));
        }
    }
    if version >= 90 {
        features.tma.insert(Tma::Base);
        features.cube_cluster = true;
    }
    if version >= 100 {
        features.tma.insert(Tma::Im2colWide);
        features.tma.insert(Tma::SwizzleAtomicity);
    }
    let cuda = CudaArchitecture {
        version,
        tensor_cores: true,
    };
    let cmma = CudaCmmaCompiler::Cpp.supported_cmma_combinations(&cuda);
    register_wmma_features(cmma, &mut properties);
    register_mma_features(supported_mma_combinations(&cuda), &mut properties);
    register_scaled_mma_features(supported_scaled_mma_combinations(&cuda), &mut properties);
    Arc::new(properties)
}

fn hardware(arch: Arch) -> HardwareProperties {
    HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 1024,
        max_shared_memory_size: arch.max_smem_bytes(),
        max_cube_count: (i32::MAX as u32, 65535, 65535),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: Some(arch.multiprocessors()),
        num_tensor_cores: Some(4),
        min_tensor_cores_dim: Some(8),
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    }
}

/// Float atomics; the integer ones come with the supported types.
fn register_atomics(properties: &mut DeviceProperties, version: u32) {
    let all = AtomicUsage::Add | AtomicUsage::LoadStore | AtomicUsage::Exchange;
    let half = ElemType::Float(FloatKind::F16);
    let vector = |kind: FloatKind, lanes| {
        Type::atomic(Type::new(ElemType::Float(kind)).with_vector_size(lanes))
    };
    properties.register_atomic_type_usage(Type::atomic(ElemType::Float(FloatKind::F64)), all);
    properties.register_atomic_type_usage(Type::atomic(half), AtomicUsage::Add);
    properties.register_atomic_type_usage(vector(FloatKind::F16, 2), all);
    if version < 90 {
        return;
    }
    for kind in [FloatKind::BF16, FloatKind::F16] {
        for lanes in [2, 4, 8] {
            properties.register_atomic_type_usage(vector(kind, lanes), all);
        }
        for lanes in [4, 8] {
            properties.register_atomic_type_usage(vector(kind, lanes), AtomicUsage::MinMax);
        }
    }
    for lanes in [2, 4] {
        properties.register_atomic_type_usage(vector(FloatKind::F32, lanes), all);
    }
}

/// Types beyond those of every CUDA device.
fn register_types(properties: &mut DeviceProperties, version: u32) {
    let conversion = TypeUsage::Conversion;
    properties.register_type_usage(ElemType::Float(FloatKind::TF32), conversion);
    properties.register_opaque_type(OpaqueType::Barrier);
    if version >= 90 {
        properties.register_opaque_type(OpaqueType::TensorMap);
    }
    if version >= 100 {
        properties.register_type_usage(ElemType::Float(FloatKind::E2M1), conversion);
        for kind in [
            FloatKind::E2M1x2,
            FloatKind::E2M3,
            FloatKind::E3M2,
            FloatKind::UE8M0,
        ] {
            let usage = TypeUsage::Conversion | TypeUsage::Buffer;
            properties.register_type_usage(ElemType::Float(kind), usage);
        }
    }
}

/// How CUDA spreads matrix fragments over a plane's registers: the third argument of a kernel's struct.
pub fn target_properties() -> Arc<TargetProperties> {
    use cubecl::ir::types::matrix::MatrixLayout::{ColMajor, RowMajor};
    Arc::new(TargetProperties {
        mma: MmaProperties {
            register_size_bits: 32,
            const_plane_size: 32,
            register_layout_a: RowMajor,
            register_layout_b: ColMajor,
            register_layout_acc: RowMajor,
            register_duplication_a: 1,
            register_duplication_b: 1,
            register_duplication_acc: 1,
            contiguous_elements: ContiguousElements::new(contiguous_elements_cuda),
        },
    })
}

/// The CUDA C++ that CubeCL's CUDA runtime would compile for `kernel` on a device of `arch`.
///
/// `kernel` is the struct that the launch macro makes, built with [`settings`], [`properties`] of the same architecture
/// and [`target_properties`].
///
/// # Errors
/// [`LoweringError::Kernel`] when the kernel's own checks or CubeCL refuse it.
pub fn cuda_source<K: CubeKernel + ?Sized>(kernel: &K, arch: Arch) -> Result<CudaSource> {
    let refused = |reason: String| LoweringError::Kernel {
        kernel: kernel.name().to_owned(),
        target: "CUDA C++",
        reason,
    };
    let definition = cubecl::define_kernel(kernel).map_err(|error| refused(error.to_string()))?;
    let name = definition.settings.kernel_name.clone();
    let compiled = cubecl::Compiler::compile(
        &mut CppCompiler::<Cuda>::default(),
        definition,
        &compilation_options(arch),
    )
    .map_err(|error| refused(error.to_string()))?;
    Ok(CudaSource::new(
        &name,
        &compiled.source,
        compiled.shared_memory_size,
    ))
}

fn compilation_options(arch: Arch) -> CompilationOptions {
    let hopper = arch.version() >= 90;
    CompilationOptions {
        warp_size: 32,
        supports_features: CppSupportedFeatures {
            grid_constants: true,
            clusters: hopper,
            fast_math: true,
            fast_tanh: true,
            elect_sync: hopper,
            dp4a: true,
        },
        amd_wmma: None,
    }
}
