//! A checkpoint's weight packed anew on the device is what the host packs, bit for bit.

use cubecl::prelude::Client;
use cubecl::server::Handle;
use flashcube::{LinearWeights, PackFormat, PackedWeights, RepackOrder, repack};
use flashcube_formats::{
    Format, GgufKind, GroupScales, GroupZeros, IntWeights, PackedLinear, QuantShape,
    QuantizedLinear, TileOrder, V1Zeros,
};
use half::f16;
use proptest::prelude::*;

use super::invalid::client;

const FORMATS: [(Format, PackFormat); 4] = [
    (Format::GptqV1(V1Zeros::Strict), PackFormat::GptqV1),
    (Format::GptqV2, PackFormat::GptqV2),
    (Format::AwqGemm, PackFormat::AwqGemm),
    (Format::AwqGemv, PackFormat::AwqGemv),
];

fn upload(client: &Client, bytes: impl IntoIterator<Item = u8>) -> Handle {
    let mut bytes: Vec<u8> = bytes.into_iter().collect();
    bytes.resize(bytes.len().next_multiple_of(4).max(16), 0);
    client.create_from_slice(&bytes)
}

fn words(client: &Client, words: &[u32]) -> Handle {
    upload(client, words.iter().flat_map(|word| word.to_le_bytes()))
}

/// The checkpoint's tensors on the device.
fn packed(client: &Client, weights: &IntWeights, format: (Format, PackFormat)) -> PackedWeights {
    let packed = PackedLinear::pack(weights, format.0).unwrap();
    let QuantShape {
        k, n, bits, group, ..
    } = weights.shape;
    PackedWeights {
        format: format.1,
        bits,
        k,
        n,
        group,
        qweight: words(client, &packed.weights),
        qzeros: words(client, packed.zeros.as_deref().unwrap()),
        scales: upload(client, packed.scales.iter().flat_map(|x| x.to_le_bytes())),
        g_idx: weights.g_idx.as_ref().map(|g_idx| words(client, g_idx)),
    }
}

fn order(weights: &IntWeights) -> RepackOrder {
    let TileOrder {
        rows,
        group,
        gather,
        sources,
    } = TileOrder::of(weights.shape, weights.g_idx.as_deref()).unwrap();
    RepackOrder {
        rows,
        group,
        gather,
        sources,
        zeros: true,
    }
}

fn read(client: &Client, handle: &Handle, bytes: usize) -> Vec<u8> {
    client.read_one(handle.clone()).unwrap()[..bytes].to_vec()
}

/// Codes, scales and zero points of the stored groups as the host has them.
fn compare(client: &Client, device: &LinearWeights, weights: &IntWeights) {
    let host = QuantizedLinear::new(weights).unwrap();
    assert_eq!((device.rows, device.group), (host.rows, host.group));
    let codes: Vec<u8> = host
        .words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    assert_eq!(read(client, &device.words, codes.len()), codes);
    let places = device.groups() * device.columns();
    let GroupScales::F16(scales) = &host.scales else {
        panic!("{:?}", host.scales);
    };
    let scales: Vec<u8> = scales[..places]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    assert_eq!(read(client, &device.scales, scales.len()), scales);
    let zeros = read(client, device.zeros.as_ref().unwrap(), places);
    // Columns that do not exist: the host's are the middle, the device's 0, and nobody looks.
    let exists = |place: usize| {
        let at = place % device.columns() % 64;
        place % device.columns() / 64 * 64 + at % 8 / 2 * 16 + at / 8 * 2 + at % 2 < device.n
    };
    let middle = weights.shape.mid_code();
    for (place, zero) in zeros
        .into_iter()
        .enumerate()
        .filter(|(place, _)| exists(*place))
    {
        let expected = match &host.zeros {
            Some(GroupZeros::Points(points)) => points[place],
            _ => middle,
        };
        assert_eq!(zero, expected, "zero point {place}");
    }
}

