//! MXFP8, MXFP4 and NVFP4 rows.

use flashcube_reference::quant::blocks::{
    MxElement, MxRow, Nvfp4Row, nvfp4_encode_factor, pack_nibbles, unpack_nibbles,
};
use flashcube_reference::quant::e8m0::ScaleRule;
use flashcube_reference::quant::float::Round;
use proptest::prelude::*;

use crate::cases::{Random, assert_close};

const ELEMENTS: [MxElement; 3] = [MxElement::E4M3, MxElement::E5M2, MxElement::E2M1];
const RULES: [ScaleRule; 3] = [ScaleRule::Floor, ScaleRule::Ceil, ScaleRule::RoundEven];

fn nvfp4(row: &[f64], factor: f32) -> Nvfp4Row {
    Nvfp4Row::quantize(row, factor, Round::NearestEven).unwrap()
}

#[test]
fn zero_blocks_are_exactly_zero() {
    for len in [0, 1, 31, 32, 33, 96] {
        let zeros = vec![0.0; len];
        for (element, rule) in ELEMENTS.into_iter().flat_map(|e| RULES.map(|r| (e, r))) {
            let row = MxRow::quantize(&zeros, element, rule);
            assert_eq!(row.scales.len(), len.div_ceil(32));
            assert_eq!(row.dequantize(), Ok(zeros.clone()));
        }
        let row = nvfp4(&zeros, nvfp4_encode_factor(0.0));
        assert_eq!(row.scales.len(), len.div_ceil(16));
        assert_eq!(row.dequantize(), Ok(zeros));
    }
}

#[test]
fn mx_scale_rule_decides_what_saturates() {
    let value = |x: f64, element, rule| {
        let row = MxRow::quantize(&[x, -x, 0.0], element, rule);
        let back = row.dequantize().unwrap();
        assert_eq!(back[1], -back[0]);
        back[0]
    };
    assert_eq!(value(957.0, MxElement::E4M3, ScaleRule::Floor), 896.0);
    assert_eq!(value(957.0, MxElement::E4M3, ScaleRule::Ceil), 960.0);
    assert_eq!(value(7.5, MxElement::E2M1, ScaleRule::Floor), 6.0);
    assert_eq!(value(7.5, MxElement::E2M1, ScaleRule::Ceil), 8.0);
    assert_eq!(value(7.5, MxElement::E2M1, ScaleRule::RoundEven), 8.0);
    assert_eq!(value(6.5, MxElement::E2M1, ScaleRule::RoundEven), 6.0);
}

#[test]
fn each_mx_block_has_its_own_scale() {
    let mut x = vec![1.0; 32];
    x.extend([1024.0; 32]);
    x.extend([0.25; 3]);
    for (element, rule) in ELEMENTS.into_iter().flat_map(|e| RULES.map(|r| (e, r))) {
        let row = MxRow::quantize(&x, element, rule);
        assert_eq!(row.dequantize().unwrap(), x);
        assert_eq!(i32::from(row.scales[1]) - i32::from(row.scales[0]), 10);
        assert_eq!(i32::from(row.scales[2]) - i32::from(row.scales[0]), -2);
    }
}

#[test]
fn nvfp4_scale_is_that_of_the_formula() {
    // Tensor maximum 12: factor 224. Block maximum 12: scale 448; 3: 112; 0.1: 3.733 -> 3.75.
    let mut x = vec![0.0; 48];
    (x[0], x[16], x[32]) = (12.0, 3.0, 0.1);
    let factor = nvfp4_encode_factor(12.0);
    assert_eq!(factor, 224.0);
    let row = nvfp4(&x, factor);
    assert_eq!(row.scales, [0x7e, 0x6e, 0x47]);
    assert_eq!(row.codes[0], 7);
    let back = row.dequantize().unwrap();
    assert_close(&back[..32], &x[..32], 0.0);
    assert_close(&[back[32]], &[6.0 * 3.75 / 224.0], 1e-15);
    let up = Nvfp4Row::quantize(&[0.0, 0.105], 224.0, Round::TowardPositive).unwrap();
    assert_eq!(up.scales, [0x48]); // 3.92 -> 4
    let nearest = nvfp4(&[0.0, 0.101], 224.0);
    assert_eq!(nearest.scales, [0x47]); // 3.77 -> 3.75
}

