//! `flashcube lower`: a kernel to CUDA C++, PTX, machine code, a report, or WGSL; no GPU needed.

use clap::{Args, ValueEnum};
use flashcube_lowering::{
    Arch, Blueprint, ListedKernel, Lowering, LoweringError, Prediction, Report, find_kernel,
    kernels,
};
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::output::{self, Table};

/// Lowers a kernel without a GPU: CUDA C++, PTX, machine code, resource report, or WGSL.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube lower --list                                              names and blueprints
  flashcube lower attend_forward_bf16_d128_causal --arch sm_90a       registers, spills, instructions
  flashcube lower attend_forward_f32_d64 --arch sm_100a --emit sass   machine code
  flashcube lower merge_partials_f32_d128 --target wgsl               WGSL

CUDA C++ and WGSL need nothing installed. PTX, SASS and reports need the CUDA toolkit
(`cargo xtask bootstrap cuda`). The exit code is 1 when a report breaks a rule of its tier.")]
pub(crate) struct LowerArgs {
    /// A name or blueprint of `--list`
    #[arg(required_unless_present = "list")]
    kernel: Option<String>,
    /// List the kernels with the blueprints they get on `--arch` (or in WGSL)
    #[arg(long, conflicts_with = "kernel")]
    list: bool,
    /// GPU architecture
    #[arg(long, default_value = "sm_90a", value_parser = parse_arch)]
    arch: Arch,
    /// What to print
    #[arg(long, value_enum, default_value_t = Emit::Report)]
    emit: Emit,
    /// Language
    #[arg(long, value_enum, default_value_t = Target::Cuda)]
    target: Target,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A stage on the way to machine code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Emit {
    /// CUDA C++ as CubeCL prints it
    Cuda,
    /// What NVRTC makes of it
    Ptx,
    /// What ptxas makes of that
    Sass,
    /// Registers, stack, spills, shared memory, warnings, instruction counts, and a predicted speed
    Report,
}

/// The language of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Target {
    /// NVIDIA GPUs
    Cuda,
    /// WebGPU
    Wgsl,
}

pub(crate) fn parse_arch(text: &str) -> Result<Arch, LoweringError> {
    text.parse()
}

pub(crate) fn run(args: &LowerArgs) -> Result<()> {
    match (&args.kernel, args.target) {
        (None, target) => list(args, target),
        (Some(name), Target::Wgsl) => wgsl(args, &find_kernel(name, args.arch)?),
        (Some(name), Target::Cuda) => cuda(args, &find_kernel(name, args.arch)?),
    }
}

/// A line of the list.
#[derive(Serialize)]
struct Listed {
    kernel: String,
    blueprint: Option<String>,
    not_available: Option<String>,
}

fn list(args: &LowerArgs, target: Target) -> Result<()> {
    let listed: Vec<Listed> = kernels()
        .into_iter()
        .map(|kernel| {
            let blueprint = match target {
                Target::Cuda => kernel.blueprint(args.arch),
                Target::Wgsl => kernel.wgsl_blueprint(),
            };
            let (blueprint, not_available) = match blueprint {
                Ok(blueprint) => (Some(blueprint.to_string()), None),
                Err(error) => (None, Some(error.to_string())),
            };
            Listed {
                kernel: kernel.name,
                blueprint,
                not_available,
            }
        })
        .collect();
    if args.json {
        return output::print_json(&listed);
    }
    let mut table = Table::new(&["kernel", "blueprint"]);
    for line in listed {
        let not_available = line
            .not_available
            .map(|reason| format!("not available: {reason}"));
        table.row([
            line.kernel,
            line.blueprint.or(not_available).unwrap_or_default(),
        ]);
    }
    output::print(table)
}

/// Source text or machine code, as JSON.
#[derive(Serialize)]
struct Text<'a> {
    kernel: &'a str,
    blueprint: String,
    target: String,
    text: &'a str,
}

fn print_text(
    args: &LowerArgs,
    kernel: &ListedKernel,
    blueprint: &Blueprint,
    target: String,
    text: &str,
) -> Result<()> {
    if args.json {
        return output::print_json(&Text {
            kernel: &kernel.name,
            blueprint: blueprint.to_string(),
            target,
            text,
        });
    }
    let end = if text.ends_with('\n') { "" } else { "\n" };
    output::print(format_args!("{text}{end}"))
}

fn wgsl(args: &LowerArgs, kernel: &ListedKernel) -> Result<()> {
    let blueprint = kernel.wgsl_blueprint()?;
    print_text(
        args,
        kernel,
        &blueprint,
        "wgsl".to_owned(),
        &blueprint.wgsl()?,
    )
}

fn cuda(args: &LowerArgs, kernel: &ListedKernel) -> Result<()> {
    let blueprint = kernel.blueprint(args.arch)?;
    let source = blueprint.cuda(args.arch)?;
    let text = |text: &str| print_text(args, kernel, &blueprint, args.arch.to_string(), text);
    match args.emit {
        Emit::Cuda => text(&source.text),
        Emit::Ptx => text(&Lowering::find()?.ptx(&source, args.arch)?.text),
        Emit::Sass => text(&Lowering::find()?.lower(&source, args.arch)?.assembly.sass),
        Emit::Report => {
            let lowered = Lowering::find()?.lower(&source, args.arch)?;
            let prediction = Prediction::of(&blueprint, args.arch, &lowered.sass()?);
            print_report(args, kernel, &blueprint, &lowered.report()?, prediction)
        }
    }
}

/// A report and what its tier makes of it.
#[derive(Serialize)]
struct Judged<'a> {
    blueprint: String,
    tier: String,
    violations: &'a [String],
    prediction: Option<Prediction>,
    #[serde(flatten)]
    report: &'a Report,
}

fn print_report(
    args: &LowerArgs,
    kernel: &ListedKernel,
    blueprint: &Blueprint,
    report: &Report,
    prediction: Option<Prediction>,
) -> Result<()> {
    let violations: Vec<String> = match report.check(&blueprint.expect()) {
        Ok(()) => Vec::new(),
        Err(violations) => violations.iter().map(ToString::to_string).collect(),
    };
    if args.json {
        output::print_json(&Judged {
            blueprint: blueprint.to_string(),
            tier: blueprint.tier().to_string(),
            violations: &violations,
            prediction,
            report,
        })?;
    } else {
        let predicted = prediction.map_or(String::new(), |it| it.to_string());
        output::print(format_args!(
            "{:<14}{blueprint}\n{predicted}{report}",
            "blueprint"
        ))?;
    }
    if violations.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{} breaks the rules of the {} tier: {}",
        kernel.name,
        blueprint.tier(),
        violations.join("; ")
    )))
}
