use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::{Attend, Llama, ModelError};

/// How the next token is chosen.
#[derive(Debug, Clone)]
pub struct Sampler {
    temperature: f32,
    top_p: f32,
    random: StdRng,
}

impl Sampler {
    /// The likeliest token each time; of equals the first.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            random: StdRng::seed_from_u64(0),
        }
    }

    /// Draws from softmax(logits / temperature), of the likeliest tokens that together have
    /// `top_p`; temperature 0 is greedy. The same seed draws the same tokens.
    ///
    /// # Errors
    /// [`ModelError::Config`] for a temperature that is negative or not finite, or a `top_p`
    /// outside (0, 1].
    pub fn drawing(temperature: f32, top_p: f32, seed: u64) -> Result<Self, ModelError> {
        let refuse = |field, value: f32, expected: &str| {
            Err(ModelError::Config {
                field,
                value: value.to_string(),
                expected: expected.to_owned(),
            })
        };
        if !(temperature.is_finite() && temperature >= 0.0) {
            return refuse("temperature", temperature, "finite, at least 0");
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return refuse("top_p", top_p, "in (0, 1]");
        }
        Ok(Self {
            temperature,
            top_p,
            random: StdRng::seed_from_u64(seed),
        })
    }

    /// The next token.
    pub fn choose(&mut self, logits: &[f32]) -> u32 {
        if self.temperature == 0.0 {
            let best =
                |best: usize, (i, &x): (usize, &f32)| if x > logits[best] { i } else { best };
            return logits.iter().enumerate().fold(0, best) as u32;
        }
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let top = order.first().map_or(0.0, |&first| logits[first]);
        let weight = |&i: &usize| f64::from((logits[i] - top) / self.temperature).exp();
        let weights: Vec<f64> = order.iter().map(weight).collect();
        let enough = f64::from(self.top_p) * weights.iter().sum::<f64>();
        let mut kept = 0.0;
        let within = weights.iter().take_while(|&&w| {
            let needed = kept < enough;
            kept += w;
            needed
        });
        let kept: Vec<f64> = within.copied().collect();
        let mut left = self.random.random::<f64>() * kept.iter().sum::<f64>();
        let drawn = kept.iter().position(|w| {
            left -= w;
            left <= 0.0
        });
        order.get(drawn.unwrap_or(0)).copied().unwrap_or(0) as u32
    }
}

/// A text in the making: the prompt goes through at once, then token after token against the keys
/// and values that `attend` keeps.
pub struct Generator<'a> {
    model: &'a Llama,
    past: usize,
}

impl<'a> Generator<'a> {
    /// Nothing read yet.
    pub fn new(model: &'a Llama) -> Self {
        Self { model, past: 0 }
    }

    /// Tokens read so far.
    pub fn past(&self) -> usize {
        self.past
    }

    /// Reads the next tokens; the scores `[vocab]` of what may follow the last of them.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] for no token, those of [`Llama::hidden_states`].
    pub fn read(&mut self, ids: &[u32], attend: &mut Attend<'_>) -> Result<Vec<f32>, ModelError> {
        if ids.is_empty() {
            return Err(ModelError::invalid("tokens to read, at least 1", 0, 1));
        }
        let states = self.model.hidden_states(ids, 1, self.past, attend)?;
        self.past += ids.len();
        let last = states.len() - self.model.config().hidden_size;
        self.model.logits(&states[last..])
    }
}
