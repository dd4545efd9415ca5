//! Whole models, block after block: calibration, quantization, a checkpoint; interrupted runs go on
//! where they were.
//!
//! At any time memory holds one block in f32, its Hessians, and one batch of activations; what the
//! next block reads lies on disk.

mod assembly;
mod block;
mod convert;
mod fold;
mod hidden;
mod linear;
mod moments;
mod options;
mod report;
mod run;
mod scaled;
mod text;
mod work;

pub use convert::{convert_model, dequantize_model};
pub use options::{Method, ModelOptions, Target, Unfoldable};
pub use report::{HeldOut, LinearReport, ModelReport};
pub use run::{Progress, quantize_model};
pub use text::{Texts, calibration_batches, sentence_batches, sentences};
