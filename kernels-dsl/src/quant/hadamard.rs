//! Walsh-Hadamard transform with random signs, the rotation behind incoherent processing.

use cubecl::prelude::*;

/// y = H diag(signs) x / sqrt(n), or its inverse x = diag(signs) H y / sqrt(n); H in natural
/// (Sylvester) order, `H[i][j] = (-1)^popcount(i & j)`.
///
/// One cube per row: the row lies in shared memory as f32 and passes log2(n) butterfly stages;
/// any number of units will do.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn hadamard_transform_fma<E: Float>(
    x: &[E],
    out: &mut [E],
    signs: &ComptimeOption<Box<[u32]>>,
    x_offset: usize,
    x_row: usize,
    out_offset: usize,
    out_row: usize,
    rows: usize,
    factor: f32,
    #[comptime] n: u32,
    #[comptime] inverse: bool,
    #[define(E)] _dtype: ElemType,
) {
    if CUBE_POS < rows {
        let mut row = Shared::<[f32]>::new_slice(comptime!(n as usize));
        let from = x_offset + CUBE_POS * x_row;
        let to = out_offset + CUBE_POS * out_row;
        let mut i = UNIT_POS;
        while i < n {
            let value = f32::cast_from(x[from + i as usize]);
            let signed = if comptime!(inverse) {
                value
            } else {
                with_sign(signs, value, i)
            };
            row[i as usize] = signed;
            i += CUBE_DIM;
        }
        let stages = comptime!(n.trailing_zeros());
        for stage in 0..stages {
            sync_cube();
            let half = 1u32 << stage;
            let mut pair = UNIT_POS;
            while pair < comptime!(n / 2) {
                // Pair (a, a + half) inside blocks of 2 * half.
                let a = (pair / half * 2u32 * half + pair % half) as usize;
                let b = a + half as usize;
                let (u, v) = (row[a], row[b]);
                row[a] = u + v;
                row[b] = u - v;
                pair += CUBE_DIM;
            }
        }
        sync_cube();
        let mut i = UNIT_POS;
        while i < n {
            let value = row[i as usize] * factor;
            let signed = if comptime!(inverse) {
                with_sign(signs, value, i)
            } else {
                value
            };
            out[to + i as usize] = E::cast_from(signed);
            i += CUBE_DIM;
        }
    }
}

/// `value`, negated where bit `i` of the sign words is set.
#[cube]
fn with_sign(signs: &ComptimeOption<Box<[u32]>>, value: f32, i: u32) -> f32 {
    #[comptime]
    match signs {
        ComptimeOption::Some(words) => {
            let negative = (words[(i / 32u32) as usize] >> (i % 32u32)) & 1u32;
            select(negative == 1u32, -value, value)
        }
        ComptimeOption::None => value,
    }
}
