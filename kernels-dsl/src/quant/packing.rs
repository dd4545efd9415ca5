//! Reading one weight out of a packed matrix.
//!
//! W is [k in, n out]; w[k, n] = scale[g, n] * (code[k, n] - zero[g, n]) + minimum[g, n] with g the group of k.
//! "Word" is 32 bits, field 0 in the low bits.
//!
//! | format   | codes             | packed along | zeros                | scales     |
//! |----------|-------------------|--------------|----------------------|------------|
//! | GptqV1   | [ceil(kb/32), n]  | k            | [G, ceil(nb/32)] z-1 | [G, n]     |
//! | GptqV2   | [ceil(kb/32), n]  | k            | [G, ceil(nb/32)] z   | [G, n]     |
//! | AwqGemm  | [k, n/8]          | n, 0 2 4 6 1 3 5 7 | [G, n/8] alike | [G, n]     |
//! | AwqGemv  | [n, ceil(k/8)]    | k            | [n, Zw] along G      | [n, 8 Zw]  |
//! | GgufQ4_1 | [n, k/32, 5]      | k            | 0; minima: word 0, high half | word 0, low half |

use cubecl::prelude::*;

/// How codes, zero points and scales lie in memory.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub enum PackFormat {
    /// AutoGPTQ's layout: zero points stored minus one, borrows running through the word for
    /// 2, 4 and 8 bits, field by field modulo 2^bits for 3.
    GptqV1,
    /// The same with zero points stored as they are.
    GptqV2,
    /// AWQ's GEMM layout, 4 bits.
    AwqGemm,
    /// AWQ's GEMV layout, 4 bits.
    AwqGemv,
    /// GGUF's Q4_1: blocks of 32 rows, 5 words: scale and minimum, f16, then 16 bytes, of which number j holds
    /// code j and, above it, code j + 16. Nothing lies elsewhere.
    GgufQ4_1,
}

/// Comptime description of a packed matrix.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct Packing {
    /// Layout.
    pub format: PackFormat,
    /// Bits of a code: 2, 3, 4 or 8.
    pub bits: u32,
    /// Rows of k carry a group index of their own (act-order).
    pub indexed: bool,
}

impl Packing {
    /// Codes that one unit unpacks: those of a word, or for 3 bits of the 3 words in which 32
    /// codes begin and end together, or of a GGUF block.
    pub fn run(self) -> u32 {
        match self.minima() || self.bits == 3 {
            true => 32,
            false => 32 / self.bits,
        }
    }

    /// Words of a run.
    pub fn run_words(self) -> u32 {
        self.run() * self.bits / 32 + u32::from(self.minima())
    }

    /// A float is added to every weight of a group, which has no zero point.
    pub fn minima(self) -> bool {
        self.format == PackFormat::GgufQ4_1
    }

    /// Largest code.
    pub fn mask(self) -> u32 {
        (1 << self.bits) - 1
    }

    /// A one in every field of a word: what GPTQ v1 takes off its zero points.
    fn ones(self) -> u32 {
        (0..32 / self.bits).fold(0, |word, field| word | 1 << (field * self.bits))
    }

    /// Codes are packed along n.
    pub fn along_n(self) -> bool {
        self.format == PackFormat::AwqGemm
    }
}

/// Column within 8 that AWQ's GEMM layout keeps in field `f`.
pub const AWQ_ORDER: [u32; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Run-time sizes of a packed matrix.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct PackSizes {
    /// Input features.
    pub k: u32,
    /// Output features.
    pub n: u32,
    /// Rows of k of a group.
    pub group: u32,
    /// Words of a row of the code matrix's packed axis: code rows (GPTQ) or columns (AWQ).
    pub code_words: u32,
    /// Words of a row of the zero-point matrix.
    pub zero_words: u32,
}

/// A packed matrix on the device.
#[derive(CubeType)]
pub struct PackedMatrix<'a> {
    /// Packed codes.
    pub codes: &'a [u32],
    /// Packed zero points.
    pub zeros: &'a [u32],
    /// f16 scales, two a word: read as integers, since not every device has f16.
    pub scales: &'a [u32],
    /// Group of every row of k.
    pub g_idx: &'a ComptimeOption<Box<[u32]>>,
    /// Sizes.
    pub sizes: &'a PackSizes,
}

