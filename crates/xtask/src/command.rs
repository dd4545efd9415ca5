//! Running other programs: never with a terminal as input, and with the command shown on failure.
//! What xtask itself says goes to stderr: stdout belongs to the programs it runs.

use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::failure::Failure;

/// Lines of a failed command's output that are shown.
const TAIL_LINES: usize = 15;

/// Attempts for commands that use the network: the first one and two more.
const ATTEMPTS: u32 = 3;

/// Runs quietly and returns what the command printed on stdout.
pub(crate) fn capture(command: &mut Command) -> Result<String, Failure> {
    let shown = display(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Failure::NotStarted {
            command: shown.clone(),
            source,
        })?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let printed = stdout + &String::from_utf8_lossy(&output.stderr);
    Err(Failure::Command {
        command: shown,
        status: describe(output.status),
        tail: tail(&printed),
    })
}

/// Shows the command line, then runs it with its output on ours.
pub(crate) fn stream(command: &mut Command) -> Result<(), Failure> {
    let shown = display(command);
    eprintln!("$ {shown}");
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|source| Failure::NotStarted {
            command: shown.clone(),
            source,
        })?;
    if status.success() {
        return Ok(());
    }
    // Its output is on the screen already.
    Err(Failure::Command {
        command: shown,
        status: describe(status),
        tail: String::new(),
    })
}

/// Captures a command that uses the network, trying again after a short pause.
pub(crate) fn capture_with_retries(
    pause: Duration,
    mut make: impl FnMut() -> Command,
) -> Result<String, Failure> {
    let mut attempt = 1;
    loop {
        match capture(&mut make()) {
            Err(Failure::Command { status, .. }) if attempt < ATTEMPTS => {
                eprintln!("      attempt {attempt} of {ATTEMPTS} failed ({status}), trying again");
                thread::sleep(pause * attempt);
                attempt += 1;
            }
            result => return result,
        }
    }
}

/// The command as one would type it: a paste into a shell should do the same.
fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| quote(&word.to_string_lossy()))
        .collect::<Vec<_>>()
        .join(" ")
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn describe(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit status {code}"),
        None => status.to_string(),
    }
}

/// The last lines of a text, indented under the message that introduces them.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let kept = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    kept.iter()
        .map(|line| format!("      | {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_quotes_only_what_a_shell_would_split() {
        let mut command = Command::new("echo");
        command.args(["plain", "two words", "it's", ""]);
        assert_eq!(display(&command), r"echo plain 'two words' 'it'\''s' ''");
    }

    #[test]
    fn tail_keeps_the_last_lines_in_order() {
        let text = (0..40).map(|n| format!("line {n}\n\n")).collect::<String>();
        let kept = tail(&text);
        assert_eq!(kept.lines().count(), TAIL_LINES);
        assert_eq!(kept.lines().last(), Some("      | line 39"));
        assert_eq!(tail(""), "");
    }

    #[test]
    fn missing_program_names_the_command() {
        let failure = capture(&mut Command::new("flashcube-no-such-program")).unwrap_err();
        assert!(failure.to_string().contains("`flashcube-no-such-program`"));
    }

    #[cfg(unix)]
    #[test]
    fn failing_command_shows_status_and_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo on stdout; echo on stderr >&2; exit 3"]);
        let message = capture(&mut command).unwrap_err().to_string();
        for part in ["exit status 3", "| on stdout", "| on stderr"] {
            assert!(message.contains(part), "{part} is not in {message}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn retries_stop_at_the_first_success_and_after_three_failures() {
        let mut calls = 0;
        let succeeds_second = capture_with_retries(Duration::ZERO, || {
            calls += 1;
            Command::new(if calls == 2 { "true" } else { "false" })
        });
        assert!(succeeds_second.is_ok());
        assert_eq!(calls, 2);

        let mut failures = 0;
        let never = capture_with_retries(Duration::ZERO, || {
            failures += 1;
            Command::new("false")
        });
        assert!(never.is_err());
        assert_eq!(failures, ATTEMPTS);
    }
}
