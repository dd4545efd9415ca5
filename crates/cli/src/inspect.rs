//! `flashcube inspect`: what a checkpoint holds.

use std::path::{Path, PathBuf};

use clap::Args;
use flashcube_formats::{Checkpoint, Gguf, GgufValue, QuantConfig};
use flashcube_models::QuantizedCheckpoint;
use serde::Serialize;

use crate::failure::Result;
use crate::output::{self, Table};

/// Shows the tensors, metadata and quantization of a checkpoint, and checks every quantized linear.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube inspect OUT                              a model's folder
  flashcube inspect model.gguf --json

FILE is a safetensors file, an index, a model's folder, or a GGUF file. Exit 1 when a quantized
linear cannot be read.")]
pub(crate) struct InspectArgs {
    /// The checkpoint
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    kind: &'static str,
    metadata: Vec<(String, String)>,
    quantization: Option<serde_json::Value>,
    linears: Vec<Linear>,
    tensors: Vec<TensorRow>,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct TensorRow {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: usize,
}

/// A quantized linear: its sizes, or why it cannot be read.
#[derive(Debug, Serialize)]
struct Linear {
    name: String,
    sizes: Option<[usize; 2]>,
    problem: Option<String>,
}

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let gguf = args
        .file
        .extension()
        .is_some_and(|extension| extension == "gguf");
    let report = match gguf {
        true => of_gguf(&args.file)?,
        false => of_safetensors(&args.file)?,
    };
    match args.json {
        true => output::print_json(&report)?,
        false => output::print(text(&report))?,
    }
    let unreadable = report
        .linears
        .iter()
        .filter(|linear| linear.problem.is_some())
        .count();
    match unreadable {
        0 => Ok(()),
        count => Err(crate::failure::Failure::failed(format!(
            "{count} quantized linears cannot be read"
        ))),
    }
}

fn of_gguf(file: &Path) -> Result<Report> {
    let gguf = Gguf::open(file)?;
    let mut tensors = Vec::new();
    for name in gguf.names() {
        let tensor = gguf.tensor(name)?;
        tensors.push(TensorRow {
            name: name.to_owned(),
            dtype: tensor.kind.name.to_owned(),
            shape: tensor.shape.to_vec(),
            bytes: tensor.bytes.len(),
        });
    }
    let metadata = gguf
        .metadata()
        .iter()
        .map(|(key, value)| (key.clone(), brief(value)));
    Ok(Report {
        kind: "GGUF",
        metadata: metadata.collect(),
        quantization: None,
        linears: Vec::new(),
        bytes: tensors.iter().map(|tensor| tensor.bytes as u64).sum(),
        tensors,
    })
}

fn brief(value: &GgufValue) -> String {
    match value {
        GgufValue::Unsigned(x) => x.to_string(),
        GgufValue::Signed(x) => x.to_string(),
        GgufValue::Float(x) => x.to_string(),
        GgufValue::Bool(x) => x.to_string(),
        GgufValue::Text(text) => text.chars().take(100).collect(),
        GgufValue::Array(values) => format!("{} values", values.len()),
        _ => "?".to_owned(),
    }
}

fn of_safetensors(file: &Path) -> Result<Report> {
    let checkpoint = Checkpoint::open(file)?;
    let mut tensors = Vec::new();
    for name in checkpoint.names() {
        let view = checkpoint.tensor(name)?;
        tensors.push(TensorRow {
            name: name.to_owned(),
            dtype: format!("{:?}", view.dtype),
            shape: view.shape.to_vec(),
            bytes: view.bytes.len(),
        });
    }
    let metadata = checkpoint.metadata().clone().into_iter().collect();
    let (quantization, linears) = match quantization(file, &checkpoint)? {
        None => (None, Vec::new()),
        Some(config) => {
            let json = config.to_json();
            (
                Some(json),
                linears(QuantizedCheckpoint::new(checkpoint, config)),
            )
        }
    };
    Ok(Report {
        kind: "safetensors",
        metadata,
        quantization,
        linears,
        bytes: tensors.iter().map(|tensor| tensor.bytes as u64).sum(),
        tensors,
    })
}

/// From config.json or quantize_config.json beside the tensors, or the file's own metadata.
fn quantization(file: &Path, checkpoint: &Checkpoint) -> Result<Option<QuantConfig>> {
    let folder = if file.is_dir() {
        Some(file)
    } else {
        file.parent()
    };
    for name in ["config.json", "quantize_config.json", "quant_config.json"] {
        let path = folder
            .map(|folder| folder.join(name))
            .filter(|path| path.is_file());
        let Some(path) = path else { continue };
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        if name != "config.json" || json.get("quantization_config").is_some() {
            return Ok(Some(QuantConfig::open(&path)?));
        }
    }
    let own = checkpoint.metadata().get("quantization_config");
    let json = own.and_then(|text| serde_json::from_str(text).ok());
    Ok(json.map(|json| QuantConfig::from_json(&json)).transpose()?)
}

fn linears(quantized: QuantizedCheckpoint) -> Vec<Linear> {
    use flashcube_models::Weights;
    let read = |name: String| {
        let weight = format!("{name}.weight");
        let shape = quantized.shape(&weight);
        let result = match &shape {
            Some(shape) => quantized.tensor(&weight, shape).map(drop),
            // Reading it again says why.
            None => quantized.tensor(&weight, &[]).map(drop),
        };
        Linear {
            sizes: shape.map(|shape| [shape[1], shape[0]]),
            problem: result.err().map(|error| error.to_string()),
            name,
        }
    };
    quantized.linears().into_iter().map(read).collect()
}

fn text(report: &Report) -> String {
    let mut text = format!(
        "{}, {:.1} MB of tensors\n",
        report.kind,
        report.bytes as f64 / 1e6
    );
    for (key, value) in &report.metadata {
        text += &format!("  {key}: {value}\n");
    }
    if let Some(quantization) = &report.quantization {
        text += &format!("quantization: {quantization}\n");
    }
    if !report.linears.is_empty() {
        let bad = report
            .linears
            .iter()
            .filter(|linear| linear.problem.is_some());
        text += &format!(
            "quantized linears: {}, unreadable: {}\n",
            report.linears.len(),
            bad.clone().count()
        );
        for linear in bad {
            text += &format!(
                "  {}: {}\n",
                linear.name,
                linear.problem.as_deref().unwrap_or("")
            );
        }
    }
    let mut table = Table::new(&["tensor", "dtype", "shape", ">bytes"]);
    for tensor in &report.tensors {
        table.row([
            tensor.name.clone(),
            tensor.dtype.clone(),
            format!("{:?}", tensor.shape),
            tensor.bytes.to_string(),
        ]);
    }
    format!("{text}\n{table}")
}
