//! `merge_partials`, the reference and the unit tier on the CPU JIT.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use flashcube::{DType, MergeOptions, Tensor, merge_partials};
use flashcube_benches::{Work, check_close, device, normal, widen};
use flashcube_reference::merge;

/// [n, b, h, s, d_v]: splits of one decoded token, and of a short prefill.
const CASES: [[usize; 5]; 2] = [[32, 4, 32, 1, 128], [4, 1, 8, 128, 64]];

pub(crate) fn bench(c: &mut Criterion) {
    for shape in CASES {
        bench_case(c, shape);
    }
}

fn bench_case(c: &mut Criterion, shape: [usize; 5]) {
    let [n, b, h, s, d_v] = shape;
    let rows = b * h * s;
    let outs = normal(n * rows * d_v, 1);
    let mut lses = normal(n * rows, 2);
    // Every seventh partial saw no key; row 0 saw none in any.
    let empty = |at: usize| at % 7 == 3 || at.is_multiple_of(rows);
    let marked = lses.iter_mut().enumerate().filter(|(at, _)| empty(*at));
    marked.for_each(|(_, lse)| *lse = f32::NEG_INFINITY);

    let (wide_outs, wide_lses) = (widen(&outs), widen(&lses));
    let partials: Vec<(&[f64], &[f64])> = wide_outs
        .chunks_exact(rows * d_v)
        .zip(wide_lses.chunks_exact(rows))
        .collect();
    let (out, lse) = merge(&partials, rows, d_v).expect("partials fit");

    let client = device::open();
    let on_outs = device::upload(&client, shape, &outs);
    let on_lses = device::upload(&client, [n, b, h, s], &lses);
    let options = MergeOptions {
        dtype: Some(DType::F32),
        out: Some(Tensor::empty(&client, [b, h, s, d_v], DType::F32)),
        lse: Some(Tensor::empty(&client, [b, h, s], DType::F32)),
    };
    let launch = || merge_partials(&client, &on_outs, &on_lses, &options).expect("the kernel runs");
    let merged = launch();
    let name = device::unit_tier(merged.blueprint);
    // A weighted mean of n values rounds about n + 4 times, all of them of order 1.
    let bound = (n + 4) as f64 * f64::from(f32::EPSILON) * 4.0;
    let [found_out, found_lse] =
        [&merged.out.handle, &merged.lse.handle].map(|handle| device::download(&client, handle));
    check_close(&format!("{name} out"), &found_out, &out, bound);
    check_close(&format!("{name} lse"), &found_lse, &lse, bound);

    let values = (n + 1) * rows * (d_v + 1);
    // A multiplication and an addition per partial value.
    let flops = (2 * n * rows * d_v) as u64;
    let mut group = c.benchmark_group("merge_partials");
    let case = format!("n{n} b{b} h{h} s{s} d{d_v}");
    let work = |size: usize| Work {
        flops,
        bytes: (values * size) as u64,
    };
    group.throughput(Throughput::Bytes(work(8).bytes));
    group.bench_function(work(8).label(format_args!("reference {case}")), |b| {
        b.iter(|| merge(black_box(&partials), rows, d_v))
    });
    group.throughput(Throughput::Bytes(work(4).bytes));
    group.bench_function(work(4).label(format_args!("cpu {name} {case}")), |b| {
        b.iter(|| {
            launch();
            device::wait(&client);
        })
    });
    group.finish();
}
