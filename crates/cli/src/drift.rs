//! `flashcube drift`: how far a quantized encoder's sentences moved.

use std::path::PathBuf;

use clap::Args;
use flashcube_models::{Bert, Family, Model, ModelError};
use flashcube_quantize::model::{Texts, sentences};
use serde::Serialize;

use crate::attention::attend;
use crate::backend::{self, BackendName, Device};
use crate::failure::{Failure, Result};
use crate::output;
use crate::quantize::read_text;

/// Compares a quantized encoder with its original: every pair of sentences of a text.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube drift ORIGINAL QUANTIZED                 lines of the last tenth of bootstrap's wiki text
  flashcube drift ORIGINAL QUANTIZED lines.txt --sentences 50 --json")]
pub(crate) struct DriftArgs {
    /// Folder of the original
    #[arg(value_name = "ORIGINAL")]
    original: PathBuf,
    /// Folder of the quantized model
    #[arg(value_name = "QUANTIZED")]
    quantized: PathBuf,
    /// Text, one sentence a line; the last tenth of bootstrap's wiki text when absent
    #[arg(value_name = "TEXT")]
    text: Option<PathBuf>,
    /// Sentences, spread over the text
    #[arg(long, default_value_t = 100)]
    sentences: usize,
    /// Where attention runs; the best backend when absent
    #[arg(long, value_name = "B")]
    backend: Option<BackendName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Drift {
    sentences: usize,
    pairs: usize,
    /// Mean of |cosine of a pair - that of the original|.
    mean: f64,
    largest: f64,
    /// Spearman's, over the pairs' cosines.
    rank_correlation: f64,
    /// Mean cosine between a sentence and itself in the original.
    own_cosine: f64,
}

/// Sentences embedded together.
const PER_BATCH: usize = 16;

pub(crate) fn run(args: &DriftArgs) -> Result<()> {
    let text = read_text(args.text.as_deref())?;
    let text = match args.text {
        Some(_) => &text,
        None => Texts::split(&text).held_out,
    };
    let sentences = sentences(text, args.sentences);
    if sentences.len() < 3 {
        return Err(Failure::usage(
            format!("{} sentences of more than five words", sentences.len()),
            "at least 3 are needed",
        ));
    }
    let backend = args.backend.map_or_else(BackendName::best, Ok)?;
    backend::prepare(&[backend])?;
    let device = backend.open()?;
    let [before, after] = [&args.original, &args.quantized];
    let (before, hidden) = embed(before, &sentences, &device)?;
    let (after, _) = embed(after, &sentences, &device)?;
    let drift = drift(&before, &after, hidden);
    if args.json {
        return output::print_json(&drift);
    }
    output::print(format_args!(
        "{} sentences, {} pairs: cosine drift {:.5} in the mean, {:.5} at most; rank correlation \
         {:.5}; cosine to the original {:.5}\n",
        drift.sentences,
        drift.pairs,
        drift.mean,
        drift.largest,
        drift.rank_correlation,
        drift.own_cosine
    ))
}

/// Embeddings [sentences, hidden] of length 1, and hidden.
fn embed(path: &PathBuf, sentences: &[&str], device: &Device) -> Result<(Vec<f32>, usize)> {
    let model = Model::open(path)?;
    let Family::Bert(config) = &model.family else {
        let what = format!("{}: a decoder has no sentence embeddings", path.display());
        return Err(Failure::usage(
            what,
            "`flashcube perplexity` compares decoders",
        ));
    };
    let bert = Bert::<f32>::load(config.clone(), model.weights())?;
    let mut all = Vec::new();
    for sentences in sentences.chunks(PER_BATCH) {
        let batch = model.tokenizer.encode(sentences)?;
        all.extend(bert.embed(&batch, |call| -> Result<_, ModelError> {
            attend(&device.client, &call)
        })?);
    }
    Ok((all, config.hidden_size))
}

fn drift(before: &[f32], after: &[f32], hidden: usize) -> Drift {
    let rows = |x: &[f32]| -> Vec<Vec<f64>> {
        let row = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect();
        x.chunks_exact(hidden).map(row).collect()
    };
    let (before, after) = (rows(before), rows(after));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let pairs = |rows: &[Vec<f64>]| -> Vec<f64> {
        (0..rows.len())
            .flat_map(|i| (0..i).map(move |j| dot(&rows[i], &rows[j])))
            .collect()
    };
    let (old, new) = (pairs(&before), pairs(&after));
    let off: Vec<f64> = old.iter().zip(&new).map(|(a, b)| (a - b).abs()).collect();
    let own = before.iter().zip(&after).map(|(a, b)| dot(a, b));
    Drift {
        sentences: before.len(),
        pairs: off.len(),
        mean: off.iter().sum::<f64>() / off.len() as f64,
        largest: off.iter().copied().fold(0.0, f64::max),
        rank_correlation: correlation(&ranks(&old), &ranks(&new)),
        own_cosine: own.sum::<f64>() / before.len() as f64,
    }
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    for (rank, &at) in order.iter().enumerate() {
        ranks[at] = rank as f64;
    }
    ranks
}

/// Pearson's correlation.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let sums = a.iter().zip(b).fold([0.0; 3], |[aa, bb, ab], (a, b)| {
        let (a, b) = (a - mean_a, b - mean_b);
        [aa + a * a, bb + b * b, ab + a * b]
    });
    sums[2] / (sums[0] * sums[1]).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmoved_sentences_do_not_drift_and_swapped_ones_do() {
        let rows = [1.0, 0.0, 0.6, 0.8, 0.0, 1.0];
        let same = drift(&rows, &rows, 2);
        assert_eq!((same.pairs, same.mean), (3, 0.0));
        assert!(
            (same.rank_correlation - 1.0).abs() < 1e-12 && (same.own_cosine - 1.0).abs() < 1e-6
        );
        let swapped = [0.0, 1.0, 0.6, 0.8, 1.0, 0.0];
        let moved = drift(&rows, &swapped, 2);
        assert!(
            moved.mean > 0.05 && moved.rank_correlation < 0.9,
            "{moved:?}"
        );
    }
}
