//! Where the CUDA toolkit lies: NVRTC, ptxas, cuobjdump and the headers. No driver and no GPU is needed.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::{LoweringError, error::Result};

/// Environment variable that names a toolkit folder and overrides the search.
const OVERRIDE: &str = "FLASHCUBE_CUDA";

/// A CUDA toolkit on disk.
#[derive(Clone, Debug)]
pub struct Toolkit {
    root: PathBuf,
    nvrtc: PathBuf,
    builtins: PathBuf,
}

impl Toolkit {
    /// Finds the toolkit: `$FLASHCUBE_CUDA` if set, else the folder that `cargo xtask bootstrap` fills, else
    /// `$CUDA_PATH`, `$CUDA_HOME`, `/usr/local/cuda`; the first that is whole.
    ///
    /// # Errors
    /// [`LoweringError::ToolkitIncomplete`] when `$FLASHCUBE_CUDA` is set and wrong (another toolkit is never taken in
    /// its stead), [`LoweringError::ToolkitNotFound`] when nothing is found; both say what to install.
    pub fn find() -> Result<Self> {
        Self::find_with(|name| env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn find_with(var: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        if let Some(root) = var(OVERRIDE).map(PathBuf::from) {
            return Self::at(&root).map_err(|missing| LoweringError::ToolkitIncomplete {
                variable: OVERRIDE,
                root,
                missing,
            });
        }
        let mut searched = vec![format!("${OVERRIDE}: not set")];
        let named = |name: &str| (format!("${name}"), var(name).map(PathBuf::from));
        let candidates = [
            ("bootstrap".to_owned(), bootstrap_root(&var)),
            named("CUDA_PATH"),
            named("CUDA_HOME"),
            ("system".to_owned(), Some(PathBuf::from("/usr/local/cuda"))),
        ];
        for (origin, root) in candidates {
            let Some(root) = root else {
                searched.push(format!("{origin}: not set"));
                continue;
            };
            match Self::at(&root) {
                Ok(toolkit) => return Ok(toolkit),
                Err(missing) => searched.push(format!(
                    "{origin} {}: no {}",
                    root.display(),
                    missing.join(", ")
                )),
            }
        }
        Err(LoweringError::ToolkitNotFound { searched })
    }

    /// The toolkit in `root`, or the list of what `root` lacks.
    fn at(root: &Path) -> std::result::Result<Self, Vec<String>> {
        let mut missing = Vec::new();
        for file in ["bin/ptxas", "bin/cuobjdump", "include/cuda_fp16.h"] {
            if !root.join(file).is_file() {
                missing.push(file.to_owned());
            }
        }
        // The installer of the whole toolkit calls the folder lib64, the wheels call it lib.
        let library = |prefix: &str| {
            ["lib64", "lib"]
                .iter()
                .find_map(|folder| newest_library(&root.join(folder), prefix))
        };
        let nvrtc = library("libnvrtc.so.");
        let builtins = library("libnvrtc-builtins.so.");
        match (nvrtc, builtins) {
            (Some(nvrtc), Some(builtins)) if missing.is_empty() => Ok(Self {
                root: root.to_owned(),
                nvrtc,
                builtins,
            }),
            (nvrtc, builtins) => {
                if nvrtc.is_none() {
                    missing.push("lib/libnvrtc.so.*".to_owned());
                }
                if builtins.is_none() {
                    missing.push("lib/libnvrtc-builtins.so.*".to_owned());
                }
                Err(missing)
            }
        }
    }

    /// The folder holding `bin/`, `lib/` and `include/`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The NVRTC library.
    pub fn nvrtc_library(&self) -> &Path {
        &self.nvrtc
    }

    /// The library of NVRTC's built-in functions, which NVRTC opens by its bare name.
    pub fn builtins_library(&self) -> &Path {
        &self.builtins
    }

    /// Header folders, in order: the toolkit's own and, where present, the C++ core libraries.
    pub fn include_folders(&self) -> Vec<PathBuf> {
        let include = self.root.join("include");
        let cccl = include.join("cccl");
        let has_cccl = cccl.is_dir();
        let mut folders = vec![include];
        if has_cccl {
            folders.push(cccl);
        }
        folders
    }

    /// One line naming the exact build of the compiler and the disassembler, e.g. `13.0.88/13.5.37`.
    ///
    /// # Errors
    /// [`LoweringError::Tool`] or [`LoweringError::Output`] when a program cannot be run or names no version.
    pub fn version(&self) -> Result<String> {
        let build = |tool: &'static str| -> Result<String> {
            let output = self.run(tool, |command| command.arg("--version"))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            parse_version(&text)
                .map(str::to_owned)
                .ok_or(LoweringError::Output {
                    tool,
                    reason: format!("no `V<major>.<minor>.<build>` in {text:?}"),
                })
        };
        Ok(format!("{}/{}", build("ptxas")?, build("cuobjdump")?))
    }

    /// Runs `bin/<tool>` and returns what it printed, whatever its exit status.
    pub(crate) fn run(
        &self,
        tool: &str,
        arguments: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Result<Output> {
        let program = self.root.join("bin").join(tool);
        arguments(&mut Command::new(&program))
            .output()
            .map_err(|error| LoweringError::Tool {
                program,
                reason: error.to_string(),
            })
    }
}

/// Where `cargo xtask bootstrap` puts the toolkit.
fn bootstrap_root(var: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let data = var("XDG_DATA_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(var("HOME")?).join(".local/share")))?;
    Some(data.join("flashcube/cuda-13.0/nvidia/cu13"))
}

/// `folder/<prefix><version>` of the highest version, compared number by number.
fn newest_library(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let version = |name: &str| -> Option<Vec<u32>> {
        name.strip_prefix(prefix)?
            .split('.')
            .map(|part| part.parse().ok())
            .collect()
    };
    fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((version(entry.file_name().to_str()?)?, entry.path()))
        })
        .max()
        .map(|(_, path)| path)
}

/// `13.0.88` of `Cuda compilation tools, release 13.0, V13.0.88`.
fn parse_version(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| {
        let version = word.strip_prefix('V')?;
        let is_version = version.contains('.')
            && version
                .split('.')
                .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        is_version.then_some(version)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that looks like a toolkit, with the libraries in `lib`.
    fn fake(lib: &str, libraries: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in ["bin", "include", lib] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        for file in ["bin/ptxas", "bin/cuobjdump", "include/cuda_fp16.h"] {
            fs::write(root.path().join(file), "").unwrap();
        }
        for library in libraries {
            fs::write(root.path().join(lib).join(library), "").unwrap();
        }
        root
    }

    const WHOLE: [&str; 3] = [
        "libnvrtc.so.9",
        "libnvrtc.so.13",
        "libnvrtc-builtins.so.13.0",
    ];

    #[test]
    fn override_wins_and_the_newest_library_is_taken() {
        for lib in ["lib", "lib64"] {
            let root = fake(lib, &WHOLE);
            let toolkit = Toolkit::find_with(|name| {
                (name == OVERRIDE).then(|| root.path().as_os_str().to_owned())
            })
            .unwrap();
            assert_eq!(toolkit.root(), root.path());
            assert!(toolkit.nvrtc_library().ends_with("libnvrtc.so.13"));
        }
    }

    #[test]
    fn wrong_override_is_an_error_that_names_what_is_missing() {
        let root = fake("lib", &["libnvrtc.so.13"]);
        let whole = fake("lib", &WHOLE);
        let error = Toolkit::find_with(|name| match name {
            "FLASHCUBE_CUDA" => Some(root.path().into()),
            "CUDA_PATH" => Some(whole.path().into()),
            _ => None,
        })
        .unwrap_err();
        let LoweringError::ToolkitIncomplete { missing, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(missing, &["lib/libnvrtc-builtins.so.*"]);
        assert!(error.to_string().contains("cargo xtask bootstrap"));
    }

    #[test]
    fn bootstrap_folder_comes_before_cuda_path() {
        let data = tempfile::tempdir().unwrap();
        let bootstrapped = data.path().join("flashcube/cuda-13.0/nvidia/cu13");
        let cuda_path = fake("lib64", &WHOLE);
        let var = |name: &str| match name {
            "XDG_DATA_HOME" => Some(data.path().into()),
            "CUDA_PATH" => Some(cuda_path.path().into()),
            _ => None,
        };
        assert_eq!(Toolkit::find_with(var).unwrap().root(), cuda_path.path());
        let whole = fake("lib", &WHOLE);
        fs::create_dir_all(bootstrapped.parent().unwrap()).unwrap();
        fs::rename(whole.path(), &bootstrapped).unwrap();
        assert_eq!(Toolkit::find_with(var).unwrap().root(), bootstrapped);
    }

    #[test]
    fn version_is_read_from_the_banner() {
        let banner = "Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0.r13.0";
        assert_eq!(parse_version(banner), Some("13.0.88"));
        assert_eq!(parse_version("Very. old V. V1"), None);
    }
}
