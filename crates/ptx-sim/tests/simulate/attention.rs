//! Attention in f64, and what a kernel that rounds P and the output to bf16 may differ by.

use flashcube_ptx_sim::Format;

pub(crate) struct Problem {
    pub(crate) s_q: usize,
    pub(crate) s_kv: usize,
    pub(crate) d: usize,
    pub(crate) scale: f64,
    pub(crate) causal: bool,
}

pub(crate) struct Exact {
    pub(crate) out: Vec<f64>,
    pub(crate) lse: Vec<f64>,
    /// Largest deviation of each element.
    pub(crate) bound: Vec<f64>,
}

/// out = softmax(scale q k^T) v of one head; causal counts from the top left.
pub(crate) fn attend(p: &Problem, q: &[f64], k: &[f64], v: &[f64]) -> Exact {
    let mut exact = Exact {
        out: vec![0.0; p.s_q * p.d],
        lse: vec![0.0; p.s_q],
        bound: vec![0.0; p.s_q * p.d],
    };
    for i in 0..p.s_q {
        let visible = if p.causal { p.s_kv.min(i + 1) } else { p.s_kv };
        let logits: Vec<f64> = (0..visible)
            .map(|j| {
                p.scale
                    * (0..p.d)
                        .map(|c| q[i * p.d + c] * k[j * p.d + c])
                        .sum::<f64>()
            })
            .collect();
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = logits.iter().map(|x| (x - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        exact.lse[i] = max + sum.ln();
        for c in 0..p.d {
            let at = i * p.d + c;
            let term = |j: usize| weights[j] / sum * v[j * p.d + c];
            exact.out[at] = (0..visible).map(term).sum();
            // P and out are rounded to bf16 (2^-8 each): independent roundings of P, four deviations of them, then the
            // factor 2 of the conformance rule, and f32 arithmetic.
            let squares: f64 = (0..visible).map(|j| term(j) * term(j)).sum();
            let u = 2f64.powi(-8);
            exact.bound[at] = 2.0 * (4.0 * u * squares.sqrt() + u * exact.out[at].abs()) + 1e-5;
        }
    }
    exact
}

/// Fails with the first element outside its bound.
pub(crate) fn compare(exact: &Exact, out: &[u8], lse: Option<&[u8]>) -> Result<(), String> {
    for (i, got) in super::values::floats(out, Format::Bf16)
        .into_iter()
        .enumerate()
    {
        let error = (got - exact.out[i]).abs();
        if error.is_nan() || error > exact.bound[i] {
            return Err(format!(
                "out[{i}]: {got}, exact {}, bound {}",
                exact.out[i], exact.bound[i]
            ));
        }
    }
    for (i, got) in lse
        .map(|lse| super::values::floats(lse, Format::F32))
        .into_iter()
        .flatten()
        .enumerate()
    {
        if (got - exact.lse[i]).abs().is_nan() || (got - exact.lse[i]).abs() > 1e-4 {
            return Err(format!("lse[{i}]: {got}, exact {}", exact.lse[i]));
        }
    }
    Ok(())
}
