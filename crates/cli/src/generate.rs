//! `flashcube generate`: text from a decoder.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use flashcube_models::{Generator, Model, Sampler};
use serde::Serialize;

use crate::attention::GrowingCache;
use crate::backend::{self, BackendName};
use crate::failure::Result;
use crate::output;

/// Continues a prompt with a decoder, quantized or not, and tells the tokens per second.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube generate MODEL 'The capital of France is' --tokens 32
  flashcube generate MODEL 'What is gravity?' --chat --temperature 0.7 --top-p 0.9 --seed 1

Greedy unless a temperature is given. Attention runs on the backend, linears in f32 on the host.")]
pub(crate) struct GenerateArgs {
    /// Folder or GGUF file
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// What to continue
    #[arg(value_name = "PROMPT")]
    prompt: String,
    /// Tokens at most
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// 0 takes the likeliest token each time
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Draw from the likeliest tokens that together have this probability
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// The same seed draws the same text
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Put the prompt as a question to an assistant
    #[arg(long)]
    chat: bool,
    /// Where attention runs; the best backend when absent
    #[arg(long, value_name = "B")]
    backend: Option<BackendName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json {
    text: String,
    ids: Vec<u32>,
    prompt_tokens: usize,
    prompt_seconds: f64,
    /// Of the tokens after the first, which the prompt gives.
    tokens_per_second: f64,
    backend: String,
}

/// Tokens after which a text is over.
const ENDS: [&str; 3] = ["<|im_end|>", "<|endoftext|>", "</s>"];

pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let mut sampler = Sampler::drawing(args.temperature, args.top_p, args.seed)?;
    let model = Model::open(&args.model)?;
    let prompt = match args.chat {
        true => format!(
            "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
            args.prompt
        ),
        false => args.prompt.clone(),
    };
    let read = model.tokenizer.ids(&prompt)?;
    let decoder = model.decoder(None)?;
    let backend = args.backend.map_or_else(BackendName::best, Ok)?;
    backend::prepare(&[backend])?;
    let device = backend.open()?;
    let mut cache = GrowingCache::new(&device.client);
    let attend = &mut |call: flashcube_models::AttentionCall<'_, f32>| cache.attend(call);
    let ends: Vec<u32> = ENDS
        .iter()
        .filter_map(|end| model.tokenizer.id(end))
        .collect();

    let start = Instant::now();
    let mut generator = Generator::new(&decoder);
    let mut logits = generator.read(&read, attend)?;
    let prompt_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let mut ids = Vec::new();
    while ids.len() < args.tokens {
        let id = sampler.choose(&logits);
        if ends.contains(&id) {
            break;
        }
        ids.push(id);
        if ids.len() < args.tokens {
            logits = generator.read(&[id], attend)?;
        }
    }
    let json = Json {
        text: model.tokenizer.text(&ids)?,
        prompt_tokens: read.len(),
        prompt_seconds,
        tokens_per_second: ids.len().saturating_sub(1) as f64 / start.elapsed().as_secs_f64(),
        ids,
        backend: device.title(),
    };
    if args.json {
        return output::print_json(&json);
    }
    output::print(format_args!(
        "{}{}\n\n{} tokens read in {:.2} s, then {:.1} tokens per second; attention on {}\n",
        args.prompt,
        json.text,
        json.prompt_tokens,
        json.prompt_seconds,
        json.tokens_per_second,
        json.backend
    ))
}
