//! The Walsh-Hadamard transform with signs, the reference and the unit tier on the CPU JIT.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use flashcube::{DType, HadamardOptions, Tensor, hadamard_transform};
use flashcube_benches::{Work, check_close, device, normal, widen};
use flashcube_reference::Hadamard;

/// [rows, n]: head dimensions, and a hidden dimension.
const CASES: [[usize; 2]; 3] = [[1024, 64], [1024, 128], [32, 4096]];

pub(crate) fn bench(c: &mut Criterion) {
    for shape in CASES {
        bench_case(c, shape);
    }
}

fn bench_case(c: &mut Criterion, [rows, n]: [usize; 2]) {
    let x = normal(rows * n, 1);
    let wide_x = widen(&x);
    let rotation = Hadamard::random(n, 7).expect("n is a power of two");
    let wanted = rotation.forward(&wide_x).expect("whole rows");

    let client = device::open();
    let on_x = device::upload(&client, [rows, n], &x);
    let signs: Vec<bool> = rotation.signs().iter().map(|&sign| sign < 0.0).collect();
    let options = HadamardOptions {
        signs: Some(&signs),
        out: Some(Tensor::empty(&client, [rows, n], DType::F32)),
        ..HadamardOptions::default()
    };
    let launch = || hadamard_transform(&client, &on_x, &options).expect("the kernel runs");
    let transformed = launch();
    let name = device::unit_tier(transformed.blueprint);
    // Each of the log2 n stages rounds once; the values stay of order 1 after the division.
    let stages = u64::from(n.ilog2());
    let bound = 8.0 * (stages + 1) as f64 * f64::from(f32::EPSILON);
    let found = device::download(&client, &transformed.out.handle);
    check_close(&name, &found, &wanted, bound);

    let elements = (rows * n) as u64;
    let work = |size: u64| Work {
        // Signs, stages, division by sqrt(n).
        flops: elements * (stages + 2),
        bytes: 2 * elements * size,
    };
    let case = format!("{rows}x{n}");
    let mut group = c.benchmark_group("hadamard_transform");
    group.throughput(Throughput::Bytes(work(8).bytes));
    group.bench_function(work(8).label(format_args!("reference {case}")), |b| {
        b.iter(|| rotation.forward(black_box(&wide_x)))
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
