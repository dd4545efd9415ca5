//! How far FP4 and FP8 weights are from exact attention, and whether a small model trains with them.
//!
//! `cargo run --release -p flashcube-benches --example fp4_study -- errors` writes the tables of docs/fp4.md and
//! their plots anew, `-- train TEXT` those of the training study on a text file. Both take a few minutes and
//! draw the same numbers every time.

mod errors;
mod model;
mod plot;
mod train;

use std::path::PathBuf;

/// Puts `text` between the marks of `name` in docs/fp4.md.
fn replace(name: &str, text: &str) -> Result<(), String> {
    let path = docs().join("fp4.md");
    let page = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let (begin, end) = (
        format!("<!-- {name} -->\n"),
        format!("<!-- end of {name} -->"),
    );
    let missing = || format!("docs/fp4.md has no {begin:?} with {end:?} after it");
    let (before, rest) = page.split_once(&begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(&end).ok_or_else(missing)?;
    let page = format!("{before}{begin}{text}{end}{after}");
    std::fs::write(path, page).map_err(|error| error.to_string())
}

/// Writes a drawing into docs/.
fn draw(name: &str, svg: &str) -> Result<(), String> {
    std::fs::write(docs().join(name), svg).map_err(|error| error.to_string())
}

fn docs() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"))
}

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["errors"] => errors::run(),
        ["train", text] => train::run(text),
        _ => Err("usage: fp4_study errors | fp4_study train TEXT".into()),
    }
}
