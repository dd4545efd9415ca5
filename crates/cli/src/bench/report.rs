//! What a bench run found, as JSON and as a table.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::output::Table;

/// A whole run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BenchReport {
    pub(crate) version: String,
    pub(crate) backend: String,
    pub(crate) device: String,
    pub(crate) seed: u64,
    /// Read and written bytes per second of the best copy, in 10^9; 0 where none was timed.
    #[serde(default)]
    pub(crate) copy_gb_per_s: f64,
    /// Read bytes per second of a kernel that only reads, in 10^9; 0 where none was timed.
    #[serde(default)]
    pub(crate) read_gb_per_s: f64,
    /// Operations per second of independent f32 FMA chains, in 10^9; 0 where none were timed.
    #[serde(default)]
    pub(crate) fma_gflop_per_s: f64,
    /// Where compiled kernels survive the process: a first call may have found its kernel there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kernel_cache: Option<PathBuf>,
    pub(crate) rows: Vec<BenchRow>,
    /// Root mean square errors on inputs that the peers took as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) accuracy: Vec<Accuracy>,
}

/// One measured row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BenchRow {
    pub(crate) name: String,
    /// `flashcube`, or the name of a peer.
    #[serde(default = "ours")]
    pub(crate) implementation: String,
    /// What ran; of a peer its version.
    pub(crate) blueprint: String,
    pub(crate) median_seconds: f64,
    pub(crate) fastest_seconds: f64,
    pub(crate) repeats: usize,
    /// Whose clock: `device` or `system`.
    pub(crate) clock: String,
    pub(crate) bytes: u64,
    pub(crate) flops: u64,
    /// `copy`, `read` or `fma`; of a peer `matmul`.
    pub(crate) ceiling: String,
    pub(crate) fraction_of_ceiling: f64,
    /// Largest share of its bound that a checked element's error takes.
    pub(crate) worst_share_of_bound: f64,
    /// What is wrong.
    pub(crate) failure: Option<String>,
    /// What makes the row comparable with a peer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cell: Option<Cell>,
}

/// Name of this library's kernels among implementations.
pub(crate) const OURS: &str = "flashcube";

fn ours() -> String {
    OURS.to_owned()
}

/// A row of a suite that peers run as well.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// The problem's name, whoever computes it.
    pub(crate) problem: String,
    pub(crate) dtype: String,
    /// `none`, `causal`, `window`, `varlen`, `varlen causal`, `decode` or `decode paged`.
    pub(crate) mask: String,
    /// Axes of q, k, v and out in memory: `bhsd` or `bshd`.
    pub(crate) layout: String,
    /// Median of each round; the row's median is theirs.
    pub(crate) round_seconds: Vec<f64>,
    pub(crate) tflop_per_s: f64,
    /// Seconds of the first call with this blueprint: compilation, launch and the wait for it.
    #[serde(default)]
    pub(crate) first_call_seconds: Option<f64>,
    /// What this row must gain on another one of the same run.
    #[serde(default)]
    pub(crate) goal: Option<Goal>,
    /// What the peer reached when it was measured before, on the card that the script names.
    #[serde(default)]
    pub(crate) expected_tflop_per_s: Option<f64>,
    /// Why the peer's figure does not count.
    #[serde(default)]
    pub(crate) void: Option<String>,
}

/// A ratio between two problems of one run that a kernel must reach.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Goal {
    /// Name of the problem that takes longer.
    pub(crate) against: String,
    /// Its time over the row's, at least.
    pub(crate) at_least: f64,
}

/// An error over a whole output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Accuracy {
    /// `accuracy/`, the dtype, the sizes and the distribution: rows with one name had the same inputs.
    pub(crate) name: String,
    pub(crate) implementation: String,
    /// Root mean square of out minus the f64 result.
    pub(crate) rmse: f64,
    /// The same of the f64 result rounded to the dtype: nothing can be better.
    pub(crate) rounded_rmse: f64,
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} ({}), seed {}: copy {:.1} GB/s, read {:.1} GB/s, f32 FMA {:.1} GFLOP/s",
            self.backend,
            self.device,
            self.seed,
            self.copy_gb_per_s,
            self.read_gb_per_s,
            self.fma_gflop_per_s
        )?;
        let mut table = Table::new(&[
            "row",
            ">median",
            ">fastest",
            ">n",
            "clock",
            ">GB/s",
            ">GFLOP/s",
            ">of",
            "ceiling",
            ">error/bound",
            "blueprint",
        ]);
        for row in &self.rows {
            table.row(cells(row));
        }
        write!(f, "{table}")?;
        write_first_calls(f, &self.rows)?;
        if let Some(folder) = &self.kernel_cache {
            writeln!(f, "kernels are kept in {}", folder.display())?;
        }
        write_accuracy(f, &self.accuracy)
    }
}

fn write_first_calls(f: &mut fmt::Formatter<'_>, rows: &[BenchRow]) -> fmt::Result {
    let mut table = Table::new(&[">first call s", "blueprint"]);
    let mut seen = BTreeSet::new();
    for row in rows {
        let first = row.cell.as_ref().and_then(|cell| cell.first_call_seconds);
        if let Some(seconds) = first
            && seen.insert(&row.blueprint)
        {
            table.row([format!("{seconds:.2}"), row.blueprint.clone()]);
        }
    }
    match seen.is_empty() {
        true => Ok(()),
        false => write!(f, "\n{table}"),
    }
}

fn write_accuracy(f: &mut fmt::Formatter<'_>, rows: &[Accuracy]) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["inputs", "implementation", ">rmse", ">rounded"]);
    for row in rows {
        table.row([
            row.name.clone(),
            row.implementation.clone(),
            format!("{:.3e}", row.rmse),
            format!("{:.3e}", row.rounded_rmse),
        ]);
    }
    write!(f, "\n{table}")
}

fn cells(row: &BenchRow) -> Vec<String> {
    if let Some(failure) = &row.failure {
        let gap = std::iter::repeat_n(String::new(), 9);
        let last = format!("FAIL {failure} ({})", row.blueprint);
        return std::iter::once(row.name.clone())
            .chain(gap)
            .chain([last])
            .collect();
    }
    let per_second = |amount: u64| amount as f64 / row.median_seconds / 1e9;
    vec![
        row.name.clone(),
        time(row.median_seconds),
        time(row.fastest_seconds),
        row.repeats.to_string(),
        row.clock.clone(),
        format!("{:.1}", per_second(row.bytes)),
        match row.flops {
            0 => "-".to_owned(),
            flops => format!("{:.1}", per_second(flops)),
        },
        format!("{:.1} %", 100.0 * row.fraction_of_ceiling),
        row.ceiling.clone(),
        format!("{:.3}", row.worst_share_of_bound),
        row.blueprint.clone(),
    ]
}

fn time(seconds: f64) -> String {
    if seconds < 1e-3 {
        format!("{:.1} us", seconds * 1e6)
    } else {
        format!("{:.2} ms", seconds * 1e3)
    }
}
