use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Instant;

use flashcube_formats::{
    FloatWeights, PackedLinear, Packing, QuantizedLinear, input_divisor_tensor, save,
};
use flashcube_models::{Attend, Model, Overlay, Source, TokenBatch};
use serde_json::{Value, json};

use super::assembly::{Assembly, float_tensor, unchanged};
use super::block::{BlockRun, Done, Inputs, Original, Quantized};
use super::hidden::HiddenWriter;
use super::options::{Method, ModelOptions};
use super::report::{LinearReport, ModelReport};
use super::work::WorkFolder;
use crate::error::QuantizeError;

/// What [`quantize_model`] tells while it runs.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// Linears in all, and those that an earlier run had finished.
    Start {
        /// In all.
        linears: usize,
        /// Finished before.
        finished: usize,
    },
    /// A linear is quantized.
    Linear(&'a LinearReport),
    /// Every block is quantized: the checkpoint is put together.
    Writing,
}

/// Quantizes every linear of a model's blocks and writes a checkpoint into the folder `out`.
///
/// Blocks run in order, each on what the quantized ones before it give. A block is finished when
/// its tensors are on disk; a run that was interrupted goes on with the first unfinished block when
/// it is started again with the same model, texts and options. The checkpoint's own files appear
/// last, each whole or not at all, `config.json` after all others.
///
/// `held_out` texts only measure. `attend` computes the attention.
///
/// # Errors
/// [`QuantizeError::OtherRun`] when `out` holds an unfinished run of other things;
/// [`QuantizeError::CannotFold`] for AWQ scales that have no place; [`QuantizeError::Format`] for
/// sizes that the format cannot hold; [`QuantizeError::NotFinite`] for weights or activations.
pub fn quantize_model(
    model: &Model,
    calibration: &[TokenBatch],
    held_out: &[TokenBatch],
    out: &Path,
    options: &ModelOptions,
    attend: &mut Attend<'_>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ModelReport, QuantizeError> {
    let start = Instant::now();
    options.check()?;
    let tokens: usize = calibration.iter().flat_map(|batch| &batch.lengths).sum();
    if tokens == 0 {
        return Err(QuantizeError::unsupported(
            "calibration tokens",
            0,
            "at least 1",
        ));
    }
    check_layouts(model, options)?;
    let inputs = Inputs {
        calibration,
        held_out,
    };
    std::fs::create_dir_all(out).map_err(QuantizeError::io(out))?;
    let work = WorkFolder::open(out, &identity(model, &inputs, options))?;
    let run = Run {
        model,
        options,
        inputs,
        work,
    };
    let mut report = ModelReport {
        method: options.method.name().to_owned(),
        format: options.target.name().to_owned(),
        tokens,
        resumed: 0,
        linears: Vec::new(),
        seconds: 0.0,
        bytes: 0,
    };
    run.blocks(&mut report, attend, progress)?;
    progress(Progress::Writing);
    let parts = (0..model.architecture().blocks()).map(|block| run.work.tensors(block));
    report.bytes = Assembly {
        model,
        out,
        shard_bytes: options.shard_bytes,
    }
    .write(parts.collect(), &run.work.outer(), |ignored| {
        Some(options.target.config(&options.method, ignored))
    })?;
    run.work.remove()?;
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// Refuses shapes that the format cannot hold before any work is done.
fn check_layouts(model: &Model, options: &ModelOptions) -> Result<(), QuantizeError> {
    let architecture = model.architecture();
    if let Method::Nf4(group) = options.method {
        let stages = (0..architecture.blocks()).flat_map(|block| architecture.stages(block));
        let mut sizes = stages
            .flat_map(|stage| stage.linears)
            .map(|linear| linear.k);
        return match sizes.find(|k| !k.is_multiple_of(group)) {
            Some(k) => {
                let limit = "a multiple of the group";
                Err(QuantizeError::unsupported("k of an nf4 linear", k, limit))
            }
            None => Ok(()),
        };
    }
    let (Packing::Int(format), Some(grid)) = (options.target.packing, options.method.grid()) else {
        return Ok(());
    };
    for block in 0..architecture.blocks() {
        for linear in architecture
            .stages(block)
            .iter()
            .flat_map(|stage| &stage.linears)
        {
            format.layout(&grid.shape(linear.k, linear.n)?)?;
        }
    }
    Ok(())
}

/// What makes two runs the same: an interrupted one may be gone on with.
fn identity(model: &Model, inputs: &Inputs<'_>, options: &ModelOptions) -> Value {
    let mut texts = DefaultHasher::new();
    for (batch, held_out) in inputs.batches() {
        (&batch.ids, &batch.lengths, held_out).hash(&mut texts);
    }
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    let file = match &model.source {
        Source::Gguf(gguf) => gguf.gguf().path(),
        Source::Floats(checkpoint) => checkpoint.path(),
        Source::Quantized(quantized) => quantized.checkpoint().path(),
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": model.path,
        "model_bytes": size(file),
        "texts": format!("{:016x}", texts.finish()),
        "method": options.method,
        "format": options.target.name(),
        "true_sequential": options.true_sequential,
        "bias_correction": options.bias_correction,
        "follow_original": options.follow_original,
        "unfoldable": options.unfoldable,
    })
}

