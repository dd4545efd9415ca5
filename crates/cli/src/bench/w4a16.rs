//! Products with packed weights against cuBLAS on 16-bit weights, and Marlin: shape by shape, round
//! by round, in turns.

use std::collections::BTreeMap;

use cubecl::client::Graph;
use cubecl::prelude::Client;
use cubecl::server::Handle;
use flashcube::{
    Caps, DType, LinearWeights, MatmulOptions, MatmulPolicy, Multiplied, ScaleType, Tensor,
    WeightCodes, ZeroType, matmul_quantized, plan_matmul, scale_range,
};
use flashcube_catalogue::{Array, Data, LinearSizes, Task};
use half::f16;
use rayon::prelude::*;
use serde_json::{Value, json};

use super::check::{sample, worst_share};
use super::draw::{Drawn, mix, normal};
use super::flush::Flush;
use super::measure::{Checked, Times, capture, finite, judge, median, read, replay, round, wait};
use super::report::{BenchRow, Cell, OURS};
use super::{Bench, peers::Implementation};
use crate::backend::BackendName;
use crate::elements::decode;
use crate::failure::{Failure, Result};

const ROUNDS: usize = 3;
/// Rows that share a scale.
const GROUP: usize = 128;
/// What a pass over the copies of a weight reads at least: several L2 caches.
const ROTATION: usize = 512 << 20;
/// Order of the axes in a cell's name.
const LAYOUT: &str = "linear";

/// One product: x [m, k] W [k, n].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LinearProblem {
    dtype: DType,
    m: usize,
    n: usize,
    k: usize,
    zeros: bool,
    gathered: bool,
}

impl LinearProblem {
    fn name(&self) -> String {
        let Self { dtype, m, n, k, .. } = self;
        let zeros = if self.zeros { "_zeros" } else { "" };
        let gathered = if self.gathered { "_act_order" } else { "" };
        format!("w4a16/{dtype}/n{n}_k{k}_g{GROUP}{zeros}{gathered}/m{m}")
    }

    fn flops(&self) -> u64 {
        2 * (self.m * self.n * self.k) as u64
    }

    fn to_json(self, bytes: u64) -> Value {
        json!({
            "kind": "linear", "name": self.name(), "dtype": self.dtype.to_string(), "mask": "none",
            "m": self.m, "n": self.n, "k": self.k, "group": GROUP, "zeros": self.zeros,
            "bytes": bytes, "flops": self.flops(),
        })
    }
}

/// Weights drawn in the order that kernels read, on the host and in copies on the device.
struct Weights {
    words: Vec<u32>,
    scales: Vec<f32>,
    zeros: Option<Vec<u8>>,
    gather: Option<Vec<u32>>,
    copies: Vec<LinearWeights>,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let small = (vec![(128, 256)], vec![1, 5, 40]);
    let large = (
        vec![
            (8192, 8192),
            (28672, 8192),
            (8192, 28672),
            (4096, 4096),
            (11008, 4096),
        ],
        vec![1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096],
    );
    let (shapes, rows) = bench.scaled(small, large);
    let dtypes = bench.dtypes();
    let halves = dtypes.into_iter().filter(|&dtype| dtype != DType::F32);
    for dtype in halves.collect::<Vec<_>>() {
        for &(n, k) in &shapes {
            for (zeros, gathered) in [(false, false), (true, false), (false, true)] {
                let of = |m| LinearProblem {
                    dtype,
                    m,
                    n,
                    k,
                    zeros,
                    gathered,
                };
                let wanted: Vec<LinearProblem> = rows
                    .iter()
                    .map(|&m| of(m))
                    .filter(|problem| bench.wants(&problem.name()))
                    .collect();
                series(bench, &wanted)?;
            }
        }
    }
    Ok(())
}

/// Every m of one weight.
fn series(bench: &mut Bench<'_>, problems: &[LinearProblem]) -> Result<()> {
    let Some(first) = problems.first() else {
        return Ok(());
    };
    let client = bench.device.client.clone();
    let software = bench.device.is_software();
    let weights = Weights::draw(&client, first, bench.seed, software);
    for problem in problems {
        measure(bench, &client, problem, &weights)?;
    }
    drop(weights);
    let cleaned = client.memory_cleanup();
    cleaned.map_err(|e| Failure::failed(format!("freeing memory: {e:?}")))
}

