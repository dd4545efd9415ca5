//! What a comparison with peers must satisfy.

use super::CompareArgs;
use super::cells::{Comparison, SUITE, short};
use crate::failure::{Failure, Result};

/// Fails with everything that is not as asked for.
///
/// # Errors
/// [`Failure::Failed`] naming every cell, mean, goal and error out of bounds, and every void peer.
pub(super) fn judge(args: &CompareArgs, comparison: &Comparison) -> Result<()> {
    let mut wrong = Vec::new();
    if let Some(least) = args.at_least {
        wrong.extend(low_cells(comparison, least));
        wrong.extend(missed_goals(comparison));
        wrong.extend(large_errors(comparison, args.rmse_at_most));
        if !args.allow_void {
            wrong.extend(void_peers(comparison));
        }
    }
    if let Some(least) = args.mean_at_least {
        wrong.extend(low_means(comparison, least));
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{} of the comparison:\n  {}",
        wrong.len(),
        wrong.join("\n  ")
    )))
}

/// Written so that a NaN is below.
fn below(ratio: Option<f64>, least: f64) -> bool {
    !ratio.is_some_and(|ratio| ratio >= least)
}

fn shown(ratio: Option<f64>) -> String {
    ratio.map_or("not measured".to_owned(), |ratio| format!("{ratio:.3}"))
}

fn low_cells(comparison: &Comparison, least: f64) -> impl Iterator<Item = String> {
    let low = comparison
        .cells
        .iter()
        .filter(move |cell| below(cell.ratio, least));
    low.map(move |cell| {
        let ratio = shown(cell.ratio);
        format!("{}: {ratio}, at least {least}", short(&cell.problem))
    })
}

fn low_means(comparison: &Comparison, least: f64) -> Vec<String> {
    let suites = || comparison.means.iter().filter(|mean| mean.mask == SUITE);
    if suites().next().is_none() {
        return vec!["no geometric mean: no cell was measured".to_owned()];
    }
    suites()
        .filter(|mean| below(Some(mean.ratio), least))
        .map(|mean| {
            let (dtype, ratio) = (&mean.dtype, mean.ratio);
            format!("geometric mean of {dtype}: {ratio:.3}, at least {least}")
        })
        .collect()
}

fn missed_goals(comparison: &Comparison) -> impl Iterator<Item = String> {
    let missed = comparison
        .goals
        .iter()
        .filter(|goal| below(goal.ratio, goal.at_least));
    missed.map(|goal| {
        let (problem, ratio) = (short(&goal.problem), shown(goal.ratio));
        let against = short(&goal.against);
        format!(
            "{problem}: {ratio} of {against}, at least {}",
            goal.at_least
        )
    })
}

fn large_errors(comparison: &Comparison, most: f64) -> impl Iterator<Item = String> {
    let large = comparison
        .accuracy
        .iter()
        .filter(move |row| row.ratio.is_nan() || row.ratio > most);
    large.map(move |row| {
        let (inputs, peer, ratio) = (&row.inputs, &row.implementation, row.ratio);
        format!("{inputs}: error {ratio:.4} times that of {peer}, at most {most}")
    })
}

fn void_peers(comparison: &Comparison) -> impl Iterator<Item = String> {
    comparison.cells.iter().flat_map(|cell| {
        cell.peers.iter().filter_map(|peer| {
            let (problem, name) = (short(&cell.problem), &peer.implementation);
            let why = peer.void.as_ref()?;
            Some(format!("{problem}: {name} is void, {why}"))
        })
    })
}
