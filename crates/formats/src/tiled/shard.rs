//! Parts of a weight for tensor parallelism.

use std::ops::Range;

use half::f16;

use crate::error::FormatError;
use crate::int_weights::{IntWeights, QuantShape};

impl IntWeights {
    /// The columns `range`: outputs of one rank. Groups and g_idx stay.
    ///
    /// # Errors
    /// [`FormatError::OutOfRange`] for a range past n.
    pub fn columns(&self, range: Range<usize>) -> Result<Self, FormatError> {
        let n = self.shape.n;
        check_range(&range, n)?;
        let shape = QuantShape {
            n: range.len(),
            ..self.shape
        };
        Self::new(
            shape,
            cut(&self.codes, n, &range),
            cut(&self.zeros, n, &range),
            cut(&self.scales, n, &range),
            self.g_idx.clone(),
        )?
        .with(self.minima.as_ref().map(|minima| cut(minima, n, &range)))
    }

    fn with(self, minima: Option<Vec<f16>>) -> Result<Self, FormatError> {
        match minima {
            None => Ok(self),
            Some(minima) => self.with_minima(minima),
        }
    }

    /// The rows `range`: inputs of one rank, whose results are added up.
    ///
    /// Scales are cut by group where groups are rows in turn; with g_idx, or one group for all rows,
    /// every rank keeps them all and g_idx keeps its global numbers. A bias is added once, after the
    /// sum.
    ///
    /// # Errors
    /// [`FormatError::OutOfRange`] for a range past k, [`FormatError::Unsupported`] for one that cuts
    /// a group apart.
    pub fn rows(&self, range: Range<usize>) -> Result<Self, FormatError> {
        let QuantShape { k, n, group, .. } = self.shape;
        check_range(&range, k)?;
        let codes = self.codes[range.start * n..range.end * n].to_vec();
        let shape = QuantShape {
            k: range.len(),
            ..self.shape
        };
        if let Some(g_idx) = &self.g_idx {
            let g_idx = g_idx[range].to_vec();
            return Self::new(
                shape,
                codes,
                self.zeros.clone(),
                self.scales.clone(),
                Some(g_idx),
            )?
            .with(self.minima.clone());
        }
        let mut groups = 0..self.shape.groups;
        if !self.shape.is_per_channel() {
            let end_fits = range.end == k || range.end.is_multiple_of(group);
            if !range.start.is_multiple_of(group) || !end_fits {
                let limit = "ends at the ends of groups";
                let cut = format!("{range:?}");
                return Err(FormatError::unsupported(
                    "a shard of rows",
                    "range",
                    cut,
                    limit,
                ));
            }
            groups = range.start / group..range.end.div_ceil(group);
        }
        let shape = QuantShape {
            groups: groups.len(),
            ..shape
        };
        let minima = self.minima.as_ref();
        let minima = minima.map(|minima| minima[groups.start * n..groups.end * n].to_vec());
        Self::new(
            shape,
            codes,
            self.zeros[groups.start * n..groups.end * n].to_vec(),
            self.scales[groups.start * n..groups.end * n].to_vec(),
            None,
        )?
        .with(minima)
    }
}

fn check_range(range: &Range<usize>, limit: usize) -> Result<(), FormatError> {
    if range.start <= range.end && range.end <= limit {
        return Ok(());
    }
    Err(FormatError::OutOfRange {
        tensor: "shard".to_owned(),
        index: range.start,
        value: range.end as i64,
        limit: limit as u64 + 1,
    })
}

/// Columns `range` of a matrix of rows of `n`.
fn cut<T: Copy>(values: &[T], n: usize, range: &Range<usize>) -> Vec<T> {
    let rows = values.chunks_exact(n.max(1));
    rows.flat_map(|row| row[range.clone()].iter().copied())
        .collect()
}
