//! Forward: known values, the online form, rounding, sizes.

use std::time::{Duration, Instant};

use flashcube_reference::quant::float::{round_bf16, round_e4m3};
use flashcube_reference::{
    Options, Rounding, Tensor4, forward, forward_online, forward_rounded, forward_rows,
    max_abs_score, weights,
};
use proptest::prelude::*;

use crate::cases::{Case, any_case, assert_close};

#[test]
fn forward_of_two_keys_gives_the_logistic_weights() {
    let q = Tensor4::from_slice([1, 1, 1, 1], &[2.0f32]).unwrap();
    let k = Tensor4::new([1, 1, 2, 1], vec![1.0, -0.5]).unwrap();
    let v = Tensor4::new([1, 1, 2, 2], vec![1.0, 10.0, 0.0, 20.0]).unwrap();
    let options = Options {
        scale: 0.5,
        ..Options::default()
    };
    let result = forward(&q, &k, &v, &options).unwrap();
    // Scores 1 and -0.5.
    let p = 1.0 / (1.0 + (-1.5f64).exp());
    assert_close(&result.out.data, &[p, 10.0 * p + 20.0 * (1.0 - p)], 1e-14);
    assert_close(&result.lse, &[1.0 - p.ln()], 1e-15);
    let w = weights(&q, &k, &v, &options, (0, 0, 0)).unwrap();
    assert_close(&w, &[p, 1.0 - p], 1e-15);
    assert_eq!(max_abs_score(&q, &k, &v, &options), Ok(1.0));
}

#[test]
fn softcap_and_alibi_change_scores_as_stated() {
    let q = Tensor4::new([1, 2, 1, 1], vec![3.0, 3.0]).unwrap();
    let k = Tensor4::new([1, 1, 2, 1], vec![1.0, 2.0]).unwrap();
    let v = Tensor4::new([1, 1, 2, 1], vec![1.0, 0.0]).unwrap();
    let capped = Options {
        softcap: Some(2.0),
        ..Options::default()
    };
    let result = forward(&q, &k, &v, &capped).unwrap();
    let x = [2.0 * 1.5f64.tanh(), 2.0 * 3.0f64.tanh()];
    let lse = (x[0].exp() + x[1].exp()).ln();
    assert_close(&result.lse, &[lse, lse], 1e-14);

    // Bottom-right: the single query stands at key 1, so key 0 is at distance 1.
    let slopes = [0.25, 2.0];
    let alibi = Options {
        alibi: Some(&slopes),
        ..Options::default()
    };
    let result = forward(&q, &k, &v, &alibi).unwrap();
    let lse = |slope: f64| ((3.0 - slope).exp() + 6f64.exp()).ln();
    assert_close(&result.lse, &[lse(0.25), lse(2.0)], 1e-14);
}

#[test]
fn tail_of_small_weights_is_kept_by_scaled_p_and_lost_by_unscaled_p() {
    // One logit 0, 2047 at -7, V = 1. E4M3 flushes e^-7 to 0, so a sum over exact P loses the tail.
    let mut bias = vec![-7.0; 2048];
    bias[0] = 0.0;
    let q = Tensor4::zeros([1, 1, 1, 8]);
    let k = Tensor4::zeros([1, 1, 2048, 8]);
    let v = Tensor4::from_fn([1, 1, 2048, 1], |_| 1.0);
    let options = Options {
        bias: Some(flashcube_reference::Broadcast {
            data: &bias,
            shape: [1, 1, 1, 2048],
        }),
        ..Options::default()
    };
    let out = |p: fn(f64) -> f64, sum_of_rounded| {
        let rounding = Rounding {
            p: Some(p),
            sum_of_rounded,
            ..Rounding::default()
        };
        let result = forward_rounded(&q, &k, &v, &options, &rounding).unwrap();
        result.out.data[0]
    };
    let scaled = |p: f64| round_e4m3(256.0 * p) / 256.0;
    assert!((out(round_e4m3, false) - 0.349).abs() < 1e-3);
    assert_eq!(out(scaled, true), 1.0);
    assert!((out(scaled, false) - 1.0).abs() < 0.02);
    let exact = forward(&q, &k, &v, &options).unwrap();
    assert_close(&exact.out.data, &[1.0], 1e-13);
    assert_close(&exact.lse, &[(1.0 + 2047.0 * (-7f64).exp()).ln()], 1e-13);
}

