//! `flashcube bench`: medians against ceilings measured in the same run.

mod attention;
mod ceiling;
mod check;
mod dequantize;
mod draw;
mod flush;
mod hadamard;
mod measure;
mod merge;
mod peers;
mod report;
mod w4a16;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use flashcube::{DType, TierName};

use crate::backend::{self, BackendName, Device};
use crate::failure::{Failure, Result};
use crate::output;
use crate::probe::BackendReport;
use crate::verify::DEFAULT_SEED;

pub(crate) use report::{Accuracy, BenchReport, BenchRow, Cell, OURS};

use ceiling::Ceilings;
use peers::Peers;

/// Measures kernels: medians with bytes, FLOPs and the fraction of a ceiling measured in the same run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube bench                                      everything on the best backend
  flashcube bench --suite attention_forward --backend cuda
  flashcube bench --backend cpu --json before.json     keep the numbers ...
  flashcube compare before.json after.json             ... and compare them later
  flashcube bench --suite attention_forward --json ours.json \\
      --peers benches/peers/peers.py --peers-json peers.json
  flashcube compare ours.json peers.json               against other libraries, on one card

Every result is checked against the f64 reference before it is timed: whole, or on sampled rows.
Each row names the blueprint that ran, and fails when it is not of the tier the row is about.
Problems are small on the host's cores and large on a GPU. Times come from the device's clock
where it has one, else from the host's around a synchronisation; the column `clock` says which.
attention_forward and decode run three rounds of each problem; with --peers the script's implementations
take turns with ours. docs/benchmarks.md has the method.")]
pub(crate) struct BenchArgs {
    /// Only this suite (repeatable)
    #[arg(long = "suite", value_enum, value_name = "S")]
    suites: Vec<Suite>,
    /// The backend; the best that is there when absent
    #[arg(long, value_name = "B")]
    backend: Option<BackendName>,
    /// Only rows whose name contains this (repeatable)
    #[arg(long = "row", value_name = "PATTERN")]
    rows: Vec<String>,
    /// Seed of the inputs
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SEED)]
    seed: u64,
    /// The tier of attention and of w4a16; the one selection picks when absent
    #[arg(long, value_name = "T", value_parser = tier)]
    tier: Option<TierName>,
    /// Time other libraries in turns with ours: a script that speaks the protocol of benches/peers
    #[arg(long, value_name = "SCRIPT")]
    peers: Option<PathBuf>,
    /// Write what the peers did to this file
    #[arg(long, value_name = "FILE", requires = "peers")]
    peers_json: Option<PathBuf>,
    /// The Python that runs the script
    #[arg(
        long,
        value_name = "EXE",
        default_value = "python3",
        requires = "peers"
    )]
    python: OsString,
    /// Marlin's shared library, as a peer of the suite w4a16
    #[arg(long, value_name = "LIB", requires = "peers")]
    marlin: Option<PathBuf>,
    /// Start no further problem of attention_forward, decode or w4a16 after so many seconds, and fail at the end
    #[arg(long, value_name = "SECONDS")]
    budget: Option<u64>,
    /// Print the problems that attention_forward, or --suite decode, has on a GPU as JSON, and run nothing
    #[arg(long)]
    list: bool,
    /// Write JSON to this file, `-` for stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A tier by the name it prints.
fn tier(name: &str) -> Result<TierName, String> {
    let found = TierName::ALL
        .into_iter()
        .find(|tier| tier.to_string() == name);
    found.ok_or_else(|| {
        let all = TierName::ALL.map(|tier| tier.to_string());
        format!("expected one of {}", all.join(", "))
    })
}

/// A group of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    #[value(name = "attention_forward")]
    AttentionForward,
    #[value(name = "decode")]
    Decode,
    /// On request alone: more than 65,535 heads, more than 2^31 elements
    #[value(name = "attention_limits")]
    AttentionLimits,
    #[value(name = "merge")]
    Merge,
    #[value(name = "dequantize")]
    Dequantize,
    #[value(name = "hadamard")]
    Hadamard,
    #[value(name = "w4a16")]
    W4a16,
}

/// What one row does: its inputs are on the device when it is made. Bytes are what limits it.
pub(super) struct Case {
    /// Unique within the run, the same from run to run.
    pub(super) name: String,
    /// Tier the row is about.
    tier: String,
    /// Bytes that must move at least: every input once, every output once.
    pub(super) bytes: u64,
    /// Floating-point operations of the definition; 0 where none are worth counting.
    pub(super) flops: u64,
}

