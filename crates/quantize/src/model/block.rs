//! One block: what calibration sees of it, and its linears quantized.

use std::collections::HashMap;
use std::time::Instant;

use flashcube_formats::{IntWeights, Nvfp4Weights};
use flashcube_models::{
    Architecture, Attend, Fold, LinearShape, ModelError, Overlay, Stage, TokenBatch, Weights,
};

use super::fold::{Scaled, fold, weight_of};
use super::hidden::HiddenReader;
use super::options::{Method, ModelOptions, Unfoldable};
use super::report::{HeldOut, LinearReport};
use crate::awq::{AwqOptions, round_clipped, search_scales};
use crate::codebook::{Round, round_nvfp4};
use crate::error::QuantizeError;
use crate::gptq::quantize_gptq;
use crate::hessian::{Calibration, Hessian};
use crate::rtn::round_to_nearest;
use crate::weight::{Weight, transposed};

/// A linear's new weight.
pub(super) enum Quantized {
    Int(IntWeights),
    Nvfp4(Nvfp4Weights),
}

impl Quantized {
    fn dequantize(&self) -> Vec<f32> {
        match self {
            Self::Int(weights) => weights.dequantize(),
            Self::Nvfp4(weights) => weights.dequantize(),
        }
    }
}

/// A linear as it will be written.
pub(super) struct Done {
    pub(super) weight: Quantized,
    /// `[k]`, where the format keeps it.
    pub(super) divisor: Option<Vec<f32>>,
    pub(super) report: LinearReport,
}

/// Texts to run, and where their activations before a block lie.
pub(super) struct Inputs<'a> {
    pub(super) calibration: &'a [TokenBatch],
    pub(super) held_out: &'a [TokenBatch],
}

impl Inputs<'_> {
    /// Every batch, and whether it is held out, in the order of the files.
    pub(super) fn batches(&self) -> impl Iterator<Item = (&TokenBatch, bool)> {
        let calibration = self.calibration.iter().map(|batch| (batch, false));
        calibration.chain(self.held_out.iter().map(|batch| (batch, true)))
    }
}

/// The moments of a stage's input: on the calibration texts, and on those held out.
struct Moments {
    seen: Hessian,
    held_out: Option<Hessian>,
}

/// Sees the input [tokens, k] of a stage, and whether it is of held-out text.
pub(super) type Watch<'a> = dyn FnMut(usize, &[f32], bool) -> Result<(), QuantizeError> + 'a;

/// Quantizes the linears of one block.
pub(super) struct BlockRun<'a, 'w, 'f> {
    pub(super) architecture: &'a dyn Architecture,
    pub(super) block: usize,
    pub(super) options: &'a ModelOptions,
    pub(super) inputs: &'a Inputs<'a>,
    /// File of the activations that the block reads.
    pub(super) hidden: &'a std::path::Path,
    pub(super) width: usize,
    pub(super) overlay: Overlay<'w>,
    pub(super) attend: &'a mut Attend<'f>,
}

