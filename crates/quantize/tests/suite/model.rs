//! Whole models: what is written is what was computed, folding changes nothing, interrupted runs go
//! on, and what has no place is refused.

use std::fs;
use std::path::Path;

use flashcube_formats::{Checkpoint, Packing};
use flashcube_models::{AttentionCall, Bert, Family, Model, ModelError};
use flashcube_quantize::model::*;
use flashcube_quantize::*;

use crate::tiny;

pub(crate) fn grid(bits: u32, symmetric: bool) -> GridOptions {
    GridOptions {
        symmetric,
        ..GridOptions::new(bits, Some(16))
    }
}

pub(crate) fn options(method: Method, format: &str) -> ModelOptions {
    let bits = method.grid().map_or(4, |grid| grid.bits);
    ModelOptions::new(method, Target::parse(format, bits).unwrap())
}

fn gptq(bits: u32) -> Method {
    Method::Gptq(GptqOptions::new(grid(bits, false)))
}

fn awq(bits: u32) -> Method {
    Method::Awq(AwqOptions::new(grid(bits, false)))
}

pub(crate) fn quantize(
    model: &Model,
    out: &Path,
    options: &ModelOptions,
) -> Result<ModelReport, QuantizeError> {
    let (seen, held_out) = (tiny::texts(6, 1), tiny::texts(2, 2));
    quantize_model(
        model,
        &seen,
        &held_out,
        out,
        options,
        &mut tiny::attend,
        &mut |_| (),
    )
}

/// Last hidden states of a text.
fn states(model: &Model) -> Vec<f32> {
    let batch = &tiny::texts(1, 3)[0];
    match &model.family {
        Family::Llama(_) => {
            let decoder = model.decoder(None).unwrap();
            decoder
                .hidden_states(&batch.ids, 4, 0, &mut tiny::attend)
                .unwrap()
        }
        Family::Bert(config) => {
            let bert = Bert::<f32>::load(config.clone(), model.weights()).unwrap();
            bert.embed(batch, tiny::attend).unwrap()
        }
    }
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (off / a.iter().map(|&a| square(a)).sum::<f64>()).sqrt()
}

#[test]
fn every_method_and_format_reads_back_close_to_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let llama = tiny::llama(&folder.path().join("llama"), 2);
    let bert = tiny::bert(&folder.path().join("bert"));
    let act_order = Method::Gptq(GptqOptions {
        act_order: true,
        ..GptqOptions::new(grid(4, false))
    });
    let cases = [
        (&llama, gptq(8), "gptq", 0.02),
        (&llama, act_order, "gptq_v2", 0.3),
        (&llama, awq(4), "awq", 0.3),
        (
            &llama,
            Method::Rtn(grid(8, true)),
            "compressed-tensors",
            0.02,
        ),
        (&llama, Method::Nvfp4, "nvfp4", 0.4),
        (&llama, Method::Nvfp4, "flashcube", 0.4),
        (&llama, Method::Nf4(16), "flashcube", 0.4),
        (&llama, Method::Mxfp4, "flashcube", 0.5),
        (&bert, Method::Mxfp4, "flashcube", 0.5),
        (&bert, gptq(8), "gptq_v2", 0.02),
        (&bert, awq(8), "flashcube", 0.02),
        (&bert, Method::Rtn(grid(4, false)), "gptq", 0.3),
    ];
    for (i, (model, method, format, bound)) in cases.into_iter().enumerate() {
        let out = folder.path().join(i.to_string());
        let report = quantize(model, &out, &options(method, format)).unwrap();
        let quantized = Model::open(&out).unwrap();
        assert_eq!(
            quantized.quantized().unwrap().linears().len(),
            report.linears.len()
        );
        let off = distance(&states(model), &states(&quantized));
        assert!(
            off > 0.0 && off < bound,
            "{format} by {}: {off}",
            method.name()
        );
        assert!(!out.join("unfinished").exists());
        // Linears that share AWQ's scales may differ; the stage's sum is what was minimised.
        let sum = |of: fn(&LinearReport) -> f64| report.linears.iter().map(of).sum::<f64>();
        assert!(sum(|l| l.loss) <= sum(|l| l.rtn_loss) * 1.001, "{format}");
        for linear in &report.linears {
            let shared = matches!(method, Method::Awq(_)) && format == "awq";
            assert!(
                shared || linear.loss <= linear.rtn_loss * 1.001,
                "{format}: {linear:?}"
            );
            assert!(linear.held_out.unwrap().loss.is_finite());
        }
    }
}