#[cube]
impl<'a> PackedMatrix<'a> {
    /// Group of row `k`.
    pub fn group(&self, k: u32) -> u32 {
        #[comptime]
        match &self.g_idx {
            ComptimeOption::Some(g) => g[k as usize],
            ComptimeOption::None => k / self.sizes.group,
        }
    }

    /// Word `w` of the run that starts at (packed-axis run `run`, other-axis index `other`).
    /// Words past the end (short last run of 3-bit codes) repeat the last one; no code that
    /// exists lies in them.
    pub fn word(
        &self,
        run: u32,
        other: u32,
        #[comptime] w: u32,
        #[comptime] packing: Packing,
    ) -> u32 {
        let at = run * comptime!(packing.run_words()) + w;
        let at = at.min(self.sizes.code_words - 1u32) as usize;
        if comptime!(matches!(
            packing.format,
            PackFormat::GptqV1 | PackFormat::GptqV2
        )) {
            self.codes[at * self.sizes.n as usize + other as usize]
        } else {
            self.codes[other as usize * self.sizes.code_words as usize + at]
        }
    }

    /// Zero point of (group, column).
    pub fn zero(&self, group: u32, n: u32, #[comptime] packing: Packing) -> u32 {
        zero_at(self.zeros, self.sizes, group, n, packing)
    }

    /// Scale of (group, column), exact.
    pub fn scale(&self, group: u32, n: u32, #[comptime] packing: Packing) -> f32 {
        let scales = if comptime!(packing.minima()) {
            self.codes
        } else {
            self.scales
        };
        half_bits_to_f32(scale_bits_at(scales, self.sizes, group, n, packing))
    }

    /// Minimum of (group, column) of a format that has them, exact.
    pub fn minimum(&self, group: u32, n: u32) -> f32 {
        half_bits_to_f32(minimum_bits_at(self.codes, self.sizes, group, n))
    }
}

/// The first word of a GGUF block: scale, then minimum.
#[cube]
fn block_head(blocks: &[u32], sizes: &PackSizes, group: u32, n: u32) -> u32 {
    blocks[n as usize * sizes.code_words as usize + group as usize * 5]
}

/// Minimum of (group, column) as binary16, among the codes of a format that has them.
#[cube]
pub fn minimum_bits_at(codes: &[u32], sizes: &PackSizes, group: u32, n: u32) -> u32 {
    block_head(codes, sizes, group, n) >> 16u32
}

/// Zero point of (group, column) among packed ones.
#[cube]
pub fn zero_at(
    zeros: &[u32],
    sizes: &PackSizes,
    group: u32,
    n: u32,
    #[comptime] packing: Packing,
) -> u32 {
    let bits = comptime!(packing.bits);
    let mask = comptime!(packing.mask());
    let per_word = comptime!(32 / packing.bits);
    match comptime!(packing.format) {
        PackFormat::GptqV1 | PackFormat::GptqV2 => {
            let row = group as usize * sizes.zero_words as usize;
            if comptime!(packing.bits == 3) {
                let bit = n * bits;
                let at = row + (bit / 32u32) as usize;
                let low = zeros[at];
                let shift = bit % 32u32;
                let mut z = low >> shift;
                // Fields 10 and 21 of every 32 straddle two words.
                if shift > 29u32 {
                    z |= zeros[at + 1] << (32u32 - shift);
                }
                if comptime!(packing.format == PackFormat::GptqV1) {
                    z += 1u32;
                }
                z & mask
            } else {
                let mut word = zeros[row + (n / per_word) as usize];
                if comptime!(packing.format == PackFormat::GptqV1) {
                    word += comptime!(packing.ones());
                }
                (word >> (n % per_word * bits)) & mask
            }
        }
        PackFormat::AwqGemm => {
            let word = zeros[group as usize * sizes.zero_words as usize + (n / 8u32) as usize];
            // Column c of 8 lies in field c/2 + 4 (c%2): the inverse of AWQ_ORDER.
            let c = n % 8u32;
            let field = c / 2u32 + (c % 2u32) * 4u32;
            (word >> (field * 4u32)) & mask
        }
        PackFormat::AwqGemv => {
            let word = zeros[n as usize * sizes.zero_words as usize + (group / 8u32) as usize];
            (word >> (group % 8u32 * 4u32)) & mask
        }
        PackFormat::GgufQ4_1 => 0u32.runtime(),
    }
}

