//! Inputs, and what is kept of them on the host.

use cubecl::prelude::Client;
use flashcube::{DType, Tensor};
use flashcube_reference::quant::float::round_e4m3;
use half::{bf16, f16};
use rayon::prelude::*;

use crate::elements;

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

/// N(0, 1) at position `index` of the stream `seed`, by the method of Box and Muller (1958).
pub(super) fn normal(seed: u64, index: u64) -> f32 {
    const UNIT: f64 = 1.0 / (1u64 << 32) as f64;
    let bits = mix(seed, index);
    // In (0, 1]: its logarithm is finite.
    let length = ((bits >> 32) + 1) as f64 * UNIT;
    let turn = (bits & 0xffff_ffff) as f64 * UNIT;
    ((-2.0 * length.ln()).sqrt() * (std::f64::consts::TAU * turn).cos()) as f32
}

/// N(0, 1) + N(0, 10^2) * Bernoulli(0.001): the outliers of a language model's activations, as
/// FlashAttention-3's authors draw them.
pub(super) fn with_outliers(seed: u64, index: u64) -> f32 {
    let x = normal(seed, index);
    if mix(!seed, index).is_multiple_of(1000) {
        x + 10.0 * normal(seed ^ 0x6f75_746c, index)
    } else {
        x
    }
}

impl Drawn {
    /// `n` values of the stream `seed` of N(0, 1), rounded to `dtype`.
    pub(super) fn normals(dtype: DType, n: usize, seed: u64) -> Self {
        Self::of(dtype, n, |i| normal(seed, i))
    }

    /// `draw(i)` for every i below `n`, rounded to `dtype`.
    pub(super) fn of(dtype: DType, n: usize, draw: impl Fn(u64) -> f32 + Sync) -> Self {
        let round = |x: f32| match dtype {
            DType::F32 => x,
            DType::F16 => f16::from_f32(x).to_f32(),
            DType::BF16 => bf16::from_f32(x).to_f32(),
            DType::E4M3 => round_e4m3(f64::from(x)) as f32,
        };
        Self {
            dtype,
            values: (0..n as u64)
                .into_par_iter()
                .map(|i| round(draw(i)))
                .collect(),
        }
    }

    /// A dense device tensor of the values.
    pub(super) fn upload<const N: usize>(&self, client: &Client, shape: [usize; N]) -> Tensor<N> {
        elements::upload(client, &self.values, shape, self.dtype)
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
    fn one_value_in_a_thousand_is_an_outlier() {
        let n = 200_000;
        let far = (0..n).filter(|&i| with_outliers(7, i) != normal(7, i));
        let share = far.count() as f64 / n as f64;
        assert!((0.0007..0.0013).contains(&share), "{share}");
        let largest = (0..n)
            .map(|i| with_outliers(7, i).abs())
            .fold(0.0, f32::max);
        assert!(largest > 10.0, "{largest}");
    }
}
