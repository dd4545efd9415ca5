//! The f64 reference: forward in its plain and its online form, and backward. Elements of the
//! throughput are FLOP.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use flashcube_benches::{AttendSizes, check_close, normal};
use flashcube_reference::{Options, Tensor4, backward, forward, forward_online, max_abs_score};

/// One row per form: small enough for ten samples a second on two cores.
const SIZES: AttendSizes = AttendSizes {
    b: 1,
    h_q: 4,
    h_kv: 2,
    s_q: 192,
    s_kv: 192,
    d: 64,
    d_v: 64,
    causal: true,
};

/// Keys per block of the online form.
const BLOCK: usize = 64;

fn options() -> Options<'static> {
    Options {
        scale: 1.0 / (SIZES.d as f64).sqrt(),
        causal: SIZES.causal,
        ..Options::default()
    }
}

/// q, k, v and d_out.
fn inputs() -> [Tensor4; 4] {
    let mut seed = 0;
    SIZES.shapes().map(|shape| {
        seed += 1;
        let values = normal(shape.iter().product(), seed);
        Tensor4::from_slice(shape, &values).expect("the shape holds the values")
    })
}

pub(crate) fn bench_forward(c: &mut Criterion) {
    let [q, k, v, _] = inputs();
    let options = options();
    let plain = forward(&q, &k, &v, &options).expect("valid problem");
    let online = forward_online(&q, &k, &v, &options, BLOCK).expect("valid problem");
    // The two forms check each other: they share the scores only.
    let largest = max_abs_score(&q, &k, &v, &options).expect("valid problem");
    let bound = 1e-12 * largest.max(1.0);
    check_close("online out", &online.out.data, &plain.out.data, bound);
    check_close("online lse", &online.lse, &plain.lse, bound);

    let work = SIZES.forward_work(8);
    let mut group = c.benchmark_group("reference");
    group.throughput(Throughput::Elements(work.flops));
    group.bench_function(work.label(format_args!("forward {SIZES}")), |b| {
        b.iter(|| forward(black_box(&q), &k, &v, &options))
    });
    group.bench_function(work.label(format_args!("online {SIZES}")), |b| {
        b.iter(|| forward_online(black_box(&q), &k, &v, &options, BLOCK))
    });
    group.finish();
}

pub(crate) fn bench_backward(c: &mut Criterion) {
    let [q, k, v, d_out] = inputs();
    let options = options();
    check_directional_derivative(&q, &k, &v, &d_out, &options);

    let work = SIZES.backward_work(8);
    let mut group = c.benchmark_group("reference");
    group.throughput(Throughput::Elements(work.flops));
    group.bench_function(work.label(format_args!("backward {SIZES}")), |b| {
        b.iter(|| backward(black_box(&q), &k, &v, &d_out, &options, None))
    });
    group.finish();
}

/// The gradients by the central difference of L = sum(d_out * out) along one direction:
/// (L(x + h u) - L(x - h u)) / 2h = sum(dL/dx * u) + O(h^2).
fn check_directional_derivative(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    d_out: &Tensor4,
    options: &Options<'_>,
) {
    let directions = [q, k, v].map(|x| normal(x.data.len(), x.data.len() as u64));
    let moved = |x: &Tensor4, direction: &[f32], step: f64| {
        let values = x.data.iter().zip(direction);
        Tensor4 {
            shape: x.shape,
            data: values.map(|(x, u)| x + step * f64::from(*u)).collect(),
        }
    };
    let loss = |step: f64| {
        let [q, k, v] = [(q, 0), (k, 1), (v, 2)].map(|(x, n)| moved(x, &directions[n], step));
        let out = forward(&q, &k, &v, options).expect("valid problem").out;
        let terms = out.data.iter().zip(&d_out.data);
        terms.map(|(o, d)| o * d).sum::<f64>()
    };
    const STEP: f64 = 1e-5;
    let difference = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
    let grads = backward(q, k, v, d_out, options, None).expect("valid problem");
    let along: f64 = [&grads.dq, &grads.dk, &grads.dv]
        .iter()
        .zip(&directions)
        .flat_map(|(grad, direction)| grad.data.iter().zip(direction))
        .map(|(grad, u)| grad * f64::from(*u))
        .sum();
    check_close(
        "gradient along u",
        &[along],
        &[difference],
        1e-5 * along.abs(),
    );
}
