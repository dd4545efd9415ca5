//! Attention and quantization kernels for CUDA, wgpu and the CPU, written once in CubeCL.
//!
//! This crate is what users add. The kernels come from [`flashcube_kernels`] and are re-exported
//! whole; [`Backend`] opens devices for the features `cuda`, `wgpu` and `cpu`. Programs that
//! already own a CubeCL client pass it to the launches and need no feature at all.
//!
//! ```
//! # #[cfg(feature = "cpu")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use flashcube::{AttendOptions, Backend, DType, Tensor, attend_forward};
//!
//! let client = Backend::Cpu.open()?;
//! let shape = [1, 2, 5, 8]; // [b, h, s, d]
//! let ones = vec![1.0f32; 80];
//! let bytes: Vec<u8> = ones.iter().flat_map(|x| x.to_le_bytes()).collect();
//! let x = Tensor::contiguous(client.create_from_slice(&bytes), shape, DType::F32);
//!
//! let attended = attend_forward(&client, &x, &x, &x, &AttendOptions::default())?;
//! let out = client.read_one(attended.out.handle)?;
//! assert_eq!(out.len(), bytes.len()); // equal values attend to equal values
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "cpu"))]
//! # fn main() {}
//! ```

mod backend;
#[cfg(feature = "persistent-cache")]
mod cache;
mod kv_cache;

pub use backend::{Backend, BackendError};
#[cfg(feature = "persistent-cache")]
pub use cache::{CacheError, keep_compiled};
pub use flashcube_kernels::*;
pub use kv_cache::{KvAppend, KvBatch, KvCache, KvCacheError, KvCacheSizes, SequenceId};
