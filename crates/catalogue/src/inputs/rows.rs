//! Inputs of the operations on rows: Hadamard transforms, operands of block-scaled products.

use rand::Rng;

use super::Draw;
use crate::array::{Array, Data, round_to};
use crate::problem::{HadamardSizes, QuantizeSizes, Values};

impl Draw<'_> {
    pub(super) fn hadamard(&mut self, h: &HadamardSizes) {
        let values: Vec<f32> = self
            .normals(h.rows * h.n)
            .iter()
            .map(|&x| round_to(self.problem.dtype, x) as f32)
            .collect();
        let shape = [h.rows, h.n];
        let x = Array::arranged(&shape, self.problem.dtype, &values, self.problem.memory, 0);
        self.arrays.insert("x", x);
        if h.signs {
            let signs = (0..h.n)
                .map(|_| u8::from(self.rng.random_bool(0.5)))
                .collect();
            self.arrays
                .insert("signs", Array::dense(&[h.n], Data::U8(signs)));
        }
    }

    /// Rows and columns of very different magnitudes, zeros among them.
    pub(super) fn quantize(&mut self, sizes: &QuantizeSizes) {
        let d = sizes.shape[3];
        let mut values = self.normals(sizes.shape.iter().product());
        for (at, x) in values.iter_mut().enumerate() {
            let (row, column) = (at / d.max(1), at % d.max(1));
            match self.problem.values {
                Values::Ties => *x = 0.25 * f64::from(self.rng.random_range(-24..=24i32)),
                Values::HiddenNan if self.rng.random_bool(0.01) => {
                    *x = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][row % 3];
                }
                _ => *x *= (((row / 16 * 7 + column / 16 * 5) % 24) as f64 - 12.0).exp2(),
            }
            if (row / 32 + column / 32) % 5 == 4 {
                *x = 0.0;
            }
        }
        self.put("x", sizes.shape, &values);
    }
}
