//! `flashcube quantize`: a model in, a quantized checkpoint out.

mod plot;
mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use flashcube_models::{Model, TokenBatch, texts_dir};
use flashcube_quantize::model::{
    Method, ModelOptions, ModelReport, Progress, Target, Texts, Unfoldable, calibration_batches,
    quantize_model, sentence_batches,
};
use flashcube_quantize::{
    AwqOptions, ClipSearch, GptqOptions, GridOptions, GroupFit, QuantizeError,
};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::attention::attend;
use crate::backend::{self, BackendName};
use crate::failure::{Failure, Result};
use crate::output;

/// Quantizes the linears of a model, block after block, and writes a checkpoint.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube quantize --method gptq --bits 4 --group 64 --act-order --format gptq MODEL OUT
  flashcube quantize --method awq --bits 4 --group 64 --format awq model.gguf OUT
  flashcube quantize --method mxfp4 MODEL OUT
  flashcube quantize --method rtn --bits 3 --group 64 --format gptq_v2 MODEL OUT --json

MODEL is a folder (config.json, tokenizer.json, safetensors; bert and llama) or a GGUF file. An
interrupted run goes on where it was when the same command is given again. The text to calibrate
with comes with `cargo xtask bootstrap texts`; only its first nine tenths are used, the last tenth
is what `flashcube perplexity --held-out` reads. Errors are root mean squares of the layers'
outputs, as parts of those outputs.")]
pub(crate) struct QuantizeArgs {
    /// The model
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Folder of the checkpoint
    #[arg(value_name = "OUT")]
    out: PathBuf,
    #[arg(long, value_enum, default_value = "gptq")]
    method: MethodName,
    /// Bits of a weight: 2, 3, 4 or 8
    #[arg(long, default_value_t = 4)]
    bits: u32,
    /// Input channels that share a scale; -1 for all of them
    #[arg(long, default_value_t = 128, allow_negative_numbers = true)]
    group: i64,
    /// Symmetric: no zero points
    #[arg(long)]
    sym: bool,
    /// GPTQ: the channels of most energy first
    #[arg(long)]
    act_order: bool,
    /// GPTQ: groups fitted beforehand, so that --act-order needs no g_idx
    #[arg(long)]
    static_groups: bool,
    /// GPTQ: groups fitted as the published code has it
    #[arg(long)]
    block_start_groups: bool,
    /// GPTQ: part of the mean diagonal that is added to the Hessian's
    #[arg(long, default_value_t = 0.01, allow_negative_numbers = true)]
    damping: f64,
    /// GPTQ: the linears of a block see what they were, not what earlier ones became
    #[arg(long)]
    no_true_sequential: bool,
    /// Biases take in the mean of each layer's output error
    #[arg(long)]
    bias_correction: bool,
    /// Every linear aims at the original model's output, to make up for what those before it got
    /// wrong; the original runs beside
    #[arg(long)]
    follow_original: bool,
    /// Search for smaller ranges (gptq, rtn; AWQ does unless --no-clip)
    #[arg(long, conflicts_with = "no_clip")]
    clip: bool,
    /// AWQ: whole ranges
    #[arg(long)]
    no_clip: bool,
    /// AWQ: exponents tried
    #[arg(long, default_value_t = 20)]
    ratios: usize,
    /// AWQ: scales from the activations alone
    #[arg(long)]
    no_duo_scaling: bool,
    /// AWQ: what to do with scales that nothing can take in and the format cannot hold
    #[arg(long, value_enum, default_value = "refuse")]
    unfoldable: UnfoldableName,
    /// Checkpoint format; gptq_v2 when absent, nvfp4 for that method, flashcube for nf4 and mxfp4,
    /// which no other format holds
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(Target::NAMES))]
    format: Option<String>,
    /// Text to calibrate with; the wiki text of bootstrap when absent
    #[arg(long, value_name = "FILE")]
    calib: Option<PathBuf>,
    /// Pieces of text
    #[arg(long, default_value_t = 128)]
    sequences: usize,
    /// Tokens of a piece
    #[arg(long, default_value_t = 128)]
    length: usize,
    /// Encoders: pieces are lines of more than five words, as sentences are encoded
    #[arg(long, conflicts_with = "length")]
    lines: bool,
    /// Pieces of the last tenth to measure errors on, which calibration does not see
    #[arg(long, default_value_t = 0)]
    held_out: usize,
    /// Where attention runs; the best backend when absent
    #[arg(long, value_name = "B")]
    backend: Option<BackendName>,
    /// Draw the errors of all layers
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Most megabytes of tensors in a file
    #[arg(long, default_value_t = 2000)]
    shard_mb: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MethodName {
    Gptq,
    Awq,
    Rtn,
    /// Blocks of 16: E4M3 scales and elements to nearest, ties to even
    Nvfp4,
    /// Blocks of --group: elements to nearest, halfway up
    Nf4,
    /// Blocks of 32: scales by OCP's floor rule, elements to nearest, ties to even, saturating
    Mxfp4,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum UnfoldableName {
    Refuse,
    Skip,
}

/// Pieces of text that run through a block together.
const PER_BATCH: usize = 8;

/// The JSON of a run.
#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    report: &'a ModelReport,
    peak_memory_bytes: Option<u64>,
}

