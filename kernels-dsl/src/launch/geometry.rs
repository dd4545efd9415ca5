//! Cube counts.

use cubecl::prelude::{AddressType, CubeCount};

use super::Caps;
use crate::error::NotAvailable;

/// `total` cubes spread over the axes so that none exceeds the device's count; kernels use the
/// linear position and leave those past `total` idle.
pub(crate) fn spread(what: &str, total: usize, caps: &Caps) -> Result<CubeCount, NotAvailable> {
    let (x, y, z) = caps.cube_count;
    // Some drivers report u32::MAX along x; an i32-safe count is enough for any y.
    let x_max = (x as usize).clamp(1, 1 << 30);
    let nx = total.min(x_max).max(1);
    let rest = total.div_ceil(nx).max(1);
    let ny = rest.min(y as usize).max(1);
    let nz = rest.div_ceil(ny);
    if nz > z as usize {
        return Err(NotAvailable {
            what: what.into(),
            device: caps.device.clone(),
            limit: "cubes of a launch",
            needed: total.to_string(),
            available: (x as u128 * y as u128 * z as u128).to_string(),
        });
    }
    Ok(CubeCount::Static(nx as u32, ny as u32, nz as u32))
}

/// Width of `usize` in the kernel.
pub(crate) fn address(wide: bool) -> AddressType {
    if wide {
        AddressType::U64
    } else {
        AddressType::U32
    }
}