impl Weights {
    fn draw(client: &Client, problem: &LinearProblem, seed: u64, software: bool) -> Self {
        let LinearProblem { n, k, .. } = *problem;
        let (words, places) = (k * n / 8, k.div_ceil(GROUP) * n);
        let random = |stream: u64| move |i: usize| mix(seed ^ stream, i as u64);
        let words: Vec<u32> = (0..words)
            .into_par_iter()
            .map(|i| random(11)(i) as u32)
            .collect();
        let scale = |i: usize| f16::from_f32(0.02 * normal(seed ^ 12, i as u64)).to_f32();
        let scales: Vec<f32> = (0..places).map(scale).collect();
        let zeros = problem
            .zeros
            .then(|| (0..places).map(|i| random(13)(i) as u8 & 15).collect());
        // Groups of 128 rows picked at random, as act-order leaves them.
        let gather = problem.gathered.then(|| {
            let mut rows: Vec<u32> = (0..k as u32).collect();
            rows.sort_by_key(|&row| random(14)(row as usize));
            rows
        });
        let mut weights = Self {
            words,
            scales,
            zeros,
            gather,
            copies: Vec::new(),
        };
        let copies = match software {
            true => 1,
            false => ROTATION.div_ceil(k * n / 2),
        };
        weights.copies = (0..copies).map(|_| weights.upload(client, n, k)).collect();
        weights
    }

    fn upload(&self, client: &Client, n: usize, k: usize) -> LinearWeights {
        let words = |words: &[u32]| -> Handle {
            let bytes: Vec<u8> = words
                .par_iter()
                .flat_map_iter(|w| w.to_le_bytes())
                .collect();
            client.create_from_slice(&bytes)
        };
        let scales: Vec<u8> = self
            .scales
            .iter()
            .flat_map(|&x| f16::from_f32(x).to_le_bytes())
            .collect();
        LinearWeights {
            bits: 4,
            codes: WeightCodes::Int,
            k,
            n,
            rows: k,
            group: GROUP,
            words: words(&self.words),
            scales: client.create_from_slice(&scales),
            scale_type: ScaleType::F16,
            scale_range: scale_range(self.scales.iter().copied()),
            factor: 1.0,
            zeros: self.zeros.as_ref().map(|z| client.create_from_slice(z)),
            zero_type: ZeroType::Point,
            gather: self.gather.as_ref().map(|rows| words(rows)),
        }
    }

    /// 64 columns of the weight from column block `block`.
    fn columns(&self, block: usize, n: usize, k: usize) -> BTreeMap<&'static str, Array> {
        let groups = k.div_ceil(GROUP);
        let words = self.words[block * k * 8..(block + 1) * k * 8].to_vec();
        let places = || (0..groups).flat_map(move |g| (0..64).map(move |c| g * n + block * 64 + c));
        let scales: Vec<f32> = places().map(|at| self.scales[at]).collect();
        let mut arrays = BTreeMap::from([
            ("words", Array::dense(&[words.len()], Data::U32(words))),
            ("scales", Array::floats(&[groups * 64], DType::F16, scales)),
        ]);
        if let Some(zeros) = &self.zeros {
            let zeros: Vec<u8> = places().map(|at| zeros[at]).collect();
            arrays.insert("zeros", Array::dense(&[zeros.len()], Data::U8(zeros)));
        }
        if let Some(gather) = &self.gather {
            let rows = Data::U32(gather.clone());
            arrays.insert("gather", Array::dense(&[k], rows));
        }
        arrays
    }
}

/// A problem ready to launch.
struct Ours<'a> {
    client: &'a Client,
    problem: &'a LinearProblem,
    weights: &'a Weights,
    host: Drawn,
    x: Tensor<2>,
    options: MatmulOptions,
    /// A pass over the copies, where the device has graphs: launches take the host as long as small products
    /// take the device.
    graph: Option<Graph>,
}

