//! The host-side layers between two attentions. Activations are [rows, features], row-major.

use flashcube_formats::{Checkpoint, FormatError};
use rayon::prelude::*;

use crate::Real;

/// Output features computed together: one panel of the packed weight.
const PANEL: usize = 8;
/// Rows of activations that share one pass over a panel.
const ROWS: usize = 4;
/// Rows of one rayon task: a panel stays in cache while these rows use it.
const TASK_ROWS: usize = 32;

/// A tensor of exactly this shape as f32, whichever float type the file holds it in.
pub(crate) fn read(
    checkpoint: &Checkpoint,
    name: &str,
    shape: &[usize],
) -> Result<Vec<f32>, FormatError> {
    checkpoint.tensor(name)?.with_shape(shape)?.to_f32()
}

/// `y = x W^T + bias`, with W stored [out, in] as checkpoints have it.
#[derive(Debug)]
pub struct Linear<T> {
    inputs: usize,
    outputs: usize,
    /// [ceil(out / PANEL), in, PANEL]: the PANEL weights that meet one input value lie together,
    /// columns past `outputs` are 0.
    panels: Vec<[T; PANEL]>,
    /// [ceil(out / PANEL), PANEL]
    bias: Vec<[T; PANEL]>,
}

impl<T: Real> Linear<T> {
    /// Reads `{name}.weight` [outputs, inputs] and `{name}.bias` `[outputs]`.
    ///
    /// # Errors
    /// [`FormatError`] naming the tensor.
    pub fn load(
        checkpoint: &Checkpoint,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self, FormatError> {
        let weight = read(checkpoint, &format!("{name}.weight"), &[outputs, inputs])?;
        let bias = read(checkpoint, &format!("{name}.bias"), &[outputs])?;
        Ok(Self::pack(inputs, outputs, &weight, &bias))
    }

    /// `weight`: [outputs, inputs], `bias`: `[outputs]`.
    fn pack(inputs: usize, outputs: usize, weight: &[f32], bias: &[f32]) -> Self {
        let count = outputs.div_ceil(PANEL);
        let mut panels = vec![[T::zero(); PANEL]; count * inputs];
        let mut packed_bias = vec![[T::zero(); PANEL]; count];
        for out in 0..outputs {
            let (panel, column) = (out / PANEL, out % PANEL);
            packed_bias[panel][column] = T::from_f32(bias[out]);
            for i in 0..inputs {
                panels[panel * inputs + i][column] = T::from_f32(weight[out * inputs + i]);
            }
        }
        Self {
            inputs,
            outputs,
            panels,
            bias: packed_bias,
        }
    }

    /// `x`: [rows, inputs] -> [rows, outputs]. Each output is summed in the order of the inputs,
    /// whatever the number of threads, so that two runs agree bit for bit.
    pub fn apply(&self, x: &[T]) -> Vec<T> {
        let rows = x.len().checked_div(self.inputs).unwrap_or(0);
        let mut y = vec![T::zero(); rows * self.outputs];
        if self.outputs == 0 {
            return y;
        }
        y.par_chunks_mut(TASK_ROWS * self.outputs)
            .zip(x.par_chunks(TASK_ROWS * self.inputs))
            .for_each(|(y, x)| self.apply_task(x, y));
        y
    }

    /// `x`: [<= TASK_ROWS, inputs], `y`: [<= TASK_ROWS, outputs].
    fn apply_task(&self, x: &[T], y: &mut [T]) {
        for (p, bias) in self.bias.iter().enumerate() {
            let panel = &self.panels[p * self.inputs..(p + 1) * self.inputs];
            let columns = p * PANEL..((p + 1) * PANEL).min(self.outputs);
            let blocks = x
                .chunks(ROWS * self.inputs)
                .zip(y.chunks_mut(ROWS * self.outputs));
            for (x, y) in blocks {
                let rows = x.len() / self.inputs;
                // A block with fewer rows repeats its last one and does not store the copies.
                let x: [&[T]; ROWS] = std::array::from_fn(|r| {
                    let r = r.min(rows - 1);
                    &x[r * self.inputs..(r + 1) * self.inputs]
                });
                let sums = multiply_panel(x, panel, bias);
                for (y, sums) in y.chunks_mut(self.outputs).zip(&sums) {
                    y[columns.clone()].copy_from_slice(&sums[..columns.len()]);
                }
            }
        }
    }
}

/// ROWS x PANEL sums over the inputs, held in registers.
fn multiply_panel<T: Real>(
    x: [&[T]; ROWS],
    panel: &[[T; PANEL]],
    bias: &[T; PANEL],
) -> [[T; PANEL]; ROWS] {
    let mut sums = [*bias; ROWS];
    let [a, b, c, d] = x;
    for ((((w, &a), &b), &c), &d) in panel.iter().zip(a).zip(b).zip(c).zip(d) {
        for (sums, x) in sums.iter_mut().zip([a, b, c, d]) {
            for (sum, &w) in sums.iter_mut().zip(w) {
                *sum = *sum + x * w;
            }
        }
    }
    sums
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
    /// [`FormatError`] naming the tensor.
    pub fn load(
        checkpoint: &Checkpoint,
        name: &str,
        features: usize,
        eps: f64,
    ) -> Result<Self, FormatError> {
        let part = |part: &str| -> Result<Vec<T>, FormatError> {
            let values = read(checkpoint, &format!("{name}.{part}"), &[features])?;
            Ok(values.into_iter().map(T::from_f32).collect())
        };
        Ok(Self {
            weight: part("weight")?,
            bias: part("bias")?,
            eps: T::from_f64(eps),
        })
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

    /// Sizes around the panel, row-block and task sizes, against the sum written out.
    #[test]
    fn linear_at_awkward_sizes_matches_the_plain_sum() {
        for rows in [0, 1, 3, 4, 5, 33] {
            for (inputs, outputs) in [(1, 1), (7, 8), (5, 9), (3, 0)] {
                let weight: Vec<f32> = (0..inputs * outputs).map(|i| i as f32 - 11.0).collect();
                let bias: Vec<f32> = (0..outputs).map(|i| 0.5 * i as f32).collect();
                let x: Vec<f64> = (0..rows * inputs).map(|i| (i % 13) as f64 - 6.0).collect();
                let y = Linear::pack(inputs, outputs, &weight, &bias).apply(&x);
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
