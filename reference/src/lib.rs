//! The f64 reference that every flashcube kernel is checked against.
//!
//! Obvious code, loops in the order of the formula, f64 inside, nothing shared with the kernels.
//! rayon spreads independent rows over the cores; the result does not depend on their number.
//!
//! | module | what it states |
//! |---|---|
//! | [`attention`] | forward (plain, online, rounded, with weights of FP4 and FP8), log-sum-exp, backward, every mask |
//! | [`mod@merge`] | the merge of partial (out, lse) pairs |
//! | [`quant`] | GPTQ and AWQ integer weights, E4M3, E5M2, E2M1, E8M0, MXFP8, MXFP4, NVFP4, their operands of matrix products, Direct-P |
//! | [`hadamard`] | Walsh-Hadamard transform with random signs |
//!
//! ```
//! use flashcube_reference::{Options, Tensor4, forward};
//!
//! // One head, two keys with equal scores: the mean of the two values.
//! let q = Tensor4::zeros([1, 1, 1, 4]);
//! let k = Tensor4::zeros([1, 1, 2, 4]);
//! let v = Tensor4::from_fn([1, 1, 2, 1], |[_, _, j, _]| j as f64);
//! let result = forward(&q, &k, &v, &Options { scale: 0.5, ..Options::default() })?;
//! assert_eq!(result.out.row(0, 0, 0), [0.5]);
//! assert_eq!(result.lse, [2f64.ln()]);
//! # Ok::<(), flashcube_reference::Error>(())
//! ```

pub mod attention;
pub mod error;
pub mod hadamard;
pub mod mask;
pub mod merge;
pub mod quant;
pub mod tensor;

pub use attention::{
    Encoding, Grads, Options, Output, Rounding, Rows, backward, forward, forward_encoded,
    forward_online, forward_rounded, forward_rows, forward_rows_rounded, logits, max_abs_score,
    weights,
};
pub use error::Error;
pub use hadamard::Hadamard;
pub use mask::{Alignment, Broadcast};
pub use merge::{merge, merge_row};
pub use tensor::Tensor4;
