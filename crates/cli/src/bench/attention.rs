//! attend_forward: prefill and decode.

use std::collections::BTreeMap;

use flashcube::{AttendOptions, Attended, DType, Policy, Tensor, TierName, attend_forward};
use flashcube_catalogue::{Array, Attend, Task};

use super::check::{sample, worst_share};
use super::draw::{Drawn, decode};
use super::measure::{Checked, read};
use super::{Bench, Case, Limit};
use crate::failure::{Failure, Result};

/// Sizes of a row.
#[derive(Debug, Clone, Copy)]
struct Shape {
    b: usize,
    h_q: usize,
    h_kv: usize,
    s_q: usize,
    s_kv: usize,
    d: usize,
    causal: bool,
}

const fn shape(b: usize, h: (usize, usize), s: (usize, usize), d: usize, causal: bool) -> Shape {
    Shape {
        b,
        h_q: h.0,
        h_kv: h.1,
        s_q: s.0,
        s_kv: s.1,
        d,
        causal,
    }
}

const SMALL: [Shape; 4] = [
    shape(1, (4, 4), (256, 256), 32, false),
    shape(1, (4, 2), (256, 256), 64, true),
    shape(1, (2, 2), (256, 256), 128, true),
    shape(1, (8, 2), (1, 2048), 64, false),
];

const LARGE: [Shape; 6] = [
    shape(4, (16, 16), (4096, 4096), 64, true),
    shape(4, (16, 16), (4096, 4096), 128, false),
    shape(4, (16, 16), (4096, 4096), 128, true),
    shape(16, (16, 16), (1024, 1024), 128, true),
    shape(1, (16, 16), (16384, 16384), 128, true),
    shape(16, (32, 8), (1, 8192), 128, false),
];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let shapes = bench.scaled(&SMALL[..], &LARGE[..]);
    for dtype in bench.dtypes() {
        for tier in tiers(bench, dtype) {
            for &shape in shapes {
                let name = name(shape, dtype, tier);
                if bench.wants(&name) {
                    row(bench, name, shape, dtype, tier)?;
                }
            }
        }
    }
    Ok(())
}

/// The tiers that have kernels for this device and dtype.
fn tiers(bench: &Bench<'_>, dtype: DType) -> Vec<TierName> {
    match bench.device.caps.sm {
        Some(90) if dtype != DType::F32 => vec![TierName::Unit, TierName::Hopper],
        _ => vec![TierName::Unit],
    }
}

fn name(shape: Shape, dtype: DType, tier: TierName) -> String {
    let Shape {
        b,
        h_q,
        h_kv,
        s_q,
        s_kv,
        d,
        causal,
    } = shape;
    let heads = match h_q == h_kv {
        true => format!("h{h_q}"),
        false => format!("h{h_q}on{h_kv}"),
    };
    let rows = match s_q == s_kv {
        true => format!("s{s_kv}"),
        false => format!("q{s_q}xkv{s_kv}"),
    };
    let mask = if causal { "/causal" } else { "" };
    format!("attend_forward/{tier}/{dtype}/b{b}_{heads}_{rows}_d{d}{mask}")
}

/// The device tensors and the host's copies.
struct Tensors {
    shape: Shape,
    host: [Drawn; 3],
    device: [Tensor<4>; 3],
}

fn row(
    bench: &mut Bench<'_>,
    name: String,
    shape: Shape,
    dtype: DType,
    tier: TierName,
) -> Result<()> {
    let client = &bench.device.client;
    let q_shape = [shape.b, shape.h_q, shape.s_q, shape.d];
    let kv_shape = [shape.b, shape.h_kv, shape.s_kv, shape.d];
    let drawn = |shape: [usize; 4], stream| {
        Drawn::normals(dtype, shape.iter().product(), bench.seed ^ stream)
    };
    let host = [drawn(q_shape, 1), drawn(kv_shape, 2), drawn(kv_shape, 3)];
    let shapes = [q_shape, kv_shape, kv_shape];
    let device = std::array::from_fn(|i| host[i].upload(client, shapes[i]));
    let tensors = Tensors {
        shape,
        host,
        device,
    };
    let [q, k, v] = &tensors.device;
    let options = AttendOptions {
        causal: shape.causal,
        out: Some(Tensor::empty(client, q_shape, dtype)),
        lse: Some(Tensor::empty(
            client,
            [shape.b, shape.h_q, shape.s_q],
            DType::F32,
        )),
        policy: Policy {
            tier: Some(tier),
            ..Policy::default()
        },
        ..AttendOptions::default()
    };
    let launch = || attend_forward(client, q, k, v, &options).map_err(Failure::failed);
    let case = case(name, &tensors, tier);
    bench.row(
        case,
        || check(&tensors, &launch()?, client),
        || launch().map(drop),
    );
    Ok(())
}

fn case(name: String, tensors: &Tensors, tier: TierName) -> Case {
    let Shape {
        b,
        h_q,
        s_q,
        s_kv,
        d,
        causal,
        ..
    } = tensors.shape;
    let size = tensors.host[0].dtype.size();
    let [q, k, v] = [0, 1, 2].map(|i| tensors.host[i].values.len() * size);
    let rows = b * h_q * s_q;
    // A causal row sees half of the keys on average; two products, two operations each.
    let seen = if causal { s_kv / 2 } else { s_kv };
    Case {
        name,
        tier: tier.to_string(),
        bytes: (2 * q + k + v + 4 * rows) as u64,
        flops: (4 * rows * seen * d) as u64,
        // One query reads every key for two operations a value.
        limit: if s_q == 1 {
            Limit::Memory
        } else {
            Limit::Arithmetic
        },
    }
}

/// Rows checked of each problem.
const SAMPLED: usize = 9;

/// Sampled rows, each as a problem of its own: one query over the keys it sees.
fn check(
    tensors: &Tensors,
    attended: &Attended,
    client: &cubecl::prelude::Client,
) -> Result<Checked> {
    let shape = tensors.shape;
    let d = shape.d;
    let dtype = attended.out.dtype;
    let out = decode(dtype, &read(client, &attended.out.handle)?);
    let lse = decode(DType::F32, &read(client, &attended.lse.handle)?);
    let mut worst = 0f64;
    for row in sample(lse.len(), SAMPLED) {
        let (i, head) = (row % shape.s_q, row / shape.s_q);
        let (b, h) = (head / shape.h_q, head % shape.h_q);
        let kv = b * shape.h_kv + h / (shape.h_q / shape.h_kv);
        let seen = match shape.causal {
            true => i + 1 + shape.s_kv - shape.s_q,
            false => shape.s_kv,
        };
        let array = |which: usize, first: usize, rows: usize| {
            let values = &tensors.host[which].values;
            let taken = values[first * d..(first + rows) * d].to_vec();
            Array::floats(&[1, 1, rows, d], dtype, taken)
        };
        let arrays = BTreeMap::from([
            ("q", array(0, row, 1)),
            ("k", array(1, kv * shape.s_kv, seen)),
            ("v", array(2, kv * shape.s_kv, seen)),
        ]);
        let got = [
            ("out", &out[row * d..(row + 1) * d]),
            ("lse", &lse[row..row + 1]),
        ];
        let task = Task::Forward(Attend::plain(1, (1, 1), (1, seen), (d, d)));
        worst = worst.max(worst_share(task, dtype, arrays, &got)?);
    }
    Ok(Checked {
        blueprint: attended
            .blueprint
            .map(|b| b.to_string())
            .unwrap_or_default(),
        worst,
    })
}
