//! Direct-P against rounding to nearest, over every f32, and what encoded attention must keep.

use flashcube_reference::quant::blocks::{MxElement, MxRow};
use flashcube_reference::quant::direct::{MXFP4_THRESHOLDS, NVFP4_THRESHOLDS, WeightFormat, code};
use flashcube_reference::quant::e8m0::ScaleRule;
use flashcube_reference::quant::float::{E2M1, E4M3, Overflow, Round};
use flashcube_reference::{Encoding, Options, Tensor4, forward, forward_encoded};
use rayon::prelude::*;

use crate::cases::{Random, assert_close};

const MIDPOINTS: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
const RULES: [ScaleRule; 3] = [ScaleRule::Floor, ScaleRule::Ceil, ScaleRule::RoundEven];
const FORMATS: [WeightFormat; 5] = [
    WeightFormat::E4m3,
    WeightFormat::Nvfp4,
    WeightFormat::Mxfp4(ScaleRule::Floor),
    WeightFormat::Mxfp4(ScaleRule::Ceil),
    WeightFormat::Mxfp4(ScaleRule::RoundEven),
];

/// The nearest E2M1 code of scale * 2^x, ties to even. exp2 in f32 decides unless a midpoint is near.
fn nearest(x: f32, scale: f32) -> u8 {
    let p = scale * x.exp2();
    if MIDPOINTS.iter().all(|m| (p - m).abs() > 1e-5 * m) {
        return MIDPOINTS.iter().filter(|&&m| p > m).count() as u8;
    }
    let p = f64::from(scale) * f64::from(x).exp2();
    E2M1.encode(p, Round::NearestEven, Overflow::Saturate) as u8
}

/// Compares every f32 whose bits lie in `from..=to`: logits of one sign.
fn every(from: f32, to: f32, scale: f32, thresholds: &[f32; 7]) {
    let (from, to) = (from.to_bits(), to.to_bits());
    let chunk = 1 << 20;
    (from / chunk..=to / chunk).into_par_iter().for_each(|n| {
        for bits in (n * chunk).max(from)..=(n * chunk + chunk - 1).min(to) {
            let x = f32::from_bits(bits);
            assert_eq!(code(x, thresholds), nearest(x, scale), "{x}");
        }
    });
}

/// Every f32 from -6 to `last`: one by one but for those around 0. Both sides are monotone there and no
/// threshold lies so near, so that the ends speak for all between them.
fn every_logit(last: f32, scale: f32, thresholds: &[f32; 7]) {
    const SMALL: f32 = 1.0 / 64.0;
    every(-SMALL, -6.0, scale, thresholds);
    let around_0 = [-SMALL, SMALL.min(last)].map(|x| (code(x, thresholds), nearest(x, scale)));
    let one = around_0[0].0;
    assert_eq!(around_0, [(one, one); 2]);
    if last > SMALL {
        every(SMALL, last, scale, thresholds);
    }
}

#[test]
fn nvfp4_thresholds_round_every_logit_to_nearest_even() {
    every_logit(0.0, 6.0, &NVFP4_THRESHOLDS);
    // The one tie: 6 * 2^-3 = 0.75 lies between 0.5 and 1, and 1 has the even code.
    assert_eq!(code(-3.0, &NVFP4_THRESHOLDS), 2);
    assert_eq!(code(f32::NEG_INFINITY, &NVFP4_THRESHOLDS), 0);
}

#[test]
fn mxfp4_thresholds_round_every_logit_to_nearest_even() {
    every_logit(4.0, 1.0, &MXFP4_THRESHOLDS);
    // The one tie: 2^-2 lies between 0 and 0.5, and 0 has the even code.
    assert_eq!(code(-2.0, &MXFP4_THRESHOLDS), 0);
    assert_eq!(code(f32::NEG_INFINITY, &MXFP4_THRESHOLDS), 0);
}

#[test]
fn thresholds_are_the_smallest_f32_that_round_up() {
    for (thresholds, scale) in [(NVFP4_THRESHOLDS, 6.0), (MXFP4_THRESHOLDS, 1.0)] {
        for (passed, t) in thresholds.into_iter().enumerate() {
            let below = match t > 0.0 {
                true => t.next_down(),
                false => f32::from_bits(t.to_bits() + 1),
            };
            assert_eq!(nearest(t, scale), passed as u8 + 1, "{t}");
            assert_eq!(nearest(below, scale), passed as u8, "{t}");
        }
    }
}