impl Ours<'_> {
    fn launch(&self, copy: usize) -> Result<Multiplied> {
        let weights = &self.weights.copies[copy];
        matmul_quantized(self.client, &self.x, weights, &self.options).map_err(Failure::failed)
    }

    fn rotate(&self) -> Result<()> {
        match &self.graph {
            // SAFETY: every tensor that the graph reads or writes is held by `self`.
            Some(graph) => unsafe { replay(graph) },
            None => self.launches(),
        }
    }

    fn launches(&self) -> Result<()> {
        (0..self.weights.copies.len()).try_for_each(|copy| self.launch(copy).map(drop))
    }

    /// Sampled rows of the first and the last 64 columns against the reference.
    fn check(&self) -> Result<Checked> {
        let LinearProblem { dtype, m, n, k, .. } = *self.problem;
        let multiplied = self.launch(0)?;
        let out = decode(dtype, &read(self.client, &multiplied.out.handle)?);
        let rows = sample(m, SAMPLED);
        let mut worst = 0f64;
        for block in [0, n / 64 - 1] {
            let mut arrays = self.weights.columns(block, n, k);
            let x = rows
                .iter()
                .flat_map(|row| self.host.values[row * k..(row + 1) * k].to_vec());
            arrays.insert("x", Array::floats(&[rows.len(), k], dtype, x.collect()));
            let got: Vec<f32> = rows
                .iter()
                .flat_map(|row| out[row * n + block * 64..row * n + block * 64 + 64].to_vec())
                .collect();
            let task = Task::Linear(LinearSizes {
                m: rows.len(),
                n: 64,
                k,
                bits: 4,
                codes: WeightCodes::Int,
                scales: ScaleType::F16,
                group: GROUP,
                zeros: self.problem.zeros.then_some(ZeroType::Point),
                gathered: false,
                bias: false,
                policy: MatmulPolicy {
                    tier: multiplied.blueprint.map(|b| b.tier),
                    ..MatmulPolicy::default()
                },
            });
            worst = worst.max(worst_share(task, dtype, arrays, &[("out", &got)])?);
        }
        let blueprint = multiplied.blueprint.map(|b| b.to_string());
        Ok(Checked {
            blueprint: blueprint.unwrap_or_default(),
            worst,
        })
    }
}

/// Rows checked of each problem.
const SAMPLED: usize = 5;

/// All rounds of one problem, ours and the peers' in turns, then the check.
fn measure(
    bench: &mut Bench<'_>,
    client: &Client,
    problem: &LinearProblem,
    weights: &Weights,
) -> Result<()> {
    let LinearProblem { dtype, m, n, k, .. } = *problem;
    let host = Drawn::normals(dtype, m * k, bench.seed ^ 15);
    let x = host.upload(client, [m, k]);
    let mut ours = Ours {
        client,
        problem,
        weights,
        host,
        x,
        options: MatmulOptions {
            out: Some(Tensor::empty(client, [m, n], dtype)),
            policy: MatmulPolicy {
                tier: bench.tier,
                ..MatmulPolicy::default()
            },
            ..MatmulOptions::default()
        },
        graph: None,
    };
    let plan = plan_matmul(
        &ours.x,
        &weights.copies[0],
        &ours.options,
        &Caps::of(client),
    );
    // What fails here fails again, and is told, at the launch.
    let elements = plan.ok().flatten().map_or(0, |plan| plan.workspace);
    ours.options.workspace = Some(Tensor::empty(client, [elements], DType::F32));
    let mut failure = match bench.device.backend {
        BackendName::Cuda => match capture(client, || ours.launches()) {
            Ok(graph) => {
                ours.graph = Some(graph);
                None
            }
            Err(error) => Some(error.to_string()),
        },
        _ => None,
    };
    let bytes = (weights.copies[0].bytes() + (m * k + m * n) * dtype.size()) as u64;
    let asked = problem.to_json(bytes);
    let flush = Flush::none(bench.device);
    let mut rounds: Vec<Times> = Vec::new();
    let mut refused = Vec::new();
    for _ in 0..ROUNDS {
        if failure.is_none() {
            match round(client, &flush, || ours.rotate()) {
                Ok(times) => rounds.push(times.shared(weights.copies.len())),
                Err(error) => failure = Some(error.to_string()),
            }
        }
        wait(client)?;
        peers_round(bench, &asked, &mut refused)?;
    }
    if let Some(peers) = &mut bench.peers {
        peers.finish(&asked)?;
    }
    let row = row(bench, &ours, bytes, &rounds, failure);
    eprintln!("{}", progress(&row));
    bench.rows.push(row);
    Ok(())
}

