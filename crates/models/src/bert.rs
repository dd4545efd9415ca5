use std::path::Path;

use flashcube_formats::Checkpoint;

use crate::architecture::{Block, Fold, LinearShape, Stage};
use crate::attention::{AttentionCall, Heads, attended};
use crate::layers::{Dense, LayerNorm, gelu};
use crate::weights::Weights;
use crate::{Architecture, BertConfig, ModelError, Real, TokenBatch};

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
///     let rows = call.b * call.h_q * call.s;
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
    layers: Vec<BertBlock<T>>,
}

impl<T: Real> Bert<T> {
    /// Reads `config.json` and the safetensors checkpoint of a folder.
    ///
    /// # Errors
    /// Any [`ModelError`] about files, tensors or the configuration.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let config = BertConfig::open(folder.join("config.json"))?;
        Self::load(config, &Checkpoint::open(folder)?)
    }

    /// Builds the encoder from a checked configuration and its tensors.
    ///
    /// # Errors
    /// [`ModelError::Format`] naming the tensor that is missing or of another shape or type.
    pub fn load(config: BertConfig, weights: &dyn Weights) -> Result<Self, ModelError> {
        let hidden = config.hidden_size;
        let table = |name: &str, rows: usize| {
            let name = format!("embeddings.{name}_embeddings.weight");
            weights.tensor(&name, &[rows, hidden])
        };
        let eps = config.layer_norm_eps;
        Ok(Self {
            words: table("word", config.vocab_size)?,
            positions: table("position", config.max_position_embeddings)?,
            types: table("token_type", config.type_vocab_size)?,
            embedding_norm: LayerNorm::load(weights, "embeddings.LayerNorm", hidden, eps)?,
            layers: (0..config.num_hidden_layers)
                .map(|i| BertBlock::load(weights, i, &config))
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
        for layer in &self.layers {
            x = layer.run(
                x,
                &batch.lengths,
                batch.s,
                &mut attend,
                &mut |_, _: &[T]| Ok(()),
            )?;
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
            return Err(ModelError::invalid(
                "sequence length",
                batch.s,
                max_position_embeddings,
            ));
        }
        if batch.ids.len() != batch.lengths.len() * batch.s {
            return Err(ModelError::invalid(
                "token ids",
                batch.ids.len(),
                batch.lengths.len() * batch.s,
            ));
        }
        if let Some(&length) = batch.lengths.iter().find(|&&length| length > batch.s) {
            return Err(ModelError::invalid(
                "valid tokens of a row",
                length,
                batch.s,
            ));
        }
        match batch.ids.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&id) => Err(ModelError::invalid(
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

/// One layer of the encoder, post-norm: y = LN(x + attention(x)), LN(y + feed-forward(y)).
#[derive(Debug)]
pub(crate) struct BertBlock<T> {
    layer: usize,
    heads: usize,
    query: Dense<T>,
    key: Dense<T>,
    value: Dense<T>,
    attention_output: Dense<T>,
    attention_norm: LayerNorm<T>,
    intermediate: Dense<T>,
    output: Dense<T>,
    output_norm: LayerNorm<T>,
}

impl<T: Real> BertBlock<T> {
    fn load(weights: &dyn Weights, i: usize, config: &BertConfig) -> Result<Self, ModelError> {
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let linear = |name: &str, inputs, outputs| {
            Dense::load(
                weights,
                &format!("encoder.layer.{i}.{name}"),
                inputs,
                outputs,
            )
        };
        let norm = |name: &str| {
            let name = format!("encoder.layer.{i}.{name}.LayerNorm");
            LayerNorm::load(weights, &name, hidden, config.layer_norm_eps)
        };
        Ok(Self {
            layer: i,
            heads: config.num_attention_heads,
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

    /// `x` [tokens, hidden] through the layer; `observe` sees the input of every stage.
    fn run<E: From<ModelError>>(
        &self,
        x: Vec<T>,
        lengths: &[usize],
        s: usize,
        attend: &mut impl FnMut(AttentionCall<'_, T>) -> Result<Vec<T>, E>,
        observe: &mut impl FnMut(usize, &[T]) -> Result<(), E>,
    ) -> Result<Vec<T>, E> {
        let (h, d) = (self.heads, self.attention_norm.features() / self.heads);
        let heads = Heads { h, s, d, lengths };
        observe(0, &x)?;
        let [q, k, v] = [&self.query, &self.key, &self.value]
            .map(|projection| heads.split(&projection.apply(&x)));
        let call = AttentionCall {
            layer: self.layer,
            b: lengths.len(),
            h_q: h,
            h_kv: h,
            s,
            d,
            past: 0,
            q: &q,
            k: &k,
            v: &v,
            lengths,
            causal: false,
            scale: 1.0 / (d as f64).sqrt(),
        };
        let out = heads.join(&attended(call, attend)?);
        observe(1, &out)?;
        let x = add_norm(self.attention_output.apply(&out), &x, &self.attention_norm);
        observe(2, &x)?;
        let mut wide = self.intermediate.apply(&x);
        gelu(&mut wide);
        observe(3, &wide)?;
        Ok(add_norm(self.output.apply(&wide), &x, &self.output_norm))
    }
}

impl Block for BertBlock<f32> {
    fn forward(
        &self,
        x: Vec<f32>,
        batch: &TokenBatch,
        attend: &mut crate::Attend<'_>,
        observe: &mut crate::Observe<'_>,
    ) -> Result<Vec<f32>, ModelError> {
        self.run(
            x,
            &batch.lengths,
            batch.s,
            &mut &mut *attend,
            &mut &mut *observe,
        )
    }
}

impl Architecture for BertConfig {
    fn blocks(&self) -> usize {
        self.num_hidden_layers
    }

    fn prefix(&self, block: usize) -> String {
        format!("encoder.layer.{block}.")
    }

    fn stages(&self, block: usize) -> Vec<Stage> {
        let (hidden, wide) = (self.hidden_size, self.intermediate_size);
        let name = |name: &str| format!("encoder.layer.{block}.{name}");
        let linear = |part: &str, k, n| LinearShape {
            name: name(part),
            k,
            n,
        };
        let own = ["query", "key", "value"];
        let own = own.map(|part| linear(&format!("attention.self.{part}"), hidden, hidden));
        let stage = |linears, fold, residual| Stage {
            linears,
            fold,
            residual,
        };
        vec![
            // The residual reads the same values: dividing them would change it.
            stage(own.to_vec(), Fold::Nowhere, None),
            stage(
                vec![linear("attention.output.dense", hidden, hidden)],
                Fold::Rows {
                    linear: name("attention.self.value"),
                    rows: (0..hidden).collect(),
                },
                Some(0),
            ),
            stage(
                vec![linear("intermediate.dense", hidden, wide)],
                Fold::Nowhere,
                None,
            ),
            // GELU(x / s) is not GELU(x) / s.
            stage(
                vec![linear("output.dense", wide, hidden)],
                Fold::Nowhere,
                Some(2),
            ),
        ]
    }

    fn embed(&self, weights: &dyn Weights, batch: &TokenBatch) -> Result<Vec<f32>, ModelError> {
        let outer = BertConfig {
            num_hidden_layers: 0,
            ..self.clone()
        };
        let bert = Bert::<f32>::load(outer, weights)?;
        bert.check(batch)?;
        Ok(bert.embed_tokens(batch))
    }

    fn block(&self, weights: &dyn Weights, i: usize) -> Result<Box<dyn Block>, ModelError> {
        Ok(Box::new(BertBlock::<f32>::load(weights, i, self)?))
    }
}

fn add_norm<T: Real>(mut y: Vec<T>, residual: &[T], norm: &LayerNorm<T>) -> Vec<T> {
    for (y, &r) in y.iter_mut().zip(residual) {
        *y += r;
    }
    norm.apply(&mut y);
    y
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
            sum.iter_mut().zip(row).for_each(|(s, &v)| *s += v);
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
