use std::path::Path;

use flashcube_formats::{Checkpoint, FormatError};

use crate::layers::{LayerNorm, Linear, gelu, read};
use crate::{BertConfig, ModelError, Real, TokenBatch};

/// One attention that the model asks its caller for: `softmax(scale q k^T) v` over the valid keys
/// of each batch row, no causal mask.
#[derive(Debug, Clone, Copy)]
pub struct AttentionCall<'a, T> {
    /// Encoder layer, from 0.
    pub layer: usize,
    /// Batch rows (sentences).
    pub b: usize,
    /// Heads, the same for queries and keys.
    pub h: usize,
    /// Padded sequence length of queries and keys.
    pub s: usize,
    /// Head width of q, k and v.
    pub d: usize,
    /// Queries, [b, h, s, d] contiguous; rows past a length are 0.
    pub q: &'a [T],
    /// Keys, [b, h, s, d] contiguous; rows past a length are 0.
    pub k: &'a [T],
    /// Values, [b, h, s, d] contiguous; rows past a length are 0.
    pub v: &'a [T],
    /// Valid keys of each batch row, `[b]`: keys from there on are hidden.
    pub lengths: &'a [usize],
    /// Factor on the scores: 1 / sqrt(d).
    pub scale: f64,
}

#[derive(Debug)]
struct Layer<T> {
    query: Linear<T>,
    key: Linear<T>,
    value: Linear<T>,
    attention_output: Linear<T>,
    attention_norm: LayerNorm<T>,
    intermediate: Linear<T>,
    output: Linear<T>,
    output_norm: LayerNorm<T>,
}

/// A BERT encoder (Devlin et al. 2018, post-norm) as a sentence model (Reimers, Gurevych 2019):
/// the mean of the last layer over the valid tokens, scaled to length 1.
///
/// Everything but the attention runs on the host in `T`.
///
/// ```no_run
/// use flashcube_models::{Bert, ModelError, Tokenizer, minilm_dir};
///
/// let tokens = Tokenizer::open(minilm_dir().join("tokenizer.json"))?.encode(&["A cat sat."])?;
/// let model = Bert::<f32>::open(&minilm_dir())?;
/// let embeddings = model.embed(&tokens, |call| -> Result<Vec<f32>, ModelError> {
///     // Uniform attention over all keys; a kernel goes here.
///     let rows = call.b * call.h * call.s;
///     Ok((0..rows * call.d).map(|i| call.v[i] / call.lengths[0] as f32).collect())
/// })?; // [1, 384]
/// # Ok::<(), ModelError>(())
/// ```
#[derive(Debug)]
pub struct Bert<T> {
    config: BertConfig,
    /// [vocab_size, hidden_size]
    words: Vec<f32>,
    /// [max_position_embeddings, hidden_size]
    positions: Vec<f32>,
    /// [type_vocab_size, hidden_size]
    types: Vec<f32>,
    embedding_norm: LayerNorm<T>,
    layers: Vec<Layer<T>>,
}

