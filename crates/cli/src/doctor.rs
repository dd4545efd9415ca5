//! `flashcube doctor`: what is there, what each kernel would use, what to install.

use std::path::PathBuf;

use clap::Args;
use flashcube_lowering::Toolkit;
use serde::{Deserialize, Serialize};

use crate::backend::{self, BackendName};
use crate::failure::{Failure, Result};
use crate::output::{self, Table};
use crate::probe::{BackendReport, DeviceReport, Outcome, State};

/// Shows backends, devices, limits and tools, and what to install for the missing ones.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube doctor                   everything
  flashcube doctor --backend cuda    one backend; exit 2 when it is not there
  flashcube doctor --kernels         the blueprint every kernel gets on every device
  flashcube doctor --json | jq '.backends[] | {backend, state}'")]
pub(crate) struct DoctorArgs {
    /// Look at this backend alone (repeatable)
    #[arg(long = "backend", value_name = "B")]
    backends: Vec<BackendName>,
    /// List the blueprint of every kernel instead of one per operation
    #[arg(long)]
    kernels: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Everything doctor finds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DoctorReport {
    pub(crate) version: String,
    /// Backends compiled in.
    pub(crate) features: Vec<String>,
    pub(crate) backends: Vec<BackendReport>,
    pub(crate) cuda_toolkit: Tool,
    pub(crate) model: Tool,
}

/// Something on disk that a command needs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum Tool {
    /// It is there.
    Present { path: PathBuf, version: String },
    /// It is not.
    Missing { reason: String, install: String },
}

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let backends = match &args.backends[..] {
        // The one process that opens a device itself; all others ask one like it.
        &[backend] => {
            backend::prepare(&[backend])?;
            vec![BackendReport::here(backend)]
        }
        [] => ask(&BackendName::ALL)?,
        several => ask(several)?,
    };
    let report = DoctorReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        // The command's own Cargo.toml asks for all of them.
        features: ["cuda", "wgpu", "cpu"].map(str::to_owned).to_vec(),
        backends,
        cuda_toolkit: cuda_toolkit(),
        model: model(),
    };
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(text(&report, args.kernels))?;
    }
    let absent = |report: &&BackendReport| {
        args.backends.contains(&report.backend) && report.device().is_none()
    };
    match report.backends.iter().find(absent) {
        Some(absent) => Err(Failure::missing(
            format!("backend {} is not there", absent.backend),
            absent.backend.install_hint(),
        )),
        None => Ok(()),
    }
}

fn ask(backends: &[BackendName]) -> Result<Vec<BackendReport>> {
    backends
        .iter()
        .map(|&backend| BackendReport::elsewhere(backend))
        .collect()
}

fn cuda_toolkit() -> Tool {
    let found = Toolkit::find().and_then(|toolkit| Ok((toolkit.version()?, toolkit)));
    match found {
        Ok((version, toolkit)) => Tool::Present {
            path: toolkit.root().to_owned(),
            version,
        },
        Err(error) => Tool::Missing {
            reason: error.to_string(),
            install: "run `cargo xtask bootstrap cuda`; needs no GPU".to_owned(),
        },
    }
}

/// Where the demo's model lies, or what is missing of it.
pub(crate) fn model() -> Tool {
    let folder = flashcube_models::minilm_dir();
    let needed = ["model.safetensors", "tokenizer.json", "config.json"];
    match needed.iter().find(|file| !folder.join(file).is_file()) {
        None => Tool::Present {
            path: folder,
            version: "all-MiniLM-L6-v2".to_owned(),
        },
        Some(file) => Tool::Missing {
            reason: format!("no {file} in {}", folder.display()),
            install: "run `cargo xtask bootstrap model`".to_owned(),
        },
    }
}

fn text(report: &DoctorReport, all_kernels: bool) -> String {
    let mut text = format!(
        "flashcube {}, backends built in: {}\n\n",
        report.version,
        report.features.join(", ")
    );
    let mut table = Table::new(&[
        "backend", "device", "dtypes", ">units", ">shared", ">buffers", ">plane", "driver",
    ]);
    for backend in &report.backends {
        let name = backend.backend.to_string();
        table.row(match backend.device() {
            Some(device) => device_cells(name, device),
            None => vec![name, "not there".to_owned()],
        });
    }
    text.push_str(&table.to_string());
    text.push('\n');
    let mut tools = Table::new(&["tool", "version", "where"]);
    for (name, tool) in [
        ("CUDA toolkit (lower)", &report.cuda_toolkit),
        ("MiniLM model (demo)", &report.model),
    ] {
        tools.row(match tool {
            Tool::Present { path, version } => {
                [name.into(), version.clone(), path.display().to_string()]
            }
            Tool::Missing { .. } => [name.into(), "not there".into(), String::new()],
        });
    }
    text.push_str(&tools.to_string());
    for backend in &report.backends {
        if let Some(device) = backend.device() {
            text.push_str(&kernel_text(backend.backend, device, all_kernels));
        }
    }
    text.push_str(&missing_text(report));
    text
}

fn device_cells(backend: String, device: &DeviceReport) -> Vec<String> {
    let limits = &device.limits;
    let (least, most) = limits.plane;
    vec![
        backend,
        device.device.clone(),
        limits.dtypes.join(" "),
        limits.units_per_cube.to_string(),
        format!("{} KiB", limits.shared_memory_bytes / 1024),
        limits.storage_buffers.to_string(),
        if least == most {
            least.to_string()
        } else {
            format!("{least}-{most}")
        },
        device.driver.clone(),
    ]
}

/// One kernel per operation and dtype: enough to see the tier.
const SHORT_LIST: [&str; 9] = [
    "attend_forward_f32_d64",
    "attend_forward_f16_d128_causal",
    "attend_forward_bf16_d128_causal",
    "attend_forward_f32_d64_hooks",
    "attend_backward_keys_f32_d64",
    "merge_partials_f32_d128",
    "dequantize_gptq_v1_b4_f16",
    "dequantize_awq_gemm_b4_f32",
    "hadamard_transform_f32_n128",
];

fn kernel_text(backend: BackendName, device: &DeviceReport, all: bool) -> String {
    let mut table = Table::new(&["kernel", "runs"]);
    for choice in &device.kernels {
        if all || SHORT_LIST.contains(&choice.kernel.as_str()) {
            let outcome = match &choice.outcome {
                Outcome::Blueprint(blueprint) => blueprint.clone(),
                Outcome::NotAvailable(reason) => format!("not available: {reason}"),
            };
            table.row([choice.kernel.clone(), outcome]);
        }
    }
    format!("\n{backend}\n{table}")
}

fn missing_text(report: &DoctorReport) -> String {
    let backends = report.backends.iter().filter_map(|b| match &b.state {
        State::Missing { reason, install } => Some((b.backend.to_string(), reason, install)),
        State::Present(_) => None,
    });
    let tools = [
        ("CUDA toolkit", &report.cuda_toolkit),
        ("model", &report.model),
    ];
    let tools = tools.into_iter().filter_map(|(name, tool)| match tool {
        Tool::Missing { reason, install } => Some((name.to_owned(), reason, install)),
        Tool::Present { .. } => None,
    });
    let lines: Vec<String> = backends
        .chain(tools)
        .map(|(name, reason, install)| format!("  {name}: {reason}\n    {install}\n"))
        .collect();
    if lines.is_empty() {
        "\nnothing is missing\n".to_owned()
    } else {
        format!("\nmissing\n{}", lines.concat())
    }
}
