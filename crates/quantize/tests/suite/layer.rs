//! Synthetic layers: correlated inputs with a few loud channels, as models have them.

use flashcube_quantize::{Calibration, Hessian, Weight};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::StandardNormal;

pub(crate) struct Layer {
    pub(crate) k: usize,
    pub(crate) n: usize,
    /// [k, n]
    pub(crate) weight: Vec<f32>,
    /// [tokens, k]
    pub(crate) inputs: Vec<f32>,
}

impl Layer {
    /// Inputs are a mixture of k/4 directions and noise; every 17th channel is ten times louder.
    pub(crate) fn draw(k: usize, n: usize, tokens: usize, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut normal = |count: usize| -> Vec<f32> {
            (0..count).map(|_| random.sample(StandardNormal)).collect()
        };
        let rank = (k / 4).max(1);
        let (mixture, latent) = (normal(rank * k), normal(tokens * rank));
        let mut inputs = normal(tokens * k);
        for (token, x) in inputs.chunks_exact_mut(k).enumerate() {
            for (channel, x) in x.iter_mut().enumerate() {
                *x *= 0.3;
                for r in 0..rank {
                    *x +=
                        latent[token * rank + r] * mixture[r * k + channel] / (rank as f32).sqrt();
                }
                if channel % 17 == 3 {
                    *x *= 10.0;
                }
            }
        }
        let weight = normal(k * n).into_iter().map(|w| w * 0.05).collect();
        Self {
            k,
            n,
            weight,
            inputs,
        }
    }

    pub(crate) fn weight(&self) -> Weight<'_> {
        Weight::new(&self.weight, self.k, self.n).unwrap()
    }

    pub(crate) fn hessian(&self) -> Hessian {
        let mut calibration = Calibration::new(self.k);
        calibration.add(&self.inputs).unwrap();
        calibration.finish()
    }

    /// Mean over the tokens of |x (W - restored)|^2, in f64, from the inputs themselves.
    pub(crate) fn loss(&self, restored: &[f32]) -> f64 {
        let tokens = self.inputs.len() / self.k;
        let mut total = 0.0;
        for x in self.inputs.chunks_exact(self.k) {
            for column in 0..self.n {
                let off: f64 = (0..self.k)
                    .map(|row| {
                        let at = row * self.n + column;
                        f64::from(x[row]) * (f64::from(self.weight[at]) - f64::from(restored[at]))
                    })
                    .sum();
                total += off * off;
            }
        }
        total / tokens as f64
    }
}