#[test]
fn nvfp4_extremes_give_no_nan_byte() {
    // A block 1e6 times what the factor was made for saturates, one 1e6 times smaller is 0.
    let mut x = vec![0.0; 32];
    x[0] = 1e6;
    x[16] = 1e-6;
    let row = nvfp4(&x, nvfp4_encode_factor(1.0));
    assert_eq!(row.scales, [0x7e, 0x00]);
    let back = row.dequantize().unwrap();
    assert_eq!(back[0], 1.0);
    assert_eq!(back[16], 0.0);
    for amax in [1e-40, 5e-324, 1e300, f64::MAX] {
        let factor = nvfp4_encode_factor(amax);
        assert!(factor.is_finite() && factor > 0.0);
        let row = nvfp4(&[amax, -amax], factor);
        assert_ne!(row.scales[0] & 0x7f, 0x7f);
        assert!(row.dequantize().unwrap().iter().all(|x| x.is_finite()));
    }
    for factor in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(Nvfp4Row::quantize(&[1.0], factor, Round::NearestEven).is_err());
    }
}

#[test]
fn special_values_poison_their_block_alone() {
    for special in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut x = vec![1.0; 64];
        x[5] = special;
        for element in ELEMENTS {
            let back = MxRow::quantize(&x, element, ScaleRule::Ceil)
                .dequantize()
                .unwrap();
            assert!(back[..32].iter().all(|x| x.is_nan()));
            assert_eq!(back[32..], [1.0; 32]);
        }
        let back = nvfp4(&x, nvfp4_encode_factor(1.0)).dequantize().unwrap();
        assert!(back[..16].iter().all(|x| x.is_nan()));
        assert_eq!(back[16..], [1.0; 48]);
    }
}

#[test]
fn scales_must_match_the_blocks() {
    let mut row = MxRow::quantize(&[1.0; 33], MxElement::E2M1, ScaleRule::Floor);
    row.scales.pop();
    let error = row.dequantize().unwrap_err();
    assert_eq!(
        error.to_string(),
        "block scales: 1 elements, its shape asks for 2"
    );
}

#[test]
fn low_nibble_holds_the_even_index() {
    assert_eq!(pack_nibbles(&[1, 2, 3]), [0x21, 0x03]);
    assert_eq!(unpack_nibbles(&[0x21, 0x03], 3), Ok(vec![1, 2, 3]));
    assert_eq!(unpack_nibbles(&[], 0), Ok(vec![]));
    assert!(unpack_nibbles(&[0x21], 3).is_err());
}

/// Rows over many magnitudes, zeros included.
fn any_row() -> impl Strategy<Value = Vec<f64>> {
    (any::<u64>(), 0usize..80, -140i32..120).prop_map(|(seed, len, exponent)| {
        let mut random = Random::new(seed);
        let mut value = || match random.below(6) {
            0 => 0.0,
            n => random.normal() * 2f64.powi(exponent + n as i32),
        };
        (0..len).map(|_| value()).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Half a step of the block's largest binade, or a saturated top for rules that clip.
    #[test]
    fn mx_error_is_bounded_and_never_nan(x in any_row()) {
        for (element, rule) in ELEMENTS.into_iter().flat_map(|e| RULES.map(|r| (e, r))) {
            let back = MxRow::quantize(&x, element, rule).dequantize().unwrap();
            let format = element.format();
            let half_step = 2f64.powi(-1 - format.mantissa_bits as i32);
            for (x, back) in x.chunks(32).zip(back.chunks(32)) {
                let amax = x.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
                // max = (2 - 2^-m) 2^emax or less; floor clips at most 2 / 1.5 - 1 of amax.
                let relative = if rule == ScaleRule::Ceil { half_step } else { 0.25 };
                // Below 2^-127 the scale can shrink no more.
                let bound = (amax * relative).max(2f64.powi(-127));
                assert_close(back, x, bound);
                if rule == ScaleRule::Ceil {
                    prop_assert!(back.iter().all(|b| b.abs() <= 2.0 * amax));
                }
            }
        }
    }

    #[test]
    fn nvfp4_error_is_bounded_and_never_nan(x in any_row()) {
        let amax = x.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        let factor = nvfp4_encode_factor(amax);
        prop_assume!(factor < f32::MAX && f64::from(factor) > 1e-30);
        let row = nvfp4(&x, factor);
        prop_assert!(row.scales.iter().all(|scale| scale & 0x7f != 0x7f));
        let back = row.dequantize().unwrap();
        for (x, back) in x.chunks(16).zip(back.chunks(16)) {
            let block_max = x.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
            // Half of E2M1's widest step (4 to 6) is a sixth of the block's maximum, the scale adds
            // 2^-4; in the subnormal scales, half a step 2^-10 times 6 / factor.
            let bound = block_max * (1.0 / 6.0 + 0.0625 * 1.2) + 6.0 * 2f64.powi(-10) / f64::from(factor);
            assert_close(back, x, bound);
        }
    }
}
