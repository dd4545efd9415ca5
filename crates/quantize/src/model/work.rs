//! The work folder of a run: finished blocks and what the next one reads, so that an interrupted
//! run goes on.

use std::fs;
use std::path::{Path, PathBuf};

use flashcube_formats::save_json;
use serde_json::{Value, json};

use super::report::LinearReport;
use crate::error::QuantizeError;

/// A folder inside the output folder, gone when the checkpoint is complete.
#[derive(Debug)]
pub(super) struct WorkFolder {
    path: PathBuf,
}

const FOLDER: &str = "unfinished";

impl WorkFolder {
    /// Makes the folder, or finds that of an interrupted run.
    ///
    /// # Errors
    /// [`QuantizeError::OtherRun`] when that run was of another `identity`, field by field.
    pub(super) fn open(out: &Path, identity: &Value) -> Result<Self, QuantizeError> {
        let path = out.join(FOLDER);
        fs::create_dir_all(&path).map_err(QuantizeError::io(&path))?;
        let work = Self { path };
        let file = work.path.join("run.json");
        match fs::read(&file) {
            Ok(bytes) => work.check(&bytes, identity)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                save_json(&file, identity)?;
            }
            Err(error) => return Err(QuantizeError::io(&file)(error)),
        }
        Ok(work)
    }

    fn check(&self, bytes: &[u8], identity: &Value) -> Result<(), QuantizeError> {
        let found: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let differs = |(key, value): (&String, &Value)| found.get(key) != Some(value);
        let fields = identity.as_object().into_iter().flatten();
        match fields.into_iter().find(|&field| differs(field)) {
            None => Ok(()),
            Some((field, _)) => Err(QuantizeError::OtherRun {
                path: self.path.clone(),
                field: field.clone(),
            }),
        }
    }

    /// What block `block` reads.
    pub(super) fn hidden(&self, block: usize) -> PathBuf {
        self.path.join(format!("hidden-{block:04}.f32"))
    }

    /// What block `block` of the original model reads, where that runs beside; block 0 reads what
    /// the quantized one does.
    pub(super) fn original(&self, block: usize) -> PathBuf {
        self.path.join(format!("original-{block:04}.f32"))
    }

    /// The tensors of a finished block.
    pub(super) fn tensors(&self, block: usize) -> PathBuf {
        self.path.join(format!("block-{block:04}.safetensors"))
    }

    /// The tensors outside the blocks.
    pub(super) fn outer(&self) -> PathBuf {
        self.path.join("outer.safetensors")
    }

    fn report(&self, block: usize) -> PathBuf {
        self.path.join(format!("block-{block:04}.json"))
    }

    /// Marks a block as finished: its tensors and the next block's inputs are there already.
    pub(super) fn finish(
        &self,
        block: usize,
        reports: &[LinearReport],
    ) -> Result<(), QuantizeError> {
        save_json(self.report(block), &json!(reports))?;
        // Only a later block's inputs are needed from now on.
        for read in [self.hidden(block), self.original(block)] {
            if read.exists() {
                fs::remove_file(&read).map_err(QuantizeError::io(&read))?;
            }
        }
        Ok(())
    }

    /// The reports of a block, if it is finished.
    pub(super) fn finished(&self, block: usize) -> Option<Vec<LinearReport>> {
        let bytes = fs::read(self.report(block)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Removes the folder.
    pub(super) fn remove(self) -> Result<(), QuantizeError> {
        fs::remove_dir_all(&self.path).map_err(QuantizeError::io(&self.path))
    }
}