/// Scale of (group, column) as binary16; `scales` are the codes where those hold them.
#[cube]
pub fn scale_bits_at(
    scales: &[u32],
    sizes: &PackSizes,
    group: u32,
    n: u32,
    #[comptime] packing: Packing,
) -> u32 {
    if comptime!(packing.minima()) {
        block_head(scales, sizes, group, n) & 0xFFFFu32
    } else {
        let index = if comptime!(packing.format == PackFormat::AwqGemv) {
            n as usize * (sizes.zero_words * 8u32) as usize + group as usize
        } else {
            group as usize * sizes.n as usize + n as usize
        };
        let shift = (index % 2) as u32 * 16u32;
        (scales[index / 2] >> shift) & 0xFFFFu32
    }
}

/// The code of row `k` and column `n` of the weight.
#[cube]
pub fn code_at(
    codes: &[u32],
    sizes: &PackSizes,
    k: u32,
    n: u32,
    #[comptime] packing: Packing,
) -> u32 {
    let bits = comptime!(packing.bits);
    let mask = comptime!(packing.mask());
    match comptime!(packing.format) {
        PackFormat::GptqV1 | PackFormat::GptqV2 => {
            let bit = k * bits;
            let at = (bit / 32u32) as usize * sizes.n as usize + n as usize;
            let shift = bit % 32u32;
            let mut code = codes[at] >> shift;
            if comptime!(32 % bits != 0) {
                if shift > comptime!(32 - bits) {
                    code |= codes[at + sizes.n as usize] << (32u32 - shift);
                }
            }
            code & mask
        }
        PackFormat::AwqGemm => {
            let word = codes[k as usize * sizes.code_words as usize + (n / 8u32) as usize];
            let c = n % 8u32;
            (word >> ((c / 2u32 + c % 2u32 * 4u32) * 4u32)) & mask
        }
        PackFormat::AwqGemv => {
            let word = codes[n as usize * sizes.code_words as usize + (k / 8u32) as usize];
            (word >> (k % 8u32 * 4u32)) & mask
        }
        PackFormat::GgufQ4_1 => {
            let block = n as usize * sizes.code_words as usize + (k / 32u32) as usize * 5;
            let word = codes[block + 1 + (k % 16u32 / 4u32) as usize];
            (word >> (k % 4u32 * 8u32 + k % 32u32 / 16u32 * 4u32)) & mask
        }
    }
}

/// Code `f` of a run held in `words`; `f` is comptime, so that the shifts are constants.
#[cube]
pub fn code(words: &Array<u32>, #[comptime] f: u32, #[comptime] packing: Packing) -> u32 {
    // A block's head comes before its codes.
    let bit = comptime!(match packing.minima() {
        true => 32 + f % 16 * 8 + f / 16 * 4,
        false => f * packing.bits,
    });
    let at = comptime!((bit / 32) as usize);
    let shift = comptime!(bit % 32);
    let low = words[at] >> shift;
    let straddles = comptime!(shift + packing.bits > 32);
    let all = if comptime!(straddles) {
        low | (words[comptime!(at + 1)] << comptime!(32 - shift))
    } else {
        low
    };
    all & comptime!(packing.mask())
}

/// 2^(code - 127), the smallest of which is subnormal.
#[cube]
pub fn e8m0_value(code: u32) -> f32 {
    f32::reinterpret(select(code == 0u32, 0x0040_0000u32, code << 23u32))
}

/// binary16 bits -> f32, exact for every finite value, without an f16 type and without relying
/// on subnormal arithmetic.
#[cube]
pub fn half_bits_to_f32(h: u32) -> f32 {
    let sign = (h & 0x8000u32) << 16u32;
    let exponent = (h >> 10u32) & 0x1Fu32;
    let mantissa = h & 0x3FFu32;
    // 2^-24, the step of a binary16 subnormal.
    let small = f32::cast_from(mantissa) * 5.960_464_5e-8f32;
    let normal = f32::from_bits(((exponent + 112u32) << 23u32) | (mantissa << 13u32));
    let magnitude = select(exponent == 0u32, small, normal);
    select(sign == 0u32, magnitude, -magnitude)
}
