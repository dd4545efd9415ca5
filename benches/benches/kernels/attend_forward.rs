//! `attend_forward`, unit tier on the CPU JIT: prefill, grouped queries, a causal mask, a single
//! query over a long sequence, d_v != d. Elements of the throughput are FLOP.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use cubecl::prelude::Client;
use flashcube::{AttendOptions, DType, Tensor, attend_forward};
use flashcube_benches::{AttendSizes, check_close, device, normal};
use flashcube_reference::{Options, Tensor4, forward};

/// Sizes in which h_q = h_kv = h, d_v = d.
const fn square(h: usize, s: usize, d: usize, causal: bool) -> AttendSizes {
    AttendSizes {
        b: 1,
        h_q: h,
        h_kv: h,
        s_q: s,
        s_kv: s,
        d,
        d_v: d,
        causal,
    }
}

const CASES: [AttendSizes; 5] = [
    square(12, 64, 32, false), // MiniLM
    square(2, 256, 64, true),
    AttendSizes {
        h_kv: 3,
        ..square(9, 64, 64, true) // SmolLM2
    },
    AttendSizes {
        h_kv: 2,
        s_q: 1,
        s_kv: 1024,
        ..square(8, 1, 128, false) // one new token
    },
    AttendSizes {
        d_v: 128,
        ..square(2, 64, 192, true) // DeepSeek MLA prefill
    },
];

pub(crate) fn bench(c: &mut Criterion) {
    let client = device::open();
    let mut group = c.benchmark_group("cpu");
    for sizes in CASES {
        bench_case(&mut group, &client, &sizes);
    }
    group.finish();
}

fn bench_case(group: &mut BenchmarkGroup<'_, WallTime>, client: &Client, sizes: &AttendSizes) {
    let [q_shape, k_shape, v_shape, out_shape] = sizes.shapes();
    let mut seed = 0;
    let [q, k, v] = [q_shape, k_shape, v_shape].map(|shape| {
        seed += 1;
        (shape, normal(shape.iter().product(), seed))
    });
    let options = AttendOptions {
        causal: sizes.causal,
        out: Some(Tensor::empty(client, out_shape, DType::F32)),
        lse: Some(Tensor::empty(
            client,
            [sizes.b, sizes.h_q, sizes.s_q],
            DType::F32,
        )),
        ..AttendOptions::default()
    };
    let [on_q, on_k, on_v] = [&q, &k, &v].map(|(shape, x)| device::upload(client, *shape, x));
    let attend = || attend_forward(client, &on_q, &on_k, &on_v, &options).expect("the kernel runs");

    let attended = attend();
    let name = device::unit_tier(attended.blueprint);
    let [q, k, v] = [q, k, v].map(|(shape, x)| Tensor4::from_slice(shape, &x).expect("fits"));
    let reference = Options {
        scale: 1.0 / (sizes.d as f64).sqrt(),
        causal: sizes.causal,
        ..Options::default()
    };
    let wanted = forward(&q, &k, &v, &reference).expect("valid problem");
    // A hundred roundings of f32: far above the error of these sizes, far below a wrong key.
    let bound = 100.0 * f64::from(f32::EPSILON);
    let out = device::download(client, &attended.out.handle);
    let lse = device::download(client, &attended.lse.handle);
    check_close(&format!("{name} out"), &out, &wanted.out.data, bound);
    check_close(&format!("{name} lse"), &lse, &wanted.lse, bound);

    let work = sizes.forward_work(DType::F32.size());
    group.throughput(Throughput::Elements(work.flops));
    group.bench_function(
        work.label(format_args!("{name} {}", sizes.heads_and_lengths())),
        |b| {
            b.iter(|| {
                attend();
                device::wait(client);
            })
        },
    );
}