#[test]
fn rounding_touches_p_and_output_only() {
    let case = Case::plain(3, 2, (4, 2), (9, 17), (16, 8));
    let options = case.options();
    let exact = forward(&case.q, &case.k, &case.v, &options).unwrap();
    let output_only = Rounding {
        out: round_bf16,
        ..Rounding::default()
    };
    let rounded = forward_rounded(&case.q, &case.k, &case.v, &options, &output_only).unwrap();
    let want: Vec<f64> = exact.out.data.iter().map(|&x| round_bf16(x)).collect();
    assert_eq!(rounded.out.data, want);
    assert_eq!(rounded.lse, exact.lse);

    let p_only = Rounding {
        p: Some(round_bf16),
        ..Rounding::default()
    };
    let rounded = forward_rounded(&case.q, &case.k, &case.v, &options, &p_only).unwrap();
    assert_ne!(rounded.out, exact.out);
    // Half a unit in the last place of 8 bits, in numerator and denominator.
    assert_close(&rounded.out.data, &exact.out.data, 2.0 * 4.0 / 256.0);
    assert_close(&rounded.lse, &exact.lse, 1.0 / 256.0);
}

#[test]
fn huge_logits_stay_finite() {
    for scale in [1e4, -1e4, 0.0, 1e300] {
        let mut case = Case::plain(5, 1, (1, 1), (7, 33), (16, 4));
        case.scale = scale;
        let result = forward(&case.q, &case.k, &case.v, &case.options()).unwrap();
        assert!(result.out.data.iter().all(|x| x.is_finite()));
        assert!(result.lse.iter().all(|x| x.is_finite()));
        if scale == 0.0 {
            assert_close(&result.lse, &[33f64.ln(); 7], 1e-14);
        }
    }
}

#[test]
fn nan_in_a_visible_key_shows() {
    let mut case = Case::plain(6, 1, (1, 1), (3, 5), (4, 2));
    case.causal = true;
    case.k.data[4 * 3..4 * 4].fill(f64::NAN);
    let options = case.options();
    let result = forward(&case.q, &case.k, &case.v, &options).unwrap();
    // Key 3 is hidden from query 0 (which sees keys 0..=2).
    assert!(result.out.row(0, 0, 0).iter().all(|x| x.is_finite()));
    assert!(result.out.row(0, 0, 1).iter().all(|x| x.is_nan()));
    assert!(result.out.row(0, 0, 2).iter().all(|x| x.is_nan()));
    case.k.data.fill(f64::NAN);
    let all_nan = forward(&case.q, &case.k, &case.v, &case.options()).unwrap();
    assert!(all_nan.out.data.iter().all(|x| x.is_nan()));
    assert!(all_nan.lse.iter().all(|x| x.is_nan()));
}

#[test]
fn zero_sizes_give_empty_or_zero_results() {
    let empty_batch = Case::plain(1, 0, (4, 2), (3, 5), (8, 8));
    let no_queries = Case::plain(1, 2, (4, 2), (0, 5), (8, 8));
    let no_heads = Case::plain(1, 2, (0, 0), (3, 5), (8, 8));
    for case in [empty_batch, no_queries, no_heads] {
        let result = forward(&case.q, &case.k, &case.v, &case.options()).unwrap();
        assert!(result.out.data.is_empty() && result.lse.is_empty());
    }
    let no_keys = Case::plain(1, 2, (4, 2), (3, 0), (8, 8));
    let result = forward(&no_keys.q, &no_keys.k, &no_keys.v, &no_keys.options()).unwrap();
    assert_eq!(result.out, Tensor4::zeros([2, 4, 3, 8]));
    assert_eq!(result.lse, [f64::NEG_INFINITY; 24]);
    // No value channels: the log-sum-exp is still there.
    let no_values = Case::plain(1, 1, (1, 1), (3, 5), (8, 0));
    let result = forward(
        &no_values.q,
        &no_values.k,
        &no_values.v,
        &no_values.options(),
    )
    .unwrap();
    assert!(result.out.data.is_empty() && result.lse.iter().all(|x| x.is_finite()));
}

