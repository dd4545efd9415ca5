//! `flashcube convert`: a checkpoint in another format, or in plain floats.

use std::path::PathBuf;

use clap::Args;
use flashcube_models::Model;
use flashcube_quantize::model::{Target, convert_model, dequantize_model};
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::output;

/// Writes a quantized checkpoint, or a GGUF file of Q4_0 or Q8_0, in another format, codes, scales
/// and zero points bit for bit; or any model as plain f32.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube convert OUT OUT2 --format compressed-tensors
  flashcube convert model-q4_0.gguf OUT --format gptq
  flashcube convert model.gguf FLOATS --format f32 --json

What a format cannot hold is refused: act-order outside gptq, other widths than 4 bits in awq and
marlin, zero points in marlin, divisors of inputs outside flashcube; groups of 32, which GGUF has, in marlin.
Q4_1 becomes f32 only: its float minimum is no integer zero point.")]
pub(crate) struct ConvertArgs {
    /// Folder or GGUF file of the quantized model, or for f32 any model
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Folder of the new one
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Format to write
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(names()))]
    format: String,
    /// Most megabytes of tensors in a file
    #[arg(long, default_value_t = 2000)]
    shard_mb: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    format: &'a str,
    /// Of all tensors.
    bytes: u64,
}

/// The format that is none.
const FLOATS: &str = "f32";

fn names() -> impl Iterator<Item = &'static str> {
    Target::NAMES
        .into_iter()
        .filter(|name| *name != "nvfp4")
        .chain([FLOATS])
}

pub(crate) fn run(args: &ConvertArgs) -> Result<()> {
    let model = Model::open(&args.input)?;
    let shard_bytes = args.shard_mb.saturating_mul(1_000_000);
    if args.format == FLOATS {
        return written(args, dequantize_model(&model, &args.out, shard_bytes)?);
    }
    let bits = model
        .quantized()
        .map_or(4, |quantized| quantized.config().bits);
    let target = Target::parse(&args.format, bits)
        .ok_or_else(|| Failure::usage(format!("--format {}", args.format), "see --help"))?;
    written(args, convert_model(&model, &args.out, target, shard_bytes)?)
}

fn written(args: &ConvertArgs, bytes: u64) -> Result<()> {
    if args.json {
        let format = &args.format;
        return output::print_json(&Json { format, bytes });
    }
    output::print(format_args!(
        "{}: {:.1} MB as {}\n",
        args.out.display(),
        bytes as f64 / 1e6,
        args.format
    ))
}
