//! Decodes PTX files and prints the first thing in each that is not modelled.

use flashcube_ptx_sim::{Kernel, parse};

fn main() {
    let (mut good, mut bad) = (0, 0);
    for path in std::env::args().skip(1) {
        let source = match std::fs::read_to_string(&path) {
            Ok(source) => source,
            Err(error) => {
                eprintln!("{path}: {error}");
                continue;
            }
        };
        match parse(&source).and_then(|module| Kernel::load(&module, None)) {
            Ok(_) => good += 1,
            Err(error) => {
                bad += 1;
                println!("{path}: {error}");
            }
        }
    }
    println!("{good} files decoded, {bad} refused");
}
