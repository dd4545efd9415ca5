//! The reference's small formats: E4M3, E5M2, E2M1 and E8M0 codes, MXFP8, MXFP4 and NVFP4 rows.
//! Elements of the throughput are values.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use flashcube_benches::{check_close, normal, widen};
use flashcube_reference::quant::blocks::{
    MX_BLOCK, MxElement, MxRow, NVFP4_BLOCK, Nvfp4Row, nvfp4_encode_factor,
};
use flashcube_reference::quant::e8m0::{self, ScaleRule};
use flashcube_reference::quant::float::{E2M1, E4M3, E5M2, FloatFormat, Overflow, Round};

const VALUES: usize = 1 << 14;

const FLOATS: [(&str, FloatFormat); 3] = [("e4m3", E4M3), ("e5m2", E5M2), ("e2m1", E2M1)];

/// Values over the whole range of a format: normal ones times a power of two.
fn spread(format: &FloatFormat) -> Vec<f64> {
    let exponents = format.max_exponent() + 4;
    let values = widen(&normal(VALUES, 3)).into_iter().enumerate();
    values
        .map(|(at, x)| x * f64::from(at as i32 % exponents - exponents / 2).exp2())
        .collect()
}

fn encode(format: &FloatFormat, values: &[f64]) -> Vec<u16> {
    let code = |x: &f64| format.encode(*x, Round::NearestEven, Overflow::Saturate);
    values.iter().map(code).collect()
}

/// No finite value of the format is nearer than the one whose code was chosen.
fn check_nearest(name: &str, format: &FloatFormat, values: &[f64], codes: &[u16]) {
    let all = 0..1u16 << (1 + format.exponent_bits + format.mantissa_bits);
    let finite: Vec<f64> = all
        .map(|code| format.decode(code))
        .filter(|x| x.is_finite())
        .collect();
    for (x, &code) in values.iter().zip(codes) {
        let chosen = format.decode(code);
        let best = finite
            .iter()
            .map(|y| (x - y).abs())
            .fold(f64::INFINITY, f64::min);
        assert!(
            (x - chosen).abs() == best,
            "{name}: {x} became {chosen}, a value at distance {best} exists"
        );
    }
}

pub(crate) fn bench_floats(c: &mut Criterion) {
    let mut group = c.benchmark_group("codecs");
    group.throughput(Throughput::Elements(VALUES as u64));
    for (name, format) in FLOATS {
        let values = spread(&format);
        let codes = encode(&format, &values);
        check_nearest(name, &format, &values, &codes);
        group.bench_function(format!("{name} encode"), |b| {
            b.iter(|| encode(&format, black_box(&values)))
        });
        group.bench_function(format!("{name} decode"), |b| {
            b.iter(|| {
                black_box(&codes)
                    .iter()
                    .map(|&code| format.decode(code))
                    .sum::<f64>()
            })
        });
    }
    group.finish();
}

pub(crate) fn bench_e8m0(c: &mut Criterion) {
    let values: Vec<f64> = spread(&E5M2).iter().map(|x| x.abs()).collect();
    let encode = |values: &[f64]| -> Vec<u8> {
        values
            .iter()
            .map(|&x| e8m0::encode(x, ScaleRule::Floor))
            .collect()
    };
    let codes = encode(&values);
    for (x, &code) in values.iter().zip(&codes) {
        let power = e8m0::decode(code);
        assert!(
            power <= *x && *x < 2.0 * power,
            "e8m0: {x} became {power}, which is not the power of two below it"
        );
    }
    let mut group = c.benchmark_group("codecs");
    group.throughput(Throughput::Elements(VALUES as u64));
    group.bench_function("e8m0 encode", |b| b.iter(|| encode(black_box(&values))));
    group.bench_function("e8m0 decode", |b| {
        b.iter(|| {
            black_box(&codes)
                .iter()
                .map(|&code| e8m0::decode(code))
                .sum::<f64>()
        })
    });
    group.finish();
}

/// Every value is off by at most half a unit of its binade, or of the smallest binade:
/// relative 2^-(mantissa_bits + 1), absolute `floor` of its block.
fn check_blocks(name: &str, x: &[f64], y: &[f64], block: usize, mantissa_bits: u32, floor: f64) {
    let relative = f64::from(mantissa_bits as i32 + 1).exp2().recip();
    for (x, y) in x.chunks(block).zip(y.chunks(block)) {
        let amax = x.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
        for (x, y) in x.iter().zip(y) {
            let bound = (relative * x.abs()).max(floor * amax);
            check_close(name, &[*y], &[*x], bound);
        }
    }
}

pub(crate) fn bench_mx(c: &mut Criterion) {
    let row = widen(&normal(VALUES, 5));
    let mut group = c.benchmark_group("codecs");
    group.throughput(Throughput::Elements(VALUES as u64));
    for (name, element) in [
        ("mxfp8 e4m3", MxElement::E4M3),
        ("mxfp8 e5m2", MxElement::E5M2),
        ("mxfp4", MxElement::E2M1),
    ] {
        // This rule never saturates, so that one bound holds for every value.
        let quantize = |row: &[f64]| MxRow::quantize(row, element, ScaleRule::Ceil);
        let quantized = quantize(&row);
        let values = quantized.dequantize().expect("blocks and scales fit");
        let format = element.format();
        // The smallest unit over the largest value, of which amax may use no more than half.
        let unit = format.decode(1) / format.max();
        check_blocks(name, &row, &values, MX_BLOCK, format.mantissa_bits, unit);
        group.bench_function(format!("{name} quantize"), |b| {
            b.iter(|| quantize(black_box(&row)))
        });
        group.bench_function(format!("{name} dequantize"), |b| {
            b.iter(|| black_box(&quantized).dequantize())
        });
    }
    group.finish();
}

pub(crate) fn bench_nvfp4(c: &mut Criterion) {
    let row = widen(&normal(VALUES, 6));
    let amax = row.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
    let factor = nvfp4_encode_factor(amax);
    let quantize = |row: &[f64]| {
        Nvfp4Row::quantize(row, factor, Round::NearestEven).expect("the factor is positive")
    };
    let quantized = quantize(&row);
    let values = quantized.dequantize().expect("blocks and scales fit");
    // The scale is amax / 6 up to one rounding to E4M3; half its smallest element is a quarter.
    let floor = 0.25 / 6.0 * (1.0 + 1.0 / 16.0);
    check_blocks(
        "nvfp4",
        &row,
        &values,
        NVFP4_BLOCK,
        E2M1.mantissa_bits,
        floor,
    );

    let mut group = c.benchmark_group("codecs");
    group.throughput(Throughput::Elements(VALUES as u64));
    group.bench_function("nvfp4 quantize", |b| b.iter(|| quantize(black_box(&row))));
    group.bench_function("nvfp4 dequantize", |b| {
        b.iter(|| black_box(&quantized).dequantize())
    });
    group.finish();
}
