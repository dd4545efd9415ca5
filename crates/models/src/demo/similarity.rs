//! Cosines between sentence embeddings, and whether two tables rank alike.

use serde::Serialize;

use crate::Real;

/// Two f64 cosines closer than this are a tie: either order agrees with it. The f32 linear parts
/// alone move a cosine by up to about 1e-6, whatever computes the attention.
pub const TIE: f64 = 1e-5;

/// A place where a table ranks two sentences other than the f64 run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Misranking {
    /// The sentence whose neighbours are ranked.
    pub sentence: usize,
    /// Nearer to it in the f64 run, farther here.
    pub nearer: usize,
    /// Farther from it in the f64 run, nearer here.
    pub farther: usize,
}

/// `embeddings`: [b, hidden], each of length 1 -> cosines `[b][b]`.
pub(super) fn cosines<T: Real>(embeddings: &[T], hidden: usize) -> Vec<Vec<f64>> {
    let rows: Vec<Vec<f64>> = embeddings
        .chunks_exact(hidden)
        .map(|e| e.iter().map(|v| v.into_f64()).collect())
        .collect();
    let cosine = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    rows.iter()
        .map(|a| rows.iter().map(|b| cosine(a, b)).collect())
        .collect()
}

/// The other sentence with the largest cosine, None if there is no other.
pub(super) fn nearest(cosines: &[f64], sentence: usize) -> Option<usize> {
    (0..cosines.len())
        .filter(|&j| j != sentence)
        .max_by(|&a, &b| cosines[a].total_cmp(&cosines[b]).then(b.cmp(&a)))
}

/// Largest absolute difference between two tables; infinite if one holds NaN.
pub(super) fn max_difference(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    let differences = a
        .iter()
        .flatten()
        .zip(b.iter().flatten())
        .map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |max: f64, d| {
        max.max(if d.is_nan() { f64::INFINITY } else { d })
    })
}

/// The first pair whose order differs from the reference's, ties aside.
pub(super) fn first_misranking(table: &[Vec<f64>], reference: &[Vec<f64>]) -> Option<Misranking> {
    for (sentence, (row, expected)) in table.iter().zip(reference).enumerate() {
        for nearer in (0..row.len()).filter(|&j| j != sentence) {
            for farther in (0..row.len()).filter(|&j| j != sentence) {
                let apart = expected[nearer] > expected[farther] + TIE;
                // Written so that a NaN counts as ranked wrongly.
                let kept = row[nearer] >= row[farther];
                if apart && !kept {
                    return Some(Misranking {
                        sentence,
                        nearer,
                        farther,
                    });
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranking_ignores_ties_and_itself_but_no_swap() {
        let table = |a: f64, b: f64| vec![vec![1.0, a, b], vec![a, 1.0, 0.0], vec![b, 0.0, 1.0]];
        let reference = table(0.5, 0.4);
        assert_eq!(first_misranking(&table(0.4, 0.35), &reference), None);
        let swapped = Misranking {
            sentence: 0,
            nearer: 1,
            farther: 2,
        };
        assert_eq!(
            first_misranking(&table(0.4, 0.41), &reference),
            Some(swapped)
        );
        assert_eq!(
            first_misranking(&table(0.4, 0.41), &table(0.5, 0.5 - TIE / 2.0)),
            None
        );
        assert!(first_misranking(&table(f64::NAN, 0.4), &reference).is_some());
    }

    #[test]
    fn nearest_is_another_sentence() {
        assert_eq!(nearest(&[1.0, 0.2, 0.7], 0), Some(2));
        assert_eq!(nearest(&[0.3, 0.3, 1.0], 2), Some(0));
        assert_eq!(nearest(&[1.0], 0), None);
    }

    #[test]
    fn max_difference_of_nan_is_infinite() {
        assert_eq!(max_difference(&[vec![1.0, 2.0]], &[vec![1.5, 2.0]]), 0.5);
        assert_eq!(
            max_difference(&[vec![f64::NAN]], &[vec![1.0]]),
            f64::INFINITY
        );
    }
}
