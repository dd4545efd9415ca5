use flashcube_quantize::*;

use crate::layer::Layer;
use crate::textbook;

fn options(bits: u32, group: Option<usize>) -> GptqOptions {
    GptqOptions::new(GridOptions::new(bits, group))
}

fn by_energy(layer: &Layer) -> Vec<usize> {
    let diagonal = layer.hessian().diagonal();
    let mut order: Vec<usize> = (0..layer.k).collect();
    order.sort_by(|&a, &b| diagonal[b].total_cmp(&diagonal[a]));
    order
}

/// Single against double precision moves a weight over a rounding boundary now and then: few codes
/// may differ, and the loss must not.
fn check_against_textbook(layer: &Layer, bits: u32, group: Option<usize>, act_order: bool) {
    let order = match act_order {
        true => by_energy(layer),
        false => (0..layer.k).collect(),
    };
    let rows = group.unwrap_or(layer.k);
    let (codes, restored) = textbook::gptq(layer, &order, bits, rows, 0.01);
    let options = GptqOptions {
        act_order,
        ..options(bits, group)
    };
    let ours = quantize_gptq(layer.weight(), &layer.hessian(), &options).unwrap();
    assert!(!ours.took_rtn);
    let same = ours
        .weights
        .codes
        .iter()
        .zip(&codes)
        .filter(|(a, b)| a == b)
        .count();
    let part = same as f64 / codes.len() as f64;
    let (our_loss, book_loss) = (
        layer.loss(&ours.weights.dequantize()),
        layer.loss(&restored),
    );
    assert!(
        part > 0.98,
        "{bits} bits, group {group:?}: {part} of the codes agree"
    );
    let ratio = our_loss / book_loss;
    assert!(
        (0.99..1.01).contains(&ratio),
        "{bits} bits, group {group:?}: {our_loss} {book_loss}"
    );
}

#[test]
fn agrees_with_the_textbook_in_f64() {
    let layer = Layer::draw(72, 6, 300, 1);
    for bits in [2, 3, 4, 8] {
        for group in [None, Some(8), Some(24), Some(50)] {
            for act_order in [false, true] {
                check_against_textbook(&layer, bits, group, act_order);
            }
        }
    }
}

/// Groups that do not divide the block of 128, or are larger than it: blocks must end where groups
/// start.
#[test]
fn groups_across_blocks_agree_with_the_textbook() {
    let layer = Layer::draw(330, 3, 700, 2);
    for group in [None, Some(48), Some(96), Some(128), Some(160)] {
        check_against_textbook(&layer, 3, group, false);
    }
}

#[test]
fn loss_is_that_of_the_outputs_and_never_above_rounding() {
    for (seed, (k, n, tokens)) in [(64, 40, 200), (130, 97, 400), (96, 200, 50)]
        .into_iter()
        .enumerate()
    {
        let layer = Layer::draw(k, n, tokens, seed as u64);
        let hessian = layer.hessian();
        for bits in [2, 3, 4, 8] {
            for symmetric in [false, true] {
                let mut options = options(bits, Some(32));
                options.grid.symmetric = symmetric;
                let ours = quantize_gptq(layer.weight(), &hessian, &options).unwrap();
                let rtn = round_to_nearest(layer.weight(), None, &options.grid).unwrap();
                let (measured, plain) = (
                    layer.loss(&ours.weights.dequantize()),
                    layer.loss(&rtn.dequantize()),
                );
                assert!(
                    (ours.loss / measured - 1.0).abs() < 1e-3,
                    "{} {measured}",
                    ours.loss
                );
                assert!(
                    (ours.rtn_loss / plain - 1.0).abs() < 1e-3,
                    "{} {plain}",
                    ours.rtn_loss
                );
                assert!(
                    ours.loss < ours.rtn_loss,
                    "{bits} bits: {} {}",
                    ours.loss,
                    ours.rtn_loss
                );
                assert_eq!(ours.weights.is_symmetric(), symmetric);
            }
        }
    }
}

/// Where the block start is fitted to is the difference between the two rules: none in the first
/// group, some in later ones of the same block.
#[test]
fn block_start_fit_differs_from_the_second_group_on() {
    let layer = Layer::draw(128, 8, 300, 4);
    let hessian = layer.hessian();
    let fitted = |group_fit| {
        let options = GptqOptions {
            group_fit,
            ..options(3, Some(32))
        };
        quantize_gptq(layer.weight(), &hessian, &options)
            .unwrap()
            .weights
    };
    let (exact, block_start) = (fitted(GroupFit::Exact), fitted(GroupFit::BlockStart));
    assert_eq!(exact.scales[..8], block_start.scales[..8]);
    assert_ne!(exact.scales[8..], block_start.scales[8..]);
    // Every group of the published code is the original's: nothing before the block has been rounded.
    let rtn = round_to_nearest(layer.weight(), None, &GridOptions::new(3, Some(32))).unwrap();
    assert_eq!(block_start.scales, rtn.scales);
    assert_eq!(block_start.zeros, rtn.zeros);
}

