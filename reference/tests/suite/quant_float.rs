//! E4M3, E5M2, E2M1, f16 and bf16: known values, identities, midpoints.

use flashcube_reference::quant::float::{
    BF16, E2M1, E4M3, E5M2, F16, FloatFormat, Overflow, Round, round_bf16, round_e2m1, round_e4m3,
    round_e5m2, round_f16, round_f32,
};
use half::{bf16, f16};
use proptest::prelude::*;

use Overflow::{Saturate, Special};
use Round::{NearestAway, NearestEven, NearestZero, TowardNegative, TowardPositive, TowardZero};

const ROUNDS: [Round; 6] = [
    NearestEven,
    NearestAway,
    NearestZero,
    TowardZero,
    TowardPositive,
    TowardNegative,
];

/// Bits of a code, sign included, and the code of the largest finite value.
const FORMATS: [(FloatFormat, u32, u16); 5] = [
    (E4M3, 8, 0x7e),
    (E5M2, 8, 0x7b),
    (E2M1, 4, 0x7),
    (F16, 16, 0x7bff),
    (BF16, 16, 0x7f7f),
];

/// The f64 just below or above x > 0.
fn neighbours(x: f64) -> [f64; 2] {
    [
        f64::from_bits(x.to_bits() - 1),
        f64::from_bits(x.to_bits() + 1),
    ]
}

#[test]
fn decoded_values_are_the_published_ones() {
    let e2m1: Vec<f64> = (0..16).map(|code| E2M1.decode(code)).collect();
    let positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    assert_eq!(e2m1[..8], positive);
    assert_eq!(e2m1[8..], positive.map(|x| -x));
    assert!(e2m1[8].is_sign_negative());

    assert_eq!(E4M3.decode(0x01), 2f64.powi(-9));
    assert_eq!(E4M3.decode(0x08), 2f64.powi(-6));
    // Exponent field 15 is finite for mantissas 0 to 6.
    let top: Vec<f64> = (0x78..0x7f).map(|code| E4M3.decode(code)).collect();
    assert_eq!(top, [256.0, 288.0, 320.0, 352.0, 384.0, 416.0, 448.0]);
    assert!(E4M3.decode(0x7f).is_nan() && E4M3.decode(0xff).is_nan());

    assert_eq!(E5M2.decode(0x01), 2f64.powi(-16));
    assert_eq!(E5M2.decode(0x04), 2f64.powi(-14));
    assert_eq!(E5M2.decode(0x7b), 57344.0);
    assert_eq!(E5M2.decode(0x7c), f64::INFINITY);
    assert_eq!(E5M2.decode(0xfc), f64::NEG_INFINITY);
    assert!((0x7d..=0x7f).all(|code| E5M2.decode(code).is_nan()));
    assert_eq!([E4M3.max(), E5M2.max(), E2M1.max()], [448.0, 57344.0, 6.0]);
}

#[test]
fn half_precision_decodes_as_the_half_crate_does() {
    for code in 0..=u16::MAX {
        let same = |x: f64, y: f64| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
        assert!(
            same(F16.decode(code), f16::from_bits(code).to_f64()),
            "{code:#x}"
        );
        assert!(
            same(BF16.decode(code), bf16::from_bits(code).to_f64()),
            "{code:#x}"
        );
    }
}

#[test]
fn every_code_survives_decode_and_encode() {
    for (format, bits, _) in FORMATS {
        for code in 0..=((1u32 << bits) - 1) as u16 {
            let x = format.decode(code);
            for round in ROUNDS {
                let special = format.encode(x, round, Special);
                if x.is_nan() {
                    assert!(format.decode(special).is_nan());
                    assert!(format.decode(format.encode(x, round, Saturate)).is_nan());
                } else {
                    assert_eq!(special, code, "{format:?} {x} {round:?}");
                    if x.is_finite() {
                        assert_eq!(format.encode(x, round, Saturate), code);
                    }
                }
            }
        }
    }
}

#[test]
fn every_midpoint_and_its_neighbours_round_by_the_rule() {
    for (format, bits, max) in FORMATS {
        let sign = 1u16 << (bits - 1);
        for low in 0..max {
            let high = low + 1;
            let even = if low % 2 == 0 { low } else { high };
            let middle = (format.decode(low) + format.decode(high)) / 2.0;
            let [below, above] = neighbours(middle);
            let expect = |x: f64, round: Round, code: u16| {
                assert_eq!(
                    format.encode(x, round, Special),
                    code,
                    "{format:?} {x} {round:?}"
                );
            };
            for (round, tie) in [(NearestEven, even), (NearestAway, high), (NearestZero, low)] {
                expect(below, round, low);
                expect(middle, round, tie);
                expect(above, round, high);
                expect(-below, round, sign | low);
                expect(-middle, round, sign | tie);
                expect(-above, round, sign | high);
            }
            for x in [below, middle, above] {
                expect(x, TowardZero, low);
                expect(-x, TowardZero, sign | low);
                expect(x, TowardPositive, high);
                expect(-x, TowardPositive, sign | low);
                expect(x, TowardNegative, low);
                expect(-x, TowardNegative, sign | high);
            }
        }
    }
}

#[test]
fn e2m1_ties_go_to_even_codes() {
    let ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    assert_eq!(ties.map(round_e2m1), [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]);
    // gemlite's rule sends every tie down.
    let down = ties.map(|x| E2M1.decode(E2M1.encode(x, NearestZero, Saturate)));
    assert_eq!(down, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]);
    assert_eq!(round_e2m1(0.250_000_06), 0.5);
}

