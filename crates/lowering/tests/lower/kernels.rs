//! Small kernels to lower: arithmetic, shared memory, too many registers, a local array, a kernel that refuses.

use cubecl::prelude::*;
use flashcube_lowering::{
    Arch, CudaSource, Result, cuda_source, properties, settings, target_properties,
};
use half::bf16;

/// y[i] += a * x[i]; x, y: [n] f32, grid-stride loop.
#[cube(launch_unchecked)]
fn saxpy(x: &[f32], y: &mut [f32], a: f32, n: u32) {
    let stride = CUBE_COUNT * CUBE_DIM as usize;
    let mut i = ABSOLUTE_POS;
    while i < n as usize {
        y[i] = fma(a, x[i], y[i]);
        i += stride;
    }
}

/// out[i] = bias[i] + sum over the cube of x times its weight; x: [cubes * 128] bf16, out: [cubes * 128] f32; shared tiles
/// of 128, 128 and 256 f32, 2 KiB together.
#[cube(launch_unchecked)]
fn weigh_reversed(x: &[bf16], out: &mut [f32]) {
    let unit = UNIT_POS as usize;
    let mut x_smem = Shared::<[f32]>::new_slice(128usize);
    let mut weight_smem = Shared::<[f32]>::new_slice(128usize);
    let mut bias_smem = Shared::<[f32]>::new_slice(256usize);
    bias_smem[unit * 2usize] = f32::cast_from(UNIT_POS);
    x_smem[unit] = f32::cast_from(x[ABSOLUTE_POS]);
    weight_smem[unit] = f32::cast_from(UNIT_POS) * 0.5f32;
    sync_cube();
    let mut sum = bias_smem[(127usize - unit) * 2usize];
    for i in 0..128usize {
        sum = fma(x_smem[i], weight_smem[127usize - i], sum);
    }
    out[ABSOLUTE_POS] = sum;
}

/// Keeps 160 values alive across a barrier; at 1024 units a cube 64 registers are there. x, out: [1024 * 160] f32.
#[cube(launch_unchecked)]
fn crowd_registers(x: &[f32], out: &mut [f32]) {
    let base = ABSOLUTE_POS * 160usize;
    let mut kept = Array::<f32>::new(160usize);
    #[unroll]
    for i in 0..160usize {
        kept[i] = x[base + i];
    }
    sync_cube();
    #[unroll]
    for i in 0..160usize {
        out[base + i] = kept[i] * kept[159usize - i];
    }
}

/// Indexes a local array by a run-time value, which keeps it on the stack. x, out: [n] f32.
#[cube(launch_unchecked)]
fn index_locals(x: &[f32], out: &mut [f32], at: u32) {
    let mut local = Array::<f32>::new(256usize);
    for i in 0..256usize {
        local[i] = x[i] * 2.0f32;
    }
    out[ABSOLUTE_POS] = local[at as usize];
}

/// Refuses at expansion, as a kernel does whose blueprint is inconsistent.
#[cube(launch_unchecked)]
fn refuse(out: &mut [f32], #[comptime] tile: u32) {
    comptime!(assert!(tile > 0, "tile is {tile}, expected at least 1"));
    out[ABSOLUTE_POS] = 0.0f32;
}

macro_rules! lower_kernel {
    ($kernel:ident, $name:ident, $units:expr, $arch:expr, $($argument:expr),*) => {
        cuda_source(
            &$kernel::$name::new(
                settings($units),
                properties($arch),
                target_properties(),
                $($argument),*
            ),
            $arch,
        )
    };
}

fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

pub(crate) fn saxpy_source(arch: Arch) -> Result<CudaSource> {
    lower_kernel!(saxpy, Saxpy, 256, arch, buffer(), buffer(), (), ())
}

pub(crate) fn weigh_reversed_source(arch: Arch) -> Result<CudaSource> {
    lower_kernel!(weigh_reversed, WeighReversed, 128, arch, buffer(), buffer())
}

pub(crate) fn crowd_registers_source(arch: Arch) -> Result<CudaSource> {
    lower_kernel!(
        crowd_registers,
        CrowdRegisters,
        1024,
        arch,
        buffer(),
        buffer()
    )
}

pub(crate) fn index_locals_source(arch: Arch) -> Result<CudaSource> {
    lower_kernel!(index_locals, IndexLocals, 128, arch, buffer(), buffer(), ())
}

pub(crate) fn refuse_source(arch: Arch) -> Result<CudaSource> {
    lower_kernel!(refuse, Refuse, 128, arch, buffer(), 0)
}

#[cfg(feature = "wgsl")]
pub(crate) fn saxpy_wgsl() -> Result<String> {
    use flashcube_lowering::{wgsl_properties, wgsl_source};
    wgsl_source(&saxpy::Saxpy::new(
        settings(64),
        wgsl_properties(),
        std::sync::Arc::new(TargetProperties::default()),
        buffer(),
        buffer(),
        (),
        (),
    ))
}
