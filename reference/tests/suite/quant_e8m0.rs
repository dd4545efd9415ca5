//! E8M0 codes and the scale rules.

use flashcube_reference::quant::e8m0::{NAN, ScaleRule, block_scale, decode, encode};
use flashcube_reference::quant::float::{E2M1, E4M3, E5M2, FloatFormat};

use ScaleRule::{Ceil, Floor, RoundEven};

const RULES: [ScaleRule; 3] = [Floor, Ceil, RoundEven];

/// x moved by a number of f32 units in the last place.
fn ulps(x: f64, n: i32) -> f64 {
    f64::from(f32::from_bits((x as f32).to_bits().wrapping_add_signed(n)))
}

#[test]
fn codes_are_powers_of_two() {
    for code in 0..=254u8 {
        let x = decode(code);
        assert_eq!(x, 2f64.powi(i32::from(code) - 127));
        for rule in RULES {
            assert_eq!(encode(x, rule), code);
        }
    }
    assert!(decode(NAN).is_nan());
}

#[test]
fn values_between_powers_follow_the_rule() {
    for n in [-20, 0, 3, 100] {
        let (x, code) = (2f64.powi(n), (n + 127) as u8);
        let codes = |x: f64| RULES.map(|rule| encode(x, rule));
        assert_eq!(codes(ulps(x, -1)), [code - 1, code, code]);
        assert_eq!(codes(ulps(x, 1)), [code, code + 1, code]);
        assert_eq!(codes(ulps(1.5 * x, -1)), [code, code + 1, code]);
        assert_eq!(codes(1.5 * x), [code, code + 1, code + 1]);
    }
}

#[test]
fn ends_of_the_range_clamp_and_special_values_are_nan() {
    for rule in RULES {
        assert_eq!(encode(0.0, rule), 0);
        assert_eq!(encode(1e-40, rule), 0);
        assert_eq!(encode(5e-324, rule), 0);
        assert_eq!(encode(1e300, rule), 254);
        for x in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(encode(x, rule), NAN);
        }
        for element in [E4M3, E5M2, E2M1] {
            assert_eq!(block_scale(0.0, &element, rule), 0);
            assert_eq!(block_scale(1e-40, &element, rule), 0);
            assert_eq!(block_scale(f64::INFINITY, &element, rule), NAN);
            assert_eq!(block_scale(f64::NAN, &element, rule), NAN);
        }
    }
}

#[test]
fn block_scales_follow_the_table_of_each_rule() {
    // Factor on 2^n, ulps added to it, then [floor, ceil, round-even] relative to 2^(n - emax).
    type Row = (f64, i32, [i32; 3]);
    let e2m1: &[Row] = &[
        (1.0, -1, [-1, 0, 0]),
        (1.0, 0, [0, 0, 0]),
        (1.0, 1, [0, 0, 0]),
        (1.5, -1, [0, 0, 0]),
        (1.5, 0, [0, 0, 0]),
        (1.5, 1, [0, 1, 0]),
        (1.75, -1, [0, 1, 0]),
        (1.75, 0, [0, 1, 1]),
        (1.75, 1, [0, 1, 1]),
    ];
    let e4m3: &[Row] = &[
        (1.0, -1, [-1, 0, 0]),
        (1.0, 0, [0, 0, 0]),
        (1.5, 1, [0, 0, 0]),
        (1.75, -1, [0, 0, 0]),
        (1.75, 0, [0, 0, 0]),
        (1.75, 1, [0, 1, 0]),
        (1.9375, -1, [0, 1, 0]),
        (1.9375, 0, [0, 1, 1]),
    ];
    let e5m2: &[Row] = &[
        (1.0, -1, [-1, 0, 0]),
        (1.0, 0, [0, 0, 0]),
        (1.75, 0, [0, 0, 0]),
        (1.75, 1, [0, 1, 0]),
        (1.875, -1, [0, 1, 0]),
        (1.875, 0, [0, 1, 1]),
    ];
    let tables: [(FloatFormat, i32, &[Row]); 3] =
        [(E2M1, 2, e2m1), (E4M3, 8, e4m3), (E5M2, 15, e5m2)];
    for (element, emax, rows) in tables {
        for n in [-60, -1, 0, 9, 126] {
            for &(factor, step, want) in rows {
                let amax = ulps(factor * 2f64.powi(n), step);
                let codes = RULES.map(|rule| i32::from(block_scale(amax, &element, rule)));
                let want = want.map(|offset| n - emax + offset + 127);
                assert_eq!(codes, want, "{element:?} {factor} * 2^{n} + {step} ulp");
            }
        }
    }
}

#[test]
fn round_even_equals_the_addition_on_f32_bits() {
    // The published form: add half a unit of the element's mantissa to the bits, drop the mantissa.
    for bits in (0x0100_0000u32..0x7f00_0000).step_by(104_729) {
        for (element, emax, mantissa_bits) in [(E2M1, 2, 1), (E4M3, 8, 3), (E5M2, 15, 2)] {
            let exponent = ((bits + (1 << (22 - mantissa_bits))) >> 23) as i32 - emax;
            let got = block_scale(f64::from(f32::from_bits(bits)), &element, RoundEven);
            assert_eq!(i32::from(got), exponent.max(0), "{bits:#x}");
        }
    }
}