/// Exported static scales are those of the original order (neural-compressor#1614).
#[test]
fn static_groups_need_no_g_idx_under_act_order() {
    let layer = Layer::draw(128, 20, 300, 5);
    let hessian = layer.hessian();
    let mut options = GptqOptions {
        act_order: true,
        ..options(4, Some(32))
    };
    let moving = quantize_gptq(layer.weight(), &hessian, &options).unwrap();
    let g_idx = moving.weights.g_idx.as_ref().unwrap();
    let order = by_energy(&layer);
    for (position, &channel) in order.iter().enumerate() {
        assert_eq!(g_idx[channel] as usize, position / 32);
    }
    options.static_groups = true;
    let fixed = quantize_gptq(layer.weight(), &hessian, &options).unwrap();
    let rtn = round_to_nearest(layer.weight(), None, &options.grid).unwrap();
    assert_eq!(fixed.weights.g_idx, None);
    assert_eq!(
        (&fixed.weights.scales, &fixed.weights.zeros),
        (&rtn.scales, &rtn.zeros)
    );
    assert!(fixed.loss < fixed.rtn_loss);
}

/// 8 tokens for 256 channels, one channel twice (AutoGPTQ#572, llm-compressor#142).
#[test]
fn rank_deficient_hessians_are_damped_and_reported() {
    let mut layer = Layer::draw(256, 12, 8, 6);
    layer
        .inputs
        .chunks_exact_mut(256)
        .for_each(|x| x[7] = x[100]);
    for damping in [0.0, 0.01] {
        let options = GptqOptions {
            damping,
            ..options(4, Some(64))
        };
        let ours = quantize_gptq(layer.weight(), &layer.hessian(), &options).unwrap();
        assert!(ours.weights.dequantize().iter().all(|w| w.is_finite()));
        assert!(ours.loss <= ours.rtn_loss);
        assert!(
            damping > 0.0 || ours.damping > 0.0,
            "no damping was reported"
        );
    }
}

/// A channel that calibration never used keeps its weights, rounded; an input of zeros throughout
/// is rounding to nearest (keras#23532).
#[test]
fn dead_channels_are_counted_and_rounded() {
    let mut layer = Layer::draw(64, 9, 200, 7);
    layer
        .inputs
        .chunks_exact_mut(64)
        .for_each(|x| (x[2], x[40]) = (0.0, 0.0));
    let ours = quantize_gptq(layer.weight(), &layer.hessian(), &options(4, Some(16))).unwrap();
    assert_eq!(ours.dead, 2);
    let restored = ours.weights.dequantize();
    for (q, w) in restored[2 * 9..3 * 9]
        .iter()
        .zip(&layer.weight[2 * 9..3 * 9])
    {
        assert!((q - w).abs() < 0.05, "{q} {w}");
    }
    layer.inputs.fill(0.0);
    let silent = quantize_gptq(layer.weight(), &layer.hessian(), &options(4, Some(16))).unwrap();
    let rtn = round_to_nearest(layer.weight(), None, &GridOptions::new(4, Some(16))).unwrap();
    assert_eq!((silent.dead, silent.weights), (64, rtn));
}

#[test]
fn bad_input_is_named() {
    let layer = Layer::draw(32, 4, 50, 8);
    let hessian = layer.hessian();
    let error = |options| {
        quantize_gptq(layer.weight(), &hessian, &options)
            .unwrap_err()
            .to_string()
    };
    let damped = |damping| GptqOptions {
        damping,
        ..options(4, None)
    };
    assert_eq!(
        error(damped(f64::NAN)),
        "damping is NaN, limit: finite, at least 0"
    );
    assert_eq!(
        error(damped(-1.0)),
        "damping is -1, limit: finite, at least 0"
    );
    assert!(error(options(5, None)).contains("bits = 5"));
    assert!(error(options(4, Some(0))).contains("group = 0"));
    let other = Layer::draw(16, 4, 50, 8);
    let wrong = quantize_gptq(other.weight(), &hessian, &options(4, None)).unwrap_err();
    assert!(wrong.to_string().contains("expected [16, 16]"), "{wrong}");
    let mut calibration = Calibration::new(3);
    let bad = calibration
        .add(&[1.0, 2.0, 3.0, 4.0, f32::NAN, 6.0])
        .unwrap_err();
    assert_eq!(
        bad.to_string(),
        "tensor `activations`, element 4: NaN is not finite"
    );
    assert!(calibration.add(&[1.0; 4]).is_err());
    assert_eq!(calibration.tokens(), 0);
    let infinite = Weight::new(&[1.0, f32::INFINITY], 2, 1).unwrap_err();
    assert_eq!(
        infinite.to_string(),
        "tensor `weight`, element 1: inf is not finite"
    );
}

#[test]
fn empty_layers_work() {
    for (k, n) in [(0, 0), (0, 5), (7, 0)] {
        let weight = vec![0.0; k * n];
        let hessian = Calibration::new(k).finish();
        let ours = quantize_gptq(
            Weight::new(&weight, k, n).unwrap(),
            &hessian,
            &options(4, Some(32)),
        );
        assert_eq!(ours.unwrap().weights.codes.len(), 0, "{k} {n}");
    }
}
