//! Ours and the peers' on the same problems.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::bench::{Accuracy, BenchReport, BenchRow, Cell};
use crate::output::Table;

/// Everything that two files say about each other.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) device: String,
    pub(super) cells: Vec<ComparedCell>,
    pub(super) means: Vec<Mean>,
    pub(super) goals: Vec<ComparedGoal>,
    pub(super) accuracy: Vec<ComparedError>,
    /// Rows of peers that gave a wrong result: they are in no cell.
    pub(super) failed: Vec<String>,
    /// cuBLAS of the same run: (dtype, TFLOP/s).
    pub(super) matmul: Vec<(String, f64)>,
}

/// One problem.
#[derive(Debug, Serialize)]
pub(super) struct ComparedCell {
    pub(super) problem: String,
    pub(super) dtype: String,
    pub(super) mask: String,
    /// TFLOP/s by memory layout; a failed row is not in it.
    pub(super) ours: BTreeMap<String, f64>,
    pub(super) peers: Vec<ComparedPeer>,
    /// The smallest ratio to a peer; `None` where ours did not run in a peer's layout.
    pub(super) ratio: Option<f64>,
}

/// A peer's row of a cell.
#[derive(Debug, Serialize)]
pub(super) struct ComparedPeer {
    pub(super) implementation: String,
    pub(super) tflop_per_s: f64,
    /// Its time over ours in its memory layout.
    pub(super) ratio: Option<f64>,
    pub(super) void: Option<String>,
}

/// The geometric mean of the ratios of a group of cells.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Mean {
    pub(super) dtype: String,
    /// A mask, or [`SUITE`].
    pub(super) mask: String,
    pub(super) cells: usize,
    pub(super) ratio: f64,
}

/// The group of all cells of a dtype that have no mask or a causal one.
pub(super) const SUITE: &str = "none and causal";

/// A ratio between two of our own rows.
#[derive(Debug, Serialize)]
pub(super) struct ComparedGoal {
    pub(super) problem: String,
    pub(super) against: String,
    /// The other problem's time over this one's; `None` where one of them did not run.
    pub(super) ratio: Option<f64>,
    pub(super) at_least: f64,
}

/// Errors on the same inputs.
#[derive(Debug, Serialize)]
pub(super) struct ComparedError {
    pub(super) inputs: String,
    pub(super) implementation: String,
    pub(super) ours: f64,
    pub(super) theirs: f64,
    /// Ours over theirs.
    pub(super) ratio: f64,
    pub(super) rounded: f64,
}

/// Cells that both sides computed or should have, in the order of the peers' file.
pub(super) fn compare(
    ours: &BenchReport,
    peers: &BenchReport,
    wanted: impl Fn(&str) -> bool,
    judged: impl Fn(&str) -> bool,
) -> Comparison {
    let measured = measured(ours);
    let mut cells: Vec<ComparedCell> = Vec::new();
    let mut matmul = Vec::new();
    let failed =
        cells_of(peers).filter(|(row, cell)| row.failure.is_some() && wanted(&cell.problem));
    let failed = failed.map(|(row, _)| row.name.clone()).collect();
    for (row, cell) in cells_of(peers).filter(|(row, _)| row.failure.is_none()) {
        if row.implementation == "cublas" {
            matmul.push((cell.dtype.clone(), cell.tflop_per_s));
        } else if wanted(&cell.problem) && judged(&row.implementation) {
            let at = match cells.iter().position(|c| c.problem == cell.problem) {
                Some(at) => at,
                None => {
                    cells.push(ComparedCell::new(cell, &measured));
                    cells.len() - 1
                }
            };
            let key = (cell.problem.clone(), cell.layout.clone());
            cells[at].peers.push(ComparedPeer {
                implementation: row.implementation.clone(),
                tflop_per_s: cell.tflop_per_s,
                ratio: measured
                    .get(&key)
                    .map(|ours| row.median_seconds / ours.median_seconds),
                void: cell.void.clone(),
            });
        }
    }
    for cell in &mut cells {
        cell.ratio = cell
            .peers
            .iter()
            .map(|peer| peer.ratio)
            .reduce(|a, b| Some(a?.min(b?)))
            .flatten();
    }
    Comparison {
        device: ours.device.clone(),
        means: means(&cells),
        goals: goals(ours, &measured, &wanted),
        accuracy: errors(&ours.accuracy, &peers.accuracy, |row| {
            wanted(&row.name) && judged(&row.implementation)
        }),
        cells,
        failed,
        matmul,
    }
}