/// A run in progress.
pub(super) struct Bench<'a> {
    pub(super) device: &'a Device,
    pub(super) seed: u64,
    tier: Option<TierName>,
    budget: Option<Duration>,
    peers: Option<Peers>,
    accuracy: Vec<Accuracy>,
    peers_accuracy: Vec<Accuracy>,
    /// Seconds of the first call of every blueprint.
    first_calls: BTreeMap<String, f64>,
    ceilings: Ceilings,
    wanted: Vec<String>,
    rows: Vec<BenchRow>,
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    if args.list {
        let decode = args.suites.contains(&Suite::Decode);
        return output::print_json(&match decode {
            true => attention::list_decode(),
            false => attention::list(args.seed),
        });
    }
    let name = match args.backend {
        Some(name) => name,
        None => best()?,
    };
    backend::prepare(&[name])?;
    let device = name.open()?;
    let mut bench = Bench {
        seed: args.seed,
        tier: args.tier,
        budget: args.budget.map(Duration::from_secs),
        peers: match &args.peers {
            Some(script) => Some(Peers::start(
                &args.python,
                script,
                &device,
                args.seed,
                args.marlin.as_deref(),
            )?),
            None => None,
        },
        accuracy: Vec::new(),
        peers_accuracy: Vec::new(),
        first_calls: BTreeMap::new(),
        ceilings: Ceilings::measure(&device)?,
        wanted: args.rows.clone(),
        rows: Vec::new(),
        device: &device,
    };
    let usual = |suite: &Suite| *suite != Suite::AttentionLimits;
    let suites: Vec<Suite> = match &args.suites[..] {
        [] => Suite::value_variants()
            .iter()
            .copied()
            .filter(usual)
            .collect(),
        some => some.to_vec(),
    };
    let outcome = suites.iter().try_for_each(|suite| match suite {
        Suite::AttentionForward => attention::run(&mut bench),
        Suite::Decode => attention::run_decode(&mut bench),
        Suite::AttentionLimits => attention::run_limits(&mut bench),
        Suite::Merge => merge::run(&mut bench),
        Suite::Dequantize => dequantize::run(&mut bench),
        Suite::Hadamard => hadamard::run(&mut bench),
        Suite::W4a16 => w4a16::run(&mut bench),
    });
    // What was measured before something failed is kept.
    if let Some(path) = &args.peers_json {
        write(path, &bench.peers_report()?)?;
    }
    let report = bench.report();
    publish(args, &report)?;
    outcome?;
    conclude(&report)
}

/// cuda, else a GPU through wgpu, else cpu.
fn best() -> Result<BackendName> {
    for name in [BackendName::Cuda, BackendName::Wgpu] {
        let report = BackendReport::elsewhere(name)?;
        if report.device().is_some_and(|device| !device.software) {
            return Ok(name);
        }
    }
    Ok(BackendName::Cpu)
}

fn publish(args: &BenchArgs, report: &BenchReport) -> Result<()> {
    match args.json.as_deref() {
        Some(path) if path.as_os_str() == "-" => return output::print_json(report),
        Some(path) => write(path, report)?,
        None => {}
    }
    output::print(report)
}

fn write(path: &Path, report: &BenchReport) -> Result<()> {
    let text = serde_json::to_string_pretty(report).map_err(Failure::failed)?;
    fs::write(path, text + "\n")
        .map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))
}

fn conclude(report: &BenchReport) -> Result<()> {
    if report.rows.is_empty() && report.accuracy.is_empty() {
        return Err(Failure::usage(
            "no row matches",
            "leave --row out to see all",
        ));
    }
    let failed: Vec<&str> = report
        .rows
        .iter()
        .filter(|row| row.failure.is_some())
        .map(|row| row.name.as_str())
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{} rows failed: {}",
        failed.len(),
        failed.join(", ")
    )))
}

impl Bench<'_> {
    /// Whether the row was asked for. Callers ask before they draw inputs.
    pub(super) fn wants(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|part| name.contains(part))
    }

    /// Dtypes that the device has.
    pub(super) fn dtypes(&self) -> Vec<DType> {
        self.device.caps.dtypes.clone()
    }

    /// The small size on the host's cores, the large one on a GPU.
    pub(super) fn scaled<T>(&self, small: T, large: T) -> T {
        if self.device.is_software() {
            small
        } else {
            large
        }
    }

    /// What the script measured, with the errors of its results.
    fn peers_report(&mut self) -> Result<BenchReport> {
        let Some(peers) = &mut self.peers else {
            return Err(Failure::failed("no peers ran"));
        };
        Ok(BenchReport {
            accuracy: std::mem::take(&mut self.peers_accuracy),
            ..peers.report()?
        })
    }

    fn report(self) -> BenchReport {
        BenchReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            backend: self.device.backend.to_string(),
            device: self.device.adapter().to_owned(),
            seed: self.seed,
            copy_gb_per_s: self.ceilings.copy / 1e9,
            read_gb_per_s: self.ceilings.read / 1e9,
            fma_gflop_per_s: self.ceilings.fma / 1e9,
            kernel_cache: backend::kernel_cache(),
            rows: self.rows,
            accuracy: self.accuracy,
        }
    }
}
