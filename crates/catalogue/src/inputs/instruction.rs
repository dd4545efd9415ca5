//! Operands of single instructions.

use flashcube::{DType, Instruction, MatrixElement};
use flashcube_reference::quant::float::{Overflow, Round};
use rand::Rng;

use super::Draw;
use crate::array::{Array, Data};
use crate::bounds::{self, number, operand_format};

impl Draw<'_> {
    pub(super) fn instruction(&mut self, form: Instruction) {
        if let (Some((m, n, k)), Some(element)) = (form.product(), form.element()) {
            let sizes = [m, n, k].map(|x| x as usize);
            return self.product(sizes, element);
        }
        let words = match form {
            Instruction::Encode(format) => {
                let total = bounds::instruction_outputs(form)[0].1.iter().product();
                let mut values: Vec<u32> = bounds::encoded(format)
                    .iter()
                    .map(|x| x.to_bits())
                    .collect();
                // Any bits but those of other NaN, whose sign and payload are nobody's concern.
                values.resize_with(total, || match f32::from_bits(self.rng.random()) {
                    x if x.is_nan() => 0,
                    x => x.to_bits(),
                });
                values
            }
            Instruction::Decode(format) => (0..1 << (2 * format.bits())).collect(),
            _ => {
                let total = bounds::instruction_outputs(form)[0].1[0] * form.sizes().a;
                (0..total).map(|_| self.rng.random()).collect()
            }
        };
        self.words("a", words);
    }

    fn words(&mut self, name: &'static str, words: Vec<u32>) {
        let array = Array::dense(&[words.len()], Data::U32(words));
        self.arrays.insert(name, array);
    }

    /// A [trials, m, k] and B [trials, n, k] in words, C [trials, m, n]: the trials of each of [`bounds::PROBES`]
    /// one behind the other.
    fn product(&mut self, sizes: [usize; 3], element: MatrixElement) {
        let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
        for probe in bounds::PROBES {
            for trial in 0..bounds::TRIALS {
                let [left, right] = self.operands(probe, trial, sizes, element);
                c.extend(self.accumulator(probe, trial, sizes, element, [&left, &right]));
                a.extend(left);
                b.extend(right);
            }
        }
        self.words("a", a);
        self.words("b", b);
        let c = Array::floats(&[c.len()], DType::F32, c);
        self.arrays.insert("c", c);
    }

    /// A and B of one trial.
    fn operands(
        &mut self,
        probe: &str,
        trial: usize,
        [m, n, k]: [usize; 3],
        element: MatrixElement,
    ) -> [Vec<u32>; 2] {
        let lead = self.rng.random_range(0..k);
        let range = range(element);
        let mut of = |rows: usize, right: bool| -> Vec<f64> {
            let mut values: Vec<f64> = (0..rows * k)
                .map(|at| {
                    let (row, column) = (at / k, at % k);
                    let x = self.normal();
                    match probe {
                        "outliers" if self.rng.random_bool(0.125) => {
                            x * f64::from(self.rng.random_range(0..range.outlier)).exp2()
                        }
                        // Mantissas of subnormal codes against numbers that lift products to where f32 is normal.
                        "subnormal" if right => x * range.lift,
                        "subnormal" => self.rng.random_range(-1.0..1.0) * range.normal,
                        // One product of 1, the others smaller by up to 2^-26, all of one sign.
                        "swamped" if column == lead && trial.is_multiple_of(2) => 1.0,
                        "swamped" => {
                            (1.0 + x.abs().min(0.99)) * (-((1 + row % range.depth) as f64)).exp2()
                        }
                        _ => x,
                    }
                })
                .collect();
            if probe == "cancelling" {
                // Neighbouring terms are each other's negatives but for the first pair.
                for at in (0..rows * k).filter(|at| at % k >= 2 && at % 2 == 1) {
                    values[at] = if right {
                        -values[at - 1]
                    } else {
                        values[at - 1]
                    };
                }
            }
            values
        };
        let (left, right) = (of(m, false), of(n, true));
        [left, right].map(|values| packed(element, &values))
    }

    /// C of one trial, [m, n].
    fn accumulator(
        &mut self,
        probe: &str,
        trial: usize,
        [m, n, k]: [usize; 3],
        element: MatrixElement,
        [a, b]: [&[u32]; 2],
    ) -> Vec<f32> {
        let range = range(element);
        (0..m * n)
            .map(|at| {
                let sum = || -> f64 {
                    let term =
                        |i| number(element, a, at / n * k + i) * number(element, b, at % n * k + i);
                    (0..k).map(term).sum()
                };
                let x = self.normal();
                (match probe {
                    "cancelling" if trial.is_multiple_of(2) => -sum(),
                    "subnormal" => x * range.normal * range.lift,
                    "outliers" => x * f64::from(self.rng.random_range(0..2 * range.outlier)).exp2(),
                    // The accumulator swamps products where none of them leads.
                    "swamped" => f64::from(u8::from(!trial.is_multiple_of(2))),
                    _ => x * (k as f64).sqrt(),
                }) as f32
            })
            .collect()
    }
}

/// Magnitudes that an element type allows.
struct Range {
    /// Binary digits that an outlier may be larger by.
    outlier: i32,
    /// The smallest normal value.
    normal: f64,
    /// What subnormal values are multiplied with.
    lift: f64,
    /// Binary digits that swamped factors may be smaller by.
    depth: usize,
}

fn range(element: MatrixElement) -> Range {
    let (outlier, normal, lift, depth) = match element {
        MatrixElement::F16 => (12, -14, 0, 13),
        MatrixElement::BF16 | MatrixElement::Tf32 => (30, -126, 60, 13),
        MatrixElement::E4M3 => (6, -6, 0, 7),
        MatrixElement::E5M2 => (12, -14, 0, 13),
    };
    Range {
        outlier,
        normal: f64::from(normal).exp2(),
        lift: f64::from(lift).exp2(),
        depth,
    }
}

/// Values rounded to the element type, packed into words.
fn packed(element: MatrixElement, values: &[f64]) -> Vec<u32> {
    let code = |&x: &f64| match operand_format(element) {
        Some(format) => u32::from(format.encode(x, Round::NearestEven, Overflow::Saturate)),
        // 10 of f32's 23 bits of mantissa.
        None => (x as f32).to_bits() & !0x1fff,
    };
    let bits = element.bits();
    values
        .chunks((32 / bits) as usize)
        .map(|word| {
            let codes = word.iter().enumerate();
            codes.fold(0, |all, (i, x)| all | code(x) << (i as u32 * bits))
        })
        .collect()
}
