//! The table at the end of a run: what was checked, how it went, how long it took.

use std::fmt;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// How one step went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    NotRun(String),
}

impl fmt::Display for Outcome {
    /// One line: reasons may have several, of which the first says it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first_line = |reason: &str| reason.lines().next().unwrap_or_default().to_owned();
        match self {
            Self::Passed => write!(f, "passed"),
            Self::Failed(reason) => write!(f, "FAILED: {}", first_line(reason)),
            Self::NotRun(reason) => write!(f, "not run: {}", first_line(reason)),
        }
    }
}

/// The steps of one run, in the order they were taken.
#[derive(Default)]
pub(crate) struct Summary {
    rows: Vec<(String, Outcome, Duration)>,
}

impl Summary {
    /// Takes a step under a heading and notes its outcome and time; `true` when it passed.
    pub(crate) fn take(&mut self, step: &str, task: impl FnOnce() -> Result<(), Failure>) -> bool {
        eprintln!("\n== {step} ==");
        let started = Instant::now();
        let outcome = match task() {
            Ok(()) => Outcome::Passed,
            Err(failure) => {
                eprintln!("{failure}");
                Outcome::Failed(failure.to_string())
            }
        };
        let passed = outcome == Outcome::Passed;
        self.rows
            .push((step.to_owned(), outcome, started.elapsed()));
        passed
    }

    /// Notes a step that was left out.
    pub(crate) fn skip(&mut self, step: &str, reason: impl Into<String>) {
        self.rows.push((
            step.to_owned(),
            Outcome::NotRun(reason.into()),
            Duration::ZERO,
        ));
    }

    /// True when nothing failed; a step left out is no failure.
    pub(crate) fn passed(&self) -> bool {
        !self
            .rows
            .iter()
            .any(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .rows
            .iter()
            .map(|(step, ..)| step.len())
            .max()
            .unwrap_or(0)
            .max(4);
        writeln!(f, "{:width$}  {:>9}  result", "step", "seconds")?;
        for (step, outcome, time) in &self.rows {
            let seconds = match outcome {
                Outcome::NotRun(_) => "-".to_owned(),
                _ => format!("{:.1}", time.as_secs_f64()),
            };
            writeln!(f, "{step:width$}  {seconds:>9}  {outcome}")?;
        }
        let count = |wanted: fn(&Outcome) -> bool| {
            self.rows
                .iter()
                .filter(|(_, outcome, _)| wanted(outcome))
                .count()
        };
        write!(
            f,
            "{} passed, {} failed, {} not run",
            count(|outcome| matches!(outcome, Outcome::Passed)),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
            count(|outcome| matches!(outcome, Outcome::NotRun(_))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_lines_up_and_counts_each_outcome() {
        let summary = Summary {
            rows: vec![
                ("tests".into(), Outcome::Passed, Duration::from_millis(1250)),
                (
                    "verify cpu".into(),
                    Outcome::Failed("a\nb".into()),
                    Duration::from_secs(70),
                ),
                (
                    "verify lavapipe".into(),
                    Outcome::NotRun("no root".into()),
                    Duration::ZERO,
                ),
            ],
        };
        assert_eq!(
            summary.to_string(),
            "step               seconds  result\n\
             tests                  1.2  passed\n\
             verify cpu            70.0  FAILED: a\n\
             verify lavapipe          -  not run: no root\n\
             1 passed, 1 failed, 1 not run"
        );
        assert!(!summary.passed());
    }

    #[test]
    fn empty_summary_passes_and_prints_its_heading() {
        let summary = Summary::default();
        assert!(summary.passed());
        assert!(summary.to_string().starts_with("step"));
    }

    #[test]
    fn steps_are_noted_in_order_with_their_outcome() {
        let mut summary = Summary::default();
        assert!(summary.take("first", || Ok(())));
        assert!(!summary.take("second", || Err(Failure::NoDataDir)));
        summary.skip("third", "not today");
        let steps: Vec<_> = summary
            .rows
            .iter()
            .map(|(step, ..)| step.as_str())
            .collect();
        assert_eq!(steps, ["first", "second", "third"]);
        assert!(!summary.passed());
    }
}