struct Run<'a> {
    model: &'a Model,
    options: &'a ModelOptions,
    inputs: Inputs<'a>,
    work: WorkFolder,
}

impl Run<'_> {
    fn blocks(
        &self,
        report: &mut ModelReport,
        attend: &mut Attend<'_>,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), QuantizeError> {
        let architecture = self.model.architecture();
        let count = |block| {
            architecture
                .stages(block)
                .iter()
                .map(|s| s.linears.len())
                .sum::<usize>()
        };
        let mut first = 0;
        while first < architecture.blocks()
            && let Some(linears) = self.work.finished(first)
        {
            report.linears.extend(linears);
            first += 1;
        }
        report.resumed = first;
        progress(Progress::Start {
            linears: (0..architecture.blocks()).map(count).sum(),
            finished: report.linears.len(),
        });
        let width = self.embed(first)?;
        for block in first..architecture.blocks() {
            let [hidden, original] = [self.work.hidden(block), self.work.original(block)];
            let mut run = BlockRun {
                architecture,
                block,
                options: self.options,
                inputs: &self.inputs,
                hidden: &hidden,
                original: self.options.follow_original.then(|| Original {
                    weights: self.model.weights(),
                    hidden: match block {
                        0 => &hidden,
                        _ => &original,
                    },
                }),
                width,
                overlay: Overlay::new(self.model.weights()),
                attend: &mut *attend,
            };
            let done = run.quantize(&mut |linear| progress(Progress::Linear(linear)))?;
            self.run_on(&mut run)?;
            let overlay = run.overlay;
            self.write_block(block, &done, &overlay)?;
            let reports: Vec<LinearReport> = done.into_iter().map(|linear| linear.report).collect();
            self.work.finish(block, &reports)?;
            report.linears.extend(reports);
        }
        Ok(())
    }

    /// Writes what the next block reads.
    fn run_on(&self, run: &mut BlockRun<'_, '_, '_>) -> Result<(), QuantizeError> {
        let next = run.block + 1;
        let mut writer = HiddenWriter::create(&self.work.hidden(next))?;
        let mut original = match self.options.follow_original {
            true => Some(HiddenWriter::create(&self.work.original(next))?),
            false => None,
        };
        run.forward(&mut |_| Ok(()), &mut |x, beside| {
            if let (Some(writer), Some(x)) = (&mut original, beside) {
                writer.push(x)?;
            }
            writer.push(x)
        })?;
        if let Some(writer) = original {
            writer.finish()?;
        }
        writer.finish()
    }

    /// Makes what block 0 reads, where that is the next one; the width of the activations.
    fn embed(&self, first: usize) -> Result<usize, QuantizeError> {
        let architecture = self.model.architecture();
        let mut width = 0;
        let file = self.work.hidden(0);
        let mut writer = (first == 0)
            .then(|| HiddenWriter::create(&file))
            .transpose()?;
        for (batch, _) in self.inputs.batches() {
            let x = architecture.embed(self.model.weights(), batch)?;
            let tokens: usize = batch.lengths.iter().sum();
            width = x.len().checked_div(tokens).unwrap_or(width);
            match &mut writer {
                Some(writer) => writer.push(&x)?,
                None => return Ok(width),
            }
        }
        if let Some(writer) = writer {
            writer.finish()?;
        }
        Ok(width)
    }

    fn write_block(
        &self,
        block: usize,
        done: &[Done],
        overlay: &Overlay<'_>,
    ) -> Result<(), QuantizeError> {
        let mut tensors = BTreeMap::new();
        let mut replaced = HashSet::new();
        for linear in done {
            let name = &linear.report.name;
            replaced.insert(format!("{name}.weight"));
            tensors.extend(match (&linear.weight, self.options.target.packing) {
                (Quantized::Int(weights), Packing::Int(format)) => {
                    PackedLinear::pack(weights, format)?.tensors(name)?
                }
                (Quantized::Nvfp4(weights), Packing::Tiles) => {
                    QuantizedLinear::from_floats(&FloatWeights::nvfp4(weights)?)?.tensors(name)?
                }
                (Quantized::Nvfp4(weights), _) => weights.pack()?.tensors(name)?,
                (Quantized::Float(weights), _) => {
                    QuantizedLinear::from_floats(weights)?.tensors(name)?
                }
                (Quantized::Int(weights), _) => QuantizedLinear::new(weights)?.tensors(name)?,
            });
            if let Some(divisor) = &linear.divisor {
                tensors.extend([input_divisor_tensor(name, divisor)?]);
            }
        }
        let changed: HashSet<&str> = overlay.changed().collect();
        let prefix = self.model.architecture().prefix(block);
        for name in self.model.weights().names() {
            if !name.starts_with(&prefix) || replaced.contains(&name) {
                continue;
            }
            let tensor = match changed.contains(name.as_str()) {
                true => float_tensor(overlay, &name)?,
                false => unchanged(self.model, &name)?,
            };
            tensors.insert(name, tensor);
        }
        Ok(save(self.work.tensors(block), &tensors, &BTreeMap::new())?)
    }
}
