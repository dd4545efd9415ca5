//! `flashcube perplexity`: how well a model predicts a text.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use flashcube_models::{Model, perplexity};
use flashcube_quantize::model::Texts;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::attention::attend;
use crate::backend::{self, BackendName};
use crate::failure::Result;
use crate::output;
use crate::quantize::read_text;

/// Measures the perplexity of a decoder, quantized or not, on a text.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube perplexity MODEL --held-out              the last tenth of bootstrap's wiki text
  flashcube perplexity model.gguf text.txt --window 512

Windows do not overlap and each starts without a past. Quantized linears are dequantized to f32.")]
pub(crate) struct PerplexityArgs {
    /// Folder or GGUF file
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The text; the wiki text of bootstrap when absent
    #[arg(value_name = "TEXT")]
    text: Option<PathBuf>,
    /// Only the last tenth of the text, which `flashcube quantize` never calibrates with
    #[arg(long)]
    held_out: bool,
    /// Tokens of a window
    #[arg(long, default_value_t = 512)]
    window: usize,
    /// Windows at most; all when absent
    #[arg(long)]
    windows: Option<usize>,
    /// Where attention runs; the best backend when absent
    #[arg(long, value_name = "B")]
    backend: Option<BackendName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json {
    perplexity: f64,
    nats_per_token: f64,
    tokens: usize,
    window: usize,
    seconds: f64,
    peak_memory_bytes: Option<u64>,
}

pub(crate) fn run(args: &PerplexityArgs) -> Result<()> {
    let start = Instant::now();
    let text = read_text(args.text.as_deref())?;
    let text = match args.held_out {
        true => Texts::split(&text).held_out,
        false => &text,
    };
    let model = Model::open(&args.model)?;
    let mut ids = model.tokenizer.ids(text)?;
    if let Some(windows) = args.windows {
        ids.truncate(windows.saturating_mul(args.window));
    }
    let decoder = model.decoder(None)?;
    let backend = args.backend.map_or_else(BackendName::best, Ok)?;
    backend::prepare(&[backend])?;
    let device = backend.open()?;
    let bar = ProgressBar::new((ids.len() / args.window.max(1)) as u64);
    let attend =
        &mut |call: flashcube_models::AttentionCall<'_, f32>| attend(&device.client, &call);
    let found = perplexity(&decoder, &ids, args.window, attend, |so_far| {
        bar.set_message(format!("{:.3}", so_far.value()));
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    let json = Json {
        perplexity: found.value(),
        nats_per_token: found.nats / found.tokens as f64,
        tokens: found.tokens,
        window: args.window,
        seconds: start.elapsed().as_secs_f64(),
        peak_memory_bytes: output::peak_memory(),
    };
    if args.json {
        return output::print_json(&json);
    }
    output::print(format_args!(
        "perplexity {:.4} ({:.5} nats per token) over {} tokens in windows of {}, {:.0} s\n",
        json.perplexity, json.nats_per_token, json.tokens, json.window, json.seconds
    ))
}
