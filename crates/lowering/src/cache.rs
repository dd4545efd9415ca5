//! Results on disk, keyed by everything that decides them.

use std::{
    env,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

/// A folder of results, shared by every process of the user.
///
/// Entries are written under a temporary name and renamed, so that a reader never sees half of one. A damaged entry
/// counts as absent. A folder that cannot be written to makes every lookup a miss and nothing else: the cache saves
/// time and decides nothing.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The user's cache: `$XDG_CACHE_HOME`, else `~/.cache`, then `flashcube/lowering`.
    pub fn user() -> Self {
        let base = env::var_os("XDG_CACHE_HOME")
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
        Self {
            folder: base.map(|base| base.join("flashcube/lowering")),
        }
    }

    /// A cache in `folder`, made when first written to.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: Some(folder.into()),
        }
    }

    /// A cache that holds nothing.
    pub fn none() -> Self {
        Self { folder: None }
    }

    /// Where the entries lie, if anywhere.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The entry of `key`, else what `compute` returns, which is stored unless it is an error.
    ///
    /// # Errors
    /// Those of `compute`.
    pub fn get_or<T, E>(&self, key: &Key, compute: impl FnOnce() -> Result<T, E>) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
    {
        if let Some(found) = self.read(key) {
            return Ok(found);
        }
        let value = compute()?;
        // A result that could not be kept is a result all the same.
        let _ = self.write(key, &value);
        Ok(value)
    }

    /// Removes the entries that were not used for longest, until the rest takes at most `limit` bytes.
    ///
    /// Every change of a kernel leaves entries behind that nobody asks for again.
    pub fn trim(&self, limit: u64) {
        let Some(Ok(files)) = self.folder().map(fs::read_dir) else {
            return;
        };
        let mut entries: Vec<_> = files
            .filter_map(|file| {
                let file = file.ok()?;
                let about = file.metadata().ok()?;
                Some((about.modified().ok()?, about.len(), file.path()))
            })
            .collect();
        entries.sort_unstable_by(|a, b| b.cmp(a));
        let mut kept = 0;
        for (_, bytes, path) in entries {
            kept += bytes;
            if kept > limit {
                // Another process may have been first.
                let _ = fs::remove_file(path);
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, key: &Key) -> Option<T> {
        let path = self.folder()?.join(&key.0);
        let text = fs::read_to_string(&path).ok()?;
        let (checksum, body) = text.split_once('\n')?;
        if checksum != sha256_hex(body) {
            return None;
        }
        let found = serde_json::from_str(body).ok()?;
        // The time of an entry is that of its last use; see `trim`.
        if let Ok(file) = File::options().append(true).open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        Some(found)
    }

    fn write<T: Serialize>(&self, key: &Key, value: &T) -> std::io::Result<()> {
        let Some(folder) = self.folder() else {
            return Ok(());
        };
        let body = serde_json::to_string(value)?;
        fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        writeln!(file, "{}", sha256_hex(&body))?;
        file.write_all(body.as_bytes())?;
        file.persist(folder.join(&key.0))?;
        Ok(())
    }
}

/// The name of an entry: a hash over everything that decides the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// Hashes the parts with their lengths, so that moving a character from one part to the next changes the key.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut hasher = Sha256::new();
        for part in parts {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(hex(&hasher.finalize()))
    }
}

/// SHA-256 of a text in hexadecimal.
pub(crate) fn sha256_hex(text: &str) -> String {
    hex(&Sha256::digest(text))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks `key` up and tells whether the value had to be computed.
    fn lookup(cache: &Cache, key: &Key, value: &str) -> (String, bool) {
        let mut computed = false;
        let found = cache.get_or(key, || {
            computed = true;
            Ok::<_, ()>(value.to_owned())
        });
        (found.unwrap(), computed)
    }

    #[test]
    fn second_lookup_finds_the_first_result() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("deep/er"));
        let key = Key::of(["source", "sm_90a"]);
        assert_eq!(lookup(&cache, &key, "one"), ("one".to_owned(), true));
        assert_eq!(lookup(&cache, &key, "two"), ("one".to_owned(), false));
        let files = fs::read_dir(cache.folder().unwrap()).unwrap().count();
        assert_eq!(files, 1, "no temporary file is left behind");
    }

    #[test]
    fn damaged_entries_are_computed_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let key = Key::of(["source"]);
        let path = folder.path().join(&key.0);
        for damaged in ["", "no newline", "0000\n\"one\"", "\u{0}\u{1}\n"] {
            lookup(&cache, &key, "one");
            fs::write(&path, damaged).unwrap();
            assert_eq!(lookup(&cache, &key, "two"), ("two".to_owned(), true));
            assert_eq!(lookup(&cache, &key, "three"), ("two".to_owned(), false));
            fs::remove_file(&path).unwrap();
        }
        lookup(&cache, &key, "one");
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(lookup(&cache, &key, "two"), ("two".to_owned(), true));
    }

    #[test]
    fn errors_and_absent_folders_store_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let key = Key::of(["source"]);
        assert_eq!(cache.get_or(&key, || Err::<String, _>(7)), Err(7));
        assert_eq!(lookup(&cache, &key, "one"), ("one".to_owned(), true));
        assert!(lookup(&Cache::none(), &key, "two").1);
        let blocked = folder.path().join(&key.0);
        assert_eq!(
            lookup(&Cache::at(blocked), &key, "x"),
            ("x".to_owned(), true)
        );
    }

    #[test]
    fn trimming_keeps_what_was_used_last() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let keys = ["a", "b", "c"].map(|name| Key::of([name]));
        for (age, key) in (1..).zip(&keys) {
            lookup(&cache, key, "some text");
            let file = File::options()
                .append(true)
                .open(folder.path().join(&key.0))
                .unwrap();
            let hours = std::time::Duration::from_secs(3600 * age);
            file.set_modified(SystemTime::now() - hours).unwrap();
        }
        // The oldest becomes the newest; the one in the middle stays the second.
        assert!(!lookup(&cache, &keys[2], "other").1);
        let bytes = fs::metadata(folder.path().join(&keys[0].0)).unwrap().len();
        cache.trim(2 * bytes);
        assert!(!lookup(&cache, &keys[2], "other").1);
        assert!(!lookup(&cache, &keys[0], "other").1);
        assert!(lookup(&cache, &keys[1], "other").1);
        Cache::none().trim(0);
        Cache::at(folder.path().join("absent")).trim(0);
    }

    #[test]
    fn keys_depend_on_every_part_and_on_where_it_ends() {
        assert_eq!(Key::of(["a", "b"]), Key::of(["a", "b"]));
        assert_ne!(Key::of(["ab", ""]), Key::of(["a", "b"]));
        assert_ne!(Key::of(["a", "b"]), Key::of(["b", "a"]));
        assert_eq!(sha256_hex("abc")[..8], *"ba7816bf");
    }
}
