//! Weight quantization on the host: GPTQ, AWQ, rounding to nearest. No GPU.
//!
//! [`model::quantize_model`] takes a whole model and writes a checkpoint. The parts that need no
//! model: [`Calibration`] gathers a layer's inputs into a [`Hessian`],
//! [`quantize_gptq`] and [`search_scales`] with [`round_clipped`] use it, [`round_to_nearest`],
//! [`round_nf4`], [`round_mxfp4`] and [`round_nvfp4`] need only the weight.
//!
//! ```
//! use flashcube_quantize::{Calibration, GptqOptions, GridOptions, Weight, quantize_gptq};
//!
//! let weight: Vec<f32> = (0..64 * 8).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
//! let inputs: Vec<f32> = (0..100 * 64).map(|i| ((i * 53 % 97) as f32 - 48.0) / 48.0).collect();
//! let mut calibration = Calibration::new(64);
//! calibration.add(&inputs)?;
//! let options = GptqOptions::new(GridOptions::new(4, Some(32)));
//! let layer = quantize_gptq(Weight::new(&weight, 64, 8)?, &calibration.finish(), &options)?;
//! assert!(layer.loss <= layer.rtn_loss);
//! # Ok::<(), flashcube_quantize::QuantizeError>(())
//! ```

mod awq;
mod codebook;
mod drift;
mod error;
mod factor;
mod gptq;
mod grid;
mod hessian;
pub mod model;
mod order;
mod rtn;
mod serial;
mod weight;

pub use awq::{
    AwqOptions, ScaleSearch, divide_inputs, multiply_inputs, round_clipped, search_scales,
};
pub use codebook::{
    Mxfp4Weights, NF4, Nf4Weights, Round, ScaleRule, round_mxfp4, round_nf4, round_nvfp4,
};
pub use drift::{Drift, DriftSums, Pair};
pub use error::QuantizeError;
pub use gptq::{GptqLayer, GptqOptions, GroupFit, quantize_gptq};
pub use grid::{ClipSearch, GridOptions, RangeRule};
pub use hessian::{Calibration, Hessian};
pub use rtn::round_to_nearest;
pub use weight::{Weight, transposed};
