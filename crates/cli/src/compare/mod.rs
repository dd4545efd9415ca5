//! `flashcube compare`: two bench runs of ours row by row, or ours and the peers' cell by cell.

mod cells;
mod plot;
mod verdict;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::bench::{BenchReport, OURS};
use crate::failure::{Failure, Result};
use crate::output::{self, Table};

/// Compares two bench runs row by row, or a run with that of other libraries on the same card.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flashcube bench --json before.json
  flashcube bench --json after.json
  flashcube compare before.json after.json                  shows the ratios
  flashcube compare before.json after.json --at-least 0.95  exit 1 when a row lost more than 5 %
  flashcube compare ours.json peers.json --at-least 0.98 --plot peers.svg
  flashcube compare ours.json peers.json --peer fa2 --mean-at-least 1

Two runs of ours: the ratio is the first run's median time over the second's, above 1 the second is
faster. Rows are matched by name. With --at-least, a row that is in the first run and not in the
second, or failed there, counts as lost.

Ours and the peers' (a file of benches/peers/peers.py): a cell is a problem; its ratio is the time of
the fastest peer over ours in that peer's memory layout, above 1 ours is faster. With --at-least the
command fails as well when a peer fell short of what it reached before (its rows say so, and
--allow-void lets it pass), when a goal between two of our own rows is missed, or when an error is
more than --rmse-at-most times a peer's.")]
pub(crate) struct CompareArgs {
    /// The run to compare with, or ours
    before: PathBuf,
    /// The run to judge, or the peers'
    after: PathBuf,
    /// Fail when a ratio is below this
    #[arg(long, value_name = "R")]
    at_least: Option<f64>,
    /// Fail when the geometric mean of a dtype's ratios to the peers is below this
    #[arg(long, value_name = "R")]
    mean_at_least: Option<f64>,
    /// Largest error of ours over a peer's
    #[arg(long, value_name = "R", default_value_t = 1.02)]
    rmse_at_most: f64,
    /// Only this peer (repeatable)
    #[arg(long = "peer", value_name = "NAME")]
    peers: Vec<String>,
    /// Only problems and inputs whose name contains this
    #[arg(long, value_name = "PATTERN")]
    row: Option<String>,
    /// Let a peer fall short of what it reached before
    #[arg(long)]
    allow_void: bool,
    /// Draw ours and the peers to this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One row of both runs.
#[derive(Debug, PartialEq, Serialize)]
struct Compared {
    name: String,
    before_seconds: Option<f64>,
    after_seconds: Option<f64>,
    ratio: Option<f64>,
    after_blueprint: Option<String>,
}

pub(crate) fn run(args: &CompareArgs) -> Result<()> {
    for (option, ratio) in [
        ("--at-least", args.at_least),
        ("--mean-at-least", args.mean_at_least),
        ("--rmse-at-most", Some(args.rmse_at_most)),
    ] {
        if let Some(ratio) = ratio
            && !(ratio.is_finite() && ratio > 0.0)
        {
            let what = format!("{option} {ratio}: expected a positive number");
            return Err(Failure::usage(what, "0.95 allows a loss of 5 %"));
        }
    }
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    if before.device != after.device {
        eprintln!(
            "note: other devices: {} and {}",
            before.device, after.device
        );
    }
    if after.rows.iter().any(|row| row.implementation != OURS) {
        return with_peers(args, &before, &after);
    }
    if args.plot.is_some() || args.mean_at_least.is_some() || !args.peers.is_empty() {
        let what = format!("{} holds no rows of peers", args.after.display());
        let hint = "--plot, --peer and --mean-at-least take a file of benches/peers/peers.py";
        return Err(Failure::usage(what, hint));
    }
    let mut rows = compare(&before, &after);
    rows.retain(|row| wanted(args, &row.name));
    if args.json {
        output::print_json(&rows)?;
    } else {
        output::print(table(&rows))?;
    }
    match args.at_least.map(|least| (least, lost(&rows, least))) {
        Some((least, lost)) if !lost.is_empty() => Err(Failure::failed(format!(
            "{} rows are below {least}: {}",
            lost.len(),
            lost.join(", ")
        ))),
        _ => Ok(()),
    }
}

fn wanted(args: &CompareArgs, name: &str) -> bool {
    args.row.as_ref().is_none_or(|part| name.contains(part))
}

fn with_peers(args: &CompareArgs, ours: &BenchReport, peers: &BenchReport) -> Result<()> {
    let wanted = |name: &str| wanted(args, name);
    let judged = |peer: &str| args.peers.is_empty() || args.peers.iter().any(|name| name == peer);
    let comparison = cells::compare(ours, peers, wanted, judged);
    let names = comparison.names();
    if let Some(absent) = args
        .peers
        .iter()
        .find(|peer| !names.contains(&peer.as_str()))
    {
        let what = format!("{} has no problem of {absent}", args.after.display());
        return Err(Failure::usage(what, "its rows name the implementations"));
    }
    if comparison.cells.is_empty() && comparison.accuracy.is_empty() {
        let hint = "both files must come from the same suite, dtypes and seed";
        return Err(Failure::usage(
            "no problem was computed by both sides",
            hint,
        ));
    }
    if let Some(path) = &args.plot {
        let drawing = plot::bars(&comparison);
        fs::write(path, drawing)
            .map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))?;
    }
    if args.json {
        output::print_json(&comparison)?;
    } else {
        output::print(&comparison)?;
    }
    verdict::judge(args, &comparison)
}