#[test]
fn e4m3_overflows_beyond_464() {
    assert_eq!([257.0, 300.0, 305.0].map(round_e4m3), [256.0, 288.0, 320.0]);
    assert_eq!(round_e4m3(464.0), 448.0);
    assert_eq!(E4M3.encode(464.0, NearestEven, Special), 0x7e);
    let above = neighbours(464.0)[1];
    assert_eq!(E4M3.encode(above, NearestEven, Special), 0x7f);
    assert_eq!(E4M3.encode(-above, NearestEven, Special), 0xff);
    assert_eq!(E4M3.encode(above, NearestEven, Saturate), 0x7e);
    assert_eq!(E4M3.encode(-1e300, NearestEven, Saturate), 0xfe);
    assert_eq!(E4M3.encode(464.0, NearestAway, Special), 0x7f);
}

#[test]
fn e5m2_overflows_from_61440() {
    let below = neighbours(61440.0)[0];
    assert_eq!(E5M2.encode(below, NearestEven, Special), 0x7b);
    assert_eq!(E5M2.encode(61440.0, NearestEven, Special), 0x7c);
    assert_eq!(E5M2.encode(-61440.0, NearestEven, Special), 0xfc);
    assert_eq!(round_e5m2(61440.0), 57344.0);
}

#[test]
fn directed_rounding_overflows_in_its_direction_only() {
    for x in [500.0, 1e300] {
        assert_eq!(E4M3.encode(x, TowardZero, Special), 0x7e);
        assert_eq!(E4M3.encode(x, TowardNegative, Special), 0x7e);
        assert_eq!(E4M3.encode(x, TowardPositive, Special), 0x7f);
        assert_eq!(E4M3.encode(-x, TowardPositive, Special), 0xfe);
        assert_eq!(E4M3.encode(-x, TowardNegative, Special), 0xff);
    }
}

#[test]
fn infinities_nan_and_tiny_values_have_defined_codes() {
    for round in ROUNDS {
        assert_eq!(E4M3.encode(f64::INFINITY, round, Saturate), 0x7e);
        assert_eq!(E4M3.encode(f64::INFINITY, round, Special), 0x7f);
        assert_eq!(E5M2.encode(f64::NEG_INFINITY, round, Saturate), 0xfb);
        assert_eq!(E5M2.encode(f64::NEG_INFINITY, round, Special), 0xfc);
        for overflow in [Saturate, Special] {
            assert_eq!(E2M1.encode(f64::INFINITY, round, overflow), 0x7);
            assert_eq!(E2M1.encode(f64::NEG_INFINITY, round, overflow), 0xf);
            assert_eq!(E2M1.encode(f64::NAN, round, overflow), 0x7);
            assert_eq!(E4M3.encode(f64::NAN, round, overflow) & 0x7f, 0x7f);
            assert_eq!(E5M2.encode(f64::NAN, round, overflow) & 0x7f, 0x7f);
        }
    }
    for (format, bits, _) in FORMATS {
        let sign = 1u16 << (bits - 1);
        for tiny in [5e-324, 1e-310, 1e-45, 1e-41] {
            assert_eq!(format.encode(tiny, NearestEven, Saturate), 0);
            assert_eq!(format.encode(-tiny, NearestEven, Saturate), sign);
            assert_eq!(format.encode(tiny, TowardPositive, Saturate), 1);
            assert_eq!(format.encode(-tiny, TowardNegative, Saturate), sign | 1);
        }
        assert_eq!(format.encode(-0.0, NearestEven, Saturate), sign);
    }
    // bf16 reaches 1e-40 as a subnormal, the small formats do not.
    assert_eq!(round_bf16(1e-40), 2f64.powi(-133));
    assert_eq!(
        [round_f16(1e-40), round_e4m3(1e-40), round_e5m2(1e-40)],
        [0.0; 3]
    );
}

#[test]
fn half_precision_rounds_once() {
    // Just above a tie: a detour over f32 would land on the tie and go to even.
    assert_eq!(
        round_f16(1.0 + 2f64.powi(-11) + 2f64.powi(-40)),
        1.0 + 2f64.powi(-10)
    );
    assert_eq!(
        round_bf16(1.0 + 2f64.powi(-8) + 2f64.powi(-40)),
        1.0 + 2f64.powi(-7)
    );
    assert_eq!(round_f16(65519.9), 65504.0);
    assert_eq!(round_f16(65520.0), f64::INFINITY);
    assert_eq!(round_f32(1.0 + 2f64.powi(-24)), 1.0);
}

proptest! {
    #[test]
    fn half_precision_encodes_f32_as_the_half_crate_does(bits: u32) {
        let x = f32::from_bits(bits);
        prop_assume!(!x.is_nan());
        let code = F16.encode(f64::from(x), NearestEven, Special);
        prop_assert_eq!(code, f16::from_f32(x).to_bits());
        let code = BF16.encode(f64::from(x), NearestEven, Special);
        prop_assert_eq!(code, bf16::from_f32(x).to_bits());
    }

    /// No value of the format lies closer than the one chosen.
    #[test]
    fn nearest_is_nearest(x in -600.0f64..600.0, shrink in 0u32..16) {
        let x = x / f64::from(1u32 << shrink);
        for (format, bits, _) in &FORMATS[..3] {
            let got = (format.round(x, Saturate) - x).abs();
            let values = (0..1u16 << bits).map(|code| format.decode(code));
            let best = values.filter(|v| v.is_finite()).map(|v| (v - x).abs());
            prop_assert_eq!(got, best.fold(f64::INFINITY, f64::min));
        }
    }
}
