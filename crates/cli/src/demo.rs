//! `flashcube demo`: a sentence model whose every attention runs on our kernel.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;

use clap::Args;
use cubecl::prelude::Client;
use flashcube::DType;
use flashcube_catalogue::{Array, Attend, Data, Inputs, Memory, Problem, Task, Values, expected};
use flashcube_models::AttentionCall;
use flashcube_models::demo::{
    self, Attended, Bound, DemoArgs, DemoBackend, DemoError, DemoReport, page, table::Tables,
};
use serde::Serialize;

use crate::attention;
use crate::backend::{self, BackendName, Device};
use crate::doctor::{self, Tool};
use crate::elements;
use crate::failure::{Failure, Result};
use crate::output;
use crate::probe::BackendReport;

/// Encodes sentences with a real model (all-MiniLM-L6-v2), every attention of its six layers on our
/// kernel, and checks each layer and the sentence similarities against an f64 run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube demo                                       built-in sentences, best backend
  flashcube demo 'A cat sat.' 'The cat was sitting.'   your own
  flashcube demo --backend cpu --backend lavapipe      two backends side by side
  flashcube demo --html page.html                      attention maps and errors as a page

The best backend is the first of cuda, a wgpu adapter that is a GPU, cpu; lavapipe is run beside it
where it is installed. The model comes with `cargo xtask bootstrap model`. Exit 1 when a layer
exceeds its bound, the ranking differs from the f64 run's, or a cosine is off by more than 1e-3.")]
pub(crate) struct SentenceArgs {
    /// Sentences to encode; built-in ones when absent
    #[arg(value_name = "SENTENCE")]
    sentences: Vec<String>,
    /// Run on this backend (repeatable)
    #[arg(long = "backend", value_name = "B")]
    backends: Vec<BackendName>,
    /// Where to write the page; the system's temporary folder when absent
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The JSON of a run.
#[derive(Serialize)]
struct Json<'a> {
    passed: bool,
    page: PathBuf,
    #[serde(flatten)]
    report: &'a DemoReport,
}

pub(crate) fn run(args: &SentenceArgs) -> Result<()> {
    let model = match doctor::model() {
        Tool::Present { path, .. } => path,
        Tool::Missing { reason, install } => {
            return Err(Failure::missing(format!("no model: {reason}"), install));
        }
    };
    let backends = match &args.backends[..] {
        [] => best()?,
        asked => asked.to_vec(),
    };
    backend::prepare(&backends)?;
    let devices: Vec<Device> = backends
        .iter()
        .map(|backend| backend.open())
        .collect::<Result<_>>()?;
    let mut columns: Vec<DemoBackend<'_>> = devices
        .iter()
        .map(|device| DemoBackend {
            name: device.title(),
            attend: Box::new(|call| attend(&device.client, call)),
        })
        .collect();
    let demo_args = DemoArgs {
        model,
        sentences: args.sentences.clone(),
    };
    let report = demo::run(&demo_args, &bound, &mut columns).map_err(unusable)?;
    let page = match &args.html {
        Some(path) => path.clone(),
        None => env::temp_dir().join("flashcube-demo.html"),
    };
    page::write(&report, &page)
        .map_err(|e| Failure::failed(format!("cannot write {}: {e}", page.display())))?;
    let passed = report.passed();
    if args.json {
        output::print_json(&Json {
            passed,
            page,
            report: &report,
        })?;
    } else {
        output::print(format_args!(
            "{}\npage: {}\n",
            Tables(&report),
            page.display()
        ))?;
    }
    if passed {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{} of the demo's checks failed",
        report.failures.len()
    )))
}

/// The best backend; and lavapipe beside it, where no other Vulkan is used.
fn best() -> Result<Vec<BackendName>> {
    let first = BackendName::best()?;
    let mut backends = vec![first];
    let lavapipe = BackendName::Lavapipe;
    if first != BackendName::Wgpu && BackendReport::elsewhere(lavapipe)?.device().is_some() {
        backends.push(lavapipe);
    }
    Ok(backends)
}

/// The sentences or the model cannot be used: nothing was checked.
fn unusable(error: DemoError) -> Failure {
    match error {
        DemoError::Model(error) => Failure::usage(error, ""),
        other => Failure::failed(other),
    }
}

/// One attention of the model on a device.
fn attend(client: &Client, call: &AttentionCall<'_, f32>) -> Result<Attended, String> {
    let attended = attention::launch(client, call)?;
    Ok(Attended {
        out: elements::download(client, &attended.out)?,
        lse: elements::download(client, &attended.lse)?,
        blueprint: match attended.blueprint {
            Some(blueprint) => blueprint.to_string(),
            None => "nothing to launch".to_owned(),
        },
    })
}

/// The largest of the element-wise bounds of docs/numerics.md.
fn bound(call: &AttentionCall<'_, f32>, _max_abs_score: f64) -> Bound {
    let (b, h, s, d) = (call.b, call.h_q, call.s, call.d);
    let problem = Problem {
        name: "demo".to_owned(),
        feature: "models",
        task: Task::Forward(Attend {
            scale: Some(call.scale as f32),
            lengths_kv: Some(call.lengths.to_vec()),
            ..Attend::plain(b, (h, h), (s, s), (d, d))
        }),
        dtype: DType::F32,
        values: Values::Normal,
        memory: Memory::Dense,
        core: false,
    };
    let array = |x: &[f32]| Array::floats(&[b, h, s, d], DType::F32, x.to_vec());
    let lengths = call.lengths.iter().map(|&n| n as u32).collect();
    let inputs = Inputs {
        arrays: BTreeMap::from([
            ("q", array(call.q)),
            ("k", array(call.k)),
            ("v", array(call.v)),
            ("lengths_kv", Array::dense(&[b], Data::U32(lengths))),
        ]),
    };
    // The reference refuses nothing that the model hands out; if it did, no error would be allowed.
    let outputs = expected(&problem, &inputs).unwrap_or_default();
    let largest = |name: &str| {
        let bounds = outputs.iter().filter(|e| e.name == name);
        bounds
            .flat_map(|e| e.bound.iter().copied())
            .fold(0.0, f64::max)
    };
    Bound {
        out: largest("out"),
        lse: largest("lse"),
    }
}
