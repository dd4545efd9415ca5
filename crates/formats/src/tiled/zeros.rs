//! What codes of integers are measured from.

use half::f16;

use super::{TileOrder, gather};
use crate::error::{FormatError, check_len};
use crate::int_weights::{IntWeights, check_finite, check_range};

/// Zero points or minima of stored groups, like the scales.
#[derive(Debug, Clone, PartialEq)]
pub enum GroupZeros {
    /// w = scale * (code - zero), each zero point below 2^bits.
    Points(Vec<u8>),
    /// w = scale * code + minimum, each finite.
    Minima(Vec<f16>),
}

impl GroupZeros {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            GroupZeros::Points(points) => points.len(),
            GroupZeros::Minima(minima) => minima.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As a device holds them, little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            GroupZeros::Points(points) => points.clone(),
            GroupZeros::Minima(minima) => minima.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// Number `at` where these are minima, else 0.
    pub(super) fn minimum(&self, at: usize) -> f32 {
        match self {
            GroupZeros::Points(_) => 0.0,
            GroupZeros::Minima(minima) => minima[at].to_f32(),
        }
    }

    /// Those of `weights` that 2^(bits - 1) does not say.
    pub(super) fn spread(weights: &IntWeights, order: &TileOrder) -> Option<Self> {
        let n = weights.shape.n;
        if let Some(minima) = &weights.minima {
            return Some(GroupZeros::Minima(order.spread(minima, n, f16::ZERO)));
        }
        let middle = weights.shape.mid_code();
        (!weights.is_symmetric())
            .then(|| GroupZeros::Points(order.spread(&weights.zeros, n, middle)))
    }

    /// Lengths, and every value in its range.
    pub(super) fn check(&self, places: &[usize], max_code: u8) -> Result<(), FormatError> {
        check_len("zeros", self.len(), places)?;
        match self {
            GroupZeros::Points(points) => check_range("zeros", points, u64::from(max_code) + 1),
            GroupZeros::Minima(minima) => check_finite("zeros", minima),
        }
    }
}

/// Zero points and minima [groups, n] of the source.
pub(super) fn gathered(
    zeros: Option<&GroupZeros>,
    sources: &[u32],
    (groups, n): (usize, usize),
    middle: u8,
) -> (Vec<u8>, Option<Vec<f16>>) {
    let all = |zero| vec![zero; groups * n];
    match zeros {
        None => (all(middle), None),
        Some(GroupZeros::Points(points)) => (gather(points, sources, (groups, n), middle), None),
        Some(GroupZeros::Minima(minima)) => (
            all(0),
            Some(gather(minima, sources, (groups, n), f16::ZERO)),
        ),
    }
}
