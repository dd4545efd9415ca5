//! Checkpoint formats of quantized models: read, write, repack. No GPU.
//!
//! - [`Checkpoint`] maps safetensors files, single or sharded; [`save`] and [`save_sharded`] write
//!   them whole or not at all.
//! - [`QuantConfig`] reads what a checkpoint says about itself; [`PackedLinear::load`] takes one
//!   linear out of it.
//! - [`IntWeights`] is the logical form that [`PackedLinear`] packs from and unpacks to in every
//!   [`Format`]: GPTQ v1 and v2, AWQ gemm and gemv, Marlin, compressed-tensors. [`GgufBlocks`] and
//!   [`Nvfp4Weights`] are block formats of their own; [`Gguf`] maps a GGUF file.
//! - [`FloatWeights`] is the same for codes that are small floats: NVFP4, MXFP4, FP8, NF4.
//! - [`QuantizedLinear`] holds either in the order that products read them in.
//!
//! ```no_run
//! use flashcube_formats::{Checkpoint, PackedLinear, QuantConfig};
//!
//! let config = QuantConfig::open("model/config.json")?;
//! let checkpoint = Checkpoint::open("model")?;
//! let packed = PackedLinear::load(&checkpoint, "model.layers.0.self_attn.q_proj", &config)?;
//! let weight: Vec<f32> = packed.unpack()?.dequantize(); // [k, n]
//! # Ok::<(), flashcube_formats::FormatError>(())
//! ```
//!
//! W is [k in, n out] everywhere, row-major. Bad input is a [`FormatError`] that names the tensor,
//! the value and the limit; nothing panics and no target file is ever half written.

mod awq;
mod checkpoint;
mod compressed_tensors;
mod config;
mod describe;
mod divisor;
mod element;
mod error;
mod float_weights;
mod gguf;
mod gguf_file;
mod gguf_reader;
mod gptq;
mod int_weights;
mod linear;
mod marlin;
mod nvfp4;
mod packed;
mod tiled;
mod words;
mod write;

pub use checkpoint::{Checkpoint, TensorView};
pub use config::{Packing, QuantConfig, QuantMethod};
pub use divisor::{input_divisor, input_divisor_tensor};
pub use element::Element;
pub use error::FormatError;
pub use float_weights::{CodeType, FloatWeights, GroupScales, NF4};
pub use gguf::{GgufBlocks, GgufKind};
pub use gguf_file::{Gguf, GgufHeader, GgufTensor, GgufType, GgufValue};
pub use gptq::{GptqVersion, check_version, sniff_version};
pub use int_weights::{IntWeights, QuantShape};
pub use nvfp4::{Nvfp4Linear, Nvfp4Weights};
pub use packed::{Format, Layout, PackedLinear, V1Zeros};
pub use safetensors::Dtype;
pub use tiled::{GroupZeros, QuantizedLinear, TileOrder, VERSION as TILES_VERSION};
pub use write::{TensorData, save, save_json, save_sharded, save_sharded_views, save_views};
