//! AWQ: linears whose inputs are scaled together.

use std::collections::HashMap;
use std::time::Instant;

use flashcube_models::{Fold, LinearShape, Stage};

use super::block::{BlockRun, Done, Quantized};
use super::fold::{Scaled, fold, weight_of};
use super::linear::named;
use super::moments::Moments;
use super::options::Unfoldable;
use super::report::LinearReport;
use crate::awq::{AwqOptions, round_clipped, search_scales};
use crate::error::QuantizeError;
use crate::weight::{Weight, transposed};

impl BlockRun<'_, '_, '_> {
    /// AWQ: the scales of all stages, each on the block as it was, then every linear.
    pub(super) fn scale_and_round(
        &mut self,
        stages: &[Stage],
        moments: &[Moments],
        options: &AwqOptions,
    ) -> Result<Vec<Done>, QuantizeError> {
        let mut scaled: HashMap<String, Scaled> = HashMap::new();
        let mut reports: HashMap<String, LinearReport> = HashMap::new();
        for (stage, moments) in stages.iter().zip(moments) {
            // Linears with divisors of their own need not agree on one.
            let parts: Vec<Stage> = match stage.fold {
                Fold::Nowhere => stage.linears.iter().map(alone).collect(),
                _ => vec![stage.clone()],
            };
            for part in &parts {
                self.scale(part, moments, options, &mut scaled, &mut reports)?;
            }
        }
        let mut done = Vec::new();
        for (stage, moments) in stages.iter().zip(moments) {
            for linear in &stage.linears {
                let plain = Scaled::plain(linear.k, linear.n);
                let scaled = scaled.get(&linear.name).unwrap_or(&plain);
                let report = reports.remove(&linear.name).unwrap_or(self.report(linear));
                done.push(self.round_scaled(linear, moments, scaled, options, report)?);
            }
        }
        Ok(done)
    }

    /// Searches the scales of a stage and folds them away.
    fn scale(
        &mut self,
        stage: &Stage,
        moments: &Moments,
        options: &AwqOptions,
        scaled: &mut HashMap<String, Scaled>,
        reports: &mut HashMap<String, LinearReport>,
    ) -> Result<(), QuantizeError> {
        let start = Instant::now();
        let target = &self.options.target;
        let stuck = stage.fold == Fold::Nowhere && !target.holds_divisors();
        if stuck && self.options.unfoldable == Unfoldable::Refuse {
            return Err(QuantizeError::CannotFold {
                linear: stage
                    .linears
                    .first()
                    .map_or_else(String::new, |l| l.name.clone()),
                format: target.name().to_owned(),
            });
        }
        let mut weights = Vec::new();
        for linear in &stage.linears {
            weights.push(weight_of(&self.overlay, &linear.name, linear.k, linear.n)?);
        }
        let views: Vec<Weight<'_>> = stage
            .linears
            .iter()
            .zip(&weights)
            .map(|(linear, values)| named(&linear.name, Weight::new(values, linear.k, linear.n)))
            .collect::<Result<_, _>>()?;
        let mut report = (None, 0);
        let mut scales = vec![1.0; views.first().map_or(0, |view| view.sizes().0)];
        if !stuck {
            let ties = match &stage.fold {
                Fold::Rows { rows, .. } => Some(&rows[..]),
                _ => None,
            };
            let found = search_scales(&views, &moments.seen, ties, options)?;
            report = (found.ratio, found.not_finite);
            scales = found.scales;
        }
        fold(stage, &scales, &mut self.overlay, scaled)?;
        let seconds = start.elapsed().as_secs_f64() / stage.linears.len().max(1) as f64;
        for linear in &stage.linears {
            let report = LinearReport {
                ratio: report.0,
                not_finite: report.1,
                divisor: stage.fold == Fold::Nowhere && report.0.is_some(),
                seconds,
                ..self.report(linear)
            };
            reports.insert(linear.name.clone(), report);
        }
        Ok(())
    }

    fn round_scaled(
        &mut self,
        linear: &LinearShape,
        moments: &Moments,
        scaled: &Scaled,
        options: &AwqOptions,
        mut report: LinearReport,
    ) -> Result<Done, QuantizeError> {
        let start = Instant::now();
        let (k, n) = (linear.k, linear.n);
        let original = weight_of(&self.overlay, &linear.name, k, n)?;
        let before = named(&linear.name, Weight::new(&original, k, n))?;
        let judge = self.judge(linear, moments);
        let values = scaled.apply(&original);
        let weight = Weight::new(&values, k, n)?;
        let seen = judge.seen.divided(&scaled.rows)?;
        let ints = round_clipped(weight, &seen, &options.grid)?;
        let mut effective = ints.dequantize();
        // The block computes with what stands in the checkpoint: a kept divisor is taken in, a
        // folded one was taken in by what comes before.
        let mut stored = effective.clone();
        if scaled.divisor {
            crate::awq::divide_inputs(&mut stored, &scaled.rows, n);
        }
        scaled.undo(&mut effective);
        let aims = [before, before];
        self.measure(&mut report, aims, &effective, [&judge, moments])?;
        // The bias is that of the folded linear, whose outputs were divided.
        let mut folded = original.clone();
        for values in [&mut effective, &mut folded] {
            for row in values.chunks_exact_mut(n.max(1)) {
                row.iter_mut()
                    .zip(&scaled.columns)
                    .for_each(|(w, by)| *w /= by);
            }
        }
        self.correct_bias(linear, moments, Weight::new(&folded, k, n)?, &effective)?;
        report.seconds += start.elapsed().as_secs_f64();
        self.overlay
            .set(format!("{}.weight", linear.name), transposed(&stored, k, n));
        Ok(Done {
            weight: Quantized::Int(ints),
            divisor: report.divisor.then(|| scaled.rows.clone()),
            report,
        })
    }
}

fn alone(linear: &LinearShape) -> Stage {
    Stage {
        linears: vec![linear.clone()],
        fold: Fold::Nowhere,
        residual: None,
    }
}
