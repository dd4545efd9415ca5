//! Gradients against central finite differences, and where they must vanish.

use flashcube_reference::{Grads, Tensor4, backward, forward};
use proptest::prelude::*;

use crate::cases::{Case, Random, any_case, assert_close};

/// d_out [b, h_q, s_q, d_v] and d_lse [b, h_q, s_q], random.
fn output_grads(case: &Case, seed: u64) -> (Tensor4, Vec<f64>) {
    let [b, h_q, s_q, _] = case.q.shape;
    let mut random = Random::new(seed ^ 0xabcd);
    let d_out = random.tensor([b, h_q, s_q, case.v.shape[3]]);
    let d_lse = random.normals(b * h_q * s_q);
    (d_out, d_lse)
}

fn run(case: &Case, d_out: &Tensor4, d_lse: Option<&[f64]>) -> Grads {
    backward(&case.q, &case.k, &case.v, d_out, &case.options(), d_lse).unwrap()
}

/// sum d_out * out + sum d_lse * lse, over the rows that see a key.
fn loss(case: &Case, d_out: &Tensor4, d_lse: &[f64]) -> f64 {
    let result = forward(&case.q, &case.k, &case.v, &case.options()).unwrap();
    let out: f64 = d_out
        .data
        .iter()
        .zip(&result.out.data)
        .map(|(g, x)| g * x)
        .sum();
    let seen = d_lse
        .iter()
        .zip(&result.lse)
        .filter(|(_, lse)| lse.is_finite());
    out + seen.map(|(g, x)| g * x).sum::<f64>()
}

/// The central differences of the loss by every element of one input.
fn differences(
    case: &Case,
    d_out: &Tensor4,
    d_lse: &[f64],
    input: fn(&mut Case) -> &mut Tensor4,
) -> Vec<f64> {
    let step = 1e-5;
    let mut moved = case.clone();
    (0..input(&mut moved).data.len())
        .map(|n| {
            let x = input(&mut moved).data[n];
            let mut at = |x: f64| {
                input(&mut moved).data[n] = x;
                loss(&moved, d_out, d_lse)
            };
            let slope = (at(x + step) - at(x - step)) / (2.0 * step);
            at(x);
            slope
        })
        .collect()
}

fn assert_gradients(case: &Case, seed: u64) {
    let (d_out, d_lse) = output_grads(case, seed);
    let grads = run(case, &d_out, Some(&d_lse));
    // Truncation is about step^2 = 1e-10 times third derivatives, rounding 1e-16 / step = 1e-11.
    let bound = 2e-7;
    assert_close(
        &grads.dq.data,
        &differences(case, &d_out, &d_lse, |c| &mut c.q),
        bound,
    );
    assert_close(
        &grads.dk.data,
        &differences(case, &d_out, &d_lse, |c| &mut c.k),
        bound,
    );
    assert_close(
        &grads.dv.data,
        &differences(case, &d_out, &d_lse, |c| &mut c.v),
        bound,
    );
}

#[test]
fn each_option_alone_has_the_right_gradient() {
    for feature in 0..11 {
        let case = Case::plain(20 + feature, 2, (4, 2), (5, 6), (7, 3));
        assert_gradients(&case.with_features(feature, 1 << feature), feature);
    }
}

#[test]
fn gradient_of_the_lse_alone_is_the_mean_key() {
    let case = Case::plain(31, 1, (1, 1), (1, 5), (3, 2));
    let d_out = Tensor4::zeros([1, 1, 1, 2]);
    let grads = run(&case, &d_out, Some(&[1.0]));
    let p = flashcube_reference::weights(&case.q, &case.k, &case.v, &case.options(), (0, 0, 0));
    let mut want = [0.0; 3];
    for (j, p) in p.unwrap().into_iter().enumerate() {
        for (w, k) in want.iter_mut().zip(case.k.row(0, 0, j)) {
            *w += case.scale * p * k;
        }
    }
    assert_close(&grads.dq.data, &want, 1e-14);
    assert!(grads.dv.data.iter().all(|&x| x == 0.0));
}

#[test]
fn causal_rows_without_keys_have_zero_gradients() {
    let mut case = Case::plain(32, 1, (1, 1), (256, 128), (8, 8));
    case.causal = true;
    let (d_out, _) = output_grads(&case, 32);
    let grads = run(&case, &d_out, None);
    let (empty, rest) = grads.dq.data.split_at(128 * 8);
    assert!(empty.iter().all(|&x| x == 0.0));
    assert!(rest[8..].chunks(8).all(|row| row.iter().any(|&x| x != 0.0)));
    assert!(
        grads
            .dk
            .data
            .iter()
            .chain(&grads.dv.data)
            .all(|x| x.is_finite())
    );
}

#[test]
fn ragged_keys_without_queries_have_zero_gradients() {
    // Queries [76, 34, 146], keys [1, 1, 1], causal: most rows see nothing, none may give NaN.
    let mut case = Case::plain(33, 3, (2, 2), (146, 2), (8, 8));
    case.causal = true;
    case.lengths_q = Some(vec![76, 34, 146]);
    case.lengths_kv = Some(vec![1, 1, 1]);
    let (d_out, d_lse) = output_grads(&case, 33);
    let grads = run(&case, &d_out, Some(&d_lse));
    let all = grads
        .dq
        .data
        .iter()
        .chain(&grads.dk.data)
        .chain(&grads.dv.data);
    assert!(all.clone().all(|x| x.is_finite()));
    // Only the last query sees the key; it takes its whole gradient.
    assert_eq!(grads.dv.row(0, 1, 0), d_out.row(0, 1, 75));
    assert_eq!(grads.dv.row(2, 0, 0), d_out.row(2, 0, 145));
    assert_eq!(grads.dv.row(2, 0, 1), [0.0; 8]);

    case.lengths_q = Some(vec![0, 0, 3]);
    let grads = run(&case, &d_out, Some(&d_lse));
    for b in 0..2 {
        for h in 0..2 {
            assert_eq!(grads.dk.row(b, h, 0), [0.0; 8]);
            assert_eq!(grads.dv.row(b, h, 0), [0.0; 8]);
        }
    }
}

#[test]
fn one_by_one_problem_has_no_nan() {
    let case = Case::plain(34, 1, (1, 1), (1, 1), (16, 16));
    let (d_out, _) = output_grads(&case, 34);
    let grads = run(&case, &d_out, None);
    assert_eq!(grads.dq.data, [0.0; 16]);
    assert_eq!(grads.dk.data, [0.0; 16]);
    assert_eq!(grads.dv.data, d_out.data);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn gradients_equal_finite_differences(case in any_case(), seed: u64) {
        assert_gradients(&case, seed);
    }

    #[test]
    fn hidden_rows_and_keys_take_no_part(case in any_case(), seed: u64) {
        let (mut d_out, d_lse) = output_grads(&case, seed);
        let clean = run(&case, &d_out, Some(&d_lse));
        let result = forward(&case.q, &case.k, &case.v, &case.options()).unwrap();
        let d_v = case.v.shape[3];
        for (row, lse) in result.lse.iter().enumerate() {
            if *lse == f64::NEG_INFINITY {
                d_out.data[row * d_v..(row + 1) * d_v].fill(f64::NAN);
            }
        }
        let poisoned = run(&case, &d_out, Some(&d_lse));
        prop_assert_eq!(clean, poisoned);
    }
}
