//! Inputs of the operations on rows: Hadamard transforms, products with packed weights, operands of
//! block-scaled products.

use std::ops::RangeInclusive;

use flashcube::{DType, ScaleType, WeightCodes, ZeroType};
use flashcube_reference::quant::e8m0;
use rand::Rng;
use rand::seq::SliceRandom;

use super::Draw;
use crate::array::{Array, Data, round_to};
use crate::problem::{HadamardSizes, LinearSizes, QuantizeSizes, Values};

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

    pub(super) fn linear(&mut self, p: &LinearSizes) {
        let dtype = self.problem.dtype;
        let mut x = self.normals(p.m * p.k);
        match self.problem.values {
            // Beyond 6e4 an f16 ends.
            Values::LargeLogits => x.iter_mut().for_each(|x| *x = (*x * 1e4).clamp(-6e4, 6e4)),
            Values::Cancelling => {
                for row in x.chunks_mut(p.k.max(1)) {
                    let (first, second) = row.split_at_mut(p.k / 2);
                    second.iter_mut().zip(first).for_each(|(b, a)| *b = -*a);
                }
            }
            _ => {}
        }
        let x: Vec<f32> = x.iter().map(|&x| round_to(dtype, x) as f32).collect();
        let x = Array::arranged(&[p.m, p.k], dtype, &x, self.problem.memory, 0);
        let (rows, columns) = (p.rows(), p.n.next_multiple_of(64));
        let words = (0..rows * columns / 32 * p.bits as usize)
            .map(|_| match (p.codes, self.rng.random::<[u8; 4]>()) {
                // No NaN among weights.
                (WeightCodes::E4M3, bytes) => {
                    u32::from_le_bytes(bytes.map(|code| code - u8::from(code & 0x7f == 0x7f)))
                }
                (_, bytes) => u32::from_le_bytes(bytes),
            })
            .collect();
        // Results stay finite in f16.
        let spread = match self.problem.values {
            Values::LargeLogits => 0.001,
            _ => 0.02,
        };
        // Columns past the last one hold garbage, as do the rows.
        let places = p.places();
        let column =
            |at: usize| at % columns / 64 * 64 + at % 64 / 2 % 4 * 16 + at % 64 / 8 * 2 + at % 2;
        let mut bytes = |range: RangeInclusive<u8>, nan: u8| {
            let byte = |at| match column(at) < p.n {
                true => self.rng.random_range(range.clone()),
                false => nan,
            };
            Array::dense(&[places], Data::U8((0..places).map(byte).collect()))
        };
        let scales = match p.scales {
            // From the subnormal ones to 1/2.
            ScaleType::E4M3 => bytes(0..=0x30, 0x7f),
            ScaleType::E8M0 => bytes(105..=124, e8m0::NAN),
            ScaleType::F16 => {
                let scale = |at| match column(at) < p.n {
                    true => round_to(DType::F16, spread * self.normal()) as f32,
                    false => f32::NAN,
                };
                Array::floats(&[places], DType::F16, (0..places).map(scale).collect())
            }
        };
        self.arrays.extend([
            ("x", x),
            (
                "words",
                Array::dense(&[rows * columns / 32 * p.bits as usize], Data::U32(words)),
            ),
            ("scales", scales),
        ]);
        match p.zeros {
            None => {}
            Some(ZeroType::Point) => {
                let limit = 1u32 << p.bits;
                let zeros = (0..places).map(|_| self.rng.random_range(0..limit) as u8);
                let zeros = Data::U8(zeros.collect());
                self.arrays.insert("zeros", Array::dense(&[places], zeros));
            }
            Some(ZeroType::Minimum) => {
                let middle = f64::from(1u32 << (p.bits - 1));
                let minimum = |at| match (column(at) < p.n, at % 31) {
                    (false, _) => f32::NAN,
                    // The least there is, and none.
                    (true, 7) => 2f32.powi(-24),
                    (true, 11) => 0.0,
                    (true, _) => round_to(DType::F16, spread * middle * self.normal()) as f32,
                };
                let minima = (0..places).map(minimum).collect();
                let minima = Array::floats(&[places], DType::F16, minima);
                self.arrays.insert("zeros", minima);
            }
        }
        if p.gathered {
            let mut gather: Vec<u32> = (0..rows as u32)
                .map(|row| if (row as usize) < p.k { row } else { u32::MAX })
                .collect();
            gather.shuffle(&mut self.rng);
            self.arrays
                .insert("gather", Array::dense(&[rows], Data::U32(gather)));
        }
        if p.bias {
            let bias: Vec<f32> = (0..p.n)
                .map(|_| round_to(dtype, self.normal()) as f32)
                .collect();
            self.arrays
                .insert("bias", Array::floats(&[p.n], dtype, bias));
        }
    }
}
