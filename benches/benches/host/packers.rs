//! Packing and unpacking of every checkpoint format. Bytes are those of the packed weight and of
//! one byte per code.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use flashcube_benches::{Work, check_close, int_weights, integers, normal, widen};
use flashcube_formats::{
    Format, GgufBlocks, GgufKind, IntWeights, Nvfp4Weights, PackedLinear, QuantShape, V1Zeros,
};
use flashcube_reference::quant::blocks::Nvfp4Row;
use half::f16;

const K: usize = 512;
const N: usize = 512;
const GROUP: usize = 128;

/// Layout, bits, symmetric zero points only.
fn int_cases() -> Vec<(Format, u32, bool)> {
    let gptq = [2, 3, 4, 8].into_iter().flat_map(|bits| {
        let v1 = Format::GptqV1(V1Zeros::of_gptqmodel(bits));
        [(v1, bits, false), (Format::GptqV2, bits, false)]
    });
    let others = [
        (Format::AwqGemm, 4, false),
        (Format::AwqGemv, 4, false),
        (Format::Marlin, 4, true),
        (Format::CompressedTensors, 4, false),
        (Format::CompressedTensors, 8, false),
    ];
    gptq.chain(others).collect()
}

pub(crate) fn bench_int(c: &mut Criterion) {
    for (format, bits, symmetric) in int_cases() {
        let shape = QuantShape::new(K, N, bits, Some(GROUP)).expect("valid sizes");
        let weights = int_weights::draw(shape, symmetric, 1);
        let packed = PackedLinear::pack(&weights, format).expect("the layout holds these weights");
        check_int(&weights, &packed);

        let zeros = packed.zeros.as_ref().map_or(0, Vec::len);
        let words = 4 * (packed.weights.len() + zeros) + 2 * packed.scales.len();
        let name = format!("{format} b{bits}");
        bench_pair(
            c,
            &name,
            words + K * N,
            || PackedLinear::pack(black_box(&weights), format),
            || black_box(&packed).unpack(),
        );
    }
}

/// What was packed is read back, by this crate and, where it states the layout, by the reference.
fn check_int(weights: &IntWeights, packed: &PackedLinear) {
    let format = packed.format;
    let read = packed.unpack().expect("packed weights unpack");
    assert!(
        read == *weights,
        "{format}: unpacking gives other weights than were packed"
    );
    let wanted = widen(&weights.dequantize());
    if let Some(found) = int_weights::reference_weights(packed) {
        check_close(
            &format!("{format} read by the reference"),
            &found,
            &wanted,
            0.0,
        );
    }
}

/// Rows `NAME pack` and `NAME unpack`.
fn bench_pair<P, U>(
    c: &mut Criterion,
    name: &str,
    bytes: usize,
    pack: impl Fn() -> P,
    unpack: impl Fn() -> U,
) {
    let work = Work {
        flops: 0,
        bytes: bytes as u64,
    };
    let mut group = c.benchmark_group("packers");
    group.throughput(Throughput::Bytes(work.bytes));
    let label = |verb: &str| work.label(format_args!("{name} {verb} {K}x{N}"));
    group.bench_function(label("pack"), |b| b.iter(&pack));
    group.bench_function(label("unpack"), |b| b.iter(&unpack));
    group.finish();
}

pub(crate) fn bench_nvfp4(c: &mut Criterion) {
    let bytes = |count, limit, seed| -> Vec<u8> {
        let values = integers(count, limit, seed);
        values.into_iter().map(|x| x as u8).collect()
    };
    let weights = Nvfp4Weights {
        k: K,
        n: N,
        codes: bytes(K * N, 16, 1),
        // Positive E4M3 scales short of NaN.
        scales: bytes(K / 16 * N, 0x7f, 2),
        encode_factor: 448.0,
    };
    let linear = weights.pack().expect("valid weights");
    let read = linear.unpack().expect("packed weights unpack");
    assert!(
        read == weights,
        "nvfp4: unpacking gives other weights than were packed"
    );
    check_nvfp4(&weights);

    bench_pair(
        c,
        "nvfp4",
        linear.packed.len() + linear.scales.len() + K * N,
        || black_box(&weights).pack(),
        || black_box(&linear).unpack(),
    );
}