impl BlockRun<'_, '_, '_> {
    /// Every linear, in order; `overlay` then holds what the quantized block computes with.
    pub(super) fn quantize(
        &mut self,
        each: &mut dyn FnMut(&LinearReport),
    ) -> Result<Vec<Done>, QuantizeError> {
        let stages = self.architecture.stages(self.block);
        let all = stages.len();
        let mut done = Vec::new();
        if let Method::Awq(options) = self.options.method {
            let moments = self.collect(&stages, 0, all)?;
            done = self.scale_and_round(&stages, &moments, &options)?;
            done.iter().for_each(|linear| each(&linear.report));
        } else {
            let step = match (self.options.method, self.options.true_sequential) {
                (Method::Gptq(_), true) => 1,
                _ => all.max(1),
            };
            for first in (0..all).step_by(step) {
                let moments = self.collect(&stages, first, step)?;
                for (stage, moments) in stages[first..].iter().zip(&moments) {
                    for linear in &stage.linears {
                        let quantized = self.round(linear, moments)?;
                        each(&quantized.report);
                        done.push(quantized);
                    }
                }
            }
        }
        Ok(done)
    }

    /// Runs every text through the block as it stands; `each` gets what comes out.
    pub(super) fn forward(
        &mut self,
        observe: &mut Watch<'_>,
        each: &mut dyn FnMut(&[f32]) -> Result<(), QuantizeError>,
    ) -> Result<(), QuantizeError> {
        let block = self.architecture.block(&self.overlay, self.block)?;
        let mut reader = HiddenReader::open(self.hidden)?;
        for (batch, held_out) in self.inputs.batches() {
            let tokens: usize = batch.lengths.iter().sum();
            let x = reader.next(tokens * self.width)?;
            // The model's closure speaks of model errors only: ours waits here.
            let mut failed = None;
            let result = block.forward(x, batch, self.attend, &mut |stage, x| {
                observe(stage, x, held_out).map_err(|error| {
                    failed = Some(error);
                    ModelError::Device {
                        what: "calibration",
                        detail: "stopped".to_owned(),
                    }
                })
            });
            match (failed, result) {
                (Some(error), _) => return Err(error),
                (None, result) => each(&result?)?,
            }
        }
        Ok(())
    }

    /// Moments of the inputs of `count` stages from `first` on.
    fn collect(
        &mut self,
        stages: &[Stage],
        first: usize,
        count: usize,
    ) -> Result<Vec<Moments>, QuantizeError> {
        let stages = &stages[first..(first + count).min(stages.len())];
        let width = |stage: &Stage| stage.linears.first().map_or(0, |linear| linear.k);
        let fresh = || stages.iter().map(|stage| Calibration::new(width(stage)));
        let mut sums: [Vec<Calibration>; 2] = [fresh().collect(), fresh().collect()];
        self.forward(
            &mut |stage, x, held_out| match stage.checked_sub(first) {
                Some(at) if at < stages.len() => sums[usize::from(held_out)][at].add(x),
                _ => Ok(()),
            },
            &mut |_| Ok(()),
        )?;
        let [seen, held_out] = sums;
        let moments = seen.iter().zip(&held_out).map(|(seen, held_out)| Moments {
            seen: seen.finish(),
            held_out: (held_out.tokens() > 0).then(|| held_out.finish()),
        });
        Ok(moments.collect())
    }

    /// GPTQ, rounding to nearest, NVFP4: a linear by itself.
    fn round(&mut self, linear: &LinearShape, moments: &Moments) -> Result<Done, QuantizeError> {
        let start = Instant::now();
        let (k, n) = (linear.k, linear.n);
        let values = weight_of(&self.overlay, &linear.name, k, n)?;
        let weight = named(&linear.name, Weight::new(&values, k, n))?;
        let mut report = self.report(linear);
        let judge = self.judge(linear, moments);
        let quantized = match &self.options.method {
            Method::Gptq(options) => {
                let layer = quantize_gptq(weight, &judge.seen, options)?;
                report.damping = Some(layer.damping);
                report.dead = layer.dead;
                report.took_rtn = layer.took_rtn;
                Quantized::Int(layer.weights)
            }
            Method::Nvfp4 => Quantized::Nvfp4(round_nvfp4(weight, None, Round::NearestEven)?),
            Method::Rtn(grid) => Quantized::Int(round_to_nearest(weight, None, grid)?),
            Method::Awq(options) => Quantized::Int(round_to_nearest(weight, None, &options.grid)?),
        };
        let restored = quantized.dequantize();
        self.measure(&mut report, weight, &restored, &judge, moments)?;
        self.correct_bias(linear, &moments.seen, weight, &restored)?;
        report.seconds = start.elapsed().as_secs_f64();
        let stored = transposed(&restored, k, n);
        self.overlay.set(format!("{}.weight", linear.name), stored);
        Ok(Done {
            weight: quantized,
            divisor: None,
            report,
        })
    }

    /// AWQ: the scales of all stages, each on the block as it was, then every linear.
    fn scale_and_round(
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
        let values = scaled.apply(&original);
        let weight = named(&linear.name, Weight::new(&values, k, n))?;
        let judge = self.judge(linear, moments);
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
        let before = Weight::new(&original, k, n)?;
        self.measure(&mut report, before, &effective, &judge, moments)?;
        // The bias is that of the folded linear, whose outputs were divided.
        let mut folded = original.clone();
        for values in [&mut effective, &mut folded] {
            for row in values.chunks_exact_mut(n.max(1)) {
                row.iter_mut()
                    .zip(&scaled.columns)
                    .for_each(|(w, by)| *w /= by);
            }
        }
        self.correct_bias(
            linear,
            &moments.seen,
            Weight::new(&folded, k, n)?,
            &effective,
        )?;
        report.seconds += start.elapsed().as_secs_f64();
        self.overlay
            .set(format!("{}.weight", linear.name), transposed(&stored, k, n));
        Ok(Done {
            weight: Quantized::Int(ints),
            divisor: report.divisor.then(|| scaled.rows.clone()),
            report,
        })
    }

    /// Whether the linear's bias is to take in its mean error.
    fn corrects(&self, linear: &LinearShape) -> bool {
        self.options.bias_correction
            && self
                .overlay
                .shape(&format!("{}.bias", linear.name))
                .is_some()
    }

    /// The moments by which the linear's error is judged.
    fn judge(&self, linear: &LinearShape, moments: &Moments) -> Moments {
        let corrects = self.corrects(linear);
        let judge = |hessian: &Hessian| match corrects {
            true => hessian.centered(),
            false => hessian.clone(),
        };
        Moments {
            seen: judge(&moments.seen),
            held_out: moments.held_out.as_ref().map(judge),
        }
    }

    /// b + mean(x) (W - restored), where that is asked for.
    fn correct_bias(
        &mut self,
        linear: &LinearShape,
        seen: &Hessian,
        weight: Weight<'_>,
        restored: &[f32],
    ) -> Result<(), QuantizeError> {
        if !self.corrects(linear) {
            return Ok(());
        }
        let name = format!("{}.bias", linear.name);
        let mut bias = self.overlay.tensor(&name, &[linear.n])?;
        let shift = seen.mean_shift(weight, restored);
        bias.iter_mut().zip(shift).for_each(|(b, by)| *b += by);
        self.overlay.set(name, bias);
        Ok(())
    }

    fn report(&self, linear: &LinearShape) -> LinearReport {
        LinearReport {
            name: linear.name.clone(),
            block: self.block,
            k: linear.k,
            n: linear.n,
            output: 0.0,
            loss: 0.0,
            rtn_loss: 0.0,
            held_out: None,
            damping: None,
            dead: 0,
            took_rtn: false,
            ratio: None,
            divisor: false,
            not_finite: 0,
            seconds: 0.0,
        }
    }

    /// Output errors of `restored`, judged by `judge`, and of plain rounding with the bias as it
    /// was, against `weight`.
    fn measure(
        &self,
        report: &mut LinearReport,
        weight: Weight<'_>,
        restored: &[f32],
        judge: &Moments,
        moments: &Moments,
    ) -> Result<(), QuantizeError> {
        let plain = match self.options.method.grid() {
            Some(grid) => {
                let grid = crate::GridOptions { clip: None, ..grid };
                round_to_nearest(weight, None, &grid)?.dequantize()
            }
            None => restored.to_vec(),
        };
        let errors = |judge: &Hessian, hessian: &Hessian| -> Result<HeldOut, QuantizeError> {
            Ok(HeldOut {
                output: hessian.output_square(weight)?,
                loss: judge.loss(weight, restored),
                rtn_loss: hessian.loss(weight, &plain),
            })
        };
        let seen = errors(&judge.seen, &moments.seen)?;
        (report.output, report.loss, report.rtn_loss) = (seen.output, seen.loss, seen.rtn_loss);
        report.held_out = match (&judge.held_out, &moments.held_out) {
            (Some(judge), Some(hessian)) => Some(errors(judge, hessian)?),
            _ => None,
        };
        Ok(())
    }
}

fn alone(linear: &LinearShape) -> Stage {
    Stage {
        linears: vec![linear.clone()],
        fold: Fold::Nowhere,
    }
}

/// Says which linear's weight was refused.
fn named<T>(name: &str, result: Result<T, QuantizeError>) -> Result<T, QuantizeError> {
    result.map_err(|error| match error {
        QuantizeError::NotFinite { index, value, .. } => QuantizeError::NotFinite {
            tensor: format!("{name}.weight (transposed)"),
            index,
            value,
        },
        other => other,
    })
}
