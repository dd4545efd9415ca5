//! Weights that take over what the layers before them got wrong.

use flashcube_quantize::{Calibration, Drift, DriftSums, Hessian, Pair, QuantizeError, Weight};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::StandardNormal;

const K: usize = 24;
const N: usize = 10;

fn normal(count: usize, seed: u64) -> Vec<f32> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..count).map(|_| random.sample(StandardNormal)).collect()
}

fn pair<'a>(x: &'a [f32], original: &'a [f32]) -> Pair<'a> {
    Pair {
        x,
        original,
        residual: &[],
    }
}

fn moments(x: &[f32], original: &[f32]) -> (Hessian, Drift) {
    let (mut calibration, mut sums) = (Calibration::new(K), DriftSums::new(K, 0));
    // In two parts: sums do not depend on the cut.
    let cut = x.len() / 2 / K * K;
    for range in [0..cut, cut..x.len()] {
        calibration.add(&x[range.clone()]).unwrap();
        sums.add(pair(&x[range.clone()], &original[range])).unwrap();
    }
    (calibration.finish(), sums.finish())
}

/// x W of x [tokens, K], W [K, N].
fn product(x: &[f32], weight: &[f32]) -> Vec<f64> {
    let cell = |row: &[f32], n: usize| -> f64 {
        let pairs = row.iter().zip(weight.iter().skip(n).step_by(N));
        pairs.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
    };
    x.chunks_exact(K)
        .flat_map(|row| (0..N).map(move |n| cell(row, n)))
        .collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    let off: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    (off / a.iter().map(|a| a * a).sum::<f64>()).sqrt()
}

#[test]
fn without_drift_the_weight_is_the_target() {
    let (x, weight) = (normal(200 * K, 1), normal(K * N, 2));
    let (hessian, drift) = moments(&x, &x);
    let weight = Weight::new(&weight, K, N).unwrap();
    let target = drift.target(weight, &hessian, 0.01).unwrap();
    assert_eq!(target, weight.values());
}

/// x0 is x with channels mixed, and noise: the mixture is undone, the noise stays.
#[test]
fn what_is_linear_in_the_input_is_made_up_for() {
    let (x, weight) = (normal(400 * K, 3), normal(K * N, 4));
    let noise = normal(400 * K, 5);
    let original: Vec<f32> = (0..x.len())
        .map(|i| {
            let row = i / K * K;
            0.8 * x[i] + 0.5 * x[row + (i + 7) % K] + 0.02 * noise[i]
        })
        .collect();
    let (hessian, drift) = moments(&x, &original);
    let shape = Weight::new(&weight, K, N).unwrap();
    let target = drift.target(shape, &hessian, 1e-4).unwrap();
    let wanted = product(&original, &weight);
    let before = distance(&wanted, &product(&x, &weight));
    let after = distance(&wanted, &product(&x, &target));
    assert!(before > 0.3 && after < 0.04, "{before} {after}");
    // More damping stays nearer to the weight itself.
    let near = drift.target(shape, &hessian, 10.0).unwrap();
    let moved = |to: &[f32]| {
        weight
            .iter()
            .zip(to)
            .map(|(w, t)| (w - t).abs())
            .sum::<f32>()
    };
    assert!(moved(&near) < 0.3 * moved(&target));
}

/// What a residual lacks, as far as it is linear in the input, is added by the linear.
#[test]
fn what_the_residual_lacks_is_added() {
    let (x, weight) = (normal(300 * K, 9), normal(K * N, 10));
    let lacking: Vec<f32> = product(&x, &normal(K * N, 11))
        .iter()
        .map(|&y| y as f32)
        .collect();
    let (hessian, _) = moments(&x, &x);
    let mut sums = DriftSums::new(K, N);
    let residual = &lacking[..];
    sums.add(Pair {
        residual,
        ..pair(&x, &x)
    })
    .unwrap();
    let shape = Weight::new(&weight, K, N).unwrap();
    let target = sums.finish().target(shape, &hessian, 1e-6).unwrap();
    let exact = product(&x, &weight);
    let wanted = exact.iter().zip(&lacking).map(|(y, r)| y + f64::from(*r));
    let wanted: Vec<f64> = wanted.collect();
    let (before, after) = (
        distance(&wanted, &exact),
        distance(&wanted, &product(&x, &target)),
    );
    assert!(before > 0.5 && after < 1e-4, "{before} {after}");
    let short = sums.add(pair(&x, &x)).unwrap_err().to_string();
    assert!(short.contains("residuals"), "{short}");
}

/// About the means, a constant shift is not the weight's to make up for.
#[test]
fn constant_shifts_are_left_to_the_bias() {
    let (x, weight) = (normal(300 * K, 6), normal(K * N, 7));
    let x: Vec<f32> = x.iter().map(|x| x + 1.0).collect();
    let original: Vec<f32> = x.iter().map(|x| x + 0.5).collect();
    let (hessian, drift) = moments(&x, &original);
    let shape = Weight::new(&weight, K, N).unwrap();
    let moved = |target: Vec<f32>| {
        let off = weight.iter().zip(&target).map(|(w, t)| (w - t).abs());
        off.fold(0.0, f32::max)
    };
    let centered = drift.centered(&hessian);
    let left = centered.target(shape, &hessian.centered(), 0.01).unwrap();
    assert!(moved(left) < 1e-4);
    assert!(moved(drift.target(shape, &hessian, 0.01).unwrap()) > 0.01);
}

#[test]
fn bad_input_is_refused_and_dead_input_changes_nothing() {
    let mut sums = DriftSums::new(K, 0);
    let refused = sums.add(pair(&[0.0; K + 1], &[0.0; K + 1])).unwrap_err();
    assert!(
        matches!(refused, QuantizeError::WrongLength { .. }),
        "{refused}"
    );
    let refused = sums
        .add(pair(&[0.0; 2 * K], &[0.0; K]))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("original activations"), "{refused}");
    let mut nan = [0.0; K];
    nan[3] = f32::NAN;
    let refused = sums.add(pair(&[0.0; K], &nan)).unwrap_err().to_string();
    assert!(refused.contains("element 3: NaN"), "{refused}");
    let weight = normal(K * N, 8);
    let weight = Weight::new(&weight, K, N).unwrap();
    let (hessian, drift) = moments(&[0.0; 4 * K], &[1.0; 4 * K]);
    let target = drift.target(weight, &hessian, 0.01).unwrap();
    assert_eq!(target, weight.values());
    let other = Calibration::new(K + 1).finish();
    assert!(drift.target(weight, &other, 0.01).is_err());
}
