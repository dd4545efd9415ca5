//! What calibration keeps of a stage's inputs.

use super::block::Seen;
use crate::drift::{Drift, DriftSums, Pair};
use crate::error::QuantizeError;
use crate::hessian::{Calibration, Hessian};

/// The moments of a stage's input: on the calibration texts, and on those held out.
#[derive(Clone)]
pub(super) struct Moments {
    pub(super) seen: Hessian,
    pub(super) held_out: Option<Hessian>,
    /// How far the calibration input moved from the original model's, where that runs beside.
    pub(super) drift: Option<Drift>,
}

impl Moments {
    /// The moments about the means: by which a linear is judged whose bias takes these in.
    pub(super) fn centered(&self) -> Self {
        Self {
            seen: self.seen.centered(),
            held_out: self.held_out.as_ref().map(Hessian::centered),
            drift: self.drift.as_ref().map(|drift| drift.centered(&self.seen)),
        }
    }
}

/// Sums on the way to [`Moments`].
pub(super) struct Sums {
    seen: Calibration,
    held_out: Calibration,
    drift: Option<DriftSums>,
}

impl Sums {
    /// Nothing seen of inputs of k features.
    pub(super) fn new(k: usize) -> Self {
        Self {
            seen: Calibration::new(k),
            held_out: Calibration::new(k),
            drift: None,
        }
    }

    pub(super) fn add(&mut self, seen: &Seen<'_>) -> Result<(), QuantizeError> {
        if seen.held_out {
            return self.held_out.add(seen.x);
        }
        self.seen.add(seen.x)?;
        match seen.original {
            Some(original) => {
                let tokens = seen.x.len().checked_div(self.seen.k()).unwrap_or(0);
                let n = seen.residual.len().checked_div(tokens).unwrap_or(0);
                let fresh = || DriftSums::new(self.seen.k(), n);
                self.drift.get_or_insert_with(fresh).add(Pair {
                    x: seen.x,
                    original,
                    residual: &seen.residual,
                })
            }
            None => Ok(()),
        }
    }

    pub(super) fn finish(&self) -> Moments {
        let held_out = &self.held_out;
        Moments {
            seen: self.seen.finish(),
            held_out: (held_out.tokens() > 0).then(|| held_out.finish()),
            drift: self.drift.as_ref().map(DriftSums::finish),
        }
    }
}