impl<T: Real> Bert<T> {
    /// Reads `config.json` and the safetensors checkpoint of a folder.
    ///
    /// # Errors
    /// Any [`ModelError`] about files, tensors or the configuration.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let config = BertConfig::open(folder.join("config.json"))?;
        Ok(Self::load(config, &Checkpoint::open(folder)?)?)
    }

    /// Builds the encoder from a checked configuration and its tensors.
    ///
    /// # Errors
    /// [`FormatError`] naming the tensor that is missing or of another shape or type.
    pub fn load(config: BertConfig, checkpoint: &Checkpoint) -> Result<Self, FormatError> {
        let hidden = config.hidden_size;
        let table = |name: &str, rows: usize| {
            read(
                checkpoint,
                &format!("embeddings.{name}_embeddings.weight"),
                &[rows, hidden],
            )
        };
        let eps = config.layer_norm_eps;
        Ok(Self {
            words: table("word", config.vocab_size)?,
            positions: table("position", config.max_position_embeddings)?,
            types: table("token_type", config.type_vocab_size)?,
            embedding_norm: LayerNorm::load(checkpoint, "embeddings.LayerNorm", hidden, eps)?,
            layers: (0..config.num_hidden_layers)
                .map(|i| Layer::load(checkpoint, i, &config))
                .collect::<Result<_, _>>()?,
            config,
        })
    }

    /// The configuration it was built from.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// Sentence embeddings [b, hidden_size], each of length 1 (a row without tokens gives 0).
    /// `attend` is called once for each layer and returns [b, h, s, d].
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] for a batch or an attention result that does not fit, and
    /// whatever `attend` returns.
    pub fn embed<E: From<ModelError>>(
        &self,
        batch: &TokenBatch,
        mut attend: impl FnMut(AttentionCall<'_, T>) -> Result<Vec<T>, E>,
    ) -> Result<Vec<T>, E> {
        self.check(batch)?;
        let mut x = self.embed_tokens(batch);
        let heads = Heads::of(batch, &self.config);
        for (layer, weights) in self.layers.iter().enumerate() {
            let [q, k, v] = [&weights.query, &weights.key, &weights.value]
                .map(|projection| heads.split(&projection.apply(&x)));
            let call = AttentionCall {
                layer,
                b: heads.b,
                h: heads.h,
                s: heads.s,
                d: heads.d,
                q: &q,
                k: &k,
                v: &v,
                lengths: &batch.lengths,
                scale: 1.0 / (heads.d as f64).sqrt(),
            };
            let attended = attend(call)?;
            if attended.len() != q.len() {
                return Err(
                    invalid("values returned by attention", attended.len(), q.len()).into(),
                );
            }
            x = weights.after_attention(x, &heads.join(&attended));
        }
        Ok(pool(&x, &batch.lengths, self.config.hidden_size))
    }

    fn check(&self, batch: &TokenBatch) -> Result<(), ModelError> {
        let BertConfig {
            vocab_size,
            max_position_embeddings,
            ..
        } = self.config;
        if batch.s > max_position_embeddings {
            return Err(invalid("sequence length", batch.s, max_position_embeddings));
        }
        if batch.ids.len() != batch.lengths.len() * batch.s {
            return Err(invalid(
                "token ids",
                batch.ids.len(),
                batch.lengths.len() * batch.s,
            ));
        }
        if let Some(&length) = batch.lengths.iter().find(|&&length| length > batch.s) {
            return Err(invalid("valid tokens of a row", length, batch.s));
        }
        match batch.ids.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&id) => Err(invalid(
                "token id",
                id as usize,
                vocab_size.saturating_sub(1),
            )),
            None => Ok(()),
        }
    }

    /// Word + position + type 0 embeddings of the valid tokens, normalised: [tokens, hidden].
    fn embed_tokens(&self, batch: &TokenBatch) -> Vec<T> {
        let hidden = self.config.hidden_size;
        let row = |table: &[f32], i: usize, j: usize| T::from_f32(table[i * hidden + j]);
        let mut x = Vec::with_capacity(batch.lengths.iter().sum::<usize>() * hidden);
        for (b, &length) in batch.lengths.iter().enumerate() {
            for position in 0..length {
                let id = batch.ids[b * batch.s + position] as usize;
                x.extend((0..hidden).map(|j| {
                    row(&self.words, id, j)
                        + row(&self.positions, position, j)
                        + row(&self.types, 0, j)
                }));
            }
        }
        self.embedding_norm.apply(&mut x);
        x
    }
}

impl<T: Real> Layer<T> {
    fn load(checkpoint: &Checkpoint, i: usize, config: &BertConfig) -> Result<Self, FormatError> {
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let linear = |name: &str, inputs, outputs| {
            Linear::load(
                checkpoint,
                &format!("encoder.layer.{i}.{name}"),
                inputs,
                outputs,
            )
        };
        let norm = |name: &str| {
            let name = format!("encoder.layer.{i}.{name}.LayerNorm");
            LayerNorm::load(checkpoint, &name, hidden, config.layer_norm_eps)
        };
        Ok(Self {
            query: linear("attention.self.query", hidden, hidden)?,
            key: linear("attention.self.key", hidden, hidden)?,
            value: linear("attention.self.value", hidden, hidden)?,
            attention_output: linear("attention.output.dense", hidden, hidden)?,
            attention_norm: norm("attention.output")?,
            intermediate: linear("intermediate.dense", hidden, wide)?,
            output: linear("output.dense", wide, hidden)?,
            output_norm: norm("output")?,
        })
    }

