//! The main job on real input: a sentence model whose attention runs on a kernel.
//!
//! [`run`] encodes sentences with every attention of every layer computed by each backend that the
//! caller plugs in, checks each layer against the f64 reference on the same q, k and v, and the
//! result against a run that is f64 from the embeddings to the cosines. [`table`] prints the
//! [`DemoReport`], [`page`] renders it.

use std::path::PathBuf;
use std::time::Instant;

use crate::{AttentionCall, Bert, ModelError, TokenBatch, Tokenizer};

mod check;
mod maps;
pub mod page;
mod report;
mod sentences;
mod similarity;
mod svg;
pub mod table;

pub use check::{Bound, ErrorStats, LayerCheck};
pub use maps::{HeadMap, SentenceMaps};
pub use report::{BackendReport, DemoReport, ReferenceRun, Sentence, Shapes};
pub use sentences::DEFAULT_SENTENCES;
pub use similarity::{Misranking, TIE};

/// Cosines of a backend may differ from the f64 run by this much.
pub const COSINE_LIMIT: f64 = 1e-3;
/// Sentences in one run: the attention maps and the similarity table grow with their square.
pub const MAX_SENTENCES: usize = 64;

/// What to run on.
#[derive(Debug, Clone)]
pub struct DemoArgs {
    /// Folder with `model.safetensors`, `tokenizer.json` and `config.json`: see
    /// [`crate::minilm_dir`].
    pub model: PathBuf,
    /// Sentences to encode; none means [`DEFAULT_SENTENCES`].
    pub sentences: Vec<String>,
}

/// What a backend returns for one [`AttentionCall`].
#[derive(Debug, Clone, PartialEq)]
pub struct Attended {
    /// Attention output, [b, h, s, d].
    pub out: Vec<f32>,
    /// Natural logarithm of each row's sum of exponentials, [b, h, s].
    pub lse: Vec<f32>,
    /// The one-line name of the kernel that ran.
    pub blueprint: String,
}

/// The attention of one backend, or the reason why it failed.
pub type Attend<'a> = Box<dyn FnMut(&AttentionCall<'_, f32>) -> Result<Attended, String> + 'a>;

/// A backend under demonstration.
pub struct DemoBackend<'a> {
    /// Backend and device, as they should appear in the tables.
    pub name: String,
    /// Computes one attention.
    pub attend: Attend<'a>,
}

/// Why there is no report at all. A backend that fails or computes something wrong is in the
/// report, as one of its [`DemoReport::failures`].
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The model or the sentences.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The reference refused an attention problem.
    #[error("layer {layer}: reference: {source}")]
    Reference {
        /// Encoder layer.
        layer: usize,
        /// Its reason.
        source: flashcube_reference::Error,
    },
    /// A backend failed at a layer; recorded in its [`BackendReport::error`].
    #[error("layer {layer}: {detail}")]
    Backend {
        /// Encoder layer.
        layer: usize,
        /// What it said.
        detail: String,
    },
}

