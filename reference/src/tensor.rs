//! A dense four-axis tensor of f64.

use num_traits::AsPrimitive;

use crate::error::{Error, check_length};

/// A contiguous row-major tensor; the axes are [b, h, s, d] wherever attention uses it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor4 {
    /// Sizes of [b, h, s, d].
    pub shape: [usize; 4],
    /// b * h * s * d values, d fastest.
    pub data: Vec<f64>,
}

impl Tensor4 {
    /// Wraps values that are already in row-major order.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not hold b * h * s * d values.
    pub fn new(shape: [usize; 4], data: Vec<f64>) -> Result<Self, Error> {
        check_length("tensor", data.len(), volume(shape))?;
        Ok(Self { shape, data })
    }

    /// Widens values of any number type (f16, bf16, f32, integers); exact for all floats.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not hold b * h * s * d values.
    pub fn from_slice<T: AsPrimitive<f64>>(shape: [usize; 4], data: &[T]) -> Result<Self, Error> {
        Self::new(shape, data.iter().map(|x| x.as_()).collect())
    }

    /// All zeros.
    pub fn zeros(shape: [usize; 4]) -> Self {
        Self {
            shape,
            data: vec![0.0; volume(shape)],
        }
    }

    /// The value at [b, h, s, d] is `value([b, h, s, d])`.
    pub fn from_fn(shape: [usize; 4], mut value: impl FnMut([usize; 4]) -> f64) -> Self {
        let mut data = Vec::with_capacity(volume(shape));
        for b in 0..shape[0] {
            for h in 0..shape[1] {
                for s in 0..shape[2] {
                    for d in 0..shape[3] {
                        data.push(value([b, h, s, d]));
                    }
                }
            }
        }
        Self { shape, data }
    }

    /// The d values at [b, h, s].
    pub fn row(&self, b: usize, h: usize, s: usize) -> &[f64] {
        let [_, h_size, s_size, d] = self.shape;
        let start = ((b * h_size + h) * s_size + s) * d;
        &self.data[start..start + d]
    }

    /// The fields are public, so every entry point checks once that they fit together.
    pub(crate) fn check(&self, tensor: &'static str) -> Result<(), Error> {
        check_length(tensor, self.data.len(), volume(self.shape))
    }
}

/// Number of elements; saturates, so that an absurd shape fails the length check.
pub(crate) fn volume(shape: [usize; 4]) -> usize {
    if shape.contains(&0) {
        return 0;
    }
    shape.into_iter().fold(1, usize::saturating_mul)
}

/// sum_c x[c] * y[c], in eight partial sums so that it vectorises.
pub(crate) fn dot(x: &[f64], y: &[f64]) -> f64 {
    let (xs, x_rest) = x.as_chunks::<8>();
    let (ys, y_rest) = y.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (x8, y8) in xs.iter().zip(ys) {
        for lane in 0..8 {
            sums[lane] += x8[lane] * y8[lane];
        }
    }
    let rest: f64 = x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f64>() + rest
}

/// acc[c] += factor * x[c]
pub(crate) fn add_scaled(acc: &mut [f64], factor: f64, x: &[f64]) {
    for (a, x) in acc.iter_mut().zip(x) {
        *a += factor * x;
    }
}
