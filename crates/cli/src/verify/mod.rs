//! `flashcube verify`: the conformance runs.

mod children;
mod file;
mod mutants;
mod suite;

pub(crate) use file::{ExportArgs, export};

use std::path::PathBuf;

use clap::Args;
use flashcube_catalogue::{Kernel, Shard, UnknownKernel};
use flashcube_lowering::Arch;
use flashcube_simulated::{Options, Schedule, Simulated};

use crate::backend::{self, BackendName};
use crate::failure::{Failure, Result};
use crate::lower::parse_arch;

/// Checks every kernel against the f64 reference, on one backend or on all that are there.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube verify                                 every backend found, each in its own process
  flashcube verify --backend cpu                   one backend
  flashcube verify --kernel merge_partials         one kernel
  flashcube verify --backend cuda --case /causal/  cases whose name holds /causal/
  flashcube verify --backend cuda --shard 3/16     the third of sixteen processes that share the cases
  flashcube verify --repeat 200 --backend cuda     the same bits 200 times, under memory pressure
  flashcube verify --repeat 1000 --streams 2       the same, half of them on another stream
  flashcube verify --mutants --backend cpu         sabotaged kernels, each of which must be noticed
  flashcube verify --simulate sm_90a --case /hopper/q  a GPU that is not there, on the PTX interpreter
  flashcube verify --against out.safetensors       your own kernel's results, see export-problem

A row passes when every element is within its bound (docs/numerics.md) and a second run gives the
same bits. Exit 1: a row failed, or a required row did not run. Exit 2: a backend is not there.")]
pub(crate) struct VerifyArgs {
    /// Run on this backend (repeatable); all that are there when absent
    #[arg(long = "backend", value_name = "B")]
    backends: Vec<BackendName>,
    /// Run on a simulated GPU: PTX as NVRTC makes it, executed and checked on the host (docs/ptx-sim.md)
    #[arg(long, value_name = "ARCH", value_parser = parse_arch, conflicts_with_all = ["backends", "mutants"])]
    simulate: Option<Arch>,
    /// Its asynchronous operations finish at moments drawn from this seed, not at the latest ones
    #[arg(long, value_name = "N", requires = "simulate")]
    moments: Option<u64>,
    /// Only this kernel
    #[arg(long, value_name = "K", value_parser = parse_kernel)]
    kernel: Option<Kernel>,
    /// Only cases whose name contains this
    #[arg(long, value_name = "PATTERN")]
    case: Option<String>,
    /// Only the reduced set that the tests run
    #[arg(long)]
    core: bool,
    /// Only the I-th of N stretches of the cases, so that N processes share them out
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Seed of the inputs
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Launch each case so often, all with the same bits; beyond 2 with outputs in poisoned memory
    /// and other buffers coming and going between
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    repeat: u32,
    /// Share the launches after a case's first out to so many streams of the device
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// Run sabotaged kernels instead, each of which the suite must notice
    #[arg(long, conflicts_with_all = ["kernel", "case", "core", "shard", "against", "repeat", "streams"])]
    mutants: bool,
    /// Check the outputs in this safetensors file instead of running a kernel
    #[arg(long, value_name = "FILE", conflicts_with_all = ["backends", "kernel", "case", "core", "shard"])]
    against: Option<PathBuf>,
    /// The problem they answer; read from the file's metadata when absent
    #[arg(long, value_name = "NAME", requires = "against")]
    problem: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write the JSON to this file
    #[arg(long, value_name = "FILE", hide = true)]
    report: Option<PathBuf>,
}

/// Seed where none is given.
pub(crate) const DEFAULT_SEED: u64 = 1;

fn parse_kernel(name: &str) -> Result<Kernel, UnknownKernel> {
    name.parse()
}

pub(crate) fn run(args: &VerifyArgs) -> Result<()> {
    if let Some(path) = &args.against {
        return file::check(path, args.problem.as_deref(), args.seed, args.json);
    }
    if let Some(arch) = args.simulate {
        return simulate(args, arch);
    }
    let &[backend] = &args.backends[..] else {
        return children::run(args);
    };
    backend::prepare(&[backend])?;
    let device = backend.open()?;
    if args.mutants {
        mutants::run(args, &device)
    } else {
        suite::run(args, &device.title(), &device.client)
    }
}

fn simulate(args: &VerifyArgs, arch: Arch) -> Result<()> {
    let options = Options {
        schedule: args.moments.map_or(Schedule::Latest, Schedule::Random),
        ..Options::new(arch)
    };
    let gpu = Simulated::open(options).map_err(|error| {
        Failure::missing(
            error.to_string(),
            "`cargo xtask bootstrap` brings the CUDA compilers",
        )
    })?;
    suite::run(args, &format!("simulated {arch}"), &gpu.client)
}

impl VerifyArgs {
    fn seed(&self) -> u64 {
        self.seed.unwrap_or(DEFAULT_SEED)
    }
}