#[test]
fn encoded_groups_are_what_rounding_the_weights_gives() {
    let mut random = Random::new(5);
    for spread in [0.3, 2.0, 8.0] {
        for _ in 0..200 {
            let x: Vec<f64> = (0..32).map(|_| spread * random.normal()).collect();
            let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max).ceil() + 3.0;
            let p: Vec<f64> = x.iter().map(|x| (x - max).exp2()).collect();
            for rule in RULES {
                let row = MxRow::quantize(&p, MxElement::E2M1, rule)
                    .dequantize()
                    .unwrap();
                assert_close(&WeightFormat::Mxfp4(rule).encode(&x, max, true), &row, 0.0);
            }
            // NVFP4 takes its codes over the unrounded scale: one that E4M3 holds is no exception.
            let (x, p) = (&x[..16], &p[..16]);
            let top = p.iter().copied().fold(0.0, f64::max);
            let scale = E4M3.round(top * 256.0, Overflow::Saturate);
            let expected: Vec<f64> = p
                .iter()
                .map(|p| E2M1.round(p * 6.0 / top, Overflow::Saturate) * scale)
                .collect();
            assert_close(&WeightFormat::Nvfp4.encode(x, max, true), &expected, 0.0);
        }
    }
}

#[test]
fn encodings_do_not_depend_on_the_maximum_they_are_taken_against() {
    let mut random = Random::new(6);
    let x: Vec<f64> = (0..32).map(|_| random.normal()).collect();
    for format in FORMATS {
        let near = format.encode(&x, 4.0, true);
        let far: Vec<f64> = format
            .encode(&x, 8.0, true)
            .iter()
            .map(|p| p * 16.0)
            .collect();
        assert_close(&near, &far, 0.0);
    }
}

#[test]
fn hidden_groups_are_zero_and_hidden_keys_of_a_group_do_not_count() {
    let hidden = [f64::NEG_INFINITY; 32];
    for format in FORMATS {
        assert_eq!(format.encode(&hidden, 0.0, true), vec![0.0; 32]);
        let mut x = hidden;
        x[3] = -2.0;
        let p = format.encode(&x, 0.0, true);
        assert_close(&[p[3] / format.factor()], &[0.25], 1e-12);
        assert!(p.iter().enumerate().all(|(j, p)| j == 3 || *p == 0.0));
    }
}

/// 1 x 1 x s keys of one column whose logits are `x`, in base e.
fn keys(x: &[f64]) -> (Tensor4, Tensor4) {
    let q = Tensor4::from_fn([1, 1, 1, 1], |_| 1.0);
    (q, Tensor4::new([1, 1, x.len(), 1], x.to_vec()).unwrap())
}

#[test]
fn equal_values_come_out_as_they_are() {
    let mut random = Random::new(7);
    let tail: Vec<f64> = (0..2048)
        .map(|j| if j == 700 { 0.0 } else { -7.0 })
        .collect();
    let normal: Vec<f64> = (0..777).map(|_| 3.0 * random.normal()).collect();
    for x in [tail, normal] {
        let (q, k) = keys(&x);
        let v = Tensor4::from_fn([1, 1, x.len(), 2], |_| 1.0);
        for format in FORMATS {
            let encoding = Encoding::new(format);
            let got = forward_encoded(&q, &k, &v, &Options::default(), encoding).unwrap();
            assert_close(&got.out.data, &[1.0, 1.0], 1e-12);
        }
    }
}

#[test]
fn without_raised_scales_small_groups_flush_and_with_them_they_do_not() {
    // One logit 0, the others -7: every other group has the scale e^-7 / 6, below half of 2^-9.
    let x: Vec<f64> = (0..2048)
        .map(|j| if j == 700 { 0.0 } else { -7.0 })
        .collect();
    let (q, k) = keys(&x);
    let v = Tensor4::from_fn([1, 1, x.len(), 1], |[_, _, j, _]| f64::from(j != 700));
    let exact = forward(&q, &k, &v, &Options::default()).unwrap().out.data[0];
    let out = |raised| {
        let encoding = Encoding {
            raised,
            ..Encoding::new(WeightFormat::Nvfp4)
        };
        let got = forward_encoded(&q, &k, &v, &Options::default(), encoding);
        got.unwrap().out.data[0]
    };
    assert!(exact > 0.6);
    assert_close(&[out(true)], &[exact], 0.05);
    assert_eq!(out(false), 0.0);
}

#[test]
fn encoded_attention_is_near_the_exact_one_and_its_lse_is_that_of_its_sum() {
    let mut random = Random::new(8);
    let q = random.tensor([2, 4, 9, 16]);
    let k = random.tensor([2, 2, 133, 16]);
    let v = random.tensor([2, 2, 133, 5]);
    let options = Options {
        scale: 0.25,
        causal: true,
        ..Options::default()
    };
    let exact = forward(&q, &k, &v, &options).unwrap();
    for format in FORMATS {
        let got = forward_encoded(&q, &k, &v, &options, Encoding::new(format)).unwrap();
        let errors = got.out.data.iter().zip(&exact.out.data);
        let square: f64 = errors.map(|(x, y)| (x - y) * (x - y)).sum();
        let rms = (square / got.out.data.len() as f64).sqrt();
        assert!(rms > 1e-4 && rms < 0.05, "{format:?} {rms}");
        assert_close(&got.lse, &exact.lse, 0.25);
    }
}
