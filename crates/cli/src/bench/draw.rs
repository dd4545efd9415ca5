//! Inputs, and what is kept of them on the host.

use cubecl::prelude::Client;
use flashcube::{DType, Tensor};
use half::{bf16, f16};
use rayon::prelude::*;

/// Values that a device tensor holds, each exactly representable in its dtype.
pub(super) struct Drawn {
    pub(super) dtype: DType,
    pub(super) values: Vec<f32>,
}

/// SplitMix64 (Steele, Lea and Flood, 2014) at position `index` of the stream `seed`.
pub(super) fn mix(seed: u64, index: u64) -> u64 {
    let step = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut z = seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(step);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Nearly N(0, 1): the sum of four uniform numbers, centred and scaled.
pub(super) fn normal(seed: u64, index: u64) -> f32 {
    let bits = mix(seed, index);
    let sum: u64 = (0..4).map(|part| (bits >> (16 * part)) & 0xffff).sum();
    (sum as f32 / 65535.0 - 2.0) * 3f32.sqrt()
}

impl Drawn {
    /// `n` values of the stream `seed`, rounded to `dtype`.
    pub(super) fn normals(dtype: DType, n: usize, seed: u64) -> Self {
        let round = |x: f32| match dtype {
            DType::F32 => x,
            DType::F16 => f16::from_f32(x).to_f32(),
            DType::BF16 => bf16::from_f32(x).to_f32(),
        };
        Self {
            dtype,
            values: (0..n as u64)
                .into_par_iter()
                .map(|i| round(normal(seed, i)))
                .collect(),
        }
    }

    /// A dense device tensor of the values.
    pub(super) fn upload<const N: usize>(&self, client: &Client, shape: [usize; N]) -> Tensor<N> {
        let handle = client.create_from_slice(&encode(self.dtype, &self.values));
        Tensor::contiguous(handle, shape, self.dtype)
    }
}

fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 => values
            .iter()
            .flat_map(|&x| f16::from_f32(x).to_le_bytes())
            .collect(),
        DType::BF16 => values
            .iter()
            .flat_map(|&x| bf16::from_f32(x).to_le_bytes())
            .collect(),
    }
}

/// Elements of a device buffer.
pub(super) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let pairs = || bytes.as_chunks::<2>().0.iter();
    match dtype {
        DType::F32 => {
            let words = bytes.as_chunks::<4>().0.iter();
            words.map(|&x| f32::from_le_bytes(x)).collect()
        }
        DType::F16 => pairs().map(|&x| f16::from_le_bytes(x).to_f32()).collect(),
        DType::BF16 => pairs().map(|&x| bf16::from_le_bytes(x).to_f32()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_mean_0_and_variance_1() {
        let drawn = Drawn::normals(DType::F32, 100_000, 3);
        let n = drawn.values.len() as f64;
        let mean = drawn.values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let square = drawn
            .values
            .iter()
            .map(|&x| f64::from(x).powi(2))
            .sum::<f64>()
            / n;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((square - 1.0).abs() < 0.02, "{square}");
    }

    #[test]
    fn every_dtype_decodes_what_it_encodes() {
        for dtype in DType::ALL {
            let drawn = Drawn::normals(dtype, 100, 5);
            assert_eq!(decode(dtype, &encode(dtype, &drawn.values)), drawn.values);
        }
    }
}
