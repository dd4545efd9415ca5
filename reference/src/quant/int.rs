//! Packed integer weights as GPTQ and AWQ checkpoints store them.

use half::f16;
use rayon::prelude::*;

use crate::error::{Error, check_entries, check_length};

/// A checkpoint layout. G is the number of groups; field 0 sits in the low bits of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// AutoGPTQ: qweight [ceil(k bits / 32), n] packed down k, qzeros [G, ceil(n bits / 32)] packed
    /// along n and holding z - 1, scales [G, n]; 2, 3, 4 or 8 bits.
    ///
    /// At 2, 4 and 8 bits the writer subtracts 1 from every field by one subtraction on the whole
    /// word, so a zero point of 0 borrows from the field above; adding back on the whole word
    /// undoes it. Fields of 3 bits straddle words and are shifted one by one, modulo 8.
    GptqV1,
    /// As [`Format::GptqV1`], qzeros holding z itself.
    GptqV2,
    /// AutoAWQ GEMM: qweight [k, n / 8] and qzeros [G, n / 8] packed along n, fields 0..8 holding
    /// columns 0, 2, 4, 6, 1, 3, 5, 7; scales [G, n]; 4 bits.
    AwqGemm,
    /// AutoAWQ GEMV: qweight [n, k / 8] packed along k in plain order, qzeros [n, Z] packed along
    /// the groups, scales [n, 8 Z], where Z = ceil(ceil(k / group) / 8), rounded up to a multiple
    /// of 1 (group >= 128), 2 (64) or 4 (32); 4 bits.
    AwqGemv,
    /// GGUF's Q4_1: qweight [n, k / 32, 5], blocks of 32 rows: a word of scale (low half) and minimum (high half),
    /// f16, then 16 bytes, of which number j holds code j in its low and code j + 16 in its high half; no qzeros,
    /// no scales; 4 bits, groups of 32.
    GgufQ4_1,
}

/// Words of a block of GGUF's Q4_1.
const BLOCK_WORDS: usize = 5;

/// The column of a group of 8 that each AWQ GEMM field holds.
const AWQ_COLUMNS: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// One packed weight matrix W [k, n].
///
/// ```text
/// w[r, c] = scale[g, c] * (q[r, c] - z[g, c]) + minimum[g, c],   g = g_idx[r] or r / group
/// ```
///
/// Only GGUF's Q4_1 has minima; its zero points are 0.
///
/// ```
/// use flashcube_reference::quant::int::{Format, Packed};
/// use half::f16;
///
/// // One row of 8 columns, codes 0..8, zero point 8, scale 1/2.
/// let packed = Packed {
///     format: Format::GptqV2,
///     bits: 4,
///     k: 1,
///     n: 8,
///     group: 1,
///     qweight: &[0, 1, 2, 3, 4, 5, 6, 7],
///     qzeros: &[0x8888_8888],
///     scales: &[f16::from_f32(0.5); 8],
///     g_idx: None,
/// };
/// assert_eq!(packed.dequantize()?, [-4.0, -3.5, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5]);
/// # Ok::<(), flashcube_reference::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Packed<'a> {
    /// Layout of the buffers.
    pub format: Format,
    /// Bits of a code and of a zero point.
    pub bits: u32,
    /// Input features: rows of W.
    pub k: usize,
    /// Output features: columns of W.
    pub n: usize,
    /// Rows that share a scale and zero point; the last group may be short. k for one group.
    pub group: usize,
    /// Codes.
    pub qweight: &'a [u32],
    /// Zero points.
    pub qzeros: &'a [u32],
    /// Scales.
    pub scales: &'a [f16],
    /// `[k]` group of each row, GPTQ only (act-order). The number of groups is then that of the
    /// scales, so that a shard of the rows may index the groups of the whole matrix.
    pub g_idx: Option<&'a [u32]>,
}

