//! Linears through files: written by prefix, read back by prefix.

use std::collections::BTreeMap;

use flashcube_formats::*;

use crate::golden::{config, open as fixture};

type Tensors = BTreeMap<String, TensorData>;

#[test]
fn linears_round_trip_through_a_sharded_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (gptq, act_order) = (fixture("gptq_v2_w4"), fixture("gptq_v2_w4_act_order"));
    let layers = [
        ("model.layers.0.q_proj", &gptq),
        ("model.layers.1.q_proj", &act_order),
    ];
    let mut tensors = Tensors::new();
    for (prefix, source) in layers {
        let packed = PackedLinear::load(source, "linear", &config(source)).unwrap();
        tensors.extend(packed.tensors(prefix).unwrap());
    }
    save_sharded(folder.path(), &tensors, &BTreeMap::new(), 2000).unwrap();
    let written = Checkpoint::open(folder.path()).unwrap();
    for (prefix, source) in layers {
        let config = config(source);
        let before = PackedLinear::load(source, "linear", &config).unwrap();
        assert_eq!(
            PackedLinear::load(&written, prefix, &config).unwrap(),
            before,
            "{prefix}"
        );
    }
}

#[test]
fn g_idx_may_be_absent_or_empty_without_act_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let source = fixture("gptq_v2_w4");
    let packed = PackedLinear::load(&source, "linear", &config(&source)).unwrap();
    let mut tensors: Tensors = packed.tensors("linear").unwrap().into_iter().collect();
    for g_idx in [Some(TensorData::new::<i32>(&[0], &[]).unwrap()), None] {
        tensors.remove("linear.g_idx");
        tensors.extend(g_idx.map(|data| ("linear.g_idx".to_owned(), data)));
        save(&path, &tensors, &BTreeMap::new()).unwrap();
        let written = Checkpoint::open(&path).unwrap();
        assert_eq!(
            PackedLinear::load(&written, "linear", &config(&source)).unwrap(),
            packed
        );
    }
}

#[test]
fn g_idx_of_a_damaged_checkpoint_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let source = fixture("gptq_v2_w4_act_order");
    let packed = PackedLinear::load(&source, "linear", &config(&source)).unwrap();
    let mut tensors: Tensors = packed.tensors("linear").unwrap().into_iter().collect();
    for bad in [-3, 4, i32::MAX] {
        let mut g_idx: Vec<i32> = packed
            .g_idx
            .iter()
            .flatten()
            .map(|&group| group as i32)
            .collect();
        g_idx[2] = bad;
        tensors.insert(
            "linear.g_idx".to_owned(),
            TensorData::new(&[g_idx.len()], &g_idx).unwrap(),
        );
        save(&path, &tensors, &BTreeMap::new()).unwrap();
        let written = Checkpoint::open(&path).unwrap();
        let error = PackedLinear::load(&written, "linear", &config(&source))
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with(&format!("g_idx`, element 2: {bad} is not in 0..4")),
            "{error}"
        );
    }
}
