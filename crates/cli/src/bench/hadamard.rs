//! hadamard_transform.

use std::collections::BTreeMap;

use flashcube::{DType, HadamardOptions, Tensor, hadamard_transform};
use flashcube_catalogue::{Array, Data, HadamardSizes, Task};

use super::check::{sample, worst_share};
use super::draw::{Drawn, mix};
use super::measure::{Checked, read};
use super::{Bench, Case};
use crate::elements::decode;
use crate::failure::{Failure, Result};

/// (rows, n)
const SMALL: [[usize; 2]; 2] = [[2048, 64], [1024, 128]];
const LARGE: [[usize; 2]; 3] = [[1 << 20, 64], [1 << 19, 128], [1 << 14, 4096]];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let shapes = bench.scaled(&SMALL[..], &LARGE[..]);
    for dtype in bench.dtypes() {
        for &[rows, n] in shapes {
            let name = format!("hadamard_transform/unit/{dtype}/rows{rows}_n{n}");
            if bench.wants(&name) {
                row(bench, name, [rows, n], dtype)?;
            }
        }
    }
    Ok(())
}

fn row(bench: &mut Bench<'_>, name: String, [rows, n]: [usize; 2], dtype: DType) -> Result<()> {
    let client = &bench.device.client;
    let x = Drawn::normals(dtype, rows * n, bench.seed ^ 1);
    let x_on = x.upload(client, [rows, n]);
    let signs: Vec<bool> = (0..n as u64)
        .map(|i| mix(bench.seed ^ 2, i) & 1 == 1)
        .collect();
    let options = HadamardOptions {
        signs: Some(&signs),
        inverse: false,
        out: Some(Tensor::empty(client, [rows, n], dtype)),
    };
    let launch = || hadamard_transform(client, &x_on, &options).map_err(Failure::failed);
    let case = Case {
        name,
        tier: "unit".to_owned(),
        bytes: (2 * rows * n * dtype.size()) as u64,
        flops: (rows * n * n.trailing_zeros() as usize) as u64,
    };
    let check = || {
        let done = launch()?;
        let out = decode(dtype, &read(client, &done.out.handle)?);
        let picked = sample(rows, 64);
        let gather = |values: &[f32]| -> Vec<f32> {
            let rows = picked.iter().map(|row| &values[row * n..(row + 1) * n]);
            rows.flatten().copied().collect()
        };
        let shape = [picked.len(), n];
        let flags = signs.iter().map(|&s| u8::from(s)).collect();
        let arrays = BTreeMap::from([
            ("x", Array::floats(&shape, dtype, gather(&x.values))),
            ("signs", Array::dense(&[n], Data::U8(flags))),
        ]);
        let sizes = HadamardSizes {
            rows: picked.len(),
            n,
            signs: true,
            inverse: false,
        };
        let out = gather(&out);
        Ok(Checked {
            blueprint: done.blueprint.map(|b| b.to_string()).unwrap_or_default(),
            worst: worst_share(Task::Hadamard(sizes), dtype, arrays, &[("out", &out)])?,
        })
    };
    bench.row(case, check, || launch().map(drop));
    Ok(())
}