fn drawn(
    (k, n, bits, group): (usize, usize, u32, Option<usize>),
    act_order: bool,
    seed: u64,
) -> IntWeights {
    let mut state = seed | 1;
    let mut draw = |limit: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % limit
    };
    let shape = QuantShape::new(k, n, bits, group).unwrap();
    let limit = 1u64 << bits;
    let codes = (0..k * n).map(|_| draw(limit) as u8).collect();
    let places = shape.groups * n;
    // GPTQ v1 has no zero point 0.
    let zeros = (0..places).map(|_| 1 + draw(limit - 1) as u8).collect();
    let scales = (0..places)
        .map(|_| f16::from_f32(draw(1000) as f32 * 1e-4))
        .collect();
    let g_idx = act_order.then(|| (0..k).map(|_| draw(shape.groups as u64) as u32).collect());
    IntWeights::new(shape, codes, zeros, scales, g_idx).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_device_packs_what_the_host_packs(
        which in 0usize..4,
        k in 1usize..20,
        n in 1usize..20,
        bits in prop::sample::select(&[2u32, 3, 4, 8][..]),
        group in prop::sample::select(&[Some(32usize), Some(64), Some(128), None][..]),
        act_order: bool,
        seed: u64,
    ) {
        let format = FORMATS[which];
        let gptq = matches!(format.1, PackFormat::GptqV1 | PackFormat::GptqV2);
        // AWQ has 4 bits, groups and no act-order; every format has whole words.
        let (bits, act_order) = if gptq { (bits, act_order) } else { (4, false) };
        let group = if gptq { group } else { group.or(Some(64)) };
        let weights = drawn((32 * k, 32 * n, bits, group), act_order, seed);
        let client = client();
        let device = packed(&client, &weights, format);
        let linear = repack(&client, &device, &order(&weights)).unwrap();
        compare(&client, &linear, &weights);
    }
}

#[test]
fn an_order_that_the_weight_has_not_is_named() {
    let client = client();
    let weights = drawn((64, 32, 4, Some(32)), false, 1);
    let device = packed(&client, &weights, FORMATS[1]);
    let good = order(&weights);
    let complaint = |change: &dyn Fn(&mut RepackOrder)| {
        let mut order = good.clone();
        change(&mut order);
        repack(&client, &device, &order).unwrap_err().to_string()
    };
    assert!(complaint(&|o| o.sources[1] = 2).contains("sources = 2"));
    assert!(complaint(&|o| o.sources.truncate(1)).contains("sources"));
    assert!(complaint(&|o| o.gather = Some(vec![64; 64])).contains("gather = 64"));
    assert!(complaint(&|o| o.gather = Some(vec![0; 63])).contains("gather"));
    assert!(complaint(&|o| o.group = 0).contains("group = 0"));
    assert!(complaint(&|o| o.group = 48).contains("48"));
    assert!(complaint(&|o| o.rows = 63).contains("rows"));
}

#[test]
fn an_empty_weight_packs_to_nothing() {
    let client = client();
    let weights = drawn((64, 0, 4, Some(32)), false, 1);
    let linear = repack(
        &client,
        &packed(&client, &weights, FORMATS[0]),
        &order(&weights),
    )
    .unwrap();
    assert_eq!((linear.bytes(), linear.n), (0, 0));
}

#[test]
fn blocks_with_minima_are_packed_as_the_host_does() {
    let client = client();
    for (k, n) in [(32, 1), (96, 65), (320, 40)] {
        let drawn = drawn((k, n, 4, Some(32)), false, 7);
        let minima = drawn.scales.iter().map(|&scale| -scale).rev().collect();
        let weights = IntWeights {
            zeros: vec![0; drawn.zeros.len()],
            ..drawn
        };
        let weights = weights.with_minima(minima).unwrap();
        let host = QuantizedLinear::new(&weights).unwrap();
        let blocks = host.to_gguf(GgufKind::Q4_1).unwrap();
        let none = || upload(&client, []);
        let packed = PackedWeights {
            format: PackFormat::GgufQ4_1,
            bits: 4,
            k,
            n,
            group: 32,
            qweight: upload(&client, blocks.bytes().iter().copied()),
            qzeros: none(),
            scales: none(),
            g_idx: None,
        };
        let device = repack(&client, &packed, &order(&weights)).unwrap();
        let bytes = |handle: &Handle, len| read(&client, handle, len);
        let words: Vec<u8> = host.words.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(bytes(&device.words, words.len()), words);
        let scales = host.scales.to_bytes();
        assert_eq!(bytes(&device.scales, scales.len()), scales);
        let minima = host.zeros.as_ref().unwrap().to_bytes();
        assert_eq!(bytes(device.zeros.as_ref().unwrap(), minima.len()), minima);
        assert_eq!(
            device.scale_range,
            flashcube::scale_range(host.scale_values())
        );
    }
}