pub(crate) fn run(args: &QuantizeArgs) -> Result<()> {
    let options = args.options()?;
    let model = Model::open(&args.input)?;
    let (calibration, held_out) = args.texts(&model)?;
    let backend = args.backend.map_or_else(BackendName::best, Ok)?;
    backend::prepare(&[backend])?;
    let device = backend.open()?;
    let bar = Bar::default();
    let report = quantize_model(
        &model,
        &calibration,
        &held_out,
        &args.out,
        &options,
        &mut |call| attend(&device.client, &call),
        &mut |progress| bar.show(progress),
    )?;
    bar.0.finish_and_clear();
    if let Some(file) = &args.svg {
        std::fs::write(file, plot::errors(&report))
            .map_err(|e| Failure::failed(format!("cannot write {}: {e}", file.display())))?;
    }
    let peak_memory_bytes = output::peak_memory();
    if args.json {
        return output::print_json(&Json {
            report: &report,
            peak_memory_bytes,
        });
    }
    output::print(table::text(&report, peak_memory_bytes))
}

impl QuantizeArgs {
    fn options(&self) -> Result<ModelOptions> {
        let group = match self.group {
            -1 => None,
            group => Some(usize::try_from(group).map_err(|_| {
                Failure::usage(format!("--group {group}"), "a number of channels, or -1")
            })?),
        };
        let clip = match self.method {
            MethodName::Awq => !self.no_clip,
            _ => self.clip,
        };
        let grid = GridOptions {
            symmetric: self.sym,
            clip: clip.then_some(ClipSearch::DEFAULT),
            ..GridOptions::new(self.bits, group)
        };
        let method = match self.method {
            MethodName::Gptq => Method::Gptq(GptqOptions {
                act_order: self.act_order,
                static_groups: self.static_groups,
                damping: self.damping,
                group_fit: match self.block_start_groups {
                    true => GroupFit::BlockStart,
                    false => GroupFit::Exact,
                },
                ..GptqOptions::new(grid)
            }),
            MethodName::Awq => Method::Awq(AwqOptions {
                ratios: self.ratios,
                duo_scaling: !self.no_duo_scaling,
                ..AwqOptions::new(grid)
            }),
            MethodName::Rtn => Method::Rtn(grid),
            MethodName::Nvfp4 => Method::Nvfp4,
            MethodName::Nf4 => Method::Nf4(
                group
                    .ok_or_else(|| Failure::usage("--group -1 with nf4", "a number of channels"))?,
            ),
            MethodName::Mxfp4 => Method::Mxfp4,
        };
        let default = match self.method {
            MethodName::Nvfp4 => "nvfp4",
            MethodName::Nf4 | MethodName::Mxfp4 => "flashcube",
            _ => "gptq_v2",
        };
        let name = self.format.as_deref().unwrap_or(default);
        let target = Target::parse(name, self.bits)
            .ok_or_else(|| Failure::usage(format!("--format {name}"), "see --help"))?;
        Ok(ModelOptions {
            true_sequential: !self.no_true_sequential,
            bias_correction: self.bias_correction,
            follow_original: self.follow_original,
            unfoldable: match self.unfoldable {
                UnfoldableName::Refuse => Unfoldable::Refuse,
                UnfoldableName::Skip => Unfoldable::Skip,
            },
            shard_bytes: self.shard_mb.saturating_mul(1_000_000),
            ..ModelOptions::new(method, target)
        })
    }

    /// Pieces to calibrate with, and pieces held out.
    fn texts(&self, model: &Model) -> Result<(Vec<TokenBatch>, Vec<TokenBatch>)> {
        let text = read_text(self.calib.as_deref())?;
        let texts = Texts::split(&text);
        let pieces = |text, count| -> Result<Vec<TokenBatch>, QuantizeError> {
            match self.lines {
                true => sentence_batches(model, text, count, PER_BATCH),
                false => calibration_batches(model, text, count, self.length, PER_BATCH),
            }
        };
        let held_out = match self.held_out {
            0 => Vec::new(),
            count => pieces(texts.held_out, count)?,
        };
        Ok((pieces(texts.calibration, self.sequences)?, held_out))
    }
}

/// A text without document marks; that of bootstrap when no file is named.
pub(crate) fn read_text(file: Option<&Path>) -> Result<String> {
    let (file, hint) = match file {
        Some(file) => (file.to_owned(), ""),
        None => (
            texts_dir().join("wiki.txt"),
            "run `cargo xtask bootstrap texts`, or name a file",
        ),
    };
    let text = std::fs::read_to_string(&file)
        .map_err(|e| Failure::missing(format!("{}: {e}", file.display()), hint))?;
    Ok(Texts::clean(&text))
}

/// A bar with a step for each linear; nothing where stderr is not a terminal.
#[derive(Debug)]
struct Bar(ProgressBar);

impl Default for Bar {
    fn default() -> Self {
        let bar = ProgressBar::new(0);
        let style = indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(bar)
    }
}

impl Bar {
    fn show(&self, progress: Progress<'_>) {
        match progress {
            Progress::Start { linears, finished } => {
                self.0.set_length(linears as u64);
                self.0.set_position(finished as u64);
            }
            Progress::Linear(linear) => {
                self.0.set_message(linear.name.clone());
                self.0.inc(1);
            }
            Progress::Writing => self.0.set_message("writing"),
        }
    }
}
