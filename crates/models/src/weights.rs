//! The one place that reads checkpoint files.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors, tensor::Metadata};

use crate::ModelError;

/// A memory-mapped safetensors file whose header has been checked against its length.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    map: Mmap,
    /// Offset of the first tensor byte: the 8 length bytes and the header come before it.
    data_start: usize,
    metadata: Metadata,
}

impl Checkpoint {
    /// Maps the file and checks that header and data agree.
    ///
    /// # Errors
    /// [`ModelError::Io`] when it cannot be opened, [`ModelError::Checkpoint`] when it is damaged
    /// or truncated.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref().to_path_buf();
        let io = |source| ModelError::Io {
            path: path.clone(),
            source,
        };
        let file = File::open(&path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        let damaged = |detail| ModelError::Checkpoint {
            path: path.clone(),
            bytes,
            detail,
        };
        if bytes == 0 {
            // An empty file cannot be mapped on every system.
            return Err(damaged("the file is empty".into()));
        }
        // SAFETY: the map is read-only and private to this value. A program that shortens the
        // file while it is mapped breaks the contract of every memory map; the tests write their
        // damaged files before opening them.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let (header, metadata) =
            SafeTensors::read_metadata(&map).map_err(|e| damaged(e.to_string()))?;
        Ok(Self {
            data_start: header + size_of::<u64>(),
            map,
            metadata,
            path,
        })
    }

    /// Copies a row-major f32 tensor of exactly this shape out of the file.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongDtype`] or [`ModelError::WrongShape`].
    pub fn f32(&self, tensor: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let info = self
            .metadata
            .info(tensor)
            .ok_or_else(|| ModelError::MissingTensor {
                path: self.path.clone(),
                tensor: tensor.into(),
            })?;
        if info.dtype != Dtype::F32 {
            return Err(ModelError::WrongDtype {
                tensor: tensor.into(),
                found: info.dtype,
                expected: Dtype::F32,
            });
        }
        if info.shape != shape {
            return Err(ModelError::WrongShape {
                tensor: tensor.into(),
                found: info.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        // In range: `open` checked that the offsets tile the file exactly.
        let (start, end) = info.data_offsets;
        let bytes = &self.map[self.data_start + start..self.data_start + end];
        Ok(bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&b| f32::from_le_bytes(b))
            .collect())
    }
}
