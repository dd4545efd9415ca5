//! Emptying the L2 cache between launches.

use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::backend::Device;

/// A buffer larger than any L2 cache, zeroed before every timed launch so that a launch finds its
/// inputs where a caller's would be: in memory.
pub(super) struct Flush {
    client: Client,
    /// `None` on the host's cores.
    buffer: Option<Handle>,
    cubes: u32,
}

/// What triton's `do_bench` zeroes.
const BYTES: usize = 256 << 20;
const UNITS: u32 = 256;
const VECTOR: usize = 4;

/// `out[i]` = 0; out: `[total]` vectors of N f32.
#[cube(launch_unchecked)]
fn clear_vectors<N: Size>(out: &mut [Vector<f32, N>], total: u32) {
    let stride = CUBE_COUNT * CUBE_DIM as usize;
    let mut i = ABSOLUTE_POS;
    while i < total as usize {
        out[i] = Vector::<f32, N>::zeroed();
        i += stride;
    }
}

impl Flush {
    pub(super) fn new(device: &Device) -> Self {
        let client = device.client.clone();
        let buffer = (!device.is_software()).then(|| client.empty(BYTES));
        Self {
            client,
            buffer,
            cubes: 16 * device.caps.multiprocessors.unwrap_or(64),
        }
    }

    /// Nothing is zeroed: what is timed reads more than the cache holds.
    pub(super) fn none(device: &Device) -> Self {
        Self {
            client: device.client.clone(),
            buffer: None,
            cubes: 0,
        }
    }

    /// Queues the zeroing.
    pub(super) fn run(&self) {
        let Some(buffer) = &self.buffer else { return };
        let vectors = BYTES / (4 * VECTOR);
        // SAFETY: the buffer holds `vectors` vectors of `VECTOR` f32.
        unsafe {
            clear_vectors::launch_unchecked(
                &self.client,
                CubeCount::Static(self.cubes, 1, 1),
                CubeDim::new_1d(UNITS),
                VECTOR,
                BufferArg::from_raw_parts(buffer.clone(), vectors),
                vectors as u32,
            );
        }
    }
}
