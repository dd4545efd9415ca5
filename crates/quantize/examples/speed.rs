//! How fast the Hessian and the GPTQ update run beside faer's own matrix product on the same
//! cores: `cargo run --release -p flashcube-quantize --example speed`.

use std::time::{Duration, Instant};

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par};
use flashcube_quantize::{
    Calibration, GptqOptions, GridOptions, QuantizeError, Weight, quantize_gptq,
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
    let (tokens, k) = (4096, 1536);
    let inputs: Vec<f32> = (0..tokens * k).map(value).collect();
    let x = Mat::from_fn(tokens, k, |i, j| inputs[i * k + j]);
    let mut c = Mat::<f32>::zeros(k, k);
    let product = seconds(|| {
        let lhs = x.transpose();
        let par = Par::rayon(0);
        matmul(c.as_mut(), Accum::Replace, lhs, x.as_ref(), 1.0f32, par);
        Ok(())
    })?;
    let faer = 2.0 * (tokens * k * k) as f64 / product / 1e9;
    println!("faer matmul {k} x {tokens} x {k}: {faer:.1} GFLOP/s");

    let hessian = seconds(|| Calibration::new(k).add(&inputs))?;
    // The symmetric half only is needed: the work that counts is half of the product's.
    let rate = (tokens * k * k) as f64 / hessian / 1e9;
    println!("hessian: {rate:.1} GFLOP/s, {:.2} of faer", rate / faer);

    for (k, n) in [
        (384, 384),
        (384, 1536),
        (576, 576),
        (576, 1536),
        (1536, 576),
        (1536, 384),
        (1536, 1536),
    ] {
        update(k, n, &inputs)?;
    }
    Ok(())
}

/// Numbers in [-1, 1].
fn value(i: usize) -> f32 {
    ((i * 2_654_435_761) % 1009) as f32 / 504.5 - 1.0
}

/// The update of a layer of these sizes beside faer's product of the same: both in one breath, so
/// that other work on the machine disturbs both.
fn update(k: usize, n: usize, inputs: &[f32]) -> Result<(), QuantizeError> {
    let weight: Vec<f32> = (0..k * n).map(|i| value(i + 7)).collect();
    let mut calibration = Calibration::new(k);
    calibration.add(&inputs[..inputs.len() / k * k])?;
    let moments = calibration.finish();
    let options = GptqOptions::new(GridOptions::new(4, Some(64)));
    let (lhs, rhs) = (Mat::<f32>::zeros(k, k), Mat::<f32>::zeros(k, n));
    let mut c = rhs.clone();
    let [mut product, mut factor, mut rounding] = [Duration::MAX; 3];
    for _ in 0..20 {
        let start = Instant::now();
        matmul(
            c.as_mut(),
            Accum::Replace,
            &lhs,
            &rhs,
            1.0f32,
            Par::rayon(0),
        );
        product = product.min(start.elapsed());
        let layer = quantize_gptq(Weight::new(&weight, k, n)?, &moments, &options)?;
        factor = factor.min(layer.factor_time);
        rounding = rounding.min(layer.update_time);
    }
    let work = (k * k * n) as f64 / 1e9;
    // The update does half of the product's work: every channel meets only those after it.
    let (faer, rate) = (
        2.0 * work / product.as_secs_f64(),
        work / rounding.as_secs_f64(),
    );
    println!(
        "gptq {k} x {n}: factor {factor:.1?}, update {rounding:.1?}: {rate:.1} GFLOP/s, {:.2} of faer's {faer:.1}",
        rate / faer
    );
    Ok(())
}
