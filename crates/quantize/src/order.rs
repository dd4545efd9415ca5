//! The order of GPTQ's channels, and what follows from it.

use flashcube_formats::QuantShape;

use crate::error::QuantizeError;
use crate::factor::{InverseFactor, damped_factor};
use crate::gptq::GptqOptions;
use crate::grid::Grid;
use crate::hessian::Hessian;
use crate::weight::Weight;

/// The order in which channels are rounded.
pub(crate) struct Order {
    /// Position -> channel.
    pub(crate) channels: Vec<usize>,
    /// Whether positions are channels.
    pub(crate) plain: bool,
}

impl Order {
    pub(crate) fn of(hessian: &Hessian, options: &GptqOptions) -> Self {
        let diagonal = hessian.diagonal();
        let mut channels: Vec<usize> = (0..hessian.k).collect();
        if options.act_order {
            channels.sort_by(|&a, &b| diagonal[b].total_cmp(&diagonal[a]));
        }
        let plain = channels
            .iter()
            .enumerate()
            .all(|(at, &channel)| at == channel);
        Self { channels, plain }
    }

    pub(crate) fn sorted(&self, diagonal: &[f64]) -> Vec<f32> {
        self.channels.iter().map(|&c| diagonal[c] as f32).collect()
    }

    /// The factor of the Hessian in this order, and the number of dead channels, whose diagonal
    /// becomes the mean so that they are ordinary to the factorization.
    pub(crate) fn factor(
        &self,
        hessian: &Hessian,
        damping: f64,
    ) -> Result<(InverseFactor, usize), QuantizeError> {
        let k = hessian.k;
        let diagonal = hessian.diagonal();
        let live = diagonal.iter().filter(|&&value| value != 0.0).count();
        let mean = match live {
            0 => 1.0,
            _ => diagonal.iter().sum::<f64>() / live as f64,
        };
        let mut sorted = Vec::with_capacity(k * k);
        for &row in &self.channels {
            let values = &hessian.matrix[row * k..(row + 1) * k];
            sorted.extend(self.channels.iter().map(|&column| values[column]));
        }
        for (at, &channel) in self.channels.iter().enumerate() {
            if diagonal[channel] == 0.0 {
                sorted[at * k + at] = mean;
            }
        }
        Ok((damped_factor(&sorted, k, damping)?, k - live))
    }

    /// The grids of all groups, fitted beforehand; None where they are fitted on the way.
    pub(crate) fn static_grids(
        &self,
        weight: Weight<'_>,
        shape: &QuantShape,
        hessian: &Hessian,
        options: &GptqOptions,
    ) -> Result<Option<Vec<Grid>>, QuantizeError> {
        if !options.static_groups {
            return Ok(None);
        }
        let importance: Vec<f32> = hessian.diagonal().iter().map(|&v| v as f32).collect();
        let fit = |g: usize| {
            let rows = g * shape.group..((g + 1) * shape.group).min(shape.k);
            let values = rows.clone().map(|row| weight.row(row));
            Grid::fit(values, &importance[rows], shape.n, &options.grid)
        };
        (0..shape.groups)
            .map(fit)
            .collect::<Result<_, _>>()
            .map(Some)
    }
}
