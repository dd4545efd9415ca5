//! From the packing of a checkpoint into the tiles that products read.

use cubecl::prelude::*;

use super::{PackSizes, Packing, TILE, code_at, minimum_bits_at, scale_bits_at, zero_at};

/// Run-time sizes of the tiles.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct TileSizes {
    /// Tiles along k.
    pub k_tiles: u32,
    /// Tiles along n.
    pub n_tiles: u32,
    /// Stored groups.
    pub groups: u32,
}

/// Codes to tiles: one unit writes the words of one lane. Rows and columns past the weight become 0.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn repack_codes_fma(
    codes: &[u32],
    gather: &ComptimeOption<Box<[u32]>>,
    words: &mut [u32],
    sizes: &PackSizes,
    tiles: &TileSizes,
    #[comptime] packing: Packing,
) {
    let lanes = tiles.k_tiles as usize * tiles.n_tiles as usize * 128usize;
    if ABSOLUTE_POS < lanes {
        let tile = ABSOLUTE_POS / 128usize;
        let row0 = (tile % tiles.k_tiles as usize) as u32 * TILE;
        let column0 = (tile / tiles.k_tiles as usize) as u32 * TILE;
        let (strip, lane) = (
            (ABSOLUTE_POS % 128usize) as u32 / 32u32,
            (ABSOLUTE_POS % 32usize) as u32,
        );
        let column = column0 + strip * 16u32 + lane / 4u32 * 2u32;
        let bits = comptime!(packing.bits);
        let mut lane_words = Array::<u32>::new(comptime!(bits as usize));
        #[unroll]
        for w in 0..comptime!(bits as usize) {
            lane_words[w] = 0u32;
        }
        #[unroll]
        for i in 0..32u32 {
            let below = comptime!(i / 8 * 16 + i / 2 % 2 * 8 + i % 8 / 4);
            let row = row0 + below + lane % 4u32 * 2u32;
            let code = code_of_row(
                codes,
                gather,
                sizes,
                row,
                column + comptime!(i % 2),
                packing,
            );
            let at = comptime!((i * bits / 32) as usize);
            let shift = comptime!(i * bits % 32);
            lane_words[at] |= code << shift;
            if comptime!(shift + bits > 32) {
                lane_words[comptime!(at + 1)] |= code >> comptime!(32 - shift);
            }
        }
        #[unroll]
        for w in 0..comptime!(bits as usize) {
            words[ABSOLUTE_POS * comptime!(bits as usize) + w] = lane_words[w];
        }
    }
}

/// The code of a stored row, 0 where it stands for none.
#[cube]
fn code_of_row(
    codes: &[u32],
    gather: &ComptimeOption<Box<[u32]>>,
    sizes: &PackSizes,
    row: u32,
    column: u32,
    #[comptime] packing: Packing,
) -> u32 {
    let mut k = row;
    #[comptime]
    match &gather {
        ComptimeOption::Some(gather) => k = gather[row as usize],
        ComptimeOption::None => {}
    }
    let mut code = 0u32.runtime();
    // NO_ROW is past every k.
    if k < sizes.k && column < sizes.n {
        code = code_at(codes, sizes, k, column, packing);
    }
    code
}

/// Scales, and zero points or minima where they are wanted, to their places: one unit writes four columns of a
/// stored group, which is group `sources[..]` of the weight. Columns past the last become 0. Where blocks hold
/// scales and minima, `from_scales` are the blocks.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn repack_scales_fma(
    from_zeros: &[u32],
    from_scales: &[u32],
    sources: &[u32],
    scales: &mut [u32],
    zeros: &mut [u32],
    sizes: &PackSizes,
    tiles: &TileSizes,
    #[comptime] packing: Packing,
    #[comptime] keep_zeros: bool,
) {
    let fours = tiles.n_tiles as usize * 16usize;
    if ABSOLUTE_POS < fours * tiles.groups as usize {
        let group = sources[ABSOLUTE_POS / fours];
        let place = (ABSOLUTE_POS % fours) as u32 * 4u32;
        let within = place % TILE;
        let first = place / TILE * TILE + within % 8u32 / 2u32 * 16u32 + within / 8u32 * 2u32;
        let mut zero_word = 0u32.runtime();
        #[unroll]
        for pair in 0..2u32 {
            let mut scale_word = 0u32.runtime();
            let mut minimum_word = 0u32.runtime();
            #[unroll]
            for odd in 0..2u32 {
                let column = first + comptime!(pair * 16 + odd);
                if column < sizes.n {
                    scale_word |= scale_bits_at(from_scales, sizes, group, column, packing)
                        << comptime!(16 * odd);
                    if comptime!(packing.minima()) {
                        minimum_word |= minimum_bits_at(from_scales, sizes, group, column)
                            << comptime!(16 * odd);
                    } else if comptime!(keep_zeros) {
                        let zero = zero_at(from_zeros, sizes, group, column, packing);
                        zero_word |= zero << comptime!(8 * (2 * pair + odd));
                    }
                }
            }
            scales[2usize * ABSOLUTE_POS + comptime!(pair as usize)] = scale_word;
            if comptime!(packing.minima()) {
                zeros[2usize * ABSOLUTE_POS + comptime!(pair as usize)] = minimum_word;
            }
        }
        if comptime!(keep_zeros && !packing.minima()) {
            zeros[ABSOLUTE_POS] = zero_word;
        }
    }
}