/// Weights judged without the mean, and biases that take it in: closer to the original, in the
/// layers and in what the model says.
#[test]
fn bias_correction_brings_the_encoder_closer() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::bert(&folder.path().join("bert"));
    for (i, (method, format)) in [(gptq(3), "gptq_v2"), (awq(3), "flashcube")]
        .into_iter()
        .enumerate()
    {
        let plain = options(method, format);
        let corrected = ModelOptions {
            bias_correction: true,
            ..plain
        };
        let run = |options: &ModelOptions, name: &str| {
            let out = folder.path().join(format!("{i}-{name}"));
            let report = quantize(&model, &out, options).unwrap();
            let off = distance(&states(&model), &states(&Model::open(&out).unwrap()));
            (report.mean_relative().0, off)
        };
        let (before, after) = (run(&plain, "plain"), run(&corrected, "corrected"));
        assert!(after.0 < before.0, "{format}: {before:?} {after:?}");
        assert!(after.1 < 1.05 * before.1, "{format}: {before:?} {after:?}");
    }
}

/// Aiming at the original's outputs, the quantized encoder ends up closer to it.
#[test]
fn following_the_original_brings_the_encoder_closer() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::bert(&folder.path().join("bert"));
    let following = |method| ModelOptions {
        bias_correction: true,
        follow_original: true,
        ..options(method, "flashcube")
    };
    let run = |options: &ModelOptions, name: &str| {
        let out = folder.path().join(name);
        quantize(&model, &out, options).unwrap();
        distance(&states(&model), &states(&Model::open(&out).unwrap()))
    };
    let plain = ModelOptions {
        follow_original: false,
        ..following(gptq(3))
    };
    let (before, after) = (run(&plain, "plain"), run(&following(gptq(3)), "following"));
    assert!(after < before, "{before} {after}");
    let out = folder.path().join("awq");
    let refused = quantize(&model, &out, &following(awq(3))).unwrap_err();
    assert!(
        refused.to_string().contains("follows the original is awq"),
        "{refused}"
    );
    assert!(!out.exists());
}

#[test]
fn interrupted_runs_go_on_and_give_the_same_bytes() {
    for follow_original in [false, true] {
        check_interrupted(&ModelOptions {
            follow_original,
            ..options(gptq(4), "gptq_v2")
        });
    }
}

fn check_interrupted(options: &ModelOptions) {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::llama(&folder.path().join("llama"), 3);
    let (whole, pieces) = (folder.path().join("whole"), folder.path().join("pieces"));
    quantize(&model, &whole, options).unwrap();

    let seen = tiny::texts(6, 1);
    let held_out = tiny::texts(2, 2);
    for block in [1, 2] {
        let mut broken = |call: AttentionCall<'_, f32>| match call.layer == block {
            true => Err(ModelError::Device {
                what: "attention",
                detail: "the power went".to_owned(),
            }),
            false => tiny::attend(call),
        };
        let run = quantize_model(
            &model,
            &seen,
            &held_out,
            &pieces,
            options,
            &mut broken,
            &mut |_| (),
        );
        assert!(run.unwrap_err().to_string().contains("the power went"));
        assert!(!pieces.join("config.json").exists() && !pieces.join("model.safetensors").exists());
    }
    let mut other = *options;
    other.true_sequential = false;
    let refused = quantize(&model, &pieces, &other).unwrap_err().to_string();
    assert!(refused.contains("true_sequential differs"), "{refused}");

    let mut finished = 0;
    let report = quantize_model(
        &model,
        &seen,
        &held_out,
        &pieces,
        options,
        &mut tiny::attend,
        &mut |progress| {
            if let Progress::Start {
                finished: before, ..
            } = progress
            {
                finished = before;
            }
        },
    );
    let report = report.unwrap();
    assert_eq!(
        (report.resumed, finished, report.linears.len()),
        (2, 14, 21)
    );
    let bytes = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
    assert!(bytes(&whole) == bytes(&pieces), "resumed run differs");
}