fn cells_of(report: &BenchReport) -> impl Iterator<Item = (&BenchRow, &Cell)> {
    report
        .rows
        .iter()
        .filter_map(|row| Some((row, row.cell.as_ref()?)))
}

/// Our rows by (problem, layout), without those that failed.
fn measured(ours: &BenchReport) -> BTreeMap<(String, String), &BenchRow> {
    cells_of(ours)
        .filter(|(row, _)| row.failure.is_none())
        .map(|(row, cell)| ((cell.problem.clone(), cell.layout.clone()), row))
        .collect()
}

impl ComparedCell {
    fn new(cell: &Cell, measured: &BTreeMap<(String, String), &BenchRow>) -> Self {
        let ours = measured
            .iter()
            .filter(|((problem, _), _)| *problem == cell.problem)
            .map(|((_, layout), row)| {
                let tflops = row.cell.as_ref().map_or(0.0, |cell| cell.tflop_per_s);
                (layout.clone(), tflops)
            });
        Self {
            problem: cell.problem.clone(),
            dtype: cell.dtype.clone(),
            mask: cell.mask.clone(),
            ours: ours.collect(),
            peers: Vec::new(),
            ratio: None,
        }
    }

    /// The peer that comes closest to ours, or passes it most.
    pub(super) fn best(&self) -> Option<&ComparedPeer> {
        self.peers
            .iter()
            .filter(|peer| peer.ratio.is_some())
            .min_by(|a, b| {
                a.ratio
                    .partial_cmp(&b.ratio)
                    .unwrap_or(std::cmp::Ordering::Equal)
            })
    }
}

fn means(cells: &[ComparedCell]) -> Vec<Mean> {
    let mut groups: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for cell in cells {
        if let Some(ratio) = cell.ratio {
            let mut add = |mask: &str| {
                let key = (cell.dtype.clone(), mask.to_owned());
                groups.entry(key).or_default().push(ratio);
            };
            add(&cell.mask);
            if matches!(cell.mask.as_str(), "none" | "causal") {
                add(SUITE);
            }
        }
    }
    let mean = |ratios: &[f64]| {
        let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
        (sum / ratios.len() as f64).exp()
    };
    groups
        .into_iter()
        .map(|((dtype, mask), ratios)| Mean {
            dtype,
            mask,
            cells: ratios.len(),
            ratio: mean(&ratios),
        })
        .collect()
}

fn goals(
    ours: &BenchReport,
    measured: &BTreeMap<(String, String), &BenchRow>,
    wanted: impl Fn(&str) -> bool,
) -> Vec<ComparedGoal> {
    cells_of(ours)
        .filter(|(_, cell)| wanted(&cell.problem))
        .filter_map(|(row, cell)| {
            let goal = cell.goal.as_ref()?;
            let other = measured.get(&(goal.against.clone(), cell.layout.clone()));
            let ran = row.failure.is_none();
            Some(ComparedGoal {
                problem: cell.problem.clone(),
                against: goal.against.clone(),
                ratio: other
                    .filter(|_| ran)
                    .map(|other| other.median_seconds / row.median_seconds),
                at_least: goal.at_least,
            })
        })
        .collect()
}

fn errors(
    ours: &[Accuracy],
    peers: &[Accuracy],
    wanted: impl Fn(&Accuracy) -> bool,
) -> Vec<ComparedError> {
    let wanted = peers.iter().filter(|row| wanted(row));
    wanted
        .filter_map(|theirs| {
            let ours = ours.iter().find(|ours| ours.name == theirs.name)?;
            Some(ComparedError {
                inputs: theirs.name.clone(),
                implementation: theirs.implementation.clone(),
                ours: ours.rmse,
                theirs: theirs.rmse,
                ratio: ours.rmse / theirs.rmse,
                rounded: ours.rounded_rmse,
            })
        })
        .collect()
}

