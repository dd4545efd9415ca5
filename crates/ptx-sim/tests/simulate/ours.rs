//! This library's attention kernels as CubeCL and NVRTC lower them.

use std::time::Instant;

use flashcube_ptx_sim::{
    Arg, Coverage, Format, Kernel, Launch, Memory, Schedule, SimError, Swizzle, TensorMap, parse,
    run,
};

use super::attention::{Problem, attend, compare};
use super::values::{Numbers, bytes};

pub(crate) const HOPPER_D64: &str = include_str!("../fixtures/attend_hopper_bf16_d64.sm_90a.ptx");
pub(crate) const HOPPER_D128: &str = include_str!("../fixtures/attend_hopper_bf16_d128.sm_90a.ptx");
pub(crate) const PLANE_D64: &str = include_str!("../fixtures/attend_plane_bf16_d64.sm_80.ptx");

/// A kernel's tile and what CubeCL passes it.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub(crate) hopper: bool,
    pub(crate) d: usize,
    pub(crate) rows: usize,
    pub(crate) block: usize,
    pub(crate) shared: usize,
}

pub(crate) const D64: Tile = Tile {
    hopper: true,
    d: 64,
    rows: 192,
    block: 128,
    shared: 114_992,
};
pub(crate) const D128: Tile = Tile {
    hopper: true,
    d: 128,
    rows: 128,
    block: 176,
    shared: 213_216,
};
pub(crate) const PLANE: Tile = Tile {
    hopper: false,
    d: 64,
    rows: 128,
    block: 64,
    shared: 49_280,
};

pub(crate) struct Shape {
    pub(crate) h: usize,
    pub(crate) s_q: usize,
    pub(crate) s_kv: usize,
}

/// The words of `info_st`: scalars by type in the order of their registration, each list padded to 8 bytes.
fn info(tile: Tile, shape: &Shape, bytes: usize) -> Vec<u8> {
    let d8 = tile.d / 8;
    let layout = |s: usize| [0, shape.h * s * d8, s * d8, d8];
    let mut sizes: Vec<u32> = Vec::new();
    let mut push = |values: [usize; 4]| sizes.extend(values.map(|value| value as u32));
    if !tile.hopper {
        push(layout(shape.s_q));
        push(layout(shape.s_kv));
        push(layout(shape.s_kv));
    }
    push(layout(shape.s_q));
    push([0, shape.h * shape.s_q, shape.s_q, 1]);
    let tiles = shape.s_q.div_ceil(tile.rows);
    sizes.push((tiles * shape.h) as u32);
    // Mask, bias and tables are not bound.
    sizes.extend([0; 18]);
    let scale = 1.0 / (tile.d as f32).sqrt();
    let floats = [f32::NEG_INFINITY, scale, 0.0].map(f32::to_bits);
    let bands = [i32::MAX, i32::MAX, 0].map(|value| value as u32);
    let s = [shape.s_q, shape.s_kv].map(|n| n as u32);
    let sizes_first = [shape.h as u32, 1, s[0], s[1], tiles as u32];
    let order = [1, shape.h as u32];
    let ints: Vec<u32> = if tile.hopper {
        order.into_iter().chain(sizes_first).collect()
    } else {
        sizes_first.into_iter().chain(order).collect()
    };
    let mut words = Vec::new();
    for list in [&sizes[..], &floats, &bands, &ints] {
        words.extend_from_slice(list);
        words.resize(words.len().next_multiple_of(2), 0);
    }
    words.resize(bytes / 4, 0);
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn map(
    buffer: flashcube_ptx_sim::BufferId,
    h: usize,
    s: usize,
    d: usize,
    rows: usize,
) -> TensorMap {
    TensorMap {
        base: (buffer, 0),
        element: 2,
        dims: vec![d as u64, s as u64, h as u64, 1],
        strides: vec![2 * d as u64, 2 * (s * d) as u64, 2 * (h * s * d) as u64],
        tile: vec![64, rows as u32, 1, 1],
        steps: vec![1; 4],
        swizzle: Swizzle::B128,
        fill_nan: false,
    }
}

/// How a run failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Sim(SimError),
    Numbers(String),
}

