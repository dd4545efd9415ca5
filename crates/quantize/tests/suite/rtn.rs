use flashcube_quantize::*;
use half::f16;

use crate::layer::Layer;

#[test]
fn every_weight_is_within_half_a_step_of_its_range() {
    let layer = Layer::draw(100, 7, 1, 1);
    for bits in [2, 3, 4, 8] {
        for group in [None, Some(32), Some(1), Some(1000)] {
            let ints =
                round_to_nearest(layer.weight(), None, &GridOptions::new(bits, group)).unwrap();
            let restored = ints.dequantize();
            for (at, (&w, &q)) in layer.weight.iter().zip(&restored).enumerate() {
                let scale = ints.scales[ints.group_of(at / 7) * 7 + at % 7].to_f32();
                // One step at the range's end, where the zero point's rounding may cut, and what
                // rounding a subnormal f16 scale (half of 2^-24) adds up to over all codes.
                let allowed = scale * 1.01 + 255.0 * 2.0f32.powi(-25);
                assert!(
                    (w - q).abs() <= allowed,
                    "{bits} bits, {group:?}: {w} {q} {scale}"
                );
            }
        }
    }
}

#[test]
fn symmetric_grid_is_the_fields_own() {
    // scale = 2 max|w| / 15, so that +max restores to 7/7.5 of itself and -max to 8/7.5.
    for (sign, part) in [(1.0, 7.0 / 7.5), (-1.0, 8.0 / 7.5)] {
        let weight = [sign * 1.5, 0.1];
        let mut options = GridOptions::new(4, None);
        options.symmetric = true;
        let ints = round_to_nearest(Weight::new(&weight, 2, 1).unwrap(), None, &options).unwrap();
        assert_eq!(ints.zeros, [8]);
        let restored = ints.dequantize()[0];
        assert!((restored - sign * 1.5 * part).abs() < 2e-3, "{restored}");
    }
}

/// All in [5, 6]: AutoAWQ's rule collapses, ours does not.
#[test]
fn one_signed_groups_survive_with_zero_in_the_range() {
    let weight: Vec<f32> = (0..128).map(|i| 5.0 + i as f32 / 127.0).collect();
    let rounded = |range| {
        let options = GridOptions {
            range,
            ..GridOptions::new(4, None)
        };
        let weight = Weight::new(&weight, 128, 1).unwrap();
        round_to_nearest(weight, None, &options)
            .unwrap()
            .dequantize()
    };
    let largest = |values: Vec<f32>| values.into_iter().fold(0.0f32, f32::max);
    assert!(largest(rounded(RangeRule::AsFound)) <= 1.01);
    let kept = rounded(RangeRule::IncludeZero);
    assert!(kept.iter().zip(&weight).all(|(q, w)| (q - w).abs() < 0.21));
}

/// auto-round#207, AutoAWQ#498: scales stay positive and finite.
#[test]
fn zero_and_tiny_groups_have_ordinary_scales() {
    for value in [0.0, 1e-8, -1e-30, f32::from_bits(1)] {
        let weight = vec![value; 64];
        let weight = Weight::new(&weight, 64, 1).unwrap();
        let ints = round_to_nearest(weight, None, &GridOptions::new(4, Some(32))).unwrap();
        assert!(ints.scales.iter().all(|s| *s > f16::ZERO && s.is_finite()));
        assert!(ints.dequantize().iter().all(|w| w.abs() <= 1e-6), "{value}");
    }
    let weight = vec![3e6; 64];
    let error = round_to_nearest(
        Weight::new(&weight, 64, 1).unwrap(),
        None,
        &GridOptions::new(4, None),
    );
    assert!(matches!(error, Err(QuantizeError::ScaleOverflow { .. })));
    let weight = [f32::MAX, f32::MIN];
    let error = round_to_nearest(
        Weight::new(&weight, 2, 1).unwrap(),
        None,
        &GridOptions::new(4, None),
    );
    assert!(matches!(error, Err(QuantizeError::ScaleOverflow { .. })));
}

#[test]
fn clip_search_lowers_the_squared_error() {
    let mut layer = Layer::draw(128, 30, 1, 3);
    layer.weight.iter_mut().step_by(97).for_each(|w| *w *= 3.0);
    let error = |clip| {
        let options = GridOptions {
            clip,
            ..GridOptions::new(3, Some(64))
        };
        let restored = round_to_nearest(layer.weight(), None, &options)
            .unwrap()
            .dequantize();
        layer
            .weight
            .iter()
            .zip(restored)
            .map(|(w, q)| (w - q).powi(2))
            .sum::<f32>()
    };
    let (plain, clipped) = (error(None), error(Some(ClipSearch::DEFAULT)));
    assert!(clipped < 0.95 * plain, "{clipped} {plain}");
    let bad = ClipSearch {
        steps: 0,
        smallest: 0.5,
    };
    let options = GridOptions {
        clip: Some(bad),
        ..GridOptions::new(3, None)
    };
    let refused = round_to_nearest(layer.weight(), None, &options).unwrap_err();
    assert!(
        refused.to_string().starts_with("clip search is 0 steps"),
        "{refused}"
    );
}
