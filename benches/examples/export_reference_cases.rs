//! Writes attention problems and the reference's results in f64 to one safetensors file, for
//! `peers/torch_f64.py`, which computes them again with another program.
//!
//! ```text
//! cargo run --release --example export_reference_cases -- cases.safetensors
//! ```
//!
//! Case NN holds the f64 tensors NN/q, NN/k, NN/v, NN/d_out, NN/out, NN/lse, NN/dq, NN/dk, NN/dv;
//! where the case has them NN/d_lse, NN/bias, NN/alibi (f64), NN/mask (bool, true = hidden),
//! NN/lengths_q, NN/lengths_kv, NN/documents_q, NN/documents_kv (i64). The scalars are JSON, one
//! metadata entry per case.

#[path = "reference_cases/case.rs"]
mod case;
#[path = "reference_cases/draw.rs"]
mod draw;
#[path = "reference_cases/list.rs"]
mod list;

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use flashcube_formats::{TensorData, save};

fn main() -> ExitCode {
    let Some(path) = env::args_os().nth(1) else {
        eprintln!("usage: export_reference_cases FILE.safetensors");
        return ExitCode::from(2);
    };
    match export(Path::new(&path)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn export(path: &Path) -> Result<(), Box<dyn Error>> {
    let mut tensors: BTreeMap<String, TensorData> = BTreeMap::new();
    let mut metadata = BTreeMap::new();
    let cases = list::cases();
    for (number, case) in cases.iter().enumerate() {
        let key = format!("{number:02}");
        let drawn = draw::Drawn::new(case, number as u64)?;
        let named = drawn.tensors()?.into_iter().chain(drawn.results(case)?);
        tensors.extend(named.map(|(name, tensor)| (format!("{key}/{name}"), tensor)));
        metadata.insert(key, case.json().to_string());
    }
    save(path, &tensors, &metadata)?;
    let bytes: usize = tensors.values().map(|tensor| tensor.bytes().len()).sum();
    println!(
        "{} cases, {} tensors, {:.1} MB: {}",
        cases.len(),
        tensors.len(),
        bytes as f64 / 1e6,
        path.display()
    );
    Ok(())
}
