//! The host-side layers between two attentions. Activations are [rows, features], row-major.

use std::fmt::Debug;

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use rayon::prelude::*;

use crate::weights::Weights;
use crate::{ModelError, Real};

/// `y = x W^T + bias` in f32, by whoever holds W: this crate in floats ([`Dense`]), or a kernel with
/// its quantized weights on a device.
pub trait Linear: Debug + Send + Sync {
    /// Features of x.
    fn inputs(&self) -> usize;

    /// Features of y.
    fn outputs(&self) -> usize;

    /// `x`: [rows, inputs] -> [rows, outputs].
    ///
    /// # Errors
    /// [`ModelError::Device`] when the device refuses.
    fn apply(&self, x: &[f32]) -> Result<Vec<f32>, ModelError>;
}

/// A linear with its weight in memory.
#[derive(Debug)]
pub struct Dense<T> {
    inputs: usize,
    outputs: usize,
    /// [out, in], as checkpoints have it.
    weight: Vec<T>,
    /// `[out]`
    bias: Option<Vec<T>>,
}

impl<T: Real> Dense<T> {
    /// Reads `{name}.weight` [outputs, inputs] and, where there is one, `{name}.bias` `[outputs]`.
    ///
    /// # Errors
    /// [`ModelError::Format`] naming the tensor.
    pub fn load(
        weights: &dyn Weights,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self, ModelError> {
        let weight = weights.tensor(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = format!("{name}.bias");
        let bias = weights
            .shape(&bias)
            .map(|_| weights.tensor(&bias, &[outputs]))
            .transpose()?;
        Ok(Self::new(inputs, outputs, weight, bias))
    }

    /// `weight`: [outputs, inputs], `bias`: `[outputs]`.
    pub(crate) fn new(
        inputs: usize,
        outputs: usize,
        weight: Vec<f32>,
        bias: Option<Vec<f32>>,
    ) -> Self {
        let real = |values: Vec<f32>| values.into_iter().map(T::from_f32).collect();
        Self {
            inputs,
            outputs,
            weight: real(weight),
            bias: bias.map(real),
        }
    }

    /// `x`: [rows, inputs] -> [rows, outputs]. The same input gives the same bits on the same
    /// number of threads.
    pub fn apply(&self, x: &[T]) -> Vec<T> {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let rows = x.len().checked_div(inputs).unwrap_or(0);
        let mut y = match &self.bias {
            Some(bias) => bias.repeat(rows),
            None => vec![T::zero(); rows * outputs],
        };
        matmul(
            MatMut::from_row_major_slice_mut(&mut y, rows, outputs),
            Accum::Add,
            MatRef::from_row_major_slice(x, rows, inputs),
            MatRef::from_row_major_slice(&self.weight, outputs, inputs).transpose(),
            T::one(),
            Par::rayon(0),
        );
        y
    }
}

impl Linear for Dense<f32> {
    fn inputs(&self) -> usize {
        self.inputs
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn apply(&self, x: &[f32]) -> Result<Vec<f32>, ModelError> {
        Ok(Dense::apply(self, x))
    }
}

/// `y = (x - mean) / sqrt(variance + eps) * weight + bias` over the features of each row, with
/// the variance divided by the count (Ba, Kiros, Hinton 2016).
#[derive(Debug)]
pub struct LayerNorm<T> {
    weight: Vec<T>,
    bias: Vec<T>,
    eps: T,
}

impl<T: Real> LayerNorm<T> {
    /// Reads `{name}.weight` and `{name}.bias`, both `[features]`.
    ///
    /// # Errors
    /// [`ModelError::Format`] naming the tensor.
    pub fn load(
        weights: &dyn Weights,
        name: &str,
        features: usize,
        eps: f64,
    ) -> Result<Self, ModelError> {
        let part = |part: &str| -> Result<Vec<T>, ModelError> {
            let values = weights.tensor(&format!("{name}.{part}"), &[features])?;
            Ok(values.into_iter().map(T::from_f32).collect())
        };
        Ok(Self {
            weight: part("weight")?,
            bias: part("bias")?,
            eps: T::from_f64(eps),
        })
    }

    /// Features of a row.
    pub(crate) fn features(&self) -> usize {
        self.weight.len()
    }

    /// `x`: [rows, features], in place.
    pub fn apply(&self, x: &mut [T]) {
        let features = self.weight.len();
        let count = T::from_f64(features as f64);
        for row in x.chunks_exact_mut(features.max(1)) {
            let mean = row.iter().fold(T::zero(), |sum, &v| sum + v) / count;
            let square = |v: T| (v - mean) * (v - mean);
            let variance = row.iter().fold(T::zero(), |sum, &v| sum + square(v)) / count;
            let inverse = (variance + self.eps).sqrt().recip();
            for ((v, &weight), &bias) in row.iter_mut().zip(&self.weight).zip(&self.bias) {
                *v = (*v - mean) * inverse * weight + bias;
            }
        }
    }
}

/// `y = x / sqrt(mean(x^2) + eps) * weight` over the features of each row (Zhang, Sennrich 2019).
#[derive(Debug)]
pub struct RmsNorm {
    weight: Vec<f32>,
    eps: f64,
}

impl RmsNorm {
    /// Reads `{name}.weight` `[features]`.
    ///
    /// # Errors
    /// [`ModelError::Format`] naming the tensor.
    pub fn load(
        weights: &dyn Weights,
        name: &str,
        features: usize,
        eps: f64,
    ) -> Result<Self, ModelError> {
        let weight = weights.tensor(&format!("{name}.weight"), &[features])?;
        Ok(Self { weight, eps })
    }

    /// `x`: [rows, features].
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let features = self.weight.len().max(1);
        let mut y = Vec::with_capacity(x.len());
        for row in x.chunks_exact(features) {
            let square: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
            let inverse = (1.0 / (square / features as f64 + self.eps).sqrt()) as f32;
            y.extend(
                row.iter()
                    .zip(&self.weight)
                    .map(|(v, weight)| v * inverse * weight),
            );
        }
        y
    }
}

/// `silu(gate) * up` with silu(x) = x / (1 + exp(-x)), element by element, into `gate`.
pub fn silu_multiply(gate: &mut [f32], up: &[f32]) {
    const CHUNK: usize = 4096;
    let chunks = gate.par_chunks_mut(CHUNK).zip(up.par_chunks(CHUNK));
    chunks.for_each(|(gate, up)| {
        for (gate, up) in gate.iter_mut().zip(up) {
            *gate *= up / (1.0 + exp(-*gate));
        }
    });
}

/// exp(x) to 2 units in the last place, by arithmetic that compilers turn into vector instructions:
/// exp(x) = 2^n exp(r) with |r| <= ln(2)/2, exp(r) by its series. Past +-87 it stays where it is
/// there, far outside what a sigmoid can tell from 0 and infinity.
fn exp(x: f32) -> f32 {
    /// Adding and subtracting it rounds to a whole number.
    const ROUNDER: f32 = 12_582_912.0;
    /// ln(2) in two parts, the first exact in few bits.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = x.clamp(-87.0, 87.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let series = [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    let mantissa = series.into_iter().fold(1.0 / 5040.0, |sum, c| sum * r + c);
    // The low bits of `shifted` hold n: moved into the exponent they make 2^n.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    mantissa * power
}

/// The exact GELU, `x Phi(x) = x/2 (1 + erf(x / sqrt 2))` (Hendrycks, Gimpel 2016), in place.
pub fn gelu<T: Real>(x: &mut [T]) {
    let half = T::from_f64(0.5);
    let scale = T::from_f64(std::f64::consts::FRAC_1_SQRT_2);
    x.par_iter_mut()
        .for_each(|v| *v = *v * half * (T::one() + (*v * scale).erf()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes around those of the matrix kernels, against the sum written out.
    #[test]
    fn linear_at_awkward_sizes_matches_the_plain_sum() {
        for rows in [0, 1, 3, 4, 5, 33] {
            for (inputs, outputs) in [(1, 1), (7, 8), (5, 9), (3, 0)] {
                let weight: Vec<f32> = (0..inputs * outputs).map(|i| i as f32 - 11.0).collect();
                let bias: Vec<f32> = (0..outputs).map(|i| 0.5 * i as f32).collect();
                let x: Vec<f64> = (0..rows * inputs).map(|i| (i % 13) as f64 - 6.0).collect();
                let y = Dense::new(inputs, outputs, weight.clone(), Some(bias.clone())).apply(&x);
                assert_eq!(y.len(), rows * outputs);
                for (i, &y) in y.iter().enumerate() {
                    let (row, out) = (i / outputs, i % outputs);
                    // Whole and half numbers: every order of summation gives the same bits.
                    let sum: f64 = (0..inputs)
                        .map(|j| x[row * inputs + j] * f64::from(weight[out * inputs + j]))
                        .sum();
                    assert_eq!(y, sum + f64::from(bias[out]), "row {row} output {out}");
                }
            }
        }
    }

    #[test]
    fn layer_norm_of_a_row_has_mean_bias_and_unit_variance() {
        let norm = LayerNorm {
            weight: vec![1.0; 4],
            bias: vec![3.0; 4],
            eps: 0.0,
        };
        let mut x = vec![1.0f64, 2.0, 3.0, 6.0];
        norm.apply(&mut x);
        let mean = x.iter().sum::<f64>() / 4.0;
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 4.0;
        assert!((mean - 3.0).abs() < 1e-14 && (variance - 1.0).abs() < 1e-14);
    }

    #[test]
    fn exp_is_within_two_units_and_silu_is_its_quotient() {
        for i in -8700..=8700 {
            let x = i as f32 / 100.0;
            let (ours, exact) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((ours / exact - 1.0).abs() < 2.4e-7, "{x}: {ours} {exact}");
        }
        assert!(exp(f32::INFINITY).is_finite() && exp(f32::NEG_INFINITY) > 0.0);
        let mut gate = [0.0, 1.0, -200.0, 200.0];
        silu_multiply(&mut gate, &[3.0, 2.0, 1.0, 0.5]);
        assert!((gate[1] - 1.462_117_2).abs() < 1e-6, "{gate:?}");
        assert_eq!((gate[0], gate[3]), (0.0, 100.0));
        assert!(gate[2].abs() < 1e-30);
        let mut nan = [f32::NAN];
        silu_multiply(&mut nan, &[1.0]);
        assert!(nan[0].is_nan());
    }

    /// Values of x Phi(x) from tables of the normal distribution.
    #[test]
    fn gelu_is_the_exact_form() {
        let mut x = [0.0f64, 1.0, -1.0, 2.0];
        gelu(&mut x);
        let expected = [
            0.0,
            0.841_344_746_068_543,
            -0.158_655_253_931_457,
            1.954_499_736_103_642,
        ];
        for (x, e) in x.iter().zip(expected) {
            assert!((x - e).abs() < 1e-14, "{x} {e}");
        }
    }
}
