//! `dequantize_int4` of every layout and width, the reference and the unit tier on the CPU JIT.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use cubecl::prelude::{Client, CubeElement};
use flashcube::{DType, DequantizeOptions, PackFormat, PackedWeights, Tensor, dequantize_int4};
use flashcube_benches::{Work, check_close, device, int_weights};
use flashcube_formats::{Format, PackedLinear, QuantShape, V1Zeros};

const K: usize = 512;
const N: usize = 256;
const GROUP: usize = 128;

/// Layout, the kernel's name for it, bits, act-order.
fn cases() -> Vec<(Format, PackFormat, u32, bool)> {
    let v1 = |bits| {
        (
            Format::GptqV1(V1Zeros::of_gptqmodel(bits)),
            PackFormat::GptqV1,
            bits,
            false,
        )
    };
    let v2 = |bits| (Format::GptqV2, PackFormat::GptqV2, bits, false);
    let mut cases: Vec<_> = [2, 3, 4, 8]
        .into_iter()
        .flat_map(|bits| [v1(bits), v2(bits)])
        .collect();
    cases.push((Format::GptqV2, PackFormat::GptqV2, 4, true));
    cases.push((Format::AwqGemm, PackFormat::AwqGemm, 4, false));
    cases.push((Format::AwqGemv, PackFormat::AwqGemv, 4, false));
    cases
}

pub(crate) fn bench(c: &mut Criterion) {
    let client = device::open();
    for case in cases() {
        bench_case(c, &client, case);
    }
}

fn bench_case(
    c: &mut Criterion,
    client: &Client,
    (format, kernel_format, bits, act_order): (Format, PackFormat, u32, bool),
) {
    let shape = QuantShape::new(K, N, bits, Some(GROUP)).expect("valid sizes");
    let mut weights = int_weights::draw(shape, false, 1);
    if act_order {
        weights = int_weights::with_group_index(weights, 5);
    }
    let packed = PackedLinear::pack(&weights, format).expect("the layout holds these weights");
    let read = || int_weights::reference_weights(black_box(&packed));
    let wanted = read().expect("the reference states this layout");

    let on_device = upload(client, &packed, kernel_format);
    let options = DequantizeOptions {
        dtype: Some(DType::F32),
        out: Some(Tensor::empty(client, [K, N], DType::F32)),
    };
    let launch = || dequantize_int4(client, &on_device, &options).expect("the kernel runs");
    let found = launch();
    let name = device::unit_tier(found.blueprint);
    // 11 bits of scale times 9 of code difference fit into f32: exact.
    check_close(
        &name,
        &device::download(client, &found.out.handle),
        &wanted,
        0.0,
    );

    let work = |size: usize| Work {
        flops: 2 * (K * N) as u64,
        bytes: (packed_bytes(&packed) + K * N * size) as u64,
    };
    let case = format!("{K}x{N} g{GROUP}");
    let mut group = c.benchmark_group("dequantize_int4");
    group.throughput(Throughput::Bytes(work(8).bytes));
    let order = if act_order { " act-order" } else { "" };
    group.bench_function(
        work(8).label(format_args!("reference {format} b{bits}{order} {case}")),
        |b| b.iter(read),
    );
    group.throughput(Throughput::Bytes(work(4).bytes));
    group.bench_function(work(4).label(format_args!("cpu {name} {case}")), |b| {
        b.iter(|| {
            launch();
            device::wait(client);
        })
    });
    group.finish();
}

fn upload(client: &Client, packed: &PackedLinear, format: PackFormat) -> PackedWeights {
    let words = |words: &[u32]| client.create_from_slice(u32::as_bytes(words));
    let scales: Vec<u8> = packed.scales.iter().flat_map(|s| s.to_le_bytes()).collect();
    PackedWeights {
        format,
        bits: packed.shape.bits,
        k: packed.shape.k,
        n: packed.shape.n,
        group: packed.shape.group,
        qweight: words(&packed.weights),
        qzeros: words(
            packed
                .zeros
                .as_deref()
                .expect("GPTQ and AWQ keep zero points"),
        ),
        scales: client.create_from_slice(&scales),
        g_idx: packed.g_idx.as_deref().map(words),
    }
}

fn packed_bytes(packed: &PackedLinear) -> usize {
    let words = [
        Some(&packed.weights),
        packed.zeros.as_ref(),
        packed.g_idx.as_ref(),
    ];
    let words: usize = words.into_iter().flatten().map(Vec::len).sum();
    4 * words + 2 * packed.scales.len()
}
