//! A packer for GPTQ and AWQ matrices, written from the layouts bit by bit.

use flashcube_reference::quant::int::{Format, Packed};
use half::f16;

use crate::cases::Random;

/// Writes fields as single bits into words: the slow definition of a little-endian bit stream.
fn bit_stream(fields: impl IntoIterator<Item = u32>, bits: u32) -> Vec<u32> {
    let bit_list: Vec<u32> = fields
        .into_iter()
        .flat_map(|field| (0..bits).map(move |bit| field >> bit & 1))
        .collect();
    let word = |bits: &[u32]| bits.iter().rev().fold(0, |word, bit| word << 1 | bit);
    bit_list.chunks(32).map(word).collect()
}

/// Buffers in one of the formats, with the logical values they were made from.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    format: Format,
    bits: u32,
    k: usize,
    n: usize,
    group: usize,
    pub(crate) codes: Vec<u32>,
    pub(crate) zeros: Vec<u32>,
    pub(crate) scales: Vec<f16>,
    pub(crate) g_idx: Option<Vec<u32>>,
    pub(crate) qweight: Vec<u32>,
    qzeros: Vec<u32>,
    stored_scales: Vec<f16>,
}

impl Matrix {
    pub(crate) fn random(
        seed: u64,
        format: Format,
        bits: u32,
        k: usize,
        n: usize,
        group: usize,
    ) -> Self {
        let mut random = Random::new(seed);
        let groups = k.div_ceil(group);
        let mut fields = |n| {
            let field = |_| random.below(1 << bits) as u32;
            (0..n).map(field).collect::<Vec<u32>>()
        };
        let (codes, zeros) = (fields(k * n), fields(groups * n));
        let scales = (0..groups * n)
            .map(|_| f16::from_f64(random.normal()))
            .collect();
        let mut matrix = Self {
            format,
            bits,
            k,
            n,
            group,
            codes,
            zeros,
            scales,
            g_idx: None,
            qweight: vec![],
            qzeros: vec![],
            stored_scales: vec![],
        };
        matrix.pack();
        matrix
    }

    pub(crate) fn pack(&mut self) {
        let (k, n, bits, groups) = (self.k, self.n, self.bits, self.zeros.len() / self.n.max(1));
        let code = |r: usize, c: usize| self.codes[r * n + c];
        let zero = |g: usize, c: usize| self.zeros[g * n + c];
        let awq = |row: &[u32]| -> Vec<u32> {
            let columns = [0, 2, 4, 6, 1, 3, 5, 7];
            let eights = row.chunks(8).flat_map(|eight| columns.map(|c| eight[c]));
            bit_stream(eights, 4)
        };
        self.stored_scales = self.scales.clone();
        match self.format {
            Format::GptqV1 | Format::GptqV2 => {
                let columns: Vec<Vec<u32>> = (0..n)
                    .map(|c| bit_stream((0..k).map(|r| code(r, c)), bits))
                    .collect();
                let words = (k * bits as usize).div_ceil(32);
                self.qweight = (0..words)
                    .flat_map(|w| columns.iter().map(move |column| column[w]))
                    .collect();
                self.qzeros = (0..groups).flat_map(|g| self.pack_gptq_zeros(g)).collect();
            }
            Format::AwqGemm => {
                self.qweight = self.codes.chunks(n.max(1)).flat_map(awq).collect();
                self.qzeros = self.zeros.chunks(n.max(1)).flat_map(awq).collect();
            }
            // Scales and codes lie together: golden words test them.
            Format::GgufQ4_1 => unreachable!("GGUF blocks have no zero points"),
            Format::AwqGemv => {
                let multiple = match self.group {
                    32 => 4,
                    64 => 2,
                    _ => 1,
                };
                let width = groups.div_ceil(8).div_ceil(multiple) * multiple;
                // Padding holds rubbish that must never be read.
                let pad = |c, g| if g < groups { zero(g, c) } else { 9 };
                self.qweight = (0..n)
                    .flat_map(|c| bit_stream((0..k).map(|r| code(r, c)), 4))
                    .collect();
                self.qzeros = (0..n)
                    .flat_map(|c| bit_stream((0..8 * width).map(|g| pad(c, g)), 4))
                    .collect();
                let scale = |c, g| {
                    if g < groups {
                        self.scales[g * n + c]
                    } else {
                        f16::NAN
                    }
                };
                self.stored_scales = (0..n)
                    .flat_map(|c| (0..8 * width).map(move |g| scale(c, g)))
                    .collect();
            }
        }
    }

    fn pack_gptq_zeros(&self, g: usize) -> Vec<u32> {
        let row = &self.zeros[g * self.n..(g + 1) * self.n];
        match (self.format, self.bits) {
            (Format::GptqV1, 3) => bit_stream(row.iter().map(|z| (z + 7) % 8), 3),
            (Format::GptqV1, bits) => {
                let ones = bit_stream(vec![1; 32 / bits as usize], bits)[0];
                let words = bit_stream(row.iter().copied(), bits);
                words
                    .into_iter()
                    .map(|word| word.wrapping_sub(ones))
                    .collect()
            }
            (_, bits) => bit_stream(row.iter().copied(), bits),
        }
    }

    pub(crate) fn packed(&self) -> Packed<'_> {
        Packed {
            format: self.format,
            bits: self.bits,
            k: self.k,
            n: self.n,
            group: self.group,
            qweight: &self.qweight,
            qzeros: &self.qzeros,
            scales: &self.stored_scales,
            g_idx: self.g_idx.as_deref(),
        }
    }

    pub(crate) fn weights(&self) -> Vec<f64> {
        (0..self.k * self.n)
            .map(|at| {
                let (r, c) = (at / self.n, at % self.n);
                let g = self
                    .g_idx
                    .as_ref()
                    .map_or(r / self.group, |g| g[r] as usize);
                let scale = self.scales[g * self.n + c].to_f64();
                scale * (f64::from(self.codes[at]) - f64::from(self.zeros[g * self.n + c]))
            })
            .collect()
    }
}
