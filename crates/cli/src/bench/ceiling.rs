//! What the device can do at best: a copy, a read, and chains of multiply-adds.

use cubecl::prelude::*;
use flashcube::Family;

use super::measure::{read, time};
use crate::backend::Device;
use crate::failure::{Failure, Result};

/// Ceilings of one device, measured now: the fastest repeat of the best variant tried.
pub(super) struct Ceilings {
    /// Bytes read and written per second.
    pub(super) copy: f64,
    /// Bytes read per second by a kernel that writes next to nothing.
    pub(super) read: f64,
    /// f32 operations per second, two for each multiply-add.
    pub(super) fma: f64,
}

/// `out[i] = x[i]`; x, out: `[total]` vectors of N f32.
#[cube(launch_unchecked)]
fn copy_vectors<N: Size>(x: &[Vector<f32, N>], out: &mut [Vector<f32, N>], total: u32) {
    let stride = CUBE_COUNT * CUBE_DIM as usize;
    let mut i = ABSOLUTE_POS;
    while i < total as usize {
        out[i] = x[i];
        i += stride;
    }
}

/// Loads of a unit under way at a time.
const LOADS: usize = 8;

/// `out[unit]` = the sum of every `units`th vector of x; x: `[total]` vectors of N f32.
#[cube(launch_unchecked)]
fn sum_vectors<N: Size>(x: &[Vector<f32, N>], out: &mut [Vector<f32, N>], total: u32) {
    let units = CUBE_COUNT * CUBE_DIM as usize;
    let mut sum = Vector::<f32, N>::zeroed();
    let mut i = ABSOLUTE_POS;
    while i + (LOADS - 1) * units < total as usize {
        let mut loaded = Array::<Vector<f32, N>>::new(LOADS);
        #[unroll]
        for l in 0..LOADS {
            loaded[l] = x[i + l * units];
        }
        #[unroll]
        for l in 0..LOADS {
            sum += loaded[l];
        }
        i += LOADS * units;
    }
    while i < total as usize {
        sum += x[i];
        i += units;
    }
    out[ABSOLUTE_POS] = sum;
}

/// Independent chains a <- a * x + x of each unit: enough to hide the latency of any pipeline.
const CHAINS: usize = 8;

/// `out[i]` = sum of the chains after `steps` steps each; out: `[units]` vectors of N f32.
#[cube(launch_unchecked)]
fn chain_fma<N: Size>(out: &mut [Vector<f32, N>], x: f32, steps: u32) {
    let mut chains = Array::<Vector<f32, N>>::new(CHAINS);
    #[unroll]
    for c in 0..CHAINS {
        chains[c] = Vector::<f32, N>::new(f32::cast_from(UNIT_POS + c as u32));
    }
    let factor = Vector::<f32, N>::new(x);
    for _ in 0..steps {
        #[unroll]
        for c in 0..CHAINS {
            chains[c] = fma(chains[c], factor, factor);
        }
    }
    let mut sum = Vector::<f32, N>::zeroed();
    #[unroll]
    for c in 0..CHAINS {
        sum += chains[c];
    }
    out[ABSOLUTE_POS] = sum;
}

impl Ceilings {
    /// Measures all of them.
    ///
    /// # Errors
    /// [`Failure::Failed`] when a kernel fails or computes something else.
    pub(super) fn measure(device: &Device) -> Result<Self> {
        let mut best = Self {
            copy: 0.0,
            read: 0.0,
            fma: 0.0,
        };
        for vector in widths(device) {
            for &bytes in copy_sizes(device) {
                best.copy = best.copy.max(copy(device, vector, bytes)?);
                best.read = best.read.max(sum(device, vector, bytes)?);
            }
            best.fma = best.fma.max(fma_rate(device, vector)?);
        }
        Ok(best)
    }
}

/// Vector widths to try: the CPU JIT's vectors are the host's SIMD registers, a GPU's are loads.
fn widths(device: &Device) -> Vec<usize> {
    let widths: &[usize] = match device.caps.family {
        Family::Cpu => &[4, 8, 16],
        _ => &[4],
    };
    let widest = device.caps.vector.max(1);
    widths.iter().copied().filter(|&w| w <= widest).collect()
}

