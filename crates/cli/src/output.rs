//! Printing: tables, JSON, and a reader that may go away.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;

use crate::failure::{Failure, Result};

/// Writes to stdout. A closed pipe ends the command quietly.
pub(crate) fn print(text: impl fmt::Display) -> Result<()> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}")
        .and_then(|()| stdout.flush())
        .map_err(unwritten)
}

/// Writes a value as indented JSON to stdout.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
    print(format_args!("{text}\n"))
}

/// The most memory that this process has held, where the system tells (Linux).
pub(crate) fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

fn unwritten(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::failed(format!("cannot write to stdout: {error}")),
    }
}

/// Columns as wide as their widest cell.
#[derive(Debug, Default)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// Which side of a column its cells stand on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

impl Table {
    /// Column titles; a title that starts with `>` marks a column of numbers, set to the right.
    pub(crate) fn new(titles: &[&'static str]) -> Self {
        let column = |title: &&'static str| match title.strip_prefix('>') {
            Some(title) => (title, Align::Right),
            None => (*title, Align::Left),
        };
        Self {
            columns: titles.iter().map(column).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |text: &str| text.chars().count();
        let mut widths: Vec<usize> = self.columns.iter().map(|(t, _)| width(t)).collect();
        for row in &self.rows {
            for (w, cell) in widths.iter_mut().zip(row) {
                *w = (*w).max(width(cell));
            }
        }
        let titles: Vec<String> = self.columns.iter().map(|(t, _)| (*t).to_owned()).collect();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, &w), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                let padded = match align {
                    Align::Left => format!("{cell:<w$}  "),
                    Align::Right => format!("{cell:>w$}  "),
                };
                line.push_str(&padded);
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_numbers_stand_right() {
        let mut table = Table::new(&["name", ">ms", "note"]);
        table.row(["a".into(), "1.5".into(), String::new()]);
        table.row(["longer é".into(), "12.25".into(), "x".into()]);
        assert_eq!(
            table.to_string(),
            "name         ms  note\na           1.5\nlonger é  12.25  x\n"
        );
    }
}
