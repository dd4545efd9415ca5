//! A CubeCL kernel and its arguments as the interpreter takes them.

use cubecl_core::environment::backtrace::BackTrace;
use cubecl_core::ir::AddressType;
use cubecl_core::server::{
    KernelArguments, KernelResource, LaunchError, ServerError, TensorMapBinding,
};
use cubecl_core::{CompilationError, CubeKernel};
use cubecl_runtime::tma::{OobFill, TensorMapFormat, TensorMapInterleave, TensorMapSwizzle};
use flashcube_lowering::{Arch, Lowering, cuda_source};
use flashcube_ptx_sim::{Arg, Kernel, Swizzle, TensorMap, parse};

use crate::Edit;
use crate::buffers::Buffers;

/// A kernel ready to run.
pub(crate) struct Loaded {
    pub(crate) kernel: Kernel,
    pub(crate) dynamic_shared: usize,
}

impl Loaded {
    /// CubeCL's CUDA C++ through NVRTC.
    pub(crate) fn compile(
        kernel: &dyn CubeKernel,
        arch: Arch,
        lowering: &Lowering,
        edit: Option<&Edit>,
    ) -> Result<Self, ServerError> {
        let source = cuda_source(kernel, arch).map_err(refused)?;
        let ptx = lowering.ptx(&source, arch).map_err(refused)?;
        let text = match edit {
            Some(edit) => edit(&ptx.text),
            None => ptx.text,
        };
        let module = parse(&text).map_err(refused)?;
        Ok(Self {
            kernel: Kernel::load(&module, Some(&source.kernel)).map_err(refused)?,
            dynamic_shared: source.dynamic_smem_bytes,
        })
    }

    /// The arguments in the order of the CUDA runtime: buffers and tensor maps, the shapes and
    /// strides that are known at launch alone, then scalars and the rest of the metadata by value.
    pub(crate) fn arguments(
        &self,
        given: &KernelArguments,
        address: AddressType,
        buffers: &mut Buffers,
    ) -> Result<Vec<Arg>, ServerError> {
        let mut args = Vec::new();
        for resource in &given.resources {
            args.push(match resource {
                KernelResource::Buffer(binding) => {
                    let (buffer, offset) = buffers.find(binding)?;
                    Arg::Buffer(buffer, offset)
                }
                KernelResource::TensorMap(map) => {
                    Arg::TensorMap(tensor_map(map, address, buffers)?)
                }
            });
        }
        let info = &given.info;
        let bytes =
            |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
        if info.dynamic_metadata_offset < info.data.len() {
            let tail = buffers
                .memory
                .add(&bytes(&info.data[info.dynamic_metadata_offset..]));
            args.push(Arg::Buffer(tail, 0));
        }
        let params = self.kernel.param_bytes();
        if let Some(&size) = params.get(args.len()) {
            let mut scalars = bytes(&info.data);
            scalars.resize(size, 0);
            args.push(Arg::Bytes(scalars));
        }
        Ok(args)
    }
}

fn tensor_map(
    given: &TensorMapBinding,
    address: AddressType,
    buffers: &Buffers,
) -> Result<TensorMap, ServerError> {
    let TensorMapBinding { binding, map } = given;
    let element = map.elem_ty.expand_size(address) as u32;
    let unmodelled = |what: String| refused(format!("tensor map with {what} is not simulated"));
    let TensorMapFormat::Tiled(tiled) = &map.format else {
        return Err(unmodelled(format!("{:?}", map.format)));
    };
    if map.interleave != TensorMapInterleave::None {
        return Err(unmodelled(format!("{:?}", map.interleave)));
    }
    let swizzle = match map.swizzle {
        TensorMapSwizzle::None => Swizzle::None,
        TensorMapSwizzle::B32 => Swizzle::B32,
        TensorMapSwizzle::B64 => Swizzle::B64,
        TensorMapSwizzle::B128 => Swizzle::B128,
        TensorMapSwizzle::B128Atom32B => Swizzle::B128Atom32,
        other => return Err(unmodelled(format!("{other:?}"))),
    };
    let strides = map.metadata.strides().iter().rev().skip(1);
    Ok(TensorMap {
        base: buffers.find(binding)?,
        element,
        dims: map
            .metadata
            .shape()
            .iter()
            .rev()
            .map(|&n| n as u64)
            .collect(),
        strides: strides.map(|&n| n as u64 * u64::from(element)).collect(),
        tile: tiled.tile_size.iter().rev().map(|&n| n as u32).collect(),
        steps: map.elem_stride.iter().rev().map(|&n| n as u32).collect(),
        swizzle,
        fill_nan: map.oob_fill == OobFill::NaN,
    })
}

/// An error of a kernel that never ran.
fn refused(reason: impl ToString) -> ServerError {
    ServerError::Launch(LaunchError::CompilationError(CompilationError::Generic {
        reason: reason.to_string(),
        backtrace: BackTrace::capture(),
    }))
}
