//! Results against the reference before any timing, with the catalogue's bounds.

use std::collections::BTreeMap;

use flashcube::DType;
use flashcube_catalogue::{Array, Inputs, Memory, Problem, Task, Values, expected};

use crate::failure::{Failure, Result};

/// Largest share of its bound that an element of `got` misses the reference by; infinite where an
/// element is no number, or elements are missing.
///
/// # Errors
/// [`Failure::Failed`] when the reference refuses the problem.
pub(super) fn worst_share(
    task: Task,
    dtype: DType,
    arrays: BTreeMap<&'static str, Array>,
    got: &[(&str, &[f32])],
) -> Result<f64> {
    let problem = Problem {
        name: "bench".to_owned(),
        feature: "bench",
        task,
        dtype,
        values: Values::Normal,
        memory: Memory::Dense,
        core: false,
    };
    let outputs = expected(&problem, &Inputs { arrays }).map_err(Failure::failed)?;
    let mut worst = 0f64;
    for output in &outputs {
        let found = got.iter().find(|(name, _)| *name == output.name);
        let Some((_, values)) = found.filter(|(_, v)| v.len() == output.exact.len()) else {
            return Ok(f64::INFINITY);
        };
        let elements = output.exact.iter().zip(&output.bound).zip(*values);
        for ((&exact, &bound), &value) in elements {
            let error = (f64::from(value) - exact).abs();
            let share = match error {
                0.0 => 0.0,
                error if error.is_nan() => f64::INFINITY,
                error => error / bound,
            };
            worst = worst.max(share);
        }
    }
    Ok(worst)
}

/// At most `wanted` indices below `n`, the first and the last among them.
pub(super) fn sample(n: usize, wanted: usize) -> Vec<usize> {
    let last = n.saturating_sub(1);
    let steps = wanted.clamp(2, n.max(2)) - 1;
    let mut picked: Vec<usize> = (0..=steps).map(|i| i * last / steps).collect();
    picked.dedup();
    picked.truncate(n);
    picked
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcube_catalogue::HadamardSizes;

    #[test]
    fn sample_holds_both_ends() {
        assert!(sample(0, 4).is_empty());
        assert_eq!(sample(1, 4), [0]);
        assert_eq!(sample(2, 4), [0, 1]);
        assert_eq!(sample(100, 4), [0, 33, 66, 99]);
    }

    #[test]
    fn wrong_missing_and_nan_elements_exceed_the_bound() {
        let share = |got: &[f32]| {
            let sizes = HadamardSizes {
                rows: 1,
                n: 2,
                signs: false,
                inverse: false,
            };
            let x = Array::floats(&[1, 2], DType::F32, vec![1.0, 1.0]);
            let arrays = BTreeMap::from([("x", x)]);
            worst_share(Task::Hadamard(sizes), DType::F32, arrays, &[("out", got)]).unwrap()
        };
        let root = 2f32.sqrt();
        assert!(share(&[root, 0.0]) <= 1.0);
        assert!(share(&[root, 0.1]) > 1.0);
        assert!(share(&[root]) > 1.0);
        assert!(share(&[root, f32::NAN]) > 1.0);
    }
}