impl Packed<'_> {
    /// W [k, n], row-major.
    ///
    /// # Errors
    /// [`Error`] if the format has no such bits, k, n or group, if a buffer has the wrong length,
    /// or if g_idx points past the groups.
    pub fn dequantize(&self) -> Result<Vec<f64>, Error> {
        let codes = self.unpack_codes()?;
        let zeros = self.unpack_zeros()?;
        let scales = self.unpack_scales()?;
        let n = self.n;
        let row = |r: usize| {
            let g = self.group_of(r);
            let (codes, zeros, scales) = (&codes[r * n..], &zeros[g * n..], &scales[g * n..]);
            (0..n)
                .map(|c| scales[c] * (f64::from(codes[c]) - f64::from(zeros[c])))
                .enumerate()
                .map(|(c, w)| match self.format {
                    Format::GgufQ4_1 => w + self.head(g, c)[1].to_f64(),
                    _ => w,
                })
                .collect::<Vec<f64>>()
        };
        let rows: Vec<Vec<f64>> = (0..self.k).into_par_iter().map(row).collect();
        Ok(rows.concat())
    }

    /// The codes q [k, n], row-major.
    ///
    /// # Errors
    /// As [`Packed::dequantize`].
    pub fn unpack_codes(&self) -> Result<Vec<u32>, Error> {
        self.check()?;
        let (k, n, bits) = (self.k, self.n, self.bits);
        let code = |r: usize, c: usize| match self.format {
            Format::GptqV1 | Format::GptqV2 => field(|word| self.qweight[word * n + c], r, bits),
            Format::AwqGemm => awq_gemm_field(&self.qweight[r * n / 8..], c),
            Format::AwqGemv => field(|word| self.qweight[c * k / 8 + word], r, bits),
            Format::GgufQ4_1 => {
                let block = &self.qweight[self.block(r / 32, c)..][1..BLOCK_WORDS];
                block[r % 16 / 4] >> (8 * (r % 4) + 4 * (r % 32 / 16)) & 0xf
            }
        };
        Ok(table(k, n, code))
    }

    /// The zero points z [G, n], row-major, without any offset of the storage.
    ///
    /// # Errors
    /// As [`Packed::dequantize`].
    pub fn unpack_zeros(&self) -> Result<Vec<u32>, Error> {
        self.check()?;
        let (n, bits) = (self.n, self.bits);
        let width = self.zero_words();
        let zero = |g: usize, c: usize| match self.format {
            Format::GptqV1 if bits == 3 => {
                (field(|word| self.qzeros[g * width + word], c, bits) + 1) % 8
            }
            Format::GptqV1 => {
                let one_per_field = u32::MAX / ((1 << bits) - 1);
                let word = |word: usize| self.qzeros[g * width + word].wrapping_add(one_per_field);
                field(word, c, bits)
            }
            Format::GptqV2 => field(|word| self.qzeros[g * width + word], c, bits),
            Format::AwqGemm => awq_gemm_field(&self.qzeros[g * width..], c),
            Format::AwqGemv => field(|word| self.qzeros[c * width + word], g, bits),
            Format::GgufQ4_1 => 0,
        };
        Ok(table(self.groups(), n, zero))
    }

    /// The scales [G, n], row-major.
    ///
    /// # Errors
    /// As [`Packed::dequantize`].
    pub fn unpack_scales(&self) -> Result<Vec<f64>, Error> {
        self.check()?;
        let scale = |g: usize, c: usize| match self.format {
            Format::AwqGemv => self.scales[c * 8 * self.zero_words() + g].to_f64(),
            Format::GgufQ4_1 => self.head(g, c)[0].to_f64(),
            _ => self.scales[g * self.n + c].to_f64(),
        };
        Ok(table(self.groups(), self.n, scale))
    }

    /// G, the number of groups.
    fn groups(&self) -> usize {
        match self.g_idx {
            Some(_) if self.n > 0 => self.scales.len() / self.n,
            _ if self.k == 0 => 0,
            _ => self.k.div_ceil(self.group),
        }
    }

    fn group_of(&self, row: usize) -> usize {
        match self.g_idx {
            Some(g_idx) => g_idx[row] as usize,
            None => row / self.group,
        }
    }

    /// First word of the GGUF block of a group and column.
    fn block(&self, group: usize, column: usize) -> usize {
        (column * (self.k / 32) + group) * BLOCK_WORDS
    }

    /// Scale and minimum of a GGUF block.
    fn head(&self, group: usize, column: usize) -> [f16; 2] {
        let word = self.qweight[self.block(group, column)];
        [word as u16, (word >> 16) as u16].map(f16::from_bits)
    }

    /// Words in a row of qzeros.
    fn zero_words(&self) -> usize {
        match self.format {
            Format::GptqV1 | Format::GptqV2 => words(self.n, self.bits),
            Format::AwqGemm => self.n / 8,
            Format::AwqGemv => {
                let multiple = match self.group {
                    32 => 4,
                    64 => 2,
                    _ => 1,
                };
                self.groups().div_ceil(8).next_multiple_of(multiple)
            }
            Format::GgufQ4_1 => 0,
        }
    }

    fn check(&self) -> Result<(), Error> {
        self.check_parameters()?;
        let (k, n, groups) = (self.k, self.n, self.groups());
        let (code_words, zero_words, scales) = match self.format {
            Format::GptqV1 | Format::GptqV2 => (
                words(k, self.bits).saturating_mul(n),
                groups.saturating_mul(self.zero_words()),
                groups.saturating_mul(n),
            ),
            Format::AwqGemm => (
                k.saturating_mul(n / 8),
                groups.saturating_mul(n / 8),
                groups.saturating_mul(n),
            ),
            Format::AwqGemv => (
                n.saturating_mul(k / 8),
                n.saturating_mul(self.zero_words()),
                n.saturating_mul(8 * self.zero_words()),
            ),
            Format::GgufQ4_1 => (n.saturating_mul(k / 32 * BLOCK_WORDS), 0, 0),
        };
        check_length("qweight", self.qweight.len(), code_words)?;
        check_length("qzeros", self.qzeros.len(), zero_words)?;
        check_length("scales", self.scales.len(), scales)?;
        let Some(g_idx) = self.g_idx else {
            return Ok(());
        };
        check_length("g_idx", g_idx.len(), k)?;
        if n == 0 {
            return Ok(());
        }
        if groups == 0 {
            return check_length("rows of g_idx without groups", k, 0);
        }
        check_entries("g_idx", g_idx.iter().map(|&g| g as usize), groups - 1)
    }

    fn check_parameters(&self) -> Result<(), Error> {
        let parameter = |name, value, requirement| {
            Err(Error::Parameter {
                name,
                value,
                requirement,
            })
        };
        let gptq = matches!(self.format, Format::GptqV1 | Format::GptqV2);
        if gptq && !matches!(self.bits, 2 | 3 | 4 | 8) {
            return parameter("bits", f64::from(self.bits), "2, 3, 4 or 8 for GPTQ");
        }
        if !gptq && self.bits != 4 {
            return parameter("bits", f64::from(self.bits), "4 for AWQ and GGUF");
        }
        if !gptq && self.g_idx.is_some() {
            return parameter("length of g_idx", self.k as f64, "absent for AWQ and GGUF");
        }
        if self.format == Format::GgufQ4_1 && self.group != 32 {
            return parameter("group", self.group as f64, "32 for GGUF");
        }
        if self.format == Format::GgufQ4_1 && !self.k.is_multiple_of(32) {
            return parameter("k", self.k as f64, "a multiple of 32 for GGUF");
        }
        if self.group == 0 && self.k > 0 {
            return parameter("group", 0.0, "at least 1");
        }
        if self.format == Format::AwqGemm && !self.n.is_multiple_of(8) {
            return parameter("n", self.n as f64, "a multiple of 8 for AWQ GEMM");
        }
        if self.format == Format::AwqGemv && self.k > 0 {
            if !self.k.is_multiple_of(8) {
                return parameter("k", self.k as f64, "a multiple of 8 for AWQ GEMV");
            }
            if !matches!(self.group, 32 | 64 | 128..) {
                let requirement = "32, 64 or at least 128 for AWQ GEMV";
                return parameter("group", self.group as f64, requirement);
            }
        }
        Ok(())
    }
}

