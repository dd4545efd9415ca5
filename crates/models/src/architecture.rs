//! A model as something that walks it block by block sees it: quantizers, and whoever cannot hold
//! it whole.

use crate::attention::AttentionCall;
use crate::weights::Weights;
use crate::{ModelError, TokenBatch};

/// Computes an attention: [b, h_q, s, d].
pub type Attend<'a> = dyn FnMut(AttentionCall<'_, f32>) -> Result<Vec<f32>, ModelError> + 'a;

/// Sees the input [tokens, k] that the linears of a stage read.
pub type Observe<'a> = dyn FnMut(usize, &[f32]) -> Result<(), ModelError> + 'a;

/// The shape of a model: its blocks, and the linears in them.
pub trait Architecture: Send + Sync {
    /// Blocks from the embedding to the head.
    fn blocks(&self) -> usize;

    /// What the names of a block's tensors start with.
    fn prefix(&self, block: usize) -> String;

    /// The linears of a block, in the order in which they run.
    fn stages(&self, block: usize) -> Vec<Stage>;

    /// What the first block reads: [tokens, hidden].
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] for tokens that the model does not have.
    fn embed(&self, weights: &dyn Weights, batch: &TokenBatch) -> Result<Vec<f32>, ModelError>;

    /// One block with its tensors in f32.
    ///
    /// # Errors
    /// [`ModelError::Format`] naming the tensor.
    fn block(&self, weights: &dyn Weights, block: usize) -> Result<Box<dyn Block>, ModelError>;
}

/// One block of a model.
pub trait Block: Send + Sync {
    /// `x` [tokens, hidden] of whole texts to the next block's; `observe` sees the input of every
    /// stage, in order.
    ///
    /// # Errors
    /// Those of `attend` and `observe`.
    fn forward(
        &self,
        x: Vec<f32>,
        batch: &TokenBatch,
        attend: &mut Attend<'_>,
        observe: &mut Observe<'_>,
    ) -> Result<Vec<f32>, ModelError>;
}

/// Linears that read the same input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// All of them.
    pub linears: Vec<LinearShape>,
    /// Where a divisor of their input may go.
    pub fold: Fold,
    /// The stage of the same block whose input is added to this one's output before anything reads
    /// it; None where what is added, if anything, is no stage's input.
    pub residual: Option<usize>,
}

/// A linear by name: its weight is `{name}.weight` [n, k].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearShape {
    /// The prefix of its tensors.
    pub name: String,
    /// Input features.
    pub k: usize,
    /// Output features.
    pub n: usize,
}

/// What can absorb a divisor s `[k]` of a stage's input without changing the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fold {
    /// The tensor of this name, a norm's weight `[k]` that nothing else reads: w / s.
    Norm(String),
    /// Output features of an earlier linear, their weights and bias: channel c of the input comes,
    /// linearly, from output `rows[c]`. Channels with the same row must share a scale (the query
    /// heads of one value head).
    Rows {
        /// The linear.
        linear: String,
        /// `[k]`
        rows: Vec<usize>,
    },
    /// Nothing: something else reads the same values, or a function lies between.
    Nowhere,
}