/// Bytes to copy: larger than any cache on a GPU; on the host also what its caches hold, since the
/// small problems of a run there do not leave them.
fn copy_sizes(device: &Device) -> &'static [usize] {
    if device.is_software() {
        &[1 << 20, 64 << 20]
    } else {
        &[1 << 30]
    }
}

/// Units of a cube and number of cubes that fill the device.
fn grid(device: &Device) -> (u32, u32) {
    let units = device.caps.units_per_cube.min(256);
    let processors = device.caps.multiprocessors.unwrap_or(64);
    if device.is_software() {
        (units, 16)
    } else {
        (units, processors * 16)
    }
}

/// Bytes per second, read and written.
fn copy(device: &Device, vector: usize, bytes: usize) -> Result<f64> {
    let client = &device.client;
    let (units, cubes) = grid(device);
    let pattern: Vec<u8> = (0..bytes).map(|i| (i >> 2) as u8).collect();
    let from = client.create_from_slice(&pattern);
    let to = client.empty(bytes);
    let vectors = bytes / (4 * vector);
    let times = time(client, || {
        // SAFETY: both buffers hold `vectors` vectors of `vector` f32.
        unsafe {
            copy_vectors::launch_unchecked(
                client,
                CubeCount::Static(cubes, 1, 1),
                CubeDim::new_1d(units),
                vector,
                BufferArg::from_raw_parts(from.clone(), vectors),
                BufferArg::from_raw_parts(to.clone(), vectors),
                vectors as u32,
            );
        }
        Ok(())
    })?;
    if read(client, &to)? != pattern {
        return Err(Failure::failed("the copy kernel did not copy"));
    }
    Ok(2.0 * bytes as f64 / times.fastest)
}

/// Bytes per second, read.
fn sum(device: &Device, vector: usize, bytes: usize) -> Result<f64> {
    let client = &device.client;
    let (units, cubes) = grid(device);
    let total = (units * cubes) as usize;
    let ones: Vec<u8> = 1f32.to_le_bytes().repeat(bytes / 4);
    let from = client.create_from_slice(&ones);
    let to = client.empty(4 * vector * total);
    let vectors = bytes / (4 * vector);
    let times = time(client, || {
        // SAFETY: `from` holds `vectors` vectors of `vector` f32, `to` one for each unit of the grid.
        unsafe {
            sum_vectors::launch_unchecked(
                client,
                CubeCount::Static(cubes, 1, 1),
                CubeDim::new_1d(units),
                vector,
                BufferArg::from_raw_parts(from.clone(), vectors),
                BufferArg::from_raw_parts(to.clone(), total),
                vectors as u32,
            );
        }
        Ok(())
    })?;
    let sums = read(client, &to)?;
    let (words, _) = sums.as_chunks::<4>();
    let all: f64 = words
        .iter()
        .map(|&word| f64::from(f32::from_le_bytes(word)))
        .sum();
    if all != (bytes / 4) as f64 {
        return Err(Failure::failed("the reading kernel read something else"));
    }
    Ok(bytes as f64 / times.fastest)
}

/// Operations per second of the chains.
fn fma_rate(device: &Device, vector: usize) -> Result<f64> {
    let client = &device.client;
    let (units, cubes) = grid(device);
    let steps: u32 = if device.is_software() { 4096 } else { 16384 };
    let total = (units * cubes) as usize;
    let out = client.empty(4 * vector * total);
    let times = time(client, || {
        // SAFETY: `out` holds one vector for each unit of the grid.
        unsafe {
            chain_fma::launch_unchecked(
                client,
                CubeCount::Static(cubes, 1, 1),
                CubeDim::new_1d(units),
                vector,
                BufferArg::from_raw_parts(out.clone(), total),
                0.5,
                steps,
            );
        }
        Ok(())
    })?;
    // a <- a / 2 + 1 / 2 converges to 1 from anywhere.
    let bytes = read(client, &out)?;
    let (words, _) = bytes.as_chunks::<4>();
    let right = words
        .iter()
        .all(|&word| (f32::from_le_bytes(word) - CHAINS as f32).abs() < 1e-3);
    if !right {
        return Err(Failure::failed(
            "the multiply-add kernel computed something else",
        ));
    }
    let multiply_adds = (total * vector * CHAINS) as f64 * f64::from(steps);
    Ok(2.0 * multiply_adds / times.fastest)
}
