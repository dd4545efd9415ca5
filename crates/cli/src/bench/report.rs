//! What a bench run found, as JSON and as a table.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::output::Table;

/// A whole run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BenchReport {
    pub(crate) version: String,
    pub(crate) backend: String,
    pub(crate) device: String,
    pub(crate) seed: u64,
    /// Read and written bytes per second of the best copy, in 10^9.
    pub(crate) copy_gb_per_s: f64,
    /// Operations per second of independent f32 FMA chains, in 10^9.
    pub(crate) fma_gflop_per_s: f64,
    pub(crate) rows: Vec<BenchRow>,
}

/// One measured row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BenchRow {
    pub(crate) name: String,
    pub(crate) blueprint: String,
    pub(crate) median_seconds: f64,
    pub(crate) fastest_seconds: f64,
    pub(crate) repeats: usize,
    /// Whose clock: `device` or `system`.
    pub(crate) clock: String,
    pub(crate) bytes: u64,
    pub(crate) flops: u64,
    /// `copy` or `fma`.
    pub(crate) ceiling: String,
    pub(crate) fraction_of_ceiling: f64,
    /// Largest share of its bound that a checked element's error takes.
    pub(crate) worst_share_of_bound: f64,
    /// What is wrong.
    pub(crate) failure: Option<String>,
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} ({}), seed {}: copy {:.1} GB/s, f32 FMA {:.1} GFLOP/s",
            self.backend, self.device, self.seed, self.copy_gb_per_s, self.fma_gflop_per_s
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
        write!(f, "{table}")
    }
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