fn read(path: &Path) -> Result<BenchReport> {
    let hint = "files come from `flashcube bench --json FILE`";
    let bytes = fs::read(path)
        .map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display()), hint))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Failure::usage(format!("{}: {e}", path.display()), hint))
}

/// Every row of either run, those of the first in front.
fn compare(before: &BenchReport, after: &BenchReport) -> Vec<Compared> {
    let measured = |report: &BenchReport| -> BTreeMap<String, (f64, String)> {
        let rows = report.rows.iter().filter(|row| row.failure.is_none());
        rows.map(|row| {
            (
                row.name.clone(),
                (row.median_seconds, row.blueprint.clone()),
            )
        })
        .collect()
    };
    let (old, new) = (measured(before), measured(after));
    let first = before.rows.iter().map(|row| &row.name);
    let added = after.rows.iter().map(|row| &row.name);
    let only_after = added.filter(|name| before.rows.iter().all(|row| row.name != **name));
    first
        .chain(only_after)
        .map(|name| {
            let (old, new) = (old.get(name), new.get(name));
            Compared {
                name: name.clone(),
                before_seconds: old.map(|x| x.0),
                after_seconds: new.map(|x| x.0),
                ratio: old.zip(new).map(|(old, new)| old.0 / new.0),
                after_blueprint: new.map(|x| x.1.clone()),
            }
        })
        .collect()
}

/// Rows that were measured before and are slower than allowed now, or not measured.
fn lost(rows: &[Compared], least: f64) -> Vec<String> {
    rows.iter()
        .filter(|row| row.before_seconds.is_some() && row.ratio.is_none_or(|r| r < least))
        .map(|row| row.name.clone())
        .collect()
}

fn table(rows: &[Compared]) -> Table {
    let time = |seconds: Option<f64>| match seconds {
        Some(seconds) => format!("{:.1}", seconds * 1e6),
        None => "-".to_owned(),
    };
    let mut table = Table::new(&["row", ">before us", ">after us", ">ratio", "blueprint"]);
    for row in rows {
        table.row([
            row.name.clone(),
            time(row.before_seconds),
            time(row.after_seconds),
            row.ratio
                .map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
            row.after_blueprint.clone().unwrap_or_default(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: &[(&str, f64, bool)]) -> BenchReport {
        let rows: Vec<serde_json::Value> = rows
            .iter()
            .map(|(name, seconds, failed)| {
                serde_json::json!({
                    "name": name, "blueprint": "b/unit", "median_seconds": seconds,
                    "fastest_seconds": seconds, "repeats": 5, "clock": "system", "bytes": 1,
                    "flops": 1, "ceiling": "copy", "fraction_of_ceiling": 0.5,
                    "worst_share_of_bound": 0.1, "failure": failed.then_some("wrong"),
                })
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "version": "0", "backend": "cpu", "device": "d", "seed": 1,
            "copy_gb_per_s": 1.0, "fma_gflop_per_s": 1.0, "rows": rows,
        }))
        .unwrap()
    }

    #[test]
    fn rows_are_matched_by_name_and_missing_ones_are_lost() {
        let before = report(&[("a", 2.0, false), ("b", 1.0, false), ("c", 1.0, false)]);
        let after = report(&[
            ("b", 2.0, false),
            ("a", 1.0, false),
            ("c", 1.0, true),
            ("d", 1.0, false),
        ]);
        let rows = compare(&before, &after);
        let ratios: Vec<_> = rows.iter().map(|row| row.ratio).collect();
        assert_eq!(ratios, [Some(2.0), Some(0.5), None, None]);
        assert_eq!(lost(&rows, 0.9), ["b", "c"]);
        assert_eq!(lost(&rows, 0.4), ["c"]);
        assert!(lost(&compare(&before, &before), 1.0).is_empty());
    }
}
