//! Walsh-Hadamard transform with random signs.

use rayon::prelude::*;

use crate::error::Error;

/// The orthogonal map y = H diag(signs) x / sqrt(n) on rows of n values, n a power of two.
///
/// H is in natural (Sylvester) order, H[r, c] = (-1)^popcount(r & c). The map preserves dot
/// products, so that q and k rotated alike give the same scores while outliers spread over all
/// channels ("incoherent processing": QuIP, arXiv 2307.13304; FlashAttention-3, arXiv 2407.08608).
///
/// ```
/// use flashcube_reference::Hadamard;
///
/// let rotation = Hadamard::random(64, 7)?;
/// let mut x = vec![0.0; 64];
/// x[3] = 8.0;
/// let y = rotation.forward(&x)?;
/// assert!(y.iter().all(|y| y.abs() == 1.0));
/// assert_eq!(rotation.inverse(&y)?, x);
/// # Ok::<(), flashcube_reference::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Hadamard {
    signs: Vec<f64>,
}

impl Hadamard {
    /// The map with the given signs `[n]`.
    ///
    /// # Errors
    /// [`Error::Parameter`] if n is not a power of two or a sign is neither 1 nor -1.
    pub fn new(signs: Vec<f64>) -> Result<Self, Error> {
        if !signs.len().is_power_of_two() {
            return Err(Error::Parameter {
                name: "Hadamard size",
                value: signs.len() as f64,
                requirement: "a power of two",
            });
        }
        if let Some(&value) = signs.iter().find(|sign| sign.abs() != 1.0) {
            return Err(Error::Parameter {
                name: "Hadamard sign",
                value,
                requirement: "1 or -1",
            });
        }
        Ok(Self { signs })
    }

    /// The map with n random signs, the same for the same seed.
    ///
    /// # Errors
    /// [`Error::Parameter`] if n is not a power of two.
    pub fn random(n: usize, seed: u64) -> Result<Self, Error> {
        let sign = |index: u64| {
            if mix(seed, index) >> 63 == 1 {
                -1.0
            } else {
                1.0
            }
        };
        Self::new((0..n as u64).map(sign).collect())
    }

    /// The signs `[n]`, each 1 or -1.
    pub fn signs(&self) -> &[f64] {
        &self.signs
    }

    /// y = H diag(signs) x / sqrt(n) for every row of x [rows, n].
    ///
    /// # Errors
    /// [`Error::Length`] if x does not consist of whole rows.
    pub fn forward(&self, x: &[f64]) -> Result<Vec<f64>, Error> {
        self.map_rows(x, |row| {
            self.flip(row);
            butterflies(row);
        })
    }

    /// x = diag(signs) H y / sqrt(n) for every row of y [rows, n].
    ///
    /// # Errors
    /// [`Error::Length`] if y does not consist of whole rows.
    pub fn inverse(&self, y: &[f64]) -> Result<Vec<f64>, Error> {
        self.map_rows(y, |row| {
            butterflies(row);
            self.flip(row);
        })
    }

    fn flip(&self, row: &mut [f64]) {
        for (x, sign) in row.iter_mut().zip(&self.signs) {
            *x *= sign;
        }
    }

    fn map_rows(&self, x: &[f64], map: impl Fn(&mut [f64]) + Sync) -> Result<Vec<f64>, Error> {
        let n = self.signs.len();
        if !x.len().is_multiple_of(n) {
            return Err(Error::Length {
                tensor: "rows of a Hadamard transform",
                len: x.len(),
                expected: x.len().next_multiple_of(n),
            });
        }
        let mut y = x.to_vec();
        y.par_chunks_exact_mut(n).for_each(|row| {
            map(row);
            let norm = (n as f64).sqrt();
            row.iter_mut().for_each(|y| *y /= norm);
        });
        Ok(y)
    }
}

/// row = H row. H of size 2n is [[H, H], [H, -H]] of size n, hence sums and differences at
/// distances 1, 2, 4, ...
fn butterflies(row: &mut [f64]) {
    let mut half = 1;
    while half < row.len() {
        for pair in row.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014) at position `index`.
fn mix(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