#[test]
fn scales_without_a_place_are_refused_or_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::bert(&folder.path().join("bert"));
    let out = folder.path().join("out");
    let mut options = options(awq(4), "awq");
    let error = quantize(&model, &out, &options).unwrap_err();
    assert!(
        matches!(&error, QuantizeError::CannotFold { linear, .. }
        if linear == "encoder.layer.0.attention.self.query"),
        "{error}"
    );
    fs::remove_dir_all(&out).unwrap();
    options.unfoldable = Unfoldable::Skip;
    let report = quantize(&model, &out, &options).unwrap();
    // Values into the attention's output: the one exact fold of this model.
    let scaled: Vec<&str> = report
        .linears
        .iter()
        .filter(|l| l.ratio.is_some())
        .map(|l| &l.name[..])
        .collect();
    assert!(
        scaled
            .iter()
            .all(|name| name.ends_with("attention.output.dense")),
        "{scaled:?}"
    );
    assert!(report.linears.iter().all(|linear| !linear.divisor));
}

#[test]
fn large_checkpoints_are_cut_into_files() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::llama(&folder.path().join("llama"), 2);
    let out = folder.path().join("out");
    let options = ModelOptions {
        shard_bytes: 8000,
        ..options(Method::Rtn(grid(4, false)), "gptq_v2")
    };
    let report = quantize(&model, &out, &options).unwrap();
    assert!(out.join("model.safetensors.index.json").exists());
    let checkpoint = Checkpoint::open(&out).unwrap();
    let bytes: usize = checkpoint
        .names()
        .map(|n| checkpoint.tensor(n).unwrap().bytes.len())
        .sum();
    assert_eq!(bytes as u64, report.bytes);
    assert!(distance(&states(&model), &states(&Model::open(&out).unwrap())) < 0.3);
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::llama(&folder.path().join("llama"), 1);
    let out = folder.path().join("out");
    let refused = |options: &ModelOptions| quantize(&model, &out, options).unwrap_err().to_string();
    let marlin = refused(&options(Method::Rtn(grid(4, true)), "marlin"));
    assert!(marlin.contains("marlin cannot hold"), "{marlin}");
    let mixed = ModelOptions::new(gptq(4), Target::parse("nvfp4", 4).unwrap());
    assert!(matches!(mixed.target.packing, Packing::Nvfp4));
    assert!(refused(&mixed).starts_with("format is nvfp4"));
    let floats = refused(&options(Method::Mxfp4, "gptq_v2"));
    assert!(floats.starts_with("format is gptq_v2"), "{floats}");
    let uneven = refused(&options(Method::Nf4(48), "flashcube"));
    assert!(uneven.starts_with("k of an nf4 linear is"), "{uneven}");
    assert!(refused(&options(Method::Nf4(0), "flashcube")).starts_with("group is 0"));
    let wide = refused(&options(Method::Rtn(GridOptions::new(5, None)), "gptq_v2"));
    assert!(wide.contains("bits = 5"), "{wide}");
    let none = quantize_model(
        &model,
        &[],
        &[],
        &out,
        &options(gptq(4), "gptq_v2"),
        &mut tiny::attend,
        &mut |_| (),
    );
    assert_eq!(
        none.unwrap_err().to_string(),
        "calibration tokens is 0, limit: at least 1"
    );
    assert!(!out.exists());
}

#[test]
fn activations_that_are_not_finite_stop_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::llama(&folder.path().join("llama"), 1);
    let out = folder.path().join("out");
    let seen = tiny::texts(1, 1);
    let mut nan = |call: AttentionCall<'_, f32>| Ok(vec![f32::NAN; call.q.len()]);
    let run = quantize_model(
        &model,
        &seen,
        &[],
        &out,
        &options(gptq(4), "gptq_v2"),
        &mut nan,
        &mut |_| (),
    );
    let error = run.unwrap_err().to_string();
    assert_eq!(error, "tensor `activations`, element 0: NaN is not finite");
    assert!(!out.join("model.safetensors").exists());
}

#[test]
fn texts_are_cut_at_a_line_and_cleaned() {
    let text = "<doc id=\"1\">\nfirst\n</doc>\n".repeat(20);
    let clean = Texts::clean(&text);
    assert_eq!(clean, "first\n".repeat(20));
    let texts = Texts::split(&clean);
    assert_eq!(texts.calibration.len() + texts.held_out.len(), clean.len());
    assert!(texts.held_out == "first\n".repeat(2) || texts.held_out == "first\n");
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::llama(folder.path(), 1);
    let words = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10";
    let batches = calibration_batches(&model, words, 3, 3, 2).unwrap();
    assert_eq!(
        batches
            .iter()
            .map(|batch| batch.lengths.len())
            .collect::<Vec<_>>(),
        [2, 1]
    );
    assert_eq!(batches[1].ids, [7, 8, 9]);
    let error = calibration_batches(&model, words, 4, 3, 2)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("calibration is 4 x 3 tokens of 10"),
        "{error}"
    );
}
