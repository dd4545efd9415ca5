use crate::architecture::{Architecture, Block, Fold, LinearShape, Stage};
use crate::attention::{AttentionCall, Heads, attended};
use crate::layers::{Dense, Linear, RmsNorm, silu_multiply};
use crate::weights::Weights;
use crate::{Attend, LlamaConfig, ModelError, Observe, TokenBatch};

/// Makes the linear `prefix` [inputs -> outputs]: [`dense`], or one that runs on a device.
pub type MakeLinear<'a> = dyn Fn(&str, usize, usize) -> Result<Box<dyn Linear>, ModelError> + 'a;

/// A linear in floats, read from `weights`.
///
/// # Errors
/// [`ModelError::Format`] naming the tensor.
pub fn dense(
    weights: &dyn Weights,
    prefix: &str,
    inputs: usize,
    outputs: usize,
) -> Result<Box<dyn Linear>, ModelError> {
    Ok(Box::new(Dense::<f32>::load(
        weights, prefix, inputs, outputs,
    )?))
}

/// A decoder of Llama's kind (Touvron et al. 2023): RMS norms before each half of a block, rotary
/// positions, query heads in groups, a gated feed-forward.
///
/// Norms, rotations and residuals run on the host in f32; attention is the caller's, linears are
/// whatever [`MakeLinear`] makes.
pub struct Llama {
    config: LlamaConfig,
    /// [vocab_size, hidden_size]
    words: Vec<f32>,
    blocks: Vec<LlamaBlock>,
    norm: RmsNorm,
    head: Box<dyn Linear>,
}

impl Llama {
    /// Builds the decoder; every linear but the head comes from `linear`.
    ///
    /// # Errors
    /// [`ModelError::Format`] naming the tensor that is missing or of another shape or type, and
    /// those of `linear`.
    pub fn load(
        config: LlamaConfig,
        weights: &dyn Weights,
        linear: &MakeLinear<'_>,
    ) -> Result<Self, ModelError> {
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let words = config.words(weights)?;
        let head = match config.tie_word_embeddings {
            true => Box::new(Dense::new(hidden, vocab, words.clone(), None)),
            false => dense(weights, "lm_head", hidden, vocab)?,
        };
        let block = |i| LlamaBlock::load(weights, i, &config, linear);
        Ok(Self {
            blocks: (0..config.num_hidden_layers)
                .map(block)
                .collect::<Result<_, _>>()?,
            norm: RmsNorm::load(weights, "model.norm", hidden, config.rms_norm_eps)?,
            words,
            head,
            config,
        })
    }

    /// The configuration it was built from.
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// Last hidden states [b s, hidden] of the tokens `ids` [b, s], which follow `past` others of
    /// each row: those whose keys and values `attend` kept.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] for a token that does not exist, a length that b does not
    /// divide, or positions past the longest; those of `attend` and of the linears.
    pub fn hidden_states(
        &self,
        ids: &[u32],
        b: usize,
        past: usize,
        attend: &mut Attend<'_>,
    ) -> Result<Vec<f32>, ModelError> {
        let s = ids.len().checked_div(b).unwrap_or(0);
        self.config.check_tokens(ids, b, past + s)?;
        let mut x = embed(&self.words, ids, self.config.hidden_size);
        let lengths = vec![s; b];
        for block in &self.blocks {
            x = block.run(x, &lengths, past, attend, &mut |_, _| Ok(()))?;
        }
        Ok(self.norm.apply(&x))
    }

    /// Scores of every word [rows, vocab_size] after the hidden states [rows, hidden].
    ///
    /// # Errors
    /// Those of the head's linear.
    pub fn logits(&self, hidden_states: &[f32]) -> Result<Vec<f32>, ModelError> {
        self.head.apply(hidden_states)
    }
}

fn embed(words: &[f32], ids: &[u32], hidden: usize) -> Vec<f32> {
    let word = |&id: &u32| &words[id as usize * hidden..(id as usize + 1) * hidden];
    ids.iter().flat_map(word).copied().collect()
}

impl LlamaConfig {
    fn words(&self, weights: &dyn Weights) -> Result<Vec<f32>, ModelError> {
        let shape = [self.vocab_size, self.hidden_size];
        weights.tensor("model.embed_tokens.weight", &shape)
    }

