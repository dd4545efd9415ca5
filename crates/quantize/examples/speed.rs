//! How fast the Hessian and the GPTQ update run beside faer's own matrix product on the same
//! cores: `cargo run --release -p flashcube-quantize --example speed`.

use std::time::Instant;

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par};
use flashcube_quantize::{
    Calibration, GptqOptions, GridOptions, QuantizeError, Weight, quantize_gptq, round_to_nearest,
};

/// Best of three, in seconds.
fn seconds(mut run: impl FnMut() -> Result<(), QuantizeError>) -> Result<f64, QuantizeError> {
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn main() -> Result<(), QuantizeError> {
    let (tokens, k, n) = (4096, 1536, 1536);
    let value = |i: usize| ((i * 2_654_435_761) % 1009) as f32 / 504.5 - 1.0;
    let inputs: Vec<f32> = (0..tokens * k).map(value).collect();
    let weight: Vec<f32> = (0..k * n).map(|i| value(i + 7)).collect();

    let (a, b) = (
        Mat::from_fn(tokens, k, |i, j| inputs[i * k + j]),
        Mat::<f32>::zeros(k, k),
    );
    let mut c = b.clone();
    let product = seconds(|| {
        let lhs = a.transpose();
        matmul(
            c.as_mut(),
            Accum::Replace,
            lhs,
            a.as_ref(),
            1.0f32,
            Par::rayon(0),
        );
        Ok(())
    })?;
    let faer = 2.0 * (tokens * k * k) as f64 / product / 1e9;
    println!("faer matmul {k} x {tokens} x {k}: {faer:.1} GFLOP/s");

    let hessian = seconds(|| Calibration::new(k).add(&inputs))?;
    // The symmetric half only is needed: the work that counts is half of the product's.
    let rate = (tokens * k * k) as f64 / hessian / 1e9;
    println!("hessian: {rate:.1} GFLOP/s, {:.2} of faer", rate / faer);

    let mut calibration = Calibration::new(k);
    calibration.add(&inputs)?;
    let moments = calibration.finish();
    let view = Weight::new(&weight, k, n)?;
    let options = GptqOptions::new(GridOptions::new(4, Some(128)));
    let whole = seconds(|| quantize_gptq(view, &moments, &options).map(drop))?;
    let rest = seconds(|| {
        // What surrounds the update: two losses and the plain rounding.
        let rtn = round_to_nearest(view, None, &options.grid)?.dequantize();
        moments.output_square(Weight::new(&rtn, k, n)?)?;
        moments.output_square(view).map(drop)
    })?;
    let rate = (k * k * n) as f64 / (whole - rest) / 1e9;
    println!(
        "gptq: {whole:.2} s, of which factor and update {:.2} s: {rate:.1} GFLOP/s, {:.2} of faer",
        whole - rest,
        rate / faer
    );
    Ok(())
}
