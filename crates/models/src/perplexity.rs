use crate::{Attend, Llama, ModelError};

/// Hidden states whose scores are computed together: [rows, vocab] is the largest buffer of a run.
const ROWS: usize = 64;

/// How well a decoder predicts a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Perplexity {
    /// Tokens predicted: all but the first of each window.
    pub tokens: usize,
    /// Sum of -ln p(token).
    pub nats: f64,
}

impl Perplexity {
    /// exp(mean of -ln p); NaN before any token.
    pub fn value(&self) -> f64 {
        (self.nats / self.tokens as f64).exp()
    }
}

/// Perplexity of the tokens `ids`, in windows of `window` that do not overlap; each window starts
/// without a past, and what is left over at the end is dropped. `each` is told the state after
/// every window.
///
/// # Errors
/// [`ModelError::InvalidInput`] for a window below 2 or longer than the text, those of
/// [`Llama::hidden_states`].
pub fn perplexity(
    model: &Llama,
    ids: &[u32],
    window: usize,
    attend: &mut Attend<'_>,
    mut each: impl FnMut(&Perplexity),
) -> Result<Perplexity, ModelError> {
    if window < 2 || window > ids.len() {
        return Err(ModelError::invalid("window, at least 2", window, ids.len()));
    }
    let hidden = model.config().hidden_size.max(1);
    let vocab = model.config().vocab_size.max(1);
    let mut total = Perplexity::default();
    for ids in ids.chunks_exact(window) {
        let states = model.hidden_states(ids, 1, 0, attend)?;
        let next = ids[1..].chunks(ROWS);
        for (states, next) in states.chunks(ROWS * hidden).zip(next) {
            let logits = model.logits(&states[..next.len() * hidden])?;
            for (logits, &id) in logits.chunks_exact(vocab).zip(next) {
                total.nats += log_sum_exp(logits) - f64::from(logits[id as usize]);
                total.tokens += 1;
            }
        }
        each(&total);
    }
    Ok(total)
}

/// ln of the sum of exp(x).
fn log_sum_exp(x: &[f32]) -> f64 {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = x.iter().map(|&x| f64::from(x - max).exp()).sum();
    f64::from(max) + sum.ln()
}
