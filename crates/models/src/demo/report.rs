use serde::Serialize;

use super::similarity::{self, Misranking};
use super::{COSINE_LIMIT, LayerCheck, SentenceMaps};
use crate::{BertConfig, TokenBatch, Truncation};

/// Everything a demo run found out.
#[derive(Debug, Clone, Serialize)]
pub struct DemoReport {
    /// Sizes of every attention call.
    pub shapes: Shapes,
    /// The sentences, in the order given.
    pub sentences: Vec<Sentence>,
    /// Sentences that were cut to the tokenizer's limit.
    pub truncations: Vec<Truncation>,
    /// The f64 run.
    pub reference: ReferenceRun,
    /// One entry for each backend, in the order given.
    pub backends: Vec<BackendReport>,
    /// Why the run failed; empty when every check passed.
    pub failures: Vec<String>,
    /// Attention maps of the first backend that worked, one entry for each sentence.
    #[serde(skip)]
    pub maps: Vec<SentenceMaps>,
}

/// Sizes of the attention calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Shapes {
    /// Encoder layers.
    pub layers: usize,
    /// Sentences.
    pub b: usize,
    /// Heads.
    pub h: usize,
    /// Padded length.
    pub s: usize,
    /// Head width.
    pub d: usize,
    /// Valid tokens of all sentences together.
    pub tokens: usize,
}

/// One sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sentence {
    /// As given.
    pub text: String,
    /// As the model saw it.
    pub tokens: Vec<String>,
    /// The sentence with the largest cosine in the f64 run, None if it is alone.
    pub nearest: Option<usize>,
}

/// The run in f64 from the embeddings to the cosines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReferenceRun {
    /// Wall time of the reference's attention over all layers.
    pub attention_seconds: f64,
    /// Cosines `[b][b]`.
    pub similarity: Vec<Vec<f64>>,
}

/// What one backend did.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct BackendReport {
    /// Backend and device.
    pub name: String,
    /// Why it could not finish; the fields below then hold what it had done by that time.
    pub error: Option<String>,
    /// Each layer of the first pass against the reference.
    pub layers: Vec<LayerCheck>,
    /// Wall time of all attentions of the first pass: compilation, transfers and kernels.
    pub first_seconds: f64,
    /// Wall time of all attentions of the second pass: transfers and kernels.
    pub warm_seconds: f64,
    /// Whether the second pass gave the same bits as the first.
    pub repeatable: bool,
    /// Cosines `[b][b]`.
    pub similarity: Vec<Vec<f64>>,
    /// Largest difference of a cosine from the f64 run.
    pub max_cosine_difference: f64,
    /// Where the ranking differs from the f64 run's, None if nowhere.
    pub misranking: Option<Misranking>,
}

impl BackendReport {
    pub(super) fn compare(&mut self, similarity: Vec<Vec<f64>>, reference: &ReferenceRun) {
        self.max_cosine_difference = similarity::max_difference(&similarity, &reference.similarity);
        self.misranking = similarity::first_misranking(&similarity, &reference.similarity);
        self.similarity = similarity;
    }

    /// The largest ratio of an error to its bound, over layers, output and lse.
    pub fn worst_share_of_bound(&self) -> f64 {
        let stats = self.layers.iter().flat_map(|layer| [layer.out, layer.lse]);
        stats
            .map(|e| if e.max == 0.0 { 0.0 } else { e.max / e.bound })
            .fold(0.0, f64::max)
    }

    /// Whether it finished and every check passed.
    pub fn passed(&self) -> bool {
        self.failures().is_empty()
    }

    fn failures(&self) -> Vec<String> {
        let name = &self.name;
        if let Some(error) = &self.error {
            return vec![format!("{name}: {error}")];
        }
        let mut failures = Vec::new();
        for check in &self.layers {
            for (tensor, stats) in [("out", check.out), ("lse", check.lse)] {
                if !stats.passed() {
                    failures.push(format!(
                        "{name}: layer {} {tensor}: error {:.3e}, bound {:.3e} ({})",
                        check.layer, stats.max, stats.bound, check.blueprint
                    ));
                }
            }
        }
        // Never NaN: a NaN cosine counts as infinitely far.
        let difference = self.max_cosine_difference;
        if difference > COSINE_LIMIT {
            failures.push(format!(
                "{name}: cosine off by {difference:.3e}, limit {COSINE_LIMIT:e}"
            ));
        }
        if let Some(Misranking {
            sentence,
            nearer,
            farther,
        }) = self.misranking
        {
            let [sentence, nearer, farther] = [sentence, nearer, farther].map(|i| i + 1);
            failures.push(format!(
                "{name}: sentence {sentence} ranks {farther} before {nearer}, the f64 run does not"
            ));
        }
        if !self.repeatable {
            failures.push(format!(
                "{name}: the second pass gave other bits than the first"
            ));
        }
        failures
    }
}

impl DemoReport {
    pub(super) fn new(
        texts: Vec<String>,
        tokens: TokenBatch,
        config: &BertConfig,
        reference: ReferenceRun,
        backends: Vec<BackendReport>,
        maps: Vec<SentenceMaps>,
    ) -> Self {
        let h = config.num_attention_heads;
        let shapes = Shapes {
            layers: config.num_hidden_layers,
            b: texts.len(),
            h,
            s: tokens.s,
            d: config.hidden_size / h,
            tokens: tokens.lengths.iter().sum(),
        };
        let sentence = |(i, (text, tokens)): (usize, (String, Vec<String>))| Sentence {
            text,
            tokens,
            nearest: similarity::nearest(&reference.similarity[i], i),
        };
        let mut failures: Vec<_> = backends.iter().flat_map(BackendReport::failures).collect();
        if backends.is_empty() {
            failures.push("no backend ran".into());
        }
        Self {
            shapes,
            sentences: texts
                .into_iter()
                .zip(tokens.tokens)
                .enumerate()
                .map(sentence)
                .collect(),
            truncations: tokens.truncations,
            failures,
            reference,
            backends,
            maps,
        }
    }

    /// Whether every check of every backend passed.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// The backends that finished both passes, whatever the checks say.
    pub fn finished(&self) -> impl Iterator<Item = &BackendReport> {
        self.backends
            .iter()
            .filter(|backend| backend.error.is_none())
    }

    /// The backend whose cosines and maps are shown: the first that finished.
    pub fn shown(&self) -> Option<&BackendReport> {
        self.finished().next()
    }
}
