//! Integers with minima: in shards, in files of either version, and what is refused.

use std::collections::BTreeMap;

use flashcube_formats::*;
use half::f16;

/// Codes, scales and minima that differ from place to place, minima of both signs.
fn sample(k: usize, n: usize) -> IntWeights {
    let shape = QuantShape::new(k, n, 4, Some(32)).unwrap();
    let places = shape.groups * n;
    let value = |i: usize, by: f32| f16::from_f32(by * ((i * 37 % 101) as f32 - 50.0));
    let codes = (0..k * n).map(|i| (i * 11 % 16) as u8).collect();
    let scales = (0..places).map(|i| value(i, 0.01)).collect();
    let minima = (0..places).map(|i| value(i + 3, 0.1)).collect();
    let weights = IntWeights::new(shape, codes, vec![0; places], scales, None).unwrap();
    weights.with_minima(minima).unwrap()
}

#[test]
fn shards_are_parts_of_the_whole() {
    let whole = sample(160, 12);
    let all = whole.dequantize();
    let rows: Vec<f32> = [0..64, 64..160]
        .into_iter()
        .flat_map(|rank| tiled(&whole.rows(rank).unwrap()))
        .collect();
    assert_eq!(rows, all);
    let columns = tiled(&whole.columns(5..12).unwrap());
    for (row, part) in all.chunks_exact(12).zip(columns.chunks_exact(7)) {
        assert_eq!(&row[5..], part);
    }
    let cut = whole.rows(0..40);
    assert!(matches!(cut, Err(FormatError::Unsupported { .. })));
    // Rows in another order keep their groups.
    let ordered = IntWeights {
        g_idx: Some((0..160).map(|row| (row * 7 % 160 / 32) as u32).collect()),
        ..whole
    };
    let upper = tiled(&ordered.rows(0..100).unwrap());
    assert_eq!(upper, ordered.dequantize()[..100 * 12]);
}

/// Through tiles and back.
fn tiled(weights: &IntWeights) -> Vec<f32> {
    let linear = QuantizedLinear::new(weights).unwrap();
    assert_eq!(&linear.unpack().unwrap(), weights);
    weights.dequantize()
}

fn tensors(linear: &QuantizedLinear) -> BTreeMap<String, TensorData> {
    linear.tensors("x").unwrap().into_iter().collect()
}

#[test]
fn only_files_with_minima_have_the_newest_version() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let reopened = |tensors: &BTreeMap<String, TensorData>| {
        save(&path, tensors, &BTreeMap::new()).unwrap();
        Checkpoint::open(&path).unwrap()
    };
    let version = |checkpoint: &Checkpoint| {
        let tiles = checkpoint.tensor("x.tiles").unwrap();
        tiles.to_vec::<i64>().unwrap()
    };
    let with = QuantizedLinear::new(&sample(64, 9)).unwrap();
    let without = IntWeights {
        minima: None,
        ..sample(64, 9)
    };
    let without = QuantizedLinear::new(&without).unwrap();
    assert_eq!(version(&reopened(&tensors(&without)))[0], 2);
    let checkpoint = reopened(&tensors(&with));
    let mut fields = version(&checkpoint);
    assert_eq!(fields[0], TILES_VERSION);
    assert_eq!(QuantizedLinear::load(&checkpoint, "x").unwrap(), with);
    // Minima are no part of version 2, and nothing of version 4 is known.
    for (version, told) in [(2, "dtype F16"), (4, "versions 2 and 3")] {
        fields[0] = version;
        let mut tensors = tensors(&with);
        let tiles = TensorData::new(&[fields.len()], &fields).unwrap();
        tensors.insert("x.tiles".to_owned(), tiles);
        let refused = QuantizedLinear::load(&reopened(&tensors), "x").unwrap_err();
        assert!(refused.to_string().contains(told), "{refused}");
    }
}

#[test]
fn what_blocks_and_minima_do_not_hold_is_named() {
    let good = sample(64, 4);
    let refused = |change: &dyn Fn(&mut IntWeights), kind| {
        let mut weights = good.clone();
        change(&mut weights);
        let refused = GgufBlocks::from_int_weights(&weights, kind).unwrap_err();
        refused.to_string()
    };
    let (q4_0, q4_1, q8_0) = (GgufKind::Q4_0, GgufKind::Q4_1, GgufKind::Q8_0);
    for (found, told) in [
        (refused(&|_| {}, q4_0), "Q4_0 cannot hold minima"),
        (refused(&|_| {}, q8_0), "Q8_0 cannot hold bits = 4"),
        (
            refused(&|w| w.minima = None, q4_1),
            "Q4_1 cannot hold zero points",
        ),
        (
            refused(&|w| w.minima = None, q4_0),
            "Q4_0 cannot hold zero points",
        ),
        (
            refused(&|w| w.zeros[3] = 1, q4_1),
            "tensor `zeros`, element 3",
        ),
        (
            refused(&|w| w.minima.as_mut().unwrap()[2] = f16::NAN, q4_1),
            "tensor `minima`, element 2: NaN is not finite",
        ),
        (
            refused(&|w| w.scales[1] = f16::INFINITY, q4_1),
            "tensor `scales`, element 1: inf is not finite",
        ),
        (
            refused(&|w| w.minima.as_mut().unwrap().truncate(3), q4_1),
            "tensor `minima` has shape [3]",
        ),
        (
            refused(&|w| w.g_idx = Some(vec![0; 64]), q4_1),
            "Q4_1 cannot hold g_idx",
        ),
    ] {
        assert!(found.contains(told), "{found}, not {told}");
    }
    let (shape, zero) = (
        QuantShape::new(40, 1, 4, Some(32)).unwrap(),
        vec![f16::ZERO; 2],
    );
    let ragged = IntWeights::new(shape, vec![0; 40], vec![0; 2], zero.clone(), None).unwrap();
    let ragged = ragged.with_minima(zero).unwrap();
    let refused = GgufBlocks::from_int_weights(&ragged, q4_1).unwrap_err();
    assert!(refused.to_string().contains("k = 40"), "{refused}");
}
