//! GGUF files become checkpoints of integers, bit for bit where their blocks are integers.

use flashcube_models::{GgufModel, Model, Weights};
use flashcube_quantize::model::{Target, convert_model};

use crate::convert::{check_chain, refusal};
use crate::tiny_gguf::{F32, Q4_0, Q4_1, Q8_0, llama};

#[test]
fn q4_0_and_q8_0_pass_through_every_format_that_holds_groups_of_32() {
    let folder = tempfile::tempdir().unwrap();
    let four = ["gptq", "compressed-tensors", "gptq_v2", "awq", "flashcube"];
    let eight = ["gptq", "compressed-tensors", "gptq_v2", "flashcube"];
    for (kind, formats) in [(Q4_0, &four[..]), (Q8_0, &eight)] {
        let own = folder.path().join(kind.to_string());
        std::fs::create_dir(&own).unwrap();
        check_chain(&own, &llama(&own.join("model.gguf"), [kind; 2]), formats);
    }
}

/// Codes and scales, not only their products: byte for byte what the file holds.
#[test]
fn codes_are_those_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = llama(&folder.path().join("model.gguf"), [Q8_0; 2]);
    let out = folder.path().join("out");
    let target = Target::parse("gptq", 8).unwrap();
    convert_model(&Model::open(&file).unwrap(), &out, target, usize::MAX).unwrap();
    let converted = Model::open(&out).unwrap();
    let linear = "model.layers.0.mlp.down_proj";
    let packed = converted.quantized().unwrap().packed(linear).unwrap();
    let gguf = flashcube_formats::Gguf::open(&file).unwrap();
    let blocks = gguf
        .tensor("blk.0.ffn_down.weight")
        .unwrap()
        .blocks()
        .unwrap();
    assert_eq!(packed.unpack().unwrap(), blocks.to_int_weights().unwrap());
    assert_eq!(packed.shape.bits, 8);
    assert!(converted.quantized().unwrap().config().sym == Some(true));
}

/// Rows that the file keeps in the order of rotary pairs take their minima with them.
#[test]
fn minima_follow_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = llama(&folder.path().join("model.gguf"), [Q4_1; 2]);
    let model = GgufModel::open(&file).unwrap();
    for linear in ["self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"] {
        let linear = format!("model.layers.0.{linear}");
        let weights = model.int_weights(&linear).unwrap();
        let (k, n) = (weights.shape.k, weights.shape.n);
        let stored = model.tensor(&format!("{linear}.weight"), &[n, k]).unwrap();
        let dequantized = weights.dequantize();
        let turned = (0..n).flat_map(|column| (0..k).map(move |row| (row, column)));
        let turned: Vec<f32> = turned
            .map(|(row, column)| dequantized[row * n + column])
            .collect();
        assert!(turned == stored, "{linear}");
    }
}

#[test]
fn what_is_no_integer_grid_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (kinds, format, told) in [
        ([Q4_1; 2], "gptq", "a float minimum is no zero point"),
        ([F32; 2], "gptq", "F32"),
        ([Q4_0, Q8_0], "gptq", "both Q4_0 and Q8_0"),
        ([Q4_0; 2], "marlin", "marlin cannot hold"),
        ([Q8_0; 2], "awq", "awq gemm cannot hold"),
        ([Q4_0; 2], "nvfp4", "nvfp4"),
    ] {
        let file = llama(&folder.path().join("model.gguf"), kinds);
        let refused = refusal(&Model::open(&file).unwrap(), folder.path(), format);
        assert!(refused.contains(told), "{kinds:?} to {format}: {refused}");
    }
}
