//! GPTQ as the paper states it, in f64: one column after another, the inverse of the Hessian
//! updated by elimination, no blocks and no Cholesky.

use crate::layer::Layer;

/// Codes [k, n] and restored weights [k, n] of asymmetric groups fitted on the way, rows in the
/// order `order`.
pub(crate) fn gptq(
    layer: &Layer,
    order: &[usize],
    bits: u32,
    group: usize,
    damping: f64,
) -> (Vec<u8>, Vec<f32>) {
    let (k, n) = (layer.k, layer.n);
    let mut hessian = vec![vec![0.0f64; k]; k];
    let tokens = layer.inputs.len() / k;
    for x in layer.inputs.chunks_exact(k) {
        for i in 0..k {
            for j in 0..k {
                let product = f64::from(x[order[i]]) * f64::from(x[order[j]]);
                hessian[i][j] += product / tokens as f64;
            }
        }
    }
    let mean = (0..k).map(|i| hessian[i][i]).sum::<f64>() / k as f64;
    (0..k).for_each(|i| hessian[i][i] += damping * mean);
    let mut inverse = invert(hessian);
    let mut w: Vec<Vec<f64>> = order
        .iter()
        .map(|&row| {
            layer.weight[row * n..][..n]
                .iter()
                .map(|&w| w.into())
                .collect()
        })
        .collect();
    let (mut codes, mut restored) = (vec![0u8; k * n], vec![0.0f32; k * n]);
    let mut grid = vec![(0.0, 0.0); n];
    for i in 0..k {
        if i % group == 0 {
            for (column, grid) in grid.iter_mut().enumerate() {
                *grid = fit((i..(i + group).min(k)).map(|row| w[row][column]), bits);
            }
        }
        for column in 0..n {
            let (scale, zero) = grid[column];
            let top = f64::from((1u32 << bits) - 1);
            let code = ((w[i][column] / scale).round_ties_even() + zero).clamp(0.0, top);
            let q = scale * (code - zero);
            let at = order[i] * n + column;
            (codes[at], restored[at]) = (code as u8, q as f32);
            let error = (w[i][column] - q) / inverse[i][i];
            for j in i + 1..k {
                w[j][column] -= error * inverse[i][j];
            }
        }
        let pivot = inverse[i].clone();
        for a in i + 1..k {
            for b in i + 1..k {
                inverse[a][b] -= pivot[a] * pivot[b] / pivot[i];
            }
        }
    }
    (codes, restored)
}

/// Scale (rounded to f16, as a checkpoint holds it) and zero point of a range that includes 0.
fn fit(values: impl Iterator<Item = f64>, bits: u32) -> (f64, f64) {
    let (low, high) = values.fold((0.0f64, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    let top = f64::from((1u32 << bits) - 1);
    let scale = half::f16::from_f64((high - low) / top).to_f64();
    (scale, (-low / scale).round_ties_even().clamp(0.0, top))
}

/// Gauss-Jordan with pivots on the diagonal, which a positive definite matrix allows.
fn invert(mut a: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let k = a.len();
    let mut inverse: Vec<Vec<f64>> = (0..k)
        .map(|i| (0..k).map(|j| f64::from(u8::from(i == j))).collect())
        .collect();
    for i in 0..k {
        let pivot = a[i][i];
        for j in 0..k {
            a[i][j] /= pivot;
            inverse[i][j] /= pivot;
        }
        let (row, inverse_row) = (a[i].clone(), inverse[i].clone());
        for other in (0..k).filter(|&other| other != i) {
            let factor = a[other][i];
            for j in 0..k {
                a[other][j] -= factor * row[j];
                inverse[other][j] -= factor * inverse_row[j];
            }
        }
    }
    inverse
}
