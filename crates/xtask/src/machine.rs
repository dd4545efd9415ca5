//! Where things are on this machine: the data folder, the checkout, the built binaries.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The folders every task works with.
pub(crate) struct Machine {
    /// The user's data folder, the same one cubecl's LLVM build script looks in.
    pub(crate) data_dir: PathBuf,
    /// The root of the checkout.
    pub(crate) root: PathBuf,
}

impl Machine {
    /// Reads the environment.
    pub(crate) fn detect() -> Result<Self, Failure> {
        let data_dir = data_dir(env::consts::OS, |name| env::var_os(name), env::home_dir())
            .ok_or(Failure::NoDataDir)?;
        Ok(Self {
            data_dir,
            root: workspace_root(),
        })
    }

    /// Everything flashcube itself keeps between runs.
    pub(crate) fn flashcube_dir(&self) -> PathBuf {
        self.data_dir.join("flashcube")
    }

    /// The `flashcube` binary beside this one: both come from the same target folder.
    pub(crate) fn flashcube_binary(&self) -> Result<PathBuf, Failure> {
        let own = env::current_exe().map_err(Failure::io("locate", "the running program"))?;
        Ok(own.with_file_name(format!("flashcube{}", env::consts::EXE_SUFFIX)))
    }
}

/// True where wheels and apt packages can be installed.
pub(crate) fn is_linux() -> bool {
    cfg!(target_os = "linux")
}

/// Marks every file directly in the folder executable: unpacking with python's zip module drops
/// that bit.
#[cfg(unix)]
pub(crate) fn make_executable(folder: &Path) -> Result<(), Failure> {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    let entries = fs::read_dir(folder).map_err(Failure::io("read", folder))?;
    for path in entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
    {
        let metadata = fs::metadata(&path).map_err(Failure::io("read", &path))?;
        let mut permissions = metadata.permissions();
        permissions.set_mode(permissions.mode() | 0o755);
        fs::set_permissions(&path, permissions).map_err(Failure::io("make executable", &path))?;
    }
    Ok(())
}

/// Other systems have no such bit.
#[cfg(not(unix))]
pub(crate) fn make_executable(_folder: &Path) -> Result<(), Failure> {
    Ok(())
}

/// The user's data folder by the rules of the `dirs` crate, which cubecl's build script follows:
/// a relative XDG_DATA_HOME does not count.
fn data_dir(
    os: &str,
    variable: impl Fn(&str) -> Option<OsString>,
    home: Option<PathBuf>,
) -> Option<PathBuf> {
    let absolute = |name: &str| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    match os {
        "macos" => home.map(|home| home.join("Library/Application Support")),
        "windows" => absolute("LOCALAPPDATA").or(home.map(|home| home.join("AppData\\Local"))),
        _ => absolute("XDG_DATA_HOME").or(home.map(|home| home.join(".local/share"))),
    }
}

/// Two levels above this package. `cargo run` names the package's folder at run time; the
/// compile-time value serves when the binary is started by hand.
fn workspace_root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package
        .ancestors()
        .nth(2)
        .map_or(package.clone(), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(os: &str, xdg: Option<&str>) -> Option<PathBuf> {
        data_dir(
            os,
            |name| xdg.filter(|_| name == "XDG_DATA_HOME").map(OsString::from),
            Some(PathBuf::from("/home/ada")),
        )
    }

    #[test]
    fn absolute_xdg_data_home_wins_on_linux() {
        assert_eq!(
            resolve("linux", Some("/data")),
            Some(PathBuf::from("/data"))
        );
    }

    #[test]
    fn relative_or_unset_xdg_data_home_falls_back_to_home() {
        let expected = Some(PathBuf::from("/home/ada/.local/share"));
        assert_eq!(resolve("linux", Some("data")), expected);
        assert_eq!(resolve("linux", None), expected);
    }

    #[test]
    fn macos_ignores_xdg_data_home() {
        let expected = Some(PathBuf::from("/home/ada/Library/Application Support"));
        assert_eq!(resolve("macos", Some("/data")), expected);
    }

    #[test]
    fn no_home_gives_no_data_dir() {
        assert_eq!(data_dir("linux", |_| None, None), None);
    }

    #[test]
    fn workspace_root_holds_the_virtual_manifest() {
        let manifest = std::fs::read_to_string(workspace_root().join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[workspace]"));
    }
}
