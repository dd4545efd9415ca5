//! The Walsh-Hadamard transform against its definition.

use flashcube_reference::Hadamard;
use proptest::prelude::*;

use crate::cases::{Random, assert_close};

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

#[test]
fn matrix_is_the_sylvester_one() {
    for n in [1, 2, 4, 64, 128] {
        let rotation = Hadamard::new(vec![1.0; n]).unwrap();
        for c in 0..n {
            let mut unit = vec![0.0; n];
            unit[c] = 1.0;
            let sign = |r: usize| {
                if (r & c).count_ones().is_multiple_of(2) {
                    1.0
                } else {
                    -1.0
                }
            };
            let want: Vec<f64> = (0..n).map(|r| sign(r) / (n as f64).sqrt()).collect();
            assert_close(&rotation.forward(&unit).unwrap(), &want, 0.0);
        }
    }
}

#[test]
fn signs_are_applied_before_the_transform() {
    let rotation = Hadamard::new(vec![1.0, -1.0]).unwrap();
    let y = rotation.forward(&[1.0, 2.0, 3.0, 5.0]).unwrap();
    let r = 2f64.sqrt();
    assert_close(&y, &[-1.0 / r, 3.0 / r, -2.0 / r, 8.0 / r], 1e-15);
}

#[test]
fn random_signs_depend_on_the_seed_and_are_balanced() {
    let a = Hadamard::random(4096, 1).unwrap();
    assert_eq!(a, Hadamard::random(4096, 1).unwrap());
    assert_ne!(a, Hadamard::random(4096, 2).unwrap());
    // Six standard deviations of 64.
    assert!(a.signs().iter().sum::<f64>().abs() < 384.0);
}

#[test]
fn sizes_and_signs_are_checked() {
    for n in [0, 3, 96] {
        let error = Hadamard::random(n, 0).unwrap_err();
        let want = format!("Hadamard size is {n}, it must be a power of two");
        assert_eq!(error.to_string(), want);
    }
    assert!(Hadamard::new(vec![1.0, 0.5]).is_err());
    assert!(Hadamard::new(vec![1.0, f64::NAN]).is_err());
    let rotation = Hadamard::random(4, 0).unwrap();
    assert!(rotation.forward(&[1.0; 6]).is_err());
    assert_eq!(rotation.forward(&[]), Ok(vec![]));
}

proptest! {
    #[test]
    fn transform_is_orthogonal(log_n in 0u32..9, rows in 0usize..4, seed: u64) {
        let n = 1 << log_n;
        let rotation = Hadamard::random(n, seed).unwrap();
        let mut random = Random::new(seed);
        let (x, z) = (random.normals(rows * n), random.normals(rows * n));
        let (y, w) = (rotation.forward(&x).unwrap(), rotation.forward(&z).unwrap());
        assert_close(&rotation.inverse(&y).unwrap(), &x, 1e-13);
        for row in 0..rows {
            let row = row * n..(row + 1) * n;
            let got = dot(&y[row.clone()], &w[row.clone()]);
            assert_close(&[got], &[dot(&x[row.clone()], &z[row])], 1e-12);
        }
    }
}