/// A round of every peer that multiplies and takes the problem.
fn peers_round(bench: &mut Bench<'_>, problem: &Value, refused: &mut Vec<String>) -> Result<()> {
    let Some(peers) = &mut bench.peers else {
        return Ok(());
    };
    let multiplies = |peer: &&Implementation| peer.layout == LAYOUT;
    let names = peers.implementations.iter().filter(multiplies);
    let names: Vec<String> = names.map(|peer| peer.name.clone()).collect();
    for name in names {
        if refused.contains(&name) {
            continue;
        }
        let answer = peers.measure(&name, problem)?;
        match answer.median_seconds {
            Some(seconds) => eprintln!("    {name} {:.1} us", 1e6 * seconds),
            None => {
                eprintln!("    {name}: {}", answer.refused.unwrap_or_default());
                refused.push(name);
            }
        }
    }
    Ok(())
}

fn row(
    bench: &Bench<'_>,
    ours: &Ours<'_>,
    bytes: u64,
    rounds: &[Times],
    failure: Option<String>,
) -> BenchRow {
    let problem = ours.problem;
    let round_seconds: Vec<f64> = rounds.iter().map(|times| times.median).collect();
    let seconds = median(&mut round_seconds.clone());
    let fastest = rounds.iter().map(|t| t.fastest).fold(seconds, f64::min);
    let mut row = BenchRow {
        name: problem.name(),
        implementation: OURS.to_owned(),
        blueprint: String::new(),
        median_seconds: seconds,
        fastest_seconds: fastest,
        repeats: rounds.iter().map(|times| times.repeats).sum(),
        clock: rounds.last().map(|t| t.clock.clone()).unwrap_or_default(),
        bytes,
        flops: problem.flops(),
        ceiling: "copy".to_owned(),
        fraction_of_ceiling: bytes as f64 / bench.ceilings.copy / seconds,
        worst_share_of_bound: 0.0,
        failure,
        cell: None,
    };
    if row.failure.is_none() {
        let checked = ours.check().and_then(|checked| {
            row.blueprint = checked.blueprint;
            row.worst_share_of_bound = checked.worst;
            judge(&row, bench.tier.map(|tier| tier.to_string()).as_deref())
        });
        row.failure = checked.err().map(|failure| failure.to_string());
        row.worst_share_of_bound = finite(row.worst_share_of_bound);
    }
    if row.failure.is_some() {
        row.median_seconds = 0.0;
        row.fastest_seconds = 0.0;
        row.fraction_of_ceiling = 0.0;
    }
    row.cell = Some(Cell {
        problem: problem.name(),
        dtype: problem.dtype.to_string(),
        mask: "none".to_owned(),
        layout: LAYOUT.to_owned(),
        round_seconds,
        tflop_per_s: match row.failure {
            None => row.flops as f64 / seconds / 1e12,
            Some(_) => 0.0,
        },
        first_call_seconds: None,
        goal: None,
        expected_tflop_per_s: None,
        void: None,
    });
    row
}

/// What happens, for who watches a long run.
fn progress(row: &BenchRow) -> String {
    let (name, seconds) = (&row.name, row.median_seconds);
    match &row.failure {
        Some(failure) => format!("{name}: {failure}"),
        None => format!(
            "{name}: {:.2} us, {:.0} GB/s, {:.1} TFLOP/s, {}",
            1e6 * seconds,
            row.bytes as f64 / seconds / 1e9,
            row.flops as f64 / seconds / 1e12,
            row.blueprint
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_problems_apart() {
        let problem = LinearProblem {
            dtype: DType::F16,
            m: 16,
            n: 8192,
            k: 4096,
            zeros: true,
            gathered: false,
        };
        assert_eq!(problem.name(), "w4a16/f16/n8192_k4096_g128_zeros/m16");
        assert_eq!(problem.to_json(7)["flops"], 2 * 16 * 8192 * 4096);
    }
}
