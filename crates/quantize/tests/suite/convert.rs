//! Conversion between formats: every weight bit for bit, or a refusal.

use std::path::Path;

use flashcube_models::Model;
use flashcube_quantize::model::*;
use flashcube_quantize::*;

use crate::model::{grid, options, quantize};
use crate::tiny;

/// Converts from format to format, each checkpoint the next one's source, and compares every tensor
/// with the first's.
pub(crate) fn check_chain(folder: &Path, first: &Path, formats: &[&str]) {
    let original = Model::open(first).unwrap();
    let mut from = first.to_owned();
    for (step, format) in formats.iter().enumerate() {
        let to = folder.join(format!("{step}-{format}"));
        let target = Target::parse(format, 4).unwrap();
        convert_model(&Model::open(&from).unwrap(), &to, target, usize::MAX).unwrap();
        let converted = Model::open(&to).unwrap();
        assert_eq!(
            converted.quantized().unwrap().config().packing,
            target.packing
        );
        let names = original.weights().names();
        assert_eq!(converted.weights().names(), names);
        for name in names {
            let shape = original.weights().shape(&name).unwrap();
            let read = |model: &Model| model.weights().tensor(&name, &shape).unwrap();
            assert!(read(&original) == read(&converted), "{format}: {name}");
        }
        assert!(!to.join("unfinished").exists());
        from = to;
    }
}

pub(crate) fn refusal(model: &Model, folder: &Path, format: &str) -> String {
    let target = Target::parse(format, 4).unwrap();
    let out = folder.join("refused");
    let error = convert_model(model, &out, target, 1).unwrap_err();
    assert!(!out.join("config.json").exists() && !out.join("model.safetensors").exists());
    error.to_string()
}

#[test]
fn asymmetric_weights_pass_through_every_format_that_holds_them() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::llama(&folder.path().join("llama"), 2);
    let first = folder.path().join("first");
    let rtn = Method::Rtn(grid(4, false));
    quantize(&model, &first, &options(rtn, "gptq")).unwrap();
    let formats = ["gptq_v2", "compressed-tensors", "awq", "flashcube", "gptq"];
    check_chain(folder.path(), &first, &formats);

    let refused = refusal(&model, folder.path(), "awq");
    assert!(refused.contains("not quantized"), "{refused}");
    let quantized = Model::open(&first).unwrap();
    let refused = refusal(&quantized, folder.path(), "marlin");
    assert!(refused.contains("marlin cannot hold"), "{refused}");
    let refused = refusal(&quantized, folder.path(), "nvfp4");
    assert!(refused.contains("to nvfp4"), "{refused}");
}

/// Marlin's tiles and gemv's groups ask for larger layers.
#[test]
fn symmetric_weights_pass_through_marlin_and_gemv() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::sized_llama(&folder.path().join("llama"), 1, 128, 256);
    for group in [Some(128), None] {
        let first = folder.path().join(format!("{group:?}"));
        let rtn = Method::Rtn(GridOptions {
            group,
            ..grid(4, true)
        });
        quantize(&model, &first, &options(rtn, "marlin")).unwrap();
        let formats = [
            "gptq_v2",
            "awq_gemv",
            "marlin",
            "compressed-tensors",
            "marlin",
        ];
        let chain = folder.path().join(format!("{group:?}-chain"));
        check_chain(&chain, &first, &formats);
    }
}

#[test]
fn nvfp4_becomes_floats_and_no_integers() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::llama(&folder.path().join("llama"), 1);
    let first = folder.path().join("nvfp4");
    quantize(&model, &first, &options(Method::Nvfp4, "nvfp4")).unwrap();
    let quantized = Model::open(&first).unwrap();
    let refused = refusal(&quantized, folder.path(), "gptq_v2");
    assert!(refused.contains("of nvfp4"), "{refused}");
    let floats = folder.path().join("floats");
    dequantize_model(&quantized, &floats, usize::MAX).unwrap();
    let floats = Model::open(&floats).unwrap();
    for name in quantized.weights().names() {
        let shape = quantized.weights().shape(&name).unwrap();
        let read = |model: &Model| model.weights().tensor(&name, &shape).unwrap();
        assert!(read(&quantized) == read(&floats), "{name}");
    }
}
