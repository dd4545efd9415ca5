//! Activations between two blocks, on disk.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::QuantizeError;

/// Writes what a block gives, batch after batch; appears under its name when it is complete.
pub(super) struct HiddenWriter {
    path: PathBuf,
    partial: PathBuf,
    out: BufWriter<File>,
}

impl HiddenWriter {
    pub(super) fn create(path: &Path) -> Result<Self, QuantizeError> {
        let partial = path.with_extension("partial");
        let file = File::create(&partial).map_err(QuantizeError::io(&partial))?;
        Ok(Self {
            path: path.to_owned(),
            partial,
            out: BufWriter::new(file),
        })
    }

    pub(super) fn push(&mut self, x: &[f32]) -> Result<(), QuantizeError> {
        let bytes: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.out
            .write_all(&bytes)
            .map_err(QuantizeError::io(&self.partial))
    }

    pub(super) fn finish(mut self) -> Result<(), QuantizeError> {
        self.out.flush().map_err(QuantizeError::io(&self.partial))?;
        self.out
            .get_ref()
            .sync_all()
            .map_err(QuantizeError::io(&self.partial))?;
        std::fs::rename(&self.partial, &self.path).map_err(QuantizeError::io(&self.path))
    }
}

/// Reads the same batches back, each of as many values as asked for.
pub(super) struct HiddenReader {
    path: PathBuf,
    file: File,
}

impl HiddenReader {
    pub(super) fn open(path: &Path) -> Result<Self, QuantizeError> {
        let file = File::open(path).map_err(QuantizeError::io(path))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    pub(super) fn next(&mut self, values: usize) -> Result<Vec<f32>, QuantizeError> {
        let mut bytes = vec![0; values * 4];
        self.file
            .read_exact(&mut bytes)
            .map_err(QuantizeError::io(&self.path))?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(words.iter().map(|&word| f32::from_le_bytes(word)).collect())
    }
}