/// Runs the model on every backend. `bound` gives the errors allowed for one attention, from the
/// call and the largest absolute score in it.
///
/// Each backend runs twice: the first pass is checked and may contain compilation, the second is
/// timed as warm and must repeat the first bit for bit.
///
/// ```no_run
/// use flashcube_models::demo::{Attended, Bound, DemoArgs, DemoBackend, DemoError, page, run};
/// # fn attend(q: &[f32], k: &[f32], v: &[f32], lengths: &[usize]) -> Result<Attended, String> {
/// #     Err("no device".into())
/// # }
/// let args = DemoArgs { model: flashcube_models::minilm_dir(), sentences: vec![] };
/// let mut backends = [DemoBackend {
///     name: "my kernel".into(),
///     attend: Box::new(|call| attend(call.q, call.k, call.v, call.lengths)),
/// }];
/// let report = run(&args, &|_, _| Bound { out: 1e-6, lse: 1e-5 }, &mut backends)?;
/// println!("{}", flashcube_models::demo::table::Tables(&report));
/// page::write(&report, "demo.html".as_ref()).expect("writable folder");
/// # Ok::<(), DemoError>(())
/// ```
///
/// # Errors
/// [`DemoError`] when the model, the sentences or the reference cannot be used.
pub fn run(
    args: &DemoArgs,
    bound: &dyn Fn(&AttentionCall<'_, f32>, f64) -> Bound,
    backends: &mut [DemoBackend<'_>],
) -> Result<DemoReport, DemoError> {
    let texts: Vec<String> = if args.sentences.is_empty() {
        DEFAULT_SENTENCES.iter().map(|&s| s.into()).collect()
    } else {
        args.sentences.clone()
    };
    if texts.len() > MAX_SENTENCES {
        let (what, value) = ("sentences", texts.len());
        return Err(ModelError::InvalidInput {
            what,
            value,
            limit: MAX_SENTENCES,
        }
        .into());
    }
    let tokens = Tokenizer::open(args.model.join("tokenizer.json"))?.encode(&texts)?;
    let reference = run_reference(args, &tokens)?;
    let bert = Bert::<f32>::open(&args.model)?;
    let mut maps = Vec::new();
    let mut reports = Vec::with_capacity(backends.len());
    for backend in backends {
        let (report, backend_maps) = run_backend(&bert, &tokens, &reference, bound, backend)?;
        if maps.is_empty() && report.error.is_none() {
            maps = backend_maps;
        }
        reports.push(report);
    }
    Ok(DemoReport::new(
        texts,
        tokens,
        bert.config(),
        reference,
        reports,
        maps,
    ))
}

/// Everything in f64, the attention by the reference.
fn run_reference(args: &DemoArgs, tokens: &TokenBatch) -> Result<ReferenceRun, DemoError> {
    let bert = Bert::<f64>::open(&args.model)?;
    let mut seconds = 0.0;
    let embeddings = bert.embed(tokens, |call| {
        let start = Instant::now();
        let output = check::reference_forward(&call)?;
        seconds += start.elapsed().as_secs_f64();
        Ok::<_, DemoError>(output.out.data)
    })?;
    let similarity = similarity::cosines(&embeddings, bert.config().hidden_size);
    Ok(ReferenceRun {
        attention_seconds: seconds,
        similarity,
    })
}

/// The f32 model on one backend. A failure of the backend itself is part of its report.
fn run_backend(
    bert: &Bert<f32>,
    tokens: &TokenBatch,
    reference: &ReferenceRun,
    bound: &dyn Fn(&AttentionCall<'_, f32>, f64) -> Bound,
    backend: &mut DemoBackend<'_>,
) -> Result<(BackendReport, Vec<SentenceMaps>), DemoError> {
    let mut report = BackendReport {
        name: backend.name.clone(),
        ..Default::default()
    };
    let mut maps = SentenceMaps::empty(&tokens.lengths);
    let mut results: Vec<Attended> = Vec::new();
    let first = bert.embed(tokens, |call| {
        let attended = timed(backend, &call, &mut report.first_seconds)?;
        report
            .layers
            .push(check::check_layer(&call, &attended, bound)?);
        maps::add_layer(&mut maps, &call, &attended.lse);
        results.push(attended.clone());
        Ok::<_, DemoError>(attended.out)
    });
    let embeddings = match first {
        Ok(embeddings) => embeddings,
        Err(DemoError::Backend { layer, detail }) => {
            report.error = Some(format!("layer {layer}: {detail}"));
            return Ok((report, maps));
        }
        Err(other) => return Err(other),
    };
    report.compare(
        similarity::cosines(&embeddings, bert.config().hidden_size),
        reference,
    );
    let mut repeated = true;
    let second = bert.embed(tokens, |call| {
        let attended = timed(backend, &call, &mut report.warm_seconds)?;
        repeated &= check::same_bits(&attended, &results[call.layer]);
        Ok::<_, DemoError>(attended.out)
    });
    match second {
        Ok(_) => report.repeatable = repeated,
        Err(DemoError::Backend { layer, detail }) => {
            report.error = Some(format!("second pass, layer {layer}: {detail}"));
        }
        Err(other) => return Err(other),
    }
    Ok((report, maps))
}

/// One attention of a backend, its wall time added to `seconds`, its result's sizes checked.
fn timed(
    backend: &mut DemoBackend<'_>,
    call: &AttentionCall<'_, f32>,
    seconds: &mut f64,
) -> Result<Attended, DemoError> {
    let layer = call.layer;
    let start = Instant::now();
    let attended = (backend.attend)(call).map_err(|detail| DemoError::Backend { layer, detail })?;
    *seconds += start.elapsed().as_secs_f64();
    for (what, found, expected) in [
        ("out", attended.out.len(), call.q.len()),
        ("lse", attended.lse.len(), call.b * call.h_q * call.s),
    ] {
        if found != expected {
            let detail = format!("{what}: {found} values, expected {expected}");
            return Err(DemoError::Backend { layer, detail });
        }
    }
    Ok(attended)
}
