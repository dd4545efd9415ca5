//! The weight that a quantizer is given.

use crate::error::{QuantizeError, check_finite, check_len};

/// A linear's weight W [k in, n out], row-major, all finite: y = x W.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) k: usize,
    pub(crate) n: usize,
}

impl<'a> Weight<'a> {
    /// A checked weight.
    ///
    /// # Errors
    /// [`QuantizeError::WrongLength`] and [`QuantizeError::NotFinite`], naming the tensor `weight`.
    pub fn new(values: &'a [f32], k: usize, n: usize) -> Result<Self, QuantizeError> {
        check_len("weight", values.len(), &[k, n])?;
        check_finite("weight", values)?;
        Ok(Self { values, k, n })
    }

    /// (k, n).
    pub fn sizes(&self) -> (usize, usize) {
        (self.k, self.n)
    }

    /// [k, n].
    pub fn values(&self) -> &'a [f32] {
        self.values
    }

    /// Weights of input channel `row`: `[n]`.
    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.n..(row + 1) * self.n]
    }
}

/// [rows, columns] -> [columns, rows]: what checkpoints store as [out, in] becomes W [k, n].
pub fn transposed<T: Copy>(values: &[T], rows: usize, columns: usize) -> Vec<T> {
    (0..columns)
        .flat_map(|column| (0..rows).map(move |row| values[row * columns + column]))
        .collect()
}