    fn check_tokens(&self, ids: &[u32], b: usize, end: usize) -> Result<(), ModelError> {
        let limit = self.max_position_embeddings;
        if end > limit {
            return Err(ModelError::invalid("sequence length", end, limit));
        }
        if !ids.is_empty() && (b == 0 || !ids.len().is_multiple_of(b)) {
            return Err(ModelError::invalid("tokens for equal rows", ids.len(), b));
        }
        match ids.iter().find(|&&id| id as usize >= self.vocab_size) {
            Some(&id) => {
                let last = self.vocab_size.saturating_sub(1);
                Err(ModelError::invalid("token id", id as usize, last))
            }
            None => Ok(()),
        }
    }
}

/// One block: x + attention(norm x), then x + feed-forward(norm x).
struct LlamaBlock {
    layer: usize,
    heads: [usize; 2],
    d: usize,
    rope_theta: f64,
    attention_norm: RmsNorm,
    query: Box<dyn Linear>,
    key: Box<dyn Linear>,
    value: Box<dyn Linear>,
    output: Box<dyn Linear>,
    feed_forward_norm: RmsNorm,
    gate: Box<dyn Linear>,
    up: Box<dyn Linear>,
    down: Box<dyn Linear>,
}

impl LlamaBlock {
    fn load(
        weights: &dyn Weights,
        i: usize,
        config: &LlamaConfig,
        linear: &MakeLinear<'_>,
    ) -> Result<Self, ModelError> {
        let (hidden, wide, d) = (
            config.hidden_size,
            config.intermediate_size,
            config.head_dim,
        );
        let (own, shared) = (
            config.num_attention_heads * d,
            config.num_key_value_heads * d,
        );
        let linear = |name: &str, inputs, outputs| {
            linear(&format!("model.layers.{i}.{name}"), inputs, outputs)
        };
        let norm = |name: &str| {
            RmsNorm::load(
                weights,
                &format!("model.layers.{i}.{name}"),
                hidden,
                config.rms_norm_eps,
            )
        };
        Ok(Self {
            layer: i,
            heads: [config.num_attention_heads, config.num_key_value_heads],
            d,
            rope_theta: config.rope_theta,
            attention_norm: norm("input_layernorm")?,
            query: linear("self_attn.q_proj", hidden, own)?,
            key: linear("self_attn.k_proj", hidden, shared)?,
            value: linear("self_attn.v_proj", hidden, shared)?,
            output: linear("self_attn.o_proj", own, hidden)?,
            feed_forward_norm: norm("post_attention_layernorm")?,
            gate: linear("mlp.gate_proj", hidden, wide)?,
            up: linear("mlp.up_proj", hidden, wide)?,
            down: linear("mlp.down_proj", wide, hidden)?,
        })
    }

