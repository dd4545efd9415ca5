//! Linears one by one: rounded by themselves, measured, their biases corrected.

use std::time::Instant;

use flashcube_models::{LinearShape, Weights};

use super::block::{BlockRun, Done, Quantized};
use super::fold::weight_of;
use super::moments::Moments;
use super::options::Method;
use super::report::{HeldOut, LinearReport};
use crate::codebook::{Round, ScaleRule, round_mxfp4, round_nf4, round_nvfp4};
use crate::drift::Drift;
use crate::error::QuantizeError;
use crate::gptq::quantize_gptq;
use crate::hessian::Hessian;
use crate::rtn::round_to_nearest;
use crate::weight::{Weight, transposed};

impl BlockRun<'_, '_, '_> {
    /// GPTQ, rounding to nearest, NVFP4: a linear by itself.
    pub(super) fn round(
        &mut self,
        linear: &LinearShape,
        moments: &Moments,
    ) -> Result<Done, QuantizeError> {
        let start = Instant::now();
        let (k, n) = (linear.k, linear.n);
        let values = weight_of(&self.overlay, &linear.name, k, n)?;
        let weight = named(&linear.name, Weight::new(&values, k, n))?;
        let mut report = self.report(linear);
        let judge = self.judge(linear, moments);
        let values = aim(weight, &judge)?;
        let aim = Weight::new(&values, k, n)?;
        let quantized = match &self.options.method {
            Method::Gptq(options) => {
                let layer = quantize_gptq(aim, &judge.seen, options)?;
                report.damping = Some(layer.damping);
                report.dead = layer.dead;
                report.took_rtn = layer.took_rtn;
                Quantized::Int(layer.weights)
            }
            Method::Nvfp4 => Quantized::Nvfp4(round_nvfp4(aim, None, Round::NearestEven)?),
            Method::Nf4(block) => Quantized::Float(round_nf4(aim, *block)?.to_floats()?),
            Method::Mxfp4 => Quantized::Float(round_mxfp4(aim, ScaleRule::Floor).to_floats()?),
            Method::Rtn(grid) => Quantized::Int(round_to_nearest(aim, None, grid)?),
            Method::Awq(options) => Quantized::Int(round_to_nearest(aim, None, &options.grid)?),
        };
        let restored = quantized.dequantize();
        self.measure(&mut report, [weight, aim], &restored, [&judge, moments])?;
        self.correct_bias(linear, moments, weight, &restored)?;
        report.seconds = start.elapsed().as_secs_f64();
        let stored = transposed(&restored, k, n);
        self.overlay.set(format!("{}.weight", linear.name), stored);
        Ok(Done {
            weight: quantized,
            divisor: None,
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
    pub(super) fn judge(&self, linear: &LinearShape, moments: &Moments) -> Moments {
        match self.corrects(linear) {
            true => moments.centered(),
            false => moments.clone(),
        }
    }

    /// b + mean(x0) W - mean(x) restored + mean(r0 - r), where that is asked for: x0 is the original
    /// model's input where that runs beside, else x, and r what is added to the output.
    pub(super) fn correct_bias(
        &mut self,
        linear: &LinearShape,
        moments: &Moments,
        weight: Weight<'_>,
        restored: &[f32],
    ) -> Result<(), QuantizeError> {
        if !self.corrects(linear) {
            return Ok(());
        }
        let name = format!("{}.bias", linear.name);
        let mut bias = self.overlay.tensor(&name, &[linear.n])?;
        let moved = moments.drift.as_ref().map(Drift::mean);
        let shift = moments.seen.mean_shift(weight, restored, moved);
        bias.iter_mut().zip(shift).for_each(|(b, by)| *b += by);
        if let Some(drift) = &moments.drift {
            let residual = bias.iter_mut().zip(drift.residual_mean());
            residual.for_each(|(b, &by)| *b += by as f32);
        }
        self.overlay.set(name, bias);
        Ok(())
    }

    pub(super) fn report(&self, linear: &LinearShape) -> LinearReport {
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

    /// Output errors of `restored` against `aim`, by the first moments; and of plain rounding
    /// against `weight`, with the bias as it was, by the second.
    pub(super) fn measure(
        &self,
        report: &mut LinearReport,
        [weight, aim]: [Weight<'_>; 2],
        restored: &[f32],
        [judge, moments]: [&Moments; 2],
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
                loss: judge.loss(aim, restored),
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

/// What the quantized weight is to come close to: W, or, where the original model runs beside, what
/// gives on this model's input what W gives on that one's.
fn aim(weight: Weight<'_>, judge: &Moments) -> Result<Vec<f32>, QuantizeError> {
    match &judge.drift {
        Some(drift) => drift.target(weight, &judge.seen, DRIFT_DAMPING),
        None => Ok(weight.values().to_vec()),
    }
}

/// Keeps the aim near W where the input hardly varies.
const DRIFT_DAMPING: f64 = 0.01;

/// Says which linear's weight was refused.
pub(super) fn named<T>(name: &str, result: Result<T, QuantizeError>) -> Result<T, QuantizeError> {
    result.map_err(|error| match error {
        QuantizeError::NotFinite { index, value, .. } => QuantizeError::NotFinite {
            tensor: format!("{name}.weight (transposed)"),
            index,
            value,
        },
        other => other,
    })
}