#[test]
fn chosen_rows_equal_the_full_result() {
    let case = Case::plain(9, 2, (6, 2), (13, 21), (24, 10)).with_features(9, 0b10110100101);
    let options = case.options();
    let full = forward(&case.q, &case.k, &case.v, &options).unwrap();
    let rows = [(1, 5, 12), (0, 0, 0), (1, 2, 7), (0, 5, 3)];
    let some = forward_rows(&case.q, &case.k, &case.v, &options, &rows).unwrap();
    for (n, (b, h, i)) in rows.into_iter().enumerate() {
        assert_eq!(&some.out[n * 10..(n + 1) * 10], full.out.row(b, h, i));
        assert_eq!(some.lse[n], full.lse[(b * 6 + h) * 13 + i]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn online_form_agrees_with_the_plain_form(case in any_case(), block in 1usize..12, large: bool) {
        let mut case = case;
        if large {
            case.scale *= 1e4;
        }
        let options = case.options();
        let plain = forward(&case.q, &case.k, &case.v, &options).unwrap();
        let online = forward_online(&case.q, &case.k, &case.v, &options, block).unwrap();
        let largest = max_abs_score(&case.q, &case.k, &case.v, &options).unwrap();
        let bound = 1e-12 * largest.max(1.0);
        assert_close(&online.out.data, &plain.out.data, bound);
        assert_close(&online.lse, &plain.lse, bound);
    }

    #[test]
    fn constant_values_come_back_from_every_row_that_sees_a_key(case in any_case()) {
        let mut case = case;
        case.v.data.fill(3.0);
        let result = forward(&case.q, &case.k, &case.v, &case.options()).unwrap();
        let (h_q, s_q, d_v) = (case.q.shape[1], case.q.shape[2], case.v.shape[3]);
        for (row, &lse) in result.lse.iter().enumerate() {
            // A sink takes its share of the weight and brings no value.
            let sink = case.sinks.as_ref().map(|sinks| sinks[row / s_q % h_q]);
            let share = sink.map_or(0.0, |sink| (sink - lse).exp());
            let want = if lse == f64::NEG_INFINITY { 0.0 } else { 3.0 * (1.0 - share) };
            assert_close(&result.out.data[row * d_v..(row + 1) * d_v], &vec![want; d_v], 1e-13);
        }
    }

    #[test]
    fn shared_heads_equal_repeated_heads(case in any_case()) {
        let mut repeated = case.clone();
        let (h_q, h_kv) = (case.q.shape[1], case.k.shape[1]);
        let repeat = |t: &Tensor4| {
            let shape = [t.shape[0], h_q, t.shape[2], t.shape[3]];
            Tensor4::from_fn(shape, |[b, h, s, d]| t.row(b, h * h_kv / h_q, s)[d])
        };
        repeated.k = repeat(&case.k);
        repeated.v = repeat(&case.v);
        let shared = forward(&case.q, &case.k, &case.v, &case.options()).unwrap();
        let full = forward(&repeated.q, &repeated.k, &repeated.v, &repeated.options()).unwrap();
        prop_assert_eq!(shared, full);
    }
}

#[test]
fn long_keys_agree_in_both_forms() {
    let case = Case::plain(11, 1, (2, 1), (5, 33728), (8, 4));
    let options = case.options();
    let plain = forward(&case.q, &case.k, &case.v, &options).unwrap();
    let online = forward_online(&case.q, &case.k, &case.v, &options, 128).unwrap();
    let bound = 1e-12
        * max_abs_score(&case.q, &case.k, &case.v, &options)
            .unwrap()
            .max(1.0);
    assert_close(&online.out.data, &plain.out.data, bound);
    assert_close(&online.lse, &plain.lse, bound);
}

/// The size the reference promises in under 10 s on 2 cores; it takes about 1.3 s there.
#[test]
fn promised_size_is_in_time_and_agrees_in_both_forms() {
    let mut case = Case::plain(1, 1, (8, 8), (2048, 2048), (128, 128));
    case.causal = true;
    let start = Instant::now();
    let plain = forward(&case.q, &case.k, &case.v, &case.options()).unwrap();
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
    let online = forward_online(&case.q, &case.k, &case.v, &case.options(), 128).unwrap();
    assert_close(&online.out.data, &plain.out.data, 1e-12);
    assert_close(&online.lse, &plain.lse, 1e-12);
}