pub(crate) fn simulate(
    source: &str,
    tile: Tile,
    shape: &Shape,
    schedule: Schedule,
) -> Result<Coverage, Failure> {
    let module = parse(source).map_err(Failure::Sim)?;
    let kernel = Kernel::load(&module, None).map_err(Failure::Sim)?;
    let (h, d) = (shape.h, tile.d);
    let mut numbers = Numbers(7);
    let q = numbers.exact(h * shape.s_q * d, Format::Bf16);
    let k = numbers.exact(h * shape.s_kv * d, Format::Bf16);
    let v = numbers.exact(h * shape.s_kv * d, Format::Bf16);
    let mut memory = Memory::new();
    let [q_id, k_id, v_id] = [&q, &k, &v].map(|values| memory.add(&bytes(values, Format::Bf16)));
    let out = memory.reserve(h * shape.s_q * d * 2);
    let lse = memory.reserve(h * shape.s_q * 4);
    let tickets = memory.add(&[0; 4]);
    let buffer = |id| Arg::Buffer(id, 0);
    let params = kernel.param_bytes();
    let info = Arg::Bytes(info(tile, shape, params[params.len() - 1]));
    let tiles = (shape.s_q.div_ceil(tile.rows) * h) as u32;
    let args = if tile.hopper {
        vec![
            Arg::TensorMap(map(q_id, h, shape.s_q, d, tile.rows)),
            Arg::TensorMap(map(k_id, h, shape.s_kv, d, tile.block)),
            Arg::TensorMap(map(v_id, h, shape.s_kv, d, tile.block)),
            buffer(out),
            buffer(lse),
            buffer(tickets),
            Arg::Null,
            info,
        ]
    } else {
        vec![
            buffer(q_id),
            buffer(k_id),
            buffer(v_id),
            buffer(out),
            buffer(lse),
            info,
        ]
    };
    let units = kernel.max_units().unwrap_or([128, 1, 1]);
    let mut launch = Launch::new(
        [tiles.min(2).max(if tile.hopper { 1 } else { tiles }), 1, 1],
        units,
        args,
    );
    launch.dynamic_shared = tile.shared;
    launch.schedule = schedule;
    launch.max_instructions = 50_000_000;
    let coverage = run(&kernel, &launch, &memory).map_err(Failure::Sim)?;
    let problem = Problem {
        s_q: shape.s_q,
        s_kv: shape.s_kv,
        d,
        scale: f64::from(1.0 / (d as f32).sqrt()),
        causal: false,
    };
    let (outs, lses) = (memory.contents(out), memory.contents(lse));
    for head in 0..h {
        let (nq, nk) = (shape.s_q * d, shape.s_kv * d);
        let part = |all: &[f64], n: usize| all[head * n..(head + 1) * n].to_vec();
        let exact = attend(&problem, &part(&q, nq), &part(&k, nk), &part(&v, nk));
        compare(
            &exact,
            &outs[head * nq * 2..(head + 1) * nq * 2],
            Some(&lses[head * shape.s_q * 4..(head + 1) * shape.s_q * 4]),
        )
        .map_err(Failure::Numbers)?;
    }
    Ok(coverage)
}

fn passes(source: &str, tile: Tile, shapes: &[(usize, usize, usize)]) {
    for &(h, s_q, s_kv) in shapes {
        let shape = Shape { h, s_q, s_kv };
        for schedule in [Schedule::Latest, Schedule::Random(1), Schedule::Random(2)] {
            let start = Instant::now();
            match simulate(source, tile, &shape, schedule) {
                Ok(coverage) => eprintln!(
                    "h {h} s_q {s_q} s_kv {s_kv} {schedule:?}: {} warp instructions, {:?}\n{coverage}",
                    coverage.executed(),
                    start.elapsed()
                ),
                Err(Failure::Sim(error)) => {
                    panic!("h {h} s_q {s_q} s_kv {s_kv} {schedule:?}: {error}")
                }
                Err(Failure::Numbers(error)) => {
                    panic!("h {h} s_q {s_q} s_kv {s_kv} {schedule:?}: {error}")
                }
            }
        }
    }
}

const SHAPES: [(usize, usize, usize); 4] = [(1, 64, 64), (1, 1, 1), (2, 193, 300), (3, 77, 129)];

#[test]
fn plane_kernel_meets_the_bound() {
    passes(PLANE_D64, PLANE, &SHAPES);
}

#[test]
fn hopper_kernel_meets_the_bound() {
    passes(HOPPER_D64, D64, &SHAPES);
}

#[test]
fn hopper_kernel_of_d128_and_s256_is_simulated_in_time() {
    let start = Instant::now();
    let shape = Shape {
        h: 1,
        s_q: 256,
        s_kv: 256,
    };
    simulate(HOPPER_D128, D128, &shape, Schedule::Latest).unwrap();
    let took = start.elapsed();
    eprintln!("s 256, d 128, one head: {took:?}");
    assert!(took.as_secs() < 20, "{took:?}");
}
