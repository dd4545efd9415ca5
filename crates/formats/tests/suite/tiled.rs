//! Weights in tiles: back to their source, through files, against the reference, in shards.

use std::collections::BTreeMap;

use flashcube_formats::*;
use flashcube_reference::quant::tiled::{Codes, Scales, Tiled};
use half::f16;
use proptest::prelude::*;

use crate::round_trip::{any_group, weights};

pub(crate) fn reference(linear: &QuantizedLinear) -> Vec<f64> {
    let used = linear.rows.div_ceil(linear.group) * linear.columns();
    let tiled = Tiled {
        bits: linear.shape.bits,
        codes: match linear.code_type {
            CodeType::Int => match &linear.zeros {
                None => Codes::Int(None),
                Some(GroupZeros::Points(points)) => Codes::Int(Some(&points[..used])),
                Some(GroupZeros::Minima(minima)) => Codes::Minima(&minima[..used]),
            },
            CodeType::E2M1 => Codes::E2M1,
            CodeType::E4M3 => Codes::E4M3,
            CodeType::Nf4 => Codes::Nf4,
        },
        k: linear.shape.k,
        n: linear.shape.n,
        rows: linear.rows,
        group: linear.group,
        words: &linear.words,
        scales: match &linear.scales {
            GroupScales::F16(scales) => Scales::F16(&scales[..used]),
            GroupScales::E4M3(scales) => Scales::E4M3(&scales[..used]),
            GroupScales::E8M0(scales) => Scales::E8M0(&scales[..used]),
        },
        factor: 1.0 / linear.divisor,
        gather: linear.gather.as_deref(),
    };
    tiled.dequantize().unwrap()
}

fn wide(weights: &IntWeights) -> Vec<f64> {
    let dequantized = weights.dequantize();
    dequantized.into_iter().map(f64::from).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn tiles_give_their_source_back(
        w in weights(
            prop::sample::select(&[2u32, 3, 4, 8][..]),
            0usize..200,
            0usize..100,
            any_group(),
            true,
        )
    ) {
        let linear = QuantizedLinear::new(&w).unwrap();
        prop_assert_eq!(&linear.unpack().unwrap(), &w);
        prop_assert_eq!(reference(&linear), wide(&w));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let tensors: BTreeMap<_, _> = linear.tensors("layer.q_proj").unwrap().into_iter().collect();
        save(&path, &tensors, &BTreeMap::new()).unwrap();
        let read = QuantizedLinear::load(&Checkpoint::open(&path).unwrap(), "layer.q_proj").unwrap();
        prop_assert_eq!(read, linear);
    }

    #[test]
    fn column_shards_side_by_side_are_the_whole(
        w in weights(Just(4), 1usize..100, 2usize..70, any_group(), true),
        cut in 0usize..70,
    ) {
        let (n, cut) = (w.shape.n, cut % w.shape.n);
        let parts = [w.columns(0..cut).unwrap(), w.columns(cut..n).unwrap()];
        let whole = w.dequantize();
        for row in 0..w.shape.k {
            let joined = parts.iter().flat_map(|part| {
                part.dequantize()[row * part.shape.n..(row + 1) * part.shape.n].to_vec()
            });
            prop_assert_eq!(joined.collect::<Vec<f32>>(), &whole[row * n..(row + 1) * n]);
        }
    }
}

/// codes = row + column, scales by group, zero points 3.
fn sample(k: usize, n: usize, group: Option<usize>, g_idx: Option<Vec<u32>>) -> IntWeights {
    let shape = QuantShape::new(k, n, 4, group).unwrap();
    let codes = (0..k * n).map(|i| ((i / n + i % n) % 16) as u8).collect();
    let scales = (0..shape.groups * n).map(|i| f16::from_f32(1.0 + (i / n) as f32));
    IntWeights::new(
        shape,
        codes,
        vec![3; shape.groups * n],
        scales.collect(),
        g_idx,
    )
    .unwrap()
}

