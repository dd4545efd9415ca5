//! Installing a folder all at once: it is built beside its place and renamed into it, so that an
//! interrupted run leaves nothing half done where others look.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process;

use crate::failure::Failure;

/// A temporary folder beside the one being installed, removed when dropped.
pub(crate) struct Staging {
    target: PathBuf,
    folder: PathBuf,
}

impl Staging {
    /// Creates the folder on the same file system as `target`, and removes what earlier,
    /// interrupted runs left there.
    pub(crate) fn beside(target: &Path) -> Result<Self, Failure> {
        let parent = target.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(Failure::io("create", parent))?;
        let prefix = format!("{}.partial-", name_of(target));
        remove_abandoned(parent, &prefix);
        let folder = parent.join(format!("{prefix}{}", process::id()));
        let staging = Self {
            target: target.to_path_buf(),
            folder,
        };
        for part in [staging.downloads(), staging.tree()] {
            fs::create_dir_all(&part).map_err(Failure::io("create", part))?;
        }
        Ok(staging)
    }

    /// Where wheels are downloaded to.
    pub(crate) fn downloads(&self) -> PathBuf {
        self.folder.join("downloads")
    }

    /// Where wheels are unpacked.
    pub(crate) fn tree(&self) -> PathBuf {
        self.folder.join("tree")
    }

    /// Renames `content`, a folder inside the staging folder, to the target. An earlier target is
    /// moved aside first and removed last: the time without one is that of two renames.
    pub(crate) fn publish(self, content: &Path) -> Result<(), Failure> {
        let replaced = self.folder.join("replaced");
        if self.target.exists() {
            fs::rename(&self.target, &replaced).map_err(Failure::io("move aside", &self.target))?;
        }
        fs::rename(content, &self.target).map_err(|source| {
            // Puts the earlier one back; where there was none, this does nothing.
            let _ = fs::rename(&replaced, &self.target);
            Failure::io("create", &self.target)(source)
        })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // A leftover is harmless and removed by the next run.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Removes staging folders whose process is gone. Only Linux tells that without a system call
/// outside the standard library; elsewhere nothing is installed this way.
fn remove_abandoned(parent: &Path, prefix: &str) {
    if !Path::new("/proc/self").exists() {
        return;
    }
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name
            .strip_prefix(prefix)
            .is_some_and(|pid| !is_running(pid))
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A killed process that nobody waited for keeps its folder in /proc, but its program is gone.
/// Other errors (another user's process) mean that it runs.
fn is_running(pid: &str) -> bool {
    let program = fs::read_link(Path::new("/proc").join(pid).join("exe"));
    program.map_or_else(|error| error.kind() != ErrorKind::NotFound, |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fresh folder under the system's temporary one, named by the test.
    fn scratch(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("flashcube-{test}-{}", process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn entries(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().flatten().collect::<Vec<_>>();
        names.sort_by_key(fs::DirEntry::file_name);
        names
            .iter()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn published_tree_replaces_the_target_and_leaves_nothing_else() {
        let folder = scratch("publish");
        let target = folder.join("toolkit");
        fs::create_dir_all(target.join("old")).unwrap();
        let staging = Staging::beside(&target).unwrap();
        fs::write(staging.tree().join("file"), "content").unwrap();
        let tree = staging.tree();
        staging.publish(&tree).unwrap();
        assert_eq!(entries(&folder), ["toolkit"]);
        assert_eq!(entries(&target), ["file"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn dropped_staging_leaves_the_target_untouched() {
        let folder = scratch("drop");
        let target = folder.join("toolkit");
        fs::create_dir_all(target.join("old")).unwrap();
        drop(Staging::beside(&target).unwrap());
        assert_eq!(entries(&folder), ["toolkit"]);
        assert_eq!(entries(&target), ["old"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn failed_publish_puts_the_earlier_target_back() {
        let folder = scratch("restore");
        let target = folder.join("toolkit");
        fs::create_dir_all(target.join("old")).unwrap();
        let staging = Staging::beside(&target).unwrap();
        let absent = staging.tree().join("absent");
        assert!(staging.publish(&absent).is_err());
        assert_eq!(entries(&target), ["old"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn abandoned_staging_is_removed_and_a_live_one_kept() {
        let folder = scratch("abandoned");
        // Process ids end far below this number; process 1 always lives.
        for pid in ["999999999", "1"] {
            fs::create_dir_all(folder.join(format!("toolkit.partial-{pid}"))).unwrap();
        }
        drop(Staging::beside(&folder.join("toolkit")).unwrap());
        assert_eq!(entries(&folder), ["toolkit.partial-1"]);
        fs::remove_dir_all(folder).unwrap();
    }
}
