use flashcube_quantize::*;

use crate::layer::Layer;

fn options(bits: u32) -> AwqOptions {
    AwqOptions::new(GridOptions::new(bits, Some(32)))
}

#[test]
fn scales_lower_the_output_error_and_cancel_in_floats() {
    for duo_scaling in [true, false] {
        let layer = Layer::draw(96, 24, 300, 1);
        let options = AwqOptions {
            duo_scaling,
            ..options(3)
        };
        let found = search_scales(&[layer.weight()], &layer.hessian(), None, &options).unwrap();
        assert!(
            found.ratio.is_some() && found.loss < found.rtn_loss,
            "{found:?}"
        );
        assert_eq!(found.not_finite, 0);

        let scaled = multiply_inputs(&layer.weight, &found.scales, layer.n);
        let mut back = scaled.clone();
        divide_inputs(&mut back, &found.scales, layer.n);
        let off = back
            .iter()
            .zip(&layer.weight)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(off < 1e-6, "{off}");

        let weight = Weight::new(&scaled, layer.k, layer.n).unwrap();
        let mut restored = round_to_nearest(weight, None, &options.grid)
            .unwrap()
            .dequantize();
        divide_inputs(&mut restored, &found.scales, layer.n);
        let measured = layer.loss(&restored);
        assert!(
            (measured / found.loss - 1.0).abs() < 1e-3,
            "{measured} {}",
            found.loss
        );
    }
}

/// Nothing is gained on inputs that are all alike: no scale at all is among the candidates.
#[test]
fn never_worse_than_rounding() {
    for seed in 0..6 {
        let mut layer = Layer::draw(64, 16, 100, seed);
        layer.inputs.iter_mut().for_each(|x| *x = x.signum());
        let found = search_scales(&[layer.weight()], &layer.hessian(), None, &options(4)).unwrap();
        assert!(found.loss <= found.rtn_loss);
    }
}

#[test]
fn tied_channels_share_a_scale() {
    let layer = Layer::draw(96, 24, 300, 2);
    // Two query heads of 16 on each of three key heads.
    let ties: Vec<usize> = (0..96).map(|c| c / 32 * 16 + c % 16).collect();
    let found = search_scales(
        &[layer.weight()],
        &layer.hessian(),
        Some(&ties),
        &options(3),
    )
    .unwrap();
    assert!(found.ratio.is_some());
    for channel in 0..96 {
        assert_eq!(
            found.scales[channel],
            found.scales[channel / 32 * 32 + channel % 16]
        );
    }
}

/// A few loud channels (6e4), a channel of zeros, a zero group: the search stays finite
/// (AutoAWQ#535, #498).
#[test]
fn extreme_inputs_leave_finite_scales() {
    let mut layer = Layer::draw(128, 16, 60, 3);
    for x in layer.inputs.chunks_exact_mut(128) {
        (x[5], x[6]) = (6e4, 0.0);
    }
    layer.weight[..32 * 16].fill(0.0);
    for tokens in [1, 2, 60] {
        let mut calibration = Calibration::new(128);
        calibration.add(&layer.inputs[..tokens * 128]).unwrap();
        let found =
            search_scales(&[layer.weight()], &calibration.finish(), None, &options(4)).unwrap();
        assert!(found.scales.iter().all(|s| s.is_finite() && *s > 0.0));
        assert!(found.loss.is_finite() && found.loss <= found.rtn_loss);
    }
    // Inputs whose squares leave f32: nothing can be compared, so nothing is scaled.
    layer.inputs.iter_mut().for_each(|x| *x = 1e30);
    let found = search_scales(&[layer.weight()], &layer.hessian(), None, &options(4)).unwrap();
    assert_eq!((found.ratio, found.not_finite > 0), (None, true));
    assert!(found.scales.iter().all(|&s| s == 1.0));
}

/// The moments of divided inputs are those of the inputs divided.
#[test]
fn divided_hessian_is_that_of_divided_inputs() {
    let mut layer = Layer::draw(20, 5, 40, 4);
    let scales: Vec<f32> = (0..20).map(|i| 0.5 + i as f32 / 10.0).collect();
    let divided = layer.hessian().divided(&scales).unwrap();
    for x in layer.inputs.chunks_exact_mut(20) {
        x.iter_mut().zip(&scales).for_each(|(x, s)| *x /= s);
    }
    let direct = layer.hessian();
    let pairs = divided.diagonal().into_iter().zip(direct.diagonal());
    assert!(pairs.map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max) < 1e-5);
    let (a, b) = (
        divided.output_square(layer.weight()),
        direct.output_square(layer.weight()),
    );
    assert!((a.unwrap() / b.unwrap() - 1.0).abs() < 1e-5);
}

#[test]
fn clipping_by_the_groups_own_output_error_helps() {
    let mut layer = Layer::draw(128, 40, 400, 5);
    layer.weight.iter_mut().step_by(53).for_each(|w| *w *= 3.0);
    let clipped = GridOptions {
        clip: Some(ClipSearch::DEFAULT),
        ..GridOptions::new(3, Some(32))
    };
    let hessian = layer.hessian();
    let ours = round_clipped(layer.weight(), &hessian, &clipped).unwrap();
    let plain = round_clipped(layer.weight(), &hessian, &GridOptions::new(3, Some(32))).unwrap();
    let rtn = round_to_nearest(layer.weight(), None, &GridOptions::new(3, Some(32))).unwrap();
    assert_eq!(plain, rtn);
    let (clipped, plain) = (
        layer.loss(&ours.dequantize()),
        layer.loss(&plain.dequantize()),
    );
    assert!(clipped < plain, "{clipped} {plain}");
}
