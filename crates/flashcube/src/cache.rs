//! Compiled kernels kept on disk.

use std::path::{Path, PathBuf};

use cubecl_runtime::config::CubeClRuntimeConfig;
use cubecl_runtime::config::RuntimeConfig;
use cubecl_runtime::config::cache::CacheConfig;

/// The kernels could not be kept: a device was opened before they were asked to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot keep kernels in {}: a device is already open in this process", folder.display())]
pub struct CacheError {
    /// The folder asked for.
    pub folder: PathBuf,
}

/// Keeps compiled kernels in `folder`, which is created: a later process with the same binary loads
/// them instead of compiling. Call it before the first device is opened. Other settings still come
/// from `cubecl.toml` and the environment.
///
/// # Errors
/// [`CacheError`] when a device is open already.
pub fn keep_compiled(folder: &Path) -> Result<(), CacheError> {
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.compilation.cache = true;
    config.environment.path = CacheConfig::Directory(folder.to_owned());
    if CubeClRuntimeConfig::try_set(config) {
        Ok(())
    } else {
        Err(CacheError {
            folder: folder.to_owned(),
        })
    }
}