/// A problem's name without what all have in common.
pub(super) fn short(problem: &str) -> &str {
    problem.strip_prefix("attend_forward/").unwrap_or(problem)
}

impl Comparison {
    /// Names of the peers, in the order they first appear.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for peer in self.cells.iter().flat_map(|cell| &cell.peers) {
            if !names.contains(&peer.implementation.as_str()) {
                names.push(&peer.implementation);
            }
        }
        names
    }

    fn cells_table(&self) -> String {
        let names = self.names();
        let columns = ["problem", "ours", "ours bshd"]
            .into_iter()
            .chain(names.iter().copied());
        let mut lines: Vec<Vec<String>> = vec![
            columns
                .chain(["best peer", "ratio"])
                .map(str::to_owned)
                .collect(),
        ];
        let tflops = |x: Option<&f64>| x.map_or("-".to_owned(), |x| format!("{x:.1}"));
        for cell in &self.cells {
            let mut line = vec![short(&cell.problem).to_owned()];
            line.extend(["bhsd", "bshd"].map(|layout| tflops(cell.ours.get(layout))));
            for name in &names {
                let peer = cell.peers.iter().find(|peer| peer.implementation == *name);
                line.push(peer.map_or("-".to_owned(), |peer| {
                    let mark = if peer.void.is_some() { "*" } else { "" };
                    format!("{:.1}{mark}", peer.tflop_per_s)
                }));
            }
            line.push(
                cell.best()
                    .map_or("-", |peer| &peer.implementation)
                    .to_owned(),
            );
            line.push(
                cell.ratio
                    .map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
            );
            lines.push(line);
        }
        columns_of(&lines)
    }
}

/// Lines of cells as text: the first column to the left, numbers to the right.
fn columns_of(lines: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for line in lines {
        for (column, cell) in line.iter().enumerate() {
            let width = width(column);
            text += &match column {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        text += "\n";
    }
    text
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, TFLOP/s (causal counts half the work)", self.device)?;
        for (dtype, tflops) in &self.matmul {
            writeln!(f, "cuBLAS {dtype} 8192^3 in the same run: {tflops:.1}")?;
        }
        write!(f, "\n{}", self.cells_table())?;
        let mut means = Table::new(&["geometric mean", "mask", ">cells", ">ratio"]);
        for mean in &self.means {
            means.row([
                mean.dtype.clone(),
                mean.mask.clone(),
                mean.cells.to_string(),
                format!("{:.3}", mean.ratio),
            ]);
        }
        write!(f, "\n{means}")?;
        if !self.goals.is_empty() {
            let mut goals = Table::new(&["problem", "against", ">ratio", ">at least"]);
            for goal in &self.goals {
                goals.row([
                    short(&goal.problem).to_owned(),
                    short(&goal.against).to_owned(),
                    goal.ratio
                        .map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
                    goal.at_least.to_string(),
                ]);
            }
            write!(f, "\n{goals}")?;
        }
        if !self.accuracy.is_empty() {
            let titles = [
                "inputs",
                "peer",
                ">rmse ours",
                ">theirs",
                ">rounded",
                ">ratio",
            ];
            let mut errors = Table::new(&titles);
            for row in &self.accuracy {
                errors.row([
                    row.inputs.clone(),
                    row.implementation.clone(),
                    format!("{:.3e}", row.ours),
                    format!("{:.3e}", row.theirs),
                    format!("{:.3e}", row.rounded),
                    format!("{:.4}", row.ratio),
                ]);
            }
            write!(f, "\n{errors}")?;
        }
        for row in &self.failed {
            writeln!(f, "wrong result of a peer: {row}")?;
        }
        let void = self.cells.iter().flat_map(|cell| {
            let void = cell.peers.iter().filter(|peer| peer.void.is_some());
            void.map(move |peer| (cell, peer))
        });
        for (cell, peer) in void {
            let why = peer.void.as_deref().unwrap_or_default();
            writeln!(
                f,
                "void: {} {}: {why}",
                short(&cell.problem),
                peer.implementation
            )?;
        }
        Ok(())
    }
}
