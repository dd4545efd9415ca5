//! Operands of block-scaled products: floats to codes and scales, and back.
//!
//! A unit has four groups of a row, which share a word of scales.

use cubecl::prelude::*;

use super::small_float::*;
use crate::attention::e4m3_value;

/// Which power of two scales a block of an MX format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScaleRule {
    /// floor(log2 amax) less the element's largest exponent (OCP MX 1.0): the block's largest values may
    /// saturate.
    Floor,
    /// The smallest with which nothing saturates.
    #[default]
    Ceil,
    /// As `Floor`, after amax is rounded to the element's mantissa, halves up.
    RoundEven,
}

/// Element and scale of an operand of a block-scaled product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperandFormat {
    /// E2M1 in groups of 16, each with the E4M3 scale nearest to amax / 6. Values are multiplied by
    /// 2^`exponent` before, the tensor's own factor.
    Nvfp4 {
        /// From -64 to 64.
        exponent: i32,
    },
    /// E2M1 in groups of 32 with a power of two.
    Mxfp4(ScaleRule),
    /// E4M3 in groups of 32 with a power of two.
    Mxfp8(ScaleRule),
    /// E4M3 of values times 2^`exponent`, the tensor's own factor. Groups of 32 have the scale 1, so that it is MXFP8 to
    /// whoever reads scales.
    Fp8 {
        /// From -64 to 64.
        exponent: i32,
    },
}

/// Groups whose scales share a word.
pub const QUAD: usize = 4;

/// Rows of a tile of scales.
pub const SCALE_ROWS: usize = 128;

impl OperandFormat {
    /// Elements that share a scale.
    pub const fn group(self) -> usize {
        match self {
            OperandFormat::Nvfp4 { .. } => 16,
            OperandFormat::Mxfp4(_) | OperandFormat::Mxfp8(_) | OperandFormat::Fp8 { .. } => 32,
        }
    }

    /// Bits of an element.
    pub const fn bits(self) -> usize {
        match self {
            OperandFormat::Nvfp4 { .. } | OperandFormat::Mxfp4(_) => 4,
            OperandFormat::Mxfp8(_) | OperandFormat::Fp8 { .. } => 8,
        }
    }

    /// Elements of four groups: what a row is padded to.
    pub const fn quad(self) -> usize {
        QUAD * self.group()
    }

    /// Scales are E4M3.
    pub(crate) fn nvfp4(self) -> bool {
        matches!(self, OperandFormat::Nvfp4 { .. })
    }

    /// Scales are 1 everywhere.
    pub fn unscaled(self) -> bool {
        matches!(self, OperandFormat::Fp8 { .. })
    }

    /// Exponent of the tensor's own factor.
    pub(crate) fn exponent(self) -> i32 {
        match self {
            OperandFormat::Nvfp4 { exponent } | OperandFormat::Fp8 { exponent } => exponent,
            OperandFormat::Mxfp4(_) | OperandFormat::Mxfp8(_) => 0,
        }
    }

    /// What kernels are compiled for: the factor is a run-time number.
    pub(crate) fn compiled(self) -> Self {
        match self {
            OperandFormat::Nvfp4 { .. } => OperandFormat::Nvfp4 { exponent: 0 },
            OperandFormat::Fp8 { .. } => OperandFormat::Fp8 { exponent: 0 },
            other => other,
        }
    }

    /// What a reader of codes and scales needs to know: neither the factor nor the rule of the scales.
    pub(crate) fn stored(self) -> Self {
        match self {
            OperandFormat::Nvfp4 { .. } => OperandFormat::Nvfp4 { exponent: 0 },
            OperandFormat::Mxfp4(_) => OperandFormat::Mxfp4(ScaleRule::default()),
            OperandFormat::Mxfp8(_) => OperandFormat::Mxfp8(ScaleRule::default()),
            OperandFormat::Fp8 { .. } => OperandFormat::Fp8 { exponent: 0 },
        }
    }

    /// Largest exponent of an element.
    fn max_exponent(self) -> u32 {
        match self {
            OperandFormat::Mxfp8(_) => 8,
            _ => 2,
        }
    }

    /// Mantissa bits of amax from which on its scale is the next power of two.
    fn next_from(self) -> u32 {
        match self {
            OperandFormat::Mxfp4(ScaleRule::Ceil) => 0x40_0001,
            OperandFormat::Mxfp8(ScaleRule::Ceil) => 0x60_0001,
            OperandFormat::Mxfp4(ScaleRule::RoundEven) => 0x60_0000,
            OperandFormat::Mxfp8(ScaleRule::RoundEven) => 0x78_0000,
            _ => u32::MAX,
        }
    }
}

