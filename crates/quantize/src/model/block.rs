//! One block: what calibration sees of it, and its linears quantized.

use std::path::Path;

use flashcube_formats::{FloatWeights, IntWeights, Nvfp4Weights};
use flashcube_models::{
    Architecture, Attend, Block, ModelError, Overlay, Stage, TokenBatch, Weights,
};

use super::hidden::HiddenReader;
use super::moments::{Moments, Sums};
use super::options::{Method, ModelOptions};
use super::report::LinearReport;
use crate::error::QuantizeError;

/// Sees the input of a stage.
type Observe<'a> = dyn FnMut(usize, &[f32]) -> Result<(), QuantizeError> + 'a;
/// Sees what comes out of a block, and out of the original one.
type Compare<'a> = dyn FnMut(&[f32], Option<&[f32]>) -> Result<(), QuantizeError> + 'a;

/// A linear's new weight.
pub(super) enum Quantized {
    Int(IntWeights),
    Nvfp4(Nvfp4Weights),
    Float(FloatWeights),
}

impl Quantized {
    pub(super) fn dequantize(&self) -> Vec<f32> {
        match self {
            Self::Int(weights) => weights.dequantize(),
            Self::Nvfp4(weights) => weights.dequantize(),
            Self::Float(weights) => weights.dequantize(),
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

/// Inputs of one stage for one batch.
pub(super) struct Seen<'a> {
    pub(super) stage: usize,
    /// [tokens, k]
    pub(super) x: &'a [f32],
    /// The same of the original model, where it runs beside.
    pub(super) original: Option<&'a [f32]>,
    /// [tokens, n], how far what is added to the stage's output lies from the original's.
    pub(super) residual: Vec<f32>,
    pub(super) held_out: bool,
}

/// Sees the inputs of every stage.
pub(super) type Watch<'a> = dyn FnMut(Seen<'_>) -> Result<(), QuantizeError> + 'a;

/// The original model, run beside the one that is being quantized.
pub(super) struct Original<'a> {
    pub(super) weights: &'a dyn Weights,
    /// File of the activations that its block reads.
    pub(super) hidden: &'a Path,
}

/// Quantizes the linears of one block.
pub(super) struct BlockRun<'a, 'w, 'f> {
    pub(super) architecture: &'a dyn Architecture,
    pub(super) block: usize,
    pub(super) options: &'a ModelOptions,
    pub(super) inputs: &'a Inputs<'a>,
    /// File of the activations that the block reads.
    pub(super) hidden: &'a Path,
    pub(super) original: Option<Original<'a>>,
    pub(super) width: usize,
    pub(super) overlay: Overlay<'w>,
    pub(super) attend: &'a mut Attend<'f>,
}

/// What runs a batch through a block: the block, and where its inputs come from.
struct Runner {
    block: Box<dyn Block>,
    hidden: HiddenReader,
    width: usize,
}

impl Runner {
    /// The next batch; `observe` sees the input of every stage. What comes out.
    fn run(
        &mut self,
        batch: &TokenBatch,
        attend: &mut Attend<'_>,
        observe: &mut Observe<'_>,
    ) -> Result<Vec<f32>, QuantizeError> {
        let tokens: usize = batch.lengths.iter().sum();
        let x = self.hidden.next(tokens * self.width)?;
        // The model's closure speaks of model errors only: ours waits here.
        let mut failed = None;
        let result = self.block.forward(x, batch, attend, &mut |stage, x| {
            observe(stage, x).map_err(|error| {
                failed = Some(error);
                ModelError::Device {
                    what: "calibration",
                    detail: "stopped".to_owned(),
                }
            })
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(result?),
        }
    }
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
            // What a stage makes up for, the next must see made up for.
            let ModelOptions {
                true_sequential,
                follow_original,
                ..
            } = *self.options;
            let step = match self.options.method {
                _ if follow_original => 1,
                Method::Gptq(_) if true_sequential => 1,
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

    fn runner(&self, weights: &dyn Weights, hidden: &Path) -> Result<Runner, QuantizeError> {
        Ok(Runner {
            block: self.architecture.block(weights, self.block)?,
            hidden: HiddenReader::open(hidden)?,
            width: self.width,
        })
    }

    /// Runs every text through the block as it stands, and through the original one where there is
    /// one; `each` gets what comes out of both.
    pub(super) fn forward(
        &mut self,
        watch: &mut Watch<'_>,
        each: &mut Compare<'_>,
    ) -> Result<(), QuantizeError> {
        let mut runner = self.runner(&self.overlay, self.hidden)?;
        let original = self.original.as_ref();
        let mut original = original
            .map(|original| self.runner(original.weights, original.hidden))
            .transpose()?;
        let residuals = self.architecture.stages(self.block);
        let residuals: Vec<Option<usize>> = residuals.iter().map(|stage| stage.residual).collect();
        for (batch, held_out) in self.inputs.batches() {
            // Inputs of the stages: the original's, and those that a residual brings again.
            let mut stages: Vec<Vec<f32>> = Vec::new();
            let mut own: Vec<Vec<f32>> = Vec::new();
            let mut out = None;
            if let Some(original) = &mut original {
                let keep = &mut |_: usize, x: &[f32]| {
                    stages.push(x.to_vec());
                    Ok(())
                };
                out = Some(original.run(batch, self.attend, keep)?);
            }
            let x = runner.run(batch, self.attend, &mut |stage, x| {
                let original = stages.get(stage).map(Vec::as_slice);
                let mut residual = Vec::new();
                if original.is_some() {
                    own.push(x.to_vec());
                    if let Some(at) = residuals[stage] {
                        let pairs = stages[at].iter().zip(&own[at]);
                        residual = pairs.map(|(original, own)| original - own).collect();
                    }
                }
                watch(Seen {
                    stage,
                    x,
                    original,
                    residual,
                    held_out,
                })
            })?;
            each(&x, out.as_deref())?;
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
        let mut sums: Vec<Sums> = stages.iter().map(|stage| Sums::new(width(stage))).collect();
        self.forward(
            &mut |seen| match seen.stage.checked_sub(first) {
                Some(at) if at < stages.len() => sums[at].add(&seen),
                _ => Ok(()),
            },
            &mut |_, _| Ok(()),
        )?;
        Ok(sums.iter().map(Sums::finish).collect())
    }
}