#[test]
fn row_shards_one_below_the_other_are_the_whole() {
    let g_idx: Vec<u32> = (0..256).map(|row| (row * 37 % 256 / 32) as u32).collect();
    for (group, g_idx, ranks) in [
        (Some(32), Some(g_idx), vec![0..128, 128..256]),
        (Some(32), None, vec![0..128, 128..256]),
        (Some(96), None, vec![0..96, 96..256]),
        (None, None, vec![0..100, 100..256]),
    ] {
        let whole = sample(256, 24, group, g_idx);
        let parts: Vec<f32> = ranks
            .into_iter()
            .flat_map(|rank| {
                let part = whole.rows(rank).unwrap();
                QuantizedLinear::new(&part)
                    .unwrap()
                    .unpack()
                    .unwrap()
                    .dequantize()
            })
            .collect();
        assert_eq!(parts, whole.dequantize());
    }
    let cut = sample(256, 24, Some(96), None).rows(0..100);
    assert!(matches!(cut, Err(FormatError::Unsupported { .. })));
    let past = sample(64, 8, None, None).rows(0..65);
    assert!(matches!(past, Err(FormatError::OutOfRange { .. })));
}

#[test]
fn every_format_that_holds_the_weights_gives_the_same_tiles() {
    let mut w = sample(256, 128, Some(128), None);
    w.zeros.fill(8);
    let linear = QuantizedLinear::new(&w).unwrap();
    for format in [
        Format::GptqV1(V1Zeros::Strict),
        Format::GptqV2,
        Format::AwqGemm,
        Format::AwqGemv,
        Format::Marlin,
        Format::CompressedTensors,
    ] {
        let packed = PackedLinear::pack(&w, format).unwrap();
        assert_eq!(
            QuantizedLinear::from_packed(&packed).unwrap(),
            linear,
            "{format}"
        );
        assert_eq!(linear.pack(format).unwrap(), packed, "{format}");
    }
}

#[test]
fn equal_groups_of_act_order_take_no_padding() {
    let g_idx: Vec<u32> = (0..512).map(|row| (row * 5 % 512 / 128) as u32).collect();
    let linear = QuantizedLinear::new(&sample(512, 64, Some(128), Some(g_idx))).unwrap();
    assert_eq!((linear.rows, linear.group), (512, 128));
}

#[test]
fn damage_is_named() {
    let good = QuantizedLinear::new(&sample(100, 20, Some(40), None)).unwrap();
    let fails = |damage: &dyn Fn(&mut QuantizedLinear)| {
        let mut bad = good.clone();
        damage(&mut bad);
        bad.validate().unwrap_err()
    };
    let tensor_of = |error| match error {
        FormatError::WrongShape { tensor, .. }
        | FormatError::OutOfRange { tensor, .. }
        | FormatError::NotFinite { tensor, .. } => tensor,
        other => panic!("{other}"),
    };
    type Damage<'a> = (&'a str, &'a dyn Fn(&mut QuantizedLinear));
    let cases: [Damage; 10] = [
        ("words", &|l| l.words.truncate(7)),
        ("words", &|l| l.group = 40),
        ("words", &|l| l.rows += 1),
        ("scales", &|l| {
            l.scales = GroupScales::F16(vec![f16::NAN; l.scales.len()])
        }),
        ("zeros", &|l| {
            l.zeros = Some(GroupZeros::Points(vec![16; l.scales.len()]))
        }),
        ("zeros", &|l| {
            l.zeros = Some(GroupZeros::Minima(vec![f16::INFINITY; l.scales.len()]))
        }),
        ("gather", &|l| l.gather.as_mut().unwrap()[5] = 100),
        ("gather", &|l| l.gather.as_mut().unwrap().push(0)),
        ("sources", &|l| l.sources[0] = 3),
        ("sources", &|l| l.sources.clear()),
    ];
    for (tensor, damage) in cases {
        assert_eq!(tensor_of(fails(damage)), tensor);
    }
}