    /// `x` and `attended`: [tokens, hidden]; both residual sums are normalised after the addition.
    fn after_attention(&self, x: Vec<T>, attended: &[T]) -> Vec<T> {
        let x = add_norm(
            self.attention_output.apply(attended),
            &x,
            &self.attention_norm,
        );
        let mut wide = self.intermediate.apply(&x);
        gelu(&mut wide);
        add_norm(self.output.apply(&wide), &x, &self.output_norm)
    }
}

fn add_norm<T: Real>(mut y: Vec<T>, residual: &[T], norm: &LayerNorm<T>) -> Vec<T> {
    for (y, &r) in y.iter_mut().zip(residual) {
        *y = *y + r;
    }
    norm.apply(&mut y);
    y
}

/// The two layouts of activations: [tokens, h d] over valid tokens only, so that the linear parts
/// spend nothing on padding, and [b, h, s, d] with zeros past each length, for attention.
struct Heads<'a> {
    b: usize,
    h: usize,
    s: usize,
    d: usize,
    lengths: &'a [usize],
}

impl<'a> Heads<'a> {
    fn of(batch: &'a TokenBatch, config: &BertConfig) -> Self {
        let h = config.num_attention_heads;
        let d = config.hidden_size / h;
        Self {
            b: batch.lengths.len(),
            h,
            s: batch.s,
            d,
            lengths: &batch.lengths,
        }
    }

    /// (offset in [tokens, h d], offset in [b, h, s, d]) of each run of d values.
    fn runs(&self) -> impl Iterator<Item = (usize, usize)> {
        let valid = self
            .lengths
            .iter()
            .enumerate()
            .flat_map(|(b, &length)| (0..length).map(move |i| (b, i)));
        valid.enumerate().flat_map(move |(token, (b, i))| {
            (0..self.h).map(move |head| {
                let padded = (b * self.h + head) * self.s + i;
                ((token * self.h + head) * self.d, padded * self.d)
            })
        })
    }

    fn split<T: Real>(&self, x: &[T]) -> Vec<T> {
        let mut y = vec![T::zero(); self.b * self.h * self.s * self.d];
        for (from, to) in self.runs() {
            y[to..to + self.d].copy_from_slice(&x[from..from + self.d]);
        }
        y
    }

    fn join<T: Real>(&self, y: &[T]) -> Vec<T> {
        let tokens: usize = self.lengths.iter().sum();
        let mut x = vec![T::zero(); tokens * self.h * self.d];
        for (to, from) in self.runs() {
            x[to..to + self.d].copy_from_slice(&y[from..from + self.d]);
        }
        x
    }
}

/// Mean over the tokens of each row, scaled to length 1: [tokens, hidden] -> [b, hidden].
fn pool<T: Real>(x: &[T], lengths: &[usize], hidden: usize) -> Vec<T> {
    let mut pooled = Vec::with_capacity(lengths.len() * hidden);
    let mut start = 0;
    for &length in lengths {
        let rows = &x[start * hidden..(start + length) * hidden];
        start += length;
        let mut sum = vec![T::zero(); hidden];
        for row in rows.chunks_exact(hidden) {
            sum.iter_mut().zip(row).for_each(|(s, &v)| *s = *s + v);
        }
        // The mean's divisor cancels against the length, so the sum is scaled directly.
        let norm = sum.iter().fold(T::zero(), |n, &v| n + v * v).sqrt();
        let scale = if norm > T::zero() {
            norm.recip()
        } else {
            T::zero()
        };
        pooled.extend(sum.into_iter().map(|v| v * scale));
    }
    pooled
}

fn invalid(what: &'static str, value: usize, limit: usize) -> ModelError {
    ModelError::InvalidInput { what, value, limit }
}
