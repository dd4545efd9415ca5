//! Comparing outputs with what is expected of them.

use std::collections::BTreeMap;

use approx::AbsDiffEq;
use serde::Serialize;

use crate::oracle::Expected;

/// The results of a kernel, by name (those of [`Problem::outputs`](crate::Problem::outputs)),
/// dense and row-major.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outputs {
    /// The values.
    pub values: BTreeMap<String, Vec<f32>>,
}

impl Outputs {
    /// Adds an output.
    pub fn with(mut self, name: &str, values: Vec<f32>) -> Self {
        self.values.insert(name.into(), values);
        self
    }
}

/// How one output compares.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measure {
    /// Name of the output.
    pub output: &'static str,
    /// Largest |got - exact|.
    pub max: f64,
    /// Root of the mean square of got - exact.
    pub rms: f64,
    /// Bound of the element that comes nearest to its bound, or exceeds it most.
    pub bound: f64,
    /// Error of that element.
    pub error: f64,
    /// What is wrong, if anything.
    pub failure: Option<String>,
    /// The error against the magnitudes that were summed, where the bound is made of them alone.
    pub relative: Option<Relative>,
}

/// |got - exact| <= eps * sum |a b|, as it was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Relative {
    /// Largest |got - exact| / sum |a b|.
    pub largest: f64,
    /// What it may be.
    pub eps: f64,
}

impl Measure {
    /// With [`Relative`], the bounds having been `eps` times sum |a b|.
    pub(crate) fn relative_to(self, eps: Option<f64>) -> Self {
        let largest = match self.error {
            0.0 => 0.0,
            error => error / self.bound,
        };
        let relative = eps.map(|eps| Relative {
            largest: largest * eps,
            eps,
        });
        Self { relative, ..self }
    }
}

/// How all outputs of a problem compare.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Verdict {
    /// One measure per output.
    pub measures: Vec<Measure>,
}

impl Verdict {
    /// Whether every output is within its bounds.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// What is wrong.
    pub fn failures(&self) -> impl Iterator<Item = &str> {
        self.measures.iter().filter_map(|m| m.failure.as_deref())
    }

    pub(crate) fn of(expected: &[Expected], outputs: &Outputs) -> Self {
        let measures = expected.iter().map(|e| measure(e, outputs)).collect();
        Self { measures }
    }
}

fn measure(expected: &Expected, outputs: &Outputs) -> Measure {
    let mut measure = Measure {
        output: expected.name,
        max: 0.0,
        rms: 0.0,
        bound: 0.0,
        error: 0.0,
        failure: None,
        relative: None,
    };
    let name = expected.name;
    let Some(got) = outputs.values.get(name) else {
        measure.failure = Some(format!("{name} is missing"));
        return measure;
    };
    if got.len() != expected.exact.len() {
        let (found, wanted) = (got.len(), expected.exact.len());
        measure.failure = Some(format!("{name} has {found} elements, expected {wanted}"));
        return measure;
    }
    let (mut squares, mut worst, mut outside) = (0.0, f64::NEG_INFINITY, 0usize);
    let elements = expected.exact.iter().zip(&expected.bound).zip(got);
    for (index, ((&exact, &bound), &got)) in elements.enumerate() {
        let got = f64::from(got);
        // Equal infinities agree; a NaN differs from everything, itself included.
        let error = if got == exact {
            0.0
        } else {
            (got - exact).abs()
        };
        let error = if error.is_nan() { f64::INFINITY } else { error };
        measure.max = measure.max.max(error);
        squares += error * error;
        let excess = if error == 0.0 { 0.0 } else { error / bound };
        if excess > worst {
            worst = excess;
            (measure.error, measure.bound) = (error, bound);
        }
        if got != exact && !got.abs_diff_eq(&exact, bound) {
            outside += 1;
            let place = index_of(index, &expected.shape);
            let first = || format!("{name}{place:?} = {got:e}, expected {exact:e} +- {bound:.1e}");
            measure.failure.get_or_insert_with(first);
        }
    }
    measure.rms = (squares / got.len().max(1) as f64).sqrt();
    if let Some(failure) = &mut measure.failure {
        failure.push_str(&format!(" ({outside} of {} elements off)", got.len()));
    }
    measure
}

/// Index of the element at the flat position `at`.
fn index_of(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (i, &size) in index.iter_mut().zip(shape).rev() {
        *i = at % size;
        at /= size;
    }
    index
}
