use flashcube_quantize::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::StandardNormal;

fn normal(count: usize) -> Vec<f32> {
    let mut random = StdRng::seed_from_u64(9);
    (0..count).map(|_| random.sample(StandardNormal)).collect()
}

/// bitsandbytes' own test constants for N(0, 1), 1024 x 1024.
#[test]
fn nf4_error_of_normal_weights_is_the_published_one() {
    let values = normal(1024 * 1024);
    for (block, expected) in [(32, 0.0677), (64, 0.0728), (128, 0.0768)] {
        let weight = Weight::new(&values, 1024, 1024).unwrap();
        let restored = round_nf4(weight, block).unwrap().dequantize();
        let off = values
            .iter()
            .zip(&restored)
            .map(|(w, q)| f64::from((w - q).abs()));
        let mean = off.sum::<f64>() / values.len() as f64;
        assert!((mean - expected).abs() < 3e-4, "block {block}: {mean}");
    }
}

#[test]
fn nf4_table_restores_itself() {
    let weight = Weight::new(&NF4, 16, 1).unwrap();
    let rounded = round_nf4(weight, 16).unwrap();
    assert_eq!(rounded.codes, (0..16).collect::<Vec<u8>>());
    assert_eq!(rounded.dequantize(), NF4);
    let zeros = [0.0; 5];
    let rounded = round_nf4(Weight::new(&zeros, 5, 1).unwrap(), 2).unwrap();
    assert_eq!(rounded.dequantize(), zeros);
    assert!(round_nf4(weight, 0).is_err());
}

#[test]
fn fp4_formats_restore_their_own_values() {
    // Two outputs: every E2M1 value and its negative, at scales 1 and 4.
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let column = |by: f32| magnitudes.iter().flat_map(move |m| [m * by, -m * by]);
    let weight: Vec<f32> = column(1.0)
        .zip(column(4.0))
        .flat_map(|(a, b)| [a, b])
        .collect();
    let view = Weight::new(&weight, 16, 2).unwrap();
    for rule in [ScaleRule::Floor, ScaleRule::Ceil, ScaleRule::RoundEven] {
        assert_eq!(round_mxfp4(view, rule).dequantize().unwrap(), weight);
    }
    let rounded = round_nvfp4(view, None, Round::NearestEven).unwrap();
    for (w, q) in weight.iter().zip(rounded.dequantize()) {
        assert!((w - q).abs() <= w.abs() * 1e-6, "{w} {q}");
    }
    rounded.pack().unwrap();
}

#[test]
fn nvfp4_takes_a_shared_factor_and_refuses_bad_ones() {
    let weight = normal(32 * 3);
    let view = Weight::new(&weight, 32, 3).unwrap();
    let shared = round_nvfp4(view, Some(12.0), Round::TowardPositive).unwrap();
    assert_eq!(shared.encode_factor, 448.0 * 6.0 / 12.0);
    for amax in [f32::NAN, -1.0, f32::INFINITY] {
        assert!(matches!(
            round_nvfp4(view, Some(amax), Round::NearestEven),
            Err(QuantizeError::Unsupported { what: "amax", .. })
        ));
    }
    let odd = Weight::new(&weight[..9], 3, 3).unwrap();
    assert!(round_nvfp4(odd, None, Round::NearestEven).is_err());
}

/// What checkpoints hold of NF4 and MXFP4 is what was rounded: MXFP4 to the bit, NF4 but for scales
/// of 11 bits.
#[test]
fn small_floats_keep_their_values_in_checkpoints() {
    let values = normal(96 * 5);
    let weight = Weight::new(&values, 96, 5).unwrap();
    let mxfp4 = round_mxfp4(weight, ScaleRule::Floor);
    let floats = mxfp4.to_floats().unwrap();
    assert_eq!(floats.dequantize(), mxfp4.dequantize().unwrap());
    let nf4 = round_nf4(weight, 32).unwrap();
    let floats = nf4.to_floats().unwrap().dequantize();
    for (ours, exact) in floats.iter().zip(nf4.dequantize()) {
        assert!(
            (ours - exact).abs() <= exact.abs() / 2048.0,
            "{ours} {exact}"
        );
    }
    let refused = round_nf4(weight, 64).unwrap().to_floats().unwrap_err();
    assert!(
        refused.to_string().contains("multiple of the group"),
        "{refused}"
    );
}