    /// `x` [b s, hidden]: rows of equal length s, after `past` tokens each.
    fn run(
        &self,
        mut x: Vec<f32>,
        lengths: &[usize],
        past: usize,
        mut attend: &mut Attend<'_>,
        observe: &mut Observe<'_>,
    ) -> Result<Vec<f32>, ModelError> {
        let (b, s, d) = (lengths.len(), lengths.first().copied().unwrap_or(0), self.d);
        let [own, shared] = self.heads.map(|h| Heads { h, s, d, lengths });
        let normed = self.attention_norm.apply(&x);
        observe(0, &normed)?;
        let [mut q, mut k] = [
            own.split(&self.query.apply(&normed)?),
            shared.split(&self.key.apply(&normed)?),
        ];
        let v = shared.split(&self.value.apply(&normed)?);
        rotate(&mut q, s, d, past, self.rope_theta);
        rotate(&mut k, s, d, past, self.rope_theta);
        let call = AttentionCall {
            layer: self.layer,
            b,
            h_q: self.heads[0],
            h_kv: self.heads[1],
            s,
            d,
            past,
            q: &q,
            k: &k,
            v: &v,
            lengths,
            causal: true,
            scale: 1.0 / (d as f64).sqrt(),
        };
        let out = own.join(&attended(call, &mut attend)?);
        observe(1, &out)?;
        add(&mut x, &self.output.apply(&out)?);
        let normed = self.feed_forward_norm.apply(&x);
        observe(2, &normed)?;
        let mut wide = self.gate.apply(&normed)?;
        silu_multiply(&mut wide, &self.up.apply(&normed)?);
        observe(3, &wide)?;
        add(&mut x, &self.down.apply(&wide)?);
        Ok(x)
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Rotary positions (Su et al. 2021) over `x` [rows of s, d]: the pair (i, i + d/2) of the token at
/// position p turns by p theta^(-2i/d).
fn rotate(x: &mut [f32], s: usize, d: usize, past: usize, theta: f64) {
    let half = d / 2;
    let angle = |position: usize, i: usize| {
        let turn = (past + position) as f64 * theta.powf(-2.0 * i as f64 / d as f64);
        (turn.cos() as f32, turn.sin() as f32)
    };
    let table: Vec<(f32, f32)> = (0..s)
        .flat_map(|position| (0..half).map(move |i| angle(position, i)))
        .collect();
    for (row, x) in x.chunks_exact_mut(d.max(1)).enumerate() {
        let turns = &table[row % s * half..(row % s + 1) * half];
        let (low, high) = x.split_at_mut(half);
        for ((a, b), (cos, sin)) in low.iter_mut().zip(high).zip(turns) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

impl Block for LlamaBlock {
    fn forward(
        &self,
        x: Vec<f32>,
        batch: &TokenBatch,
        attend: &mut Attend<'_>,
        observe: &mut Observe<'_>,
    ) -> Result<Vec<f32>, ModelError> {
        self.run(x, &batch.lengths, 0, attend, observe)
    }
}

impl Architecture for LlamaConfig {
    fn blocks(&self) -> usize {
        self.num_hidden_layers
    }

    fn prefix(&self, block: usize) -> String {
        format!("model.layers.{block}.")
    }

    fn stages(&self, block: usize) -> Vec<Stage> {
        let (hidden, wide, d) = (self.hidden_size, self.intermediate_size, self.head_dim);
        let (own, shared) = (self.num_attention_heads * d, self.num_key_value_heads * d);
        let name = |name: &str| format!("model.layers.{block}.{name}");
        let linear = |part: &str, k, n| LinearShape {
            name: name(part),
            k,
            n,
        };
        let per_group = self.num_attention_heads / self.num_key_value_heads;
        // Channel (head, j) is a mixture of the values (head / per_group, j).
        let value_row = |c: usize| c / d / per_group * d + c % d;
        let norm = |part: &str| Fold::Norm(name(part));
        vec![
            Stage {
                linears: vec![
                    linear("self_attn.q_proj", hidden, own),
                    linear("self_attn.k_proj", hidden, shared),
                    linear("self_attn.v_proj", hidden, shared),
                ],
                fold: norm("input_layernorm.weight"),
                residual: None,
            },
            Stage {
                linears: vec![linear("self_attn.o_proj", own, hidden)],
                fold: Fold::Rows {
                    linear: name("self_attn.v_proj"),
                    rows: (0..own).map(value_row).collect(),
                },
                residual: None,
            },
            Stage {
                linears: vec![
                    linear("mlp.gate_proj", hidden, wide),
                    linear("mlp.up_proj", hidden, wide),
                ],
                fold: norm("post_attention_layernorm.weight"),
                residual: None,
            },
            Stage {
                linears: vec![linear("mlp.down_proj", wide, hidden)],
                fold: Fold::Rows {
                    linear: name("mlp.up_proj"),
                    rows: (0..wide).collect(),
                },
                residual: None,
            },
        ]
    }

    fn embed(&self, weights: &dyn Weights, batch: &TokenBatch) -> Result<Vec<f32>, ModelError> {
        if let Some(&length) = batch.lengths.iter().find(|&&length| length != batch.s) {
            return Err(ModelError::invalid(
                "tokens of a row, all alike",
                length,
                batch.s,
            ));
        }
        self.check_tokens(&batch.ids, batch.lengths.len(), batch.s)?;
        Ok(embed(&self.words(weights)?, &batch.ids, self.hidden_size))
    }

    fn block(&self, weights: &dyn Weights, i: usize) -> Result<Box<dyn Block>, ModelError> {
        let linear = |prefix: &str, inputs, outputs| dense(weights, prefix, inputs, outputs);
        Ok(Box::new(LlamaBlock::load(weights, i, self, &linear)?))
    }
}
