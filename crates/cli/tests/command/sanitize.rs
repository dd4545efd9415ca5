//! `flashcube sanitize` with a program in place of compute-sanitizer.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::{Folder, expect};

/// Notes what it is asked, and reports what `planted` and `clean` say.
fn sanitizer(folder: &Folder, planted: &str, clean: &str) -> String {
    let (program, notes) = (folder.file("sanitizer"), folder.file("notes"));
    let script = format!(
        "#!/bin/sh\necho \"$2 $6 $7 $8 $9 ${{10}}\" >> {notes}\n\
         case \"$*\" in *--planted*) echo '{planted}';; *) echo '{clean}';; esac\n"
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

const RACE: &str = "========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)";
const CLEAN: &str = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)";

#[test]
fn a_planted_race_is_shown_before_silence_counts() {
    let folder = Folder::new("sanitize");
    let run = |program: &str, code: i32, told: &str| {
        let cases = ["--case", "a/case", "--case", "another"];
        let command = ["sanitize", "--compute-sanitizer", program];
        expect(code, &[&command[..], &cases].concat(), told)
    };
    let table = run(&sanitizer(&folder, RACE, CLEAN), 0, "");
    assert!(table.contains("barrier-dropped"), "{table}");
    let notes = fs::read_to_string(folder.file("notes")).unwrap();
    let verify = "verify --backend cuda --case";
    let expected = format!(
        "memcheck {verify} a/case\nmemcheck {verify} another\nracecheck sanitize --planted   \n\
         racecheck {verify} a/case\nracecheck {verify} another\n"
    );
    assert_eq!(notes, expected);

    let silent = run(&sanitizer(&folder, CLEAN, CLEAN), 1, "1 of 5");
    assert!(
        silent.contains("the planted race is not reported"),
        "{silent}"
    );
    run(&sanitizer(&folder, RACE, RACE), 1, "4 of 5");
    run(&sanitizer(&folder, RACE, "died"), 1, "4 of 5");
    run("/no/such/program", 2, "/no/such/program");
}