/// Strides of the tensor whose rows and columns become those of an operand, and the operand's sizes.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct OperandSizes {
    /// First element of the tensor.
    pub offset: usize,
    /// From one batch entry to the next.
    pub batch: usize,
    /// From one head to the next.
    pub head: usize,
    /// From one row of the operand to the next.
    pub row: usize,
    /// From one column of the operand to the next.
    pub column: usize,
    /// Heads.
    pub h: u32,
    /// Heads whose rows alternate in tiles of scales; divides `h`.
    pub pack: u32,
    /// Rows of a head.
    pub rows: u32,
    /// Rows of the tiles of scales of `pack` heads.
    pub scale_rows: u32,
    /// Quads of groups in a row.
    pub quads: u32,
    /// First word of the scales.
    pub scales: usize,
    /// Words of the table of spans for a batch entry, 0 where all share one.
    pub spans: usize,
    /// Where the table says which rows the tiles of scales hold.
    pub tiles: usize,
    /// Units.
    pub total: usize,
    /// The tensor's own factor, a power of two, and its inverse.
    pub factor: f32,
    /// See `factor`.
    pub inverse: f32,
}

/// Four groups of a row.
#[derive(CubeType)]
struct Quad {
    /// There is such a row.
    exists: bool,
    /// Their codes' first word.
    codes: usize,
    /// Their scales' word.
    scales: usize,
    /// Their first element in the tensor.
    first: usize,
    /// Elements that the tensor has of them.
    count: u32,
}

#[cube]
fn quad_at(
    unit: usize,
    spans: &[u32],
    sizes: &OperandSizes,
    #[comptime] format: OperandFormat,
) -> Quad {
    let quad = unit % sizes.quads as usize;
    let lane = unit / sizes.quads as usize;
    let place = (lane % sizes.scale_rows as usize) as u32;
    let lane = lane / sizes.scale_rows as usize;
    let lanes = (sizes.h / sizes.pack) as usize;
    let (batch, first_head) = (lane / lanes, lane % lanes * sizes.pack as usize);
    let span = batch * sizes.spans + 2 * quad;
    let tile = (lane * (sizes.scale_rows / 128u32) as usize + (place / 128u32) as usize)
        * sizes.quads as usize
        + quad;
    let held = sizes.tiles + 2 * (place / 128u32) as usize;
    // Rows of packed heads count together.
    let packed = spans[held] + place % 128u32;
    let row = packed / sizes.pack;
    let head = first_head + (packed % sizes.pack) as usize;
    let head_rows = (batch * sizes.h as usize + head) * sizes.rows as usize;
    Quad {
        exists: place % 128u32 < spans[held + 1],
        codes: ((head_rows + row as usize) * sizes.quads as usize + quad)
            * comptime!(format.quad() * format.bits() / 32),
        scales: sizes.scales + tile * 128 + (place % 32u32 * 4u32 + place / 32u32 % 4u32) as usize,
        first: sizes.offset
            + batch * sizes.batch
            + head * sizes.head
            + row as usize * sizes.row
            + spans[span] as usize * sizes.column,
        count: spans[span + 1],
    }
}

/// Codes and scales of a tensor, one unit for four groups. `spans` holds, for every four groups of a
/// row, the first column of the tensor that they stand for and how many it has, the rest being 0; then, for every tile of
/// scales, its first row and how many it has.
///
/// Codes lie as [b, h, rows, columns], low bits first; scales as [b, h / pack] tiles of 128 rows by 4 groups, in which the 4
/// scales of row r are word `4 (r mod 32) + r / 32` (PTX ISA, tcgen05 scale factor layout). Rows that
/// do not exist have scales 0.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn quantize_operand_fma<E: Float>(
    x: &[E],
    words: &mut [u32],
    spans: &[u32],
    sizes: &OperandSizes,
    #[comptime] format: OperandFormat,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS < sizes.total {
        let at = quad_at(ABSOLUTE_POS, spans, sizes, format);
        let mut scales = 0u32;
        if at.exists {
            let group = comptime!(format.group() as u32);
            for g in 0..4u32 {
                let mut values = Array::<f32>::new(comptime!(format.group()));
                for i in 0..group {
                    let column = g * group + i;
                    // Past the end the first element is read and not used.
                    let inside = column < at.count;
                    let column = select(inside, column, 0u32);
                    let mut value = 0.0f32;
                    if inside {
                        value = f32::cast_from(x[at.first + column as usize * sizes.column]);
                        if comptime!(format.unscaled()) {
                            value *= sizes.factor;
                        }
                    }
                    values[i as usize] = value;
                }
                let scale = group_scale(&values, sizes.factor, format);
                scales |= scale << (8u32 * g);
                let to = at.codes + (g as usize) * comptime!(format.group() * format.bits() / 32);
                encode_group(&values, scale, words, to, sizes.inverse, format);
            }
        }
        words[at.scales] = scales;
    }
}

