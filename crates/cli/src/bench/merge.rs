//! merge_partials.

use std::collections::BTreeMap;

use cubecl::prelude::Client;
use flashcube::{DType, MergeOptions, Merged, Tensor, merge_partials};
use flashcube_catalogue::{Array, MergeSizes, Task};

use super::check::{sample, worst_share};
use super::draw::Drawn;
use super::measure::{Checked, read};
use super::{Bench, Case};
use crate::elements::decode;
use crate::failure::{Failure, Result};

/// (partials, heads, rows, d_v) with one batch entry.
const SMALL: [[usize; 4]; 2] = [[4, 4, 256, 64], [16, 8, 1, 128]];
const LARGE: [[usize; 4]; 2] = [[8, 32, 4096, 128], [64, 32, 64, 128]];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let shapes = bench.scaled(SMALL, LARGE);
    for dtype in bench.dtypes() {
        for [n, h, s, d_v] in shapes {
            let name = format!("merge_partials/unit/{dtype}/n{n}_h{h}_s{s}_d{d_v}");
            if bench.wants(&name) {
                row(bench, name, [n, h, s, d_v], dtype)?;
            }
        }
    }
    Ok(())
}

fn row(
    bench: &mut Bench<'_>,
    name: String,
    [n, h, s, d_v]: [usize; 4],
    dtype: DType,
) -> Result<()> {
    let client = &bench.device.client;
    let rows = h * s;
    let outs = Drawn::normals(DType::F32, n * rows * d_v, bench.seed ^ 1);
    let lses = Drawn::normals(DType::F32, n * rows, bench.seed ^ 2);
    let (outs_on, lses_on) = (
        outs.upload(client, [n, 1, h, s, d_v]),
        lses.upload(client, [n, 1, h, s]),
    );
    let options = MergeOptions {
        dtype: Some(dtype),
        out: Some(Tensor::empty(client, [1, h, s, d_v], dtype)),
        lse: Some(Tensor::empty(client, [1, h, s], DType::F32)),
    };
    let launch = || merge_partials(client, &outs_on, &lses_on, &options).map_err(Failure::failed);
    let case = Case {
        name,
        tier: "unit".to_owned(),
        bytes: (4 * n * rows * (d_v + 1) + rows * (d_v * dtype.size() + 4)) as u64,
        flops: (2 * n * rows * d_v) as u64,
    };
    bench.row(
        case,
        || check(&outs, &lses, &launch()?, client),
        || launch().map(drop),
    );
    Ok(())
}

/// Sampled rows, gathered into a smaller merge.
fn check(outs: &Drawn, lses: &Drawn, merged: &Merged, client: &Client) -> Result<Checked> {
    let [_, h, s, d_v] = merged.out.shape;
    let (rows, dtype) = (h * s, merged.out.dtype);
    let n = lses.values.len() / rows;
    let out = decode(dtype, &read(client, &merged.out.handle)?);
    let lse = decode(DType::F32, &read(client, &merged.lse.handle)?);
    let picked = sample(rows, 64);
    let count = picked.len();
    let gather = |values: &[f32], width: usize, parts: usize| -> Vec<f32> {
        (0..parts)
            .flat_map(|p| picked.iter().map(move |row| p * rows + row))
            .flat_map(|at| values[at * width..(at + 1) * width].iter().copied())
            .collect()
    };
    let arrays = BTreeMap::from([
        (
            "outs",
            Array::floats(
                &[n, 1, 1, count, d_v],
                DType::F32,
                gather(&outs.values, d_v, n),
            ),
        ),
        (
            "lses",
            Array::floats(&[n, 1, 1, count], DType::F32, gather(&lses.values, 1, n)),
        ),
    ]);
    let sizes = MergeSizes {
        n,
        b: 1,
        h: 1,
        s: count,
        d_v,
        empty: 0,
    };
    let (out, lse) = (gather(&out, d_v, 1), gather(&lse, 1, 1));
    let got = [("out", &out[..]), ("lse", &lse[..])];
    Ok(Checked {
        blueprint: merged.blueprint.map(|b| b.to_string()).unwrap_or_default(),
        worst: worst_share(Task::Merge(sizes), dtype, arrays, &got)?,
    })
}
