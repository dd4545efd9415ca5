//! How fast the Hessian and the GPTQ update run beside faer's own matrix product of the same sizes
//! on the same cores, in turns: `cargo run --release -p flashcube-quantize --example speed`.

use std::time::{Duration, Instant};

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatRef, Par};
use flashcube_quantize::{
    Calibration, GptqOptions, GridOptions, QuantizeError, Weight, quantize_gptq,
};

/// Turns; the best of each counts.
const TURNS: usize = 30;
/// Calibration tokens.
const TOKENS: usize = 4096;

fn main() -> Result<(), QuantizeError> {
    let inputs: Vec<f32> = (0..TOKENS * 1536).map(value).collect();
    println!("{} threads", Par::rayon(0).degree());
    for k in [384, 576, 1536] {
        hessian(k, &inputs[..TOKENS * k])?;
    }
    for (k, n) in [
        (384, 384),
        (384, 1536),
        (576, 576),
        (576, 1536),
        (1536, 576),
        (1536, 384),
        (1536, 1536),
    ] {
        update(k, n, &inputs[..TOKENS * k])?;
    }
    Ok(())
}

/// Numbers in [-1, 1].
fn value(i: usize) -> f32 {
    ((i * 2_654_435_761) % 1009) as f32 / 504.5 - 1.0
}

/// Seconds that a product takes.
fn product(lhs: MatRef<'_, f32>, rhs: MatRef<'_, f32>, to: &mut Mat<f32>) -> Duration {
    let start = Instant::now();
    let par = Par::rayon(0);
    matmul(to.as_mut(), Accum::Replace, lhs, rhs, 1.0, par);
    start.elapsed()
}

/// Prints rates in GFLOP/s. Ours does half of the product's work.
fn print(what: &str, work: usize, ours: Duration, faer: Duration) {
    let ours = work as f64 / ours.as_secs_f64() / 1e9;
    let faer = 2.0 * work as f64 / faer.as_secs_f64() / 1e9;
    println!(
        "{what}: {ours:.1} GFLOP/s, {:.2} of faer's {faer:.1}",
        ours / faer
    );
}

/// X^T X of `x` [tokens, k]: only half of it is needed.
fn hessian(k: usize, x: &[f32]) -> Result<(), QuantizeError> {
    let x_mat = MatRef::from_row_major_slice(x, TOKENS, k);
    let mut square = Mat::zeros(k, k);
    let mut calibration = Calibration::new(k);
    let [mut faer, mut ours] = [Duration::MAX; 2];
    for _ in 0..TURNS {
        faer = faer.min(product(x_mat.transpose(), x_mat, &mut square));
        let start = Instant::now();
        calibration.add(x)?;
        ours = ours.min(start.elapsed());
    }
    print(&format!("hessian {k}"), TOKENS * k * k, ours, faer);
    Ok(())
}

/// The update of a layer of these sizes: every channel meets only those after it.
fn update(k: usize, n: usize, inputs: &[f32]) -> Result<(), QuantizeError> {
    let weight: Vec<f32> = (0..k * n).map(|i| value(i + 7)).collect();
    let mut calibration = Calibration::new(k);
    calibration.add(inputs)?;
    let moments = calibration.finish();
    let options = GptqOptions::new(GridOptions::new(4, Some(64)));
    let (lhs, rhs) = (Mat::zeros(k, k), Mat::zeros(k, n));
    let mut to = rhs.clone();
    let [mut faer, mut factor, mut ours] = [Duration::MAX; 3];
    for _ in 0..TURNS {
        faer = faer.min(product(lhs.as_ref(), rhs.as_ref(), &mut to));
        let layer = quantize_gptq(Weight::new(&weight, k, n)?, &moments, &options)?;
        factor = factor.min(layer.factor_time);
        ours = ours.min(layer.update_time);
    }
    let what = format!("update {k} x {n} (factorization {factor:.1?})");
    print(&what, k * k * n, ours, faer);
    Ok(())
}