/// Code of the scale of a group.
#[cube]
fn group_scale(values: &Array<f32>, factor: f32, #[comptime] format: OperandFormat) -> u32 {
    let mut amax = 0u32;
    for i in 0..comptime!(format.group()) {
        amax = amax.max(magnitude_bits(values[i]));
    }
    let finite = amax < INFINITY_BITS;
    if comptime!(format.unscaled()) {
        E8M0_ONE.runtime()
    } else if comptime!(format.nvfp4()) {
        let largest = f32::reinterpret(select(finite, amax, 0u32)) * factor;
        let guess = largest * comptime!(1.0f32 / 6.0);
        select(finite, e4m3_nearest(largest, 6.0f32, guess), E4M3_NAN)
    } else {
        let up = one_if((amax & 0x7F_FFFFu32) >= comptime!(format.next_from()));
        let wanted = (amax >> 23u32) + up;
        // 2^-127 is the smallest.
        let least = comptime!(format.max_exponent());
        select(finite, wanted.max(least) - least, E8M0_NAN)
    }
}

/// Codes of a group, packed into its words.
#[cube]
fn encode_group(
    values: &Array<f32>,
    scale: u32,
    words: &mut [u32],
    to: usize,
    inverse: f32,
    #[comptime] format: OperandFormat,
) {
    let bits = comptime!(format.bits() as u32);
    let per_word = comptime!(32 / format.bits());
    for w in 0..comptime!(format.group() / per_word) {
        let mut word = 0u32;
        #[unroll]
        for i in 0..per_word {
            let code = encode(values[w * per_word + i], scale, inverse, format);
            word |= code << comptime!(bits * i as u32);
        }
        words[to + w] = word;
    }
}

#[cube]
fn encode(x: f32, scale: u32, inverse: f32, #[comptime] format: OperandFormat) -> u32 {
    if comptime!(format.nvfp4()) {
        let usable = scale > 0u32 && scale < E4M3_NAN;
        let unit = e4m3_value(select(usable, scale, 1u32)) * inverse;
        select(usable, e2m1_code(x, unit), 0u32)
    } else if comptime!(format.unscaled()) {
        let code = select(magnitude_bits(x) > INFINITY_BITS, E4M3_NAN, e4m3_code(x));
        code | (u32::reinterpret(x) >> 31u32) << 7u32
    } else {
        let usable = scale < E8M0_NAN;
        let scaled = x * power_of_two(127 - i32::cast_from(select(usable, scale, 127u32)));
        let code = if comptime!(format.bits() == 4) {
            e2m1_code(scaled, 1.0f32)
        } else {
            e4m3_code(scaled) | (u32::reinterpret(x) >> 31u32) << 7u32
        };
        select(usable, code, 0u32)
    }
}

/// The values that codes and scales stand for, one unit for four groups; see [`quantize_operand_fma()`].
/// They have at most 6 bits, so that f32 and bf16 hold them exactly. Columns of no span are left as they
/// are.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn dequantize_operand_fma<E: Float>(
    words: &[u32],
    out: &mut [E],
    spans: &[u32],
    sizes: &OperandSizes,
    #[comptime] format: OperandFormat,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS < sizes.total {
        let at = quad_at(ABSOLUTE_POS, spans, sizes, format);
        if at.exists {
            let scales = words[at.scales];
            let bits = comptime!(format.bits() as u32);
            let per_word = comptime!(32 / format.bits() as u32);
            for column in 0..at.count {
                let scale =
                    (scales >> (8u32 * (column / comptime!(format.group() as u32)))) & 0xFFu32;
                let word = words[at.codes + (column / per_word) as usize];
                let code =
                    (word >> (bits * (column % per_word))) & comptime!((1u32 << format.bits()) - 1);
                let value = decode(code, scale, sizes.inverse, format);
                out[at.first + column as usize * sizes.column] = E::cast_from(value);
            }
        }
    }
}

#[cube]
fn decode(code: u32, scale: u32, inverse: f32, #[comptime] format: OperandFormat) -> f32 {
    let element = if comptime!(format.bits() == 4) {
        e2m1_value(code)
    } else {
        e4m3_value(code)
    };
    if comptime!(format.nvfp4()) {
        element * e4m3_value(scale) * inverse
    } else if comptime!(format.unscaled()) {
        element * inverse
    } else {
        element * e8m0_value(scale)
    }
}

/// The value of an E8M0 code.
#[cube]
fn e8m0_value(code: u32) -> f32 {
    // Code 0 is 2^-127, a subnormal; 255 is NaN.
    let bits = select(code == 0u32, 0x0040_0000u32, code << 23u32);
    f32::reinterpret(select(code == E8M0_NAN, 0x7FC0_0000u32, bits))
}
