//! x brought into the order of the stored rows of W, where the Tensor Memory Accelerator cannot
//! address it as it lies: rows in another order, or unaligned ones.

use cubecl::prelude::*;

use crate::quant::{MatmulSizes, TILE};

/// out [m, rows] = x [m, gather `[rows]`], 0 where a row stands for none; a unit copies 8 elements.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn arrange_x(
    x: &[u16],
    gather: &ComptimeOption<Box<[u32]>>,
    out: &mut [Vector<u32, Const<4>>],
    sizes: &MatmulSizes,
) {
    let chunks = (sizes.k_tiles * comptime!(TILE / 8)) as usize;
    if ABSOLUTE_POS < sizes.m as usize * chunks {
        let first = (ABSOLUTE_POS % chunks) as u32 * 8u32;
        let row = sizes.x_offset + ABSOLUTE_POS / chunks * sizes.x_row;
        let mut line = Vector::<u32, Const<4>>::zeroed();
        #[unroll]
        for w in 0..4usize {
            let low = element(x, gather, sizes, row, first + comptime!(2 * w as u32));
            let high = element(x, gather, sizes, row, first + comptime!(2 * w as u32 + 1));
            line.insert(w, low | (high << 16u32));
        }
        out[ABSOLUTE_POS] = line;
    }
}

#[cube]
fn element(
    x: &[u16],
    gather: &ComptimeOption<Box<[u32]>>,
    sizes: &MatmulSizes,
    row: usize,
    k: u32,
) -> u32 {
    let column = #[comptime]
    match gather {
        ComptimeOption::Some(gather) => gather[k as usize],
        ComptimeOption::None => k,
    };
    let mut bits = 0u32.runtime();
    if column < sizes.k {
        bits = x[row + column as usize] as u32;
    }
    bits
}
