//! The quantizers against slow textbook versions and the papers' promises, on synthetic layers.

mod awq;
mod codebook;
mod convert;
mod drift;
mod gguf;
mod gptq;
mod layer;
mod model;
mod rtn;
mod textbook;
mod tiny;
mod tiny_gguf;
