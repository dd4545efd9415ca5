//! dequantize_int4.

use std::collections::BTreeMap;

use flashcube::{
    DType, DequantizeOptions, PackFormat, PackedWeights, Tensor, awq_gemv_zero_words,
    dequantize_int4,
};
use flashcube_catalogue::{Array, Data, PackedSizes, Task};
use half::f16;
use rayon::prelude::*;

use super::check::worst_share;
use super::draw::{mix, normal};
use super::measure::{Checked, read};
use super::{Bench, Case};
use crate::elements::decode;
use crate::failure::{Failure, Result};

const FORMATS: [(&str, PackFormat, u32); 5] = [
    ("gptq_v1_b4", PackFormat::GptqV1, 4),
    ("gptq_v2_b3", PackFormat::GptqV2, 3),
    ("gptq_v2_b8", PackFormat::GptqV2, 8),
    ("awq_gemm_b4", PackFormat::AwqGemm, 4),
    ("awq_gemv_b4", PackFormat::AwqGemv, 4),
];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let (k, n) = bench.scaled((512, 512), (8192, 8192));
    for dtype in bench.dtypes() {
        for (label, format, bits) in FORMATS {
            let name = format!("dequantize_int4/unit/{dtype}/{label}_k{k}_n{n}_g128");
            let sizes = PackedSizes {
                format,
                bits,
                k,
                n,
                group: 128,
                act_order: false,
            };
            if bench.wants(&name) {
                row(bench, name, sizes, dtype)?;
            }
        }
    }
    Ok(())
}

/// Packed words and scales on the host.
struct Host {
    qweight: Vec<u32>,
    qzeros: Vec<u32>,
    scales: Vec<f32>,
}

impl Host {
    fn draw(sizes: &PackedSizes, seed: u64) -> Self {
        let PackedSizes {
            format,
            bits,
            k,
            n,
            group,
            ..
        } = *sizes;
        let groups = k.div_ceil(group);
        let bits = bits as usize;
        let (codes, zeros, scales) = match format {
            PackFormat::GptqV1 | PackFormat::GptqV2 => (
                (k * bits).div_ceil(32) * n,
                groups * (n * bits).div_ceil(32),
                groups * n,
            ),
            PackFormat::AwqGemm => (k * n / 8, groups * n / 8, groups * n),
            PackFormat::AwqGemv => {
                let words = awq_gemv_zero_words(k, group);
                (n * k.div_ceil(8), n * words, 8 * n * words)
            }
            PackFormat::GgufQ4_1 => (n * (k / 32 * 5), 0, 0),
        };
        let words = |count: usize, stream: u64| -> Vec<u32> {
            let word = |i: u64| mix(seed ^ stream, i) as u32;
            (0..count as u64).into_par_iter().map(word).collect()
        };
        let scale = |i| f16::from_f32(0.02 * normal(seed ^ 3, i)).to_f32();
        Self {
            qweight: words(codes, 1),
            qzeros: words(zeros, 2),
            scales: (0..scales as u64).map(scale).collect(),
        }
    }

    fn bytes(&self) -> usize {
        4 * (self.qweight.len() + self.qzeros.len()) + 2 * self.scales.len()
    }
}

fn row(bench: &mut Bench<'_>, name: String, sizes: PackedSizes, dtype: DType) -> Result<()> {
    let client = &bench.device.client;
    let PackedSizes { k, n, .. } = sizes;
    let host = Host::draw(&sizes, bench.seed);
    let words = |words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        client.create_from_slice(&bytes)
    };
    let scales: Vec<u8> = host
        .scales
        .iter()
        .flat_map(|&x| f16::from_f32(x).to_le_bytes())
        .collect();
    let weights = PackedWeights {
        format: sizes.format,
        bits: sizes.bits,
        k,
        n,
        group: sizes.group,
        qweight: words(&host.qweight),
        qzeros: words(&host.qzeros),
        scales: client.create_from_slice(&scales),
        g_idx: None,
    };
    let options = DequantizeOptions {
        dtype: Some(dtype),
        out: Some(Tensor::empty(client, [k, n], dtype)),
    };
    let launch = || dequantize_int4(client, &weights, &options).map_err(Failure::failed);
    let case = Case {
        name,
        tier: "unit".to_owned(),
        bytes: (host.bytes() + k * n * dtype.size()) as u64,
        flops: 0,
    };
    let check = || {
        let done = launch()?;
        let out = decode(dtype, &read(client, &done.out.handle)?);
        let words = |words: &[u32]| Array::dense(&[words.len()], Data::U32(words.to_vec()));
        let scales = Array::floats(&[host.scales.len()], DType::F16, host.scales.clone());
        let arrays = BTreeMap::from([
            ("qweight", words(&host.qweight)),
            ("qzeros", words(&host.qzeros)),
            ("scales", scales),
        ]);
        let got = [("out", &out[..])];
        Ok(Checked {
            blueprint: done.blueprint.map(|b| b.to_string()).unwrap_or_default(),
            worst: worst_share(Task::Dequantize(sizes), dtype, arrays, &got)?,
        })
    };
    bench.row(case, check, || launch().map(drop));
    Ok(())
}