/// Column by column against the reference's NVFP4 rows, which run along k too.
fn check_nvfp4(weights: &Nvfp4Weights) {
    let found = widen(&weights.dequantize());
    let column = |values: &[u8], c: usize| values[c..].iter().step_by(N).copied().collect();
    for c in 0..N {
        let row = Nvfp4Row {
            encode_factor: weights.encode_factor,
            codes: column(&weights.codes, c),
            scales: column(&weights.scales, c),
        };
        let wanted = row.dequantize().expect("blocks and scales fit");
        let found: Vec<f64> = found[c..].iter().step_by(N).copied().collect();
        // Two roundings of f32 on values of at most 6.
        check_close("nvfp4", &found, &wanted, 6.0 * f64::from(f32::EPSILON));
    }
}

/// GGUF blocks are only read here: bytes to values, and bytes to integer weights.
pub(crate) fn bench_gguf(c: &mut Criterion) {
    for (kind, limit) in [
        (GgufKind::Q4_0, 16),
        (GgufKind::Q4_1, 16),
        (GgufKind::Q8_0, 256),
    ] {
        let (bytes, wanted) = gguf_weight(kind, limit);
        let work = Work {
            flops: 2 * (K * N) as u64,
            bytes: (bytes.len() + K * N * 4) as u64,
        };
        let blocks = GgufBlocks::new(kind, K, N, bytes).expect("valid blocks");
        let found = widen(&blocks.dequantize());
        check_close(&format!("{kind:?}"), &found, &wanted, 0.0);

        let mut group = c.benchmark_group("packers");
        group.throughput(Throughput::Bytes(work.bytes));
        let label = format!("gguf {kind:?} dequantize {K}x{N}");
        group.bench_function(work.label(label), |b| {
            b.iter(|| black_box(&blocks).dequantize())
        });
        group.finish();
    }
}

/// Blocks [n, k / 32] written from known codes, and the W [k, n] that they stand for. Scales and
/// offsets have few enough bits for every value to be exact in f32.
fn gguf_weight(kind: GgufKind, limit: u32) -> (Vec<u8>, Vec<f64>) {
    let codes = integers(K * N, limit, 1);
    let halves = |seed| -> Vec<f16> {
        let values = normal(K / 32 * N, seed);
        values
            .into_iter()
            .map(|x| f16::from_f32((x * 16.0).round() / 16.0))
            .collect()
    };
    let (scales, offsets) = (halves(2), halves(3));
    let mut bytes = Vec::new();
    let mut weight = vec![0.0; K * N];
    for (block, codes) in codes.chunks_exact(32).enumerate() {
        let (d, m) = (scales[block].to_f64(), offsets[block].to_f64());
        bytes.extend(scales[block].to_le_bytes());
        let low_and_high = (0..16).map(|j| codes[j] as u8 | (codes[j + 16] as u8) << 4);
        match kind {
            GgufKind::Q4_0 => bytes.extend(low_and_high),
            GgufKind::Q4_1 => {
                bytes.extend(offsets[block].to_le_bytes());
                bytes.extend(low_and_high);
            }
            GgufKind::Q8_0 => bytes.extend(codes.iter().map(|&code| code as u8)),
        }
        let (row, column) = (block % (K / 32) * 32, block / (K / 32));
        for (j, &code) in codes.iter().enumerate() {
            weight[(row + j) * N + column] = match kind {
                GgufKind::Q4_0 => d * (f64::from(code) - 8.0),
                GgufKind::Q4_1 => d * f64::from(code) + m,
                GgufKind::Q8_0 => d * f64::from(code as u8 as i8),
            };
        }
    }
    (bytes, weight)
}
