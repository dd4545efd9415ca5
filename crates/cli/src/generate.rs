//! `flashcube generate`: text from a decoder.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use flashcube::DType;
use flashcube_models::{Generator, Model, Sampler};
use serde::Serialize;

use crate::backend::{self, BackendName, Device};
use crate::decoder::{Agreement, CachedAttention, agreement, packed_decoder};
use crate::failure::{Failure, Result};
use crate::output;

/// Continues a prompt with a decoder, quantized or not, and tells the tokens per second.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube generate MODEL 'The capital of France is' --tokens 32
  flashcube generate MODEL 'What is gravity?' --chat --temperature 0.7 --top-p 0.9 --seed 1
  flashcube generate QUANTIZED 'Once upon a time' --packed --dtype f16 --backend cuda
  flashcube generate QUANTIZED 'Once upon a time' --packed --check --json

Greedy unless a temperature is given. Attention runs on the backend over a paged cache; linears run
in f32 on the host, or with --packed on the backend with their weights as they are stored. --check
reads the greedy text of the dequantized f32 model with both: each step's logits must agree within
the bound of docs/quantization.md.")]
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
    /// Multiply packed weights on the backend
    #[arg(long)]
    packed: bool,
    /// Type of activations on the backend
    #[arg(long, value_enum, default_value = "f32")]
    dtype: DTypeName,
    /// Compare every step with the dequantized f32 model instead of writing a text
    #[arg(long, requires = "packed", conflicts_with = "temperature")]
    check: bool,
    /// Where attention and packed linears run; the best backend when absent
    #[arg(long, value_name = "B")]
    backend: Option<BackendName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DTypeName {
    F32,
    F16,
    Bf16,
}

impl DTypeName {
    fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }
}

#[derive(Serialize)]
struct Json {
    text: String,
    ids: Vec<u32>,
    prompt_tokens: usize,
    prompt_seconds: f64,
    /// Of the tokens after the first, which the prompt gives.
    tokens_per_second: f64,
    packed: bool,
    dtype: String,
    backend: String,
}

/// Tokens after which a text is over.
const ENDS: [&str; 3] = ["<|im_end|>", "<|endoftext|>", "</s>"];

pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let sampler = Sampler::drawing(args.temperature, args.top_p, args.seed)?;
    let model = Model::open(&args.model)?;
    let prompt = match args.chat {
        true => format!(
            "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
            args.prompt
        ),
        false => args.prompt.clone(),
    };
    let read = model.tokenizer.ids(&prompt)?;
    let backend = args.backend.map_or_else(BackendName::best, Ok)?;
    backend::prepare(&[backend])?;
    let device = backend.open()?;
    match args.check {
        true => check(args, &model, &read, &device),
        false => generate(args, &model, &read, &device, sampler),
    }
}

fn generate(
    args: &GenerateArgs,
    model: &Model,
    read: &[u32],
    device: &Device,
    mut sampler: Sampler,
) -> Result<()> {
    let (client, dtype) = (&device.client, args.dtype.dtype());
    let decoder = match args.packed {
        true => packed_decoder(model, client, dtype)?,
        false => model.decoder(None)?,
    };
    let mut cache = CachedAttention::new(client, dtype, read.len() + args.tokens);
    let attend = &mut |call: flashcube_models::AttentionCall<'_, f32>| cache.attend(call);
    let ends: Vec<u32> = ENDS
        .iter()
        .filter_map(|end| model.tokenizer.id(end))
        .collect();

    let start = Instant::now();
    let mut generator = Generator::new(&decoder);
    let mut logits = generator.read(read, attend)?;
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
        packed: args.packed,
        dtype: args.dtype.dtype().to_string(),
        backend: device.title(),
    };
    if args.json {
        return output::print_json(&json);
    }
    let linears = match args.packed {
        true => "packed linears on it too",
        false => "linears on the host",
    };
    output::print(format_args!(
        "{}{}\n\n{} tokens read in {:.2} s, then {:.1} tokens per second; attention in {} on {}, \
         {linears}\n",
        args.prompt,
        json.text,
        json.prompt_tokens,
        json.prompt_seconds,
        json.tokens_per_second,
        json.dtype,
        json.backend
    ))
}

fn check(args: &GenerateArgs, model: &Model, read: &[u32], device: &Device) -> Result<()> {
    let dtype = args.dtype.dtype();
    let found = agreement(model, &device.client, dtype, read, args.tokens)?;
    if args.json {
        output::print_json(&found)?;
    } else {
        output::print(summary(&found, &device.title(), dtype))?;
    }
    match found.passed {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "logits differ by {:.3} of their bound",
            found.share
        ))),
    }
}

fn summary(found: &Agreement, device: &str, dtype: DType) -> String {
    let mut text = format!(
        "{} of {} greedy tokens agree with dequantized f32, {dtype} on {device}; logits differ by \
         {:.3e} at most, {:.3} of the bound\n",
        found.agreeing,
        found.ids.len(),
        found.largest,
        found.share,
    );
    if let Some(first) = found.difference {
        text += &format!(
            "first difference at step {}: {} for {}, preferred by {:.3e} where logits differ by \
             {:.3e}\n",
            first.step, first.chosen, first.expected, first.gap, first.largest,
        );
    }
    text
}