/// Words that `count` fields fill.
fn words(count: usize, bits: u32) -> usize {
    count.saturating_mul(bits as usize).div_ceil(32)
}

/// Field `index` of a little-endian stream of `bits`-wide fields; it may straddle two words.
fn field(word: impl Fn(usize) -> u32, index: usize, bits: u32) -> u32 {
    let start = index * bits as usize;
    let (first, shift) = (start / 32, start % 32);
    let mut two_words = u64::from(word(first));
    if shift + bits as usize > 32 {
        two_words |= u64::from(word(first + 1)) << 32;
    }
    (two_words >> shift) as u32 & ((1 << bits) - 1)
}

/// Column c of a row packed in the AWQ GEMM order.
fn awq_gemm_field(row: &[u32], c: usize) -> u32 {
    let holds_column = |&column: &usize| column == c % 8;
    // AWQ_COLUMNS is a permutation of 0..8.
    let index = AWQ_COLUMNS.iter().position(holds_column).unwrap_or(0);
    row[c / 8] >> (4 * index) & 0xf
}

/// [rows, columns], row-major.
fn table<T>(rows: usize, columns: usize, value: impl Fn(usize, usize) -> T) -> Vec<T> {
    let mut values = Vec::with_capacity(rows * columns);
    for r in 0..rows {
        for c in 0..columns {
            values.push(value(r, c));
        }
    }
    values
}
