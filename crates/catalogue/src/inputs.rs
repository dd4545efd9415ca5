//! Fresh inputs of a problem from a seed.

use std::collections::BTreeMap;

use flashcube::attention::MaskWidth;
use flashcube::{DType, PackFormat};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::StandardNormal;

use crate::array::{Array, Data, round_to};
use crate::oracle;
use crate::problem::{
    Append, Attend, Decode, Memory, MergeSizes, PackedSizes, Problem, Task, Values,
};

mod instruction;
mod rows;

/// The inputs of one problem, by name:
///
/// | kernel | arrays |
/// |---|---|
/// | attend_forward | q, k, v; with their hooks mask, bias, documents_q, documents_kv, lengths_q, lengths_kv, cu_seqlens_q, cu_seqlens_kv, alibi, sinks |
/// | attend_decode | the same; k and v as if every sequence lay in one piece |
/// | attend_operands | the same |
/// | quantize_operand | x |
/// | attend_backward | those, and out, lse (the reference's, rounded) and d_out |
/// | append | k, v (the cache before), k_new, v_new, cos, sin |
/// | merge_partials | outs, lses |
/// | dequantize_int4 | qweight, qzeros, scales, g_idx |
/// | w4a16 | x, words, scales, zeros, gather, bias |
/// | hadamard_transform | x, signs |
/// | matrix_instruction | a, b, c; words as the instruction packs them |
///
/// Scalars (scale, softcap, causal, windows) are fields of the problem's [`Task`].
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs {
    /// The arrays.
    pub arrays: BTreeMap<&'static str, Array>,
}

impl Inputs {
    /// The inputs of `problem` for `seed`: the same bits on every machine.
    pub fn generate(problem: &Problem, seed: u64) -> Self {
        let mut draw = Draw::new(problem, seed);
        match &problem.task {
            Task::Forward(attend) => draw.attend(attend),
            Task::Backward(attend) => draw.backward(attend),
            Task::Decode(decode) => draw.attend(&decode.attend),
            Task::Operands(operands) => draw.attend(&operands.attend),
            Task::Quantize(sizes) => draw.quantize(sizes),
            Task::Append(sizes) => draw.append(sizes),
            Task::Merge(sizes) => draw.merge(sizes),
            Task::Dequantize(sizes) => draw.packed(sizes),
            Task::Linear(sizes) => draw.linear(sizes),
            Task::Hadamard(sizes) => draw.hadamard(sizes),
            Task::Instruction(instruction) => draw.instruction(*instruction),
        }
        Self {
            arrays: draw.arrays,
        }
    }

    /// The array of that name.
    pub fn get(&self, name: &str) -> Option<&Array> {
        self.arrays.get(name)
    }

    /// The floats of that array in row-major order; empty when there is none.
    pub fn values(&self, name: &str) -> Vec<f32> {
        self.get(name).map(Array::values).unwrap_or_default()
    }
}

struct Draw<'a> {
    problem: &'a Problem,
    rng: StdRng,
    arrays: BTreeMap<&'static str, Array>,
}

impl<'a> Draw<'a> {
    fn new(problem: &'a Problem, seed: u64) -> Self {
        // FNV-1a: problems of one run do not share their draws.
        let hash = problem
            .name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |h: u64, byte| {
                (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        Self {
            problem,
            rng: StdRng::seed_from_u64(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            arrays: BTreeMap::new(),
        }
    }

    fn normal(&mut self) -> f64 {
        self.rng.sample(StandardNormal)
    }

    fn normals(&mut self, n: usize) -> Vec<f64> {
        let outliers = self.problem.values == Values::Outliers;
        (0..n)
            .map(|_| {
                let x = self.normal();
                let far = outliers && self.rng.random_bool(0.001);
                if far { x + 10.0 * self.normal() } else { x }
            })
            .collect()
    }

    /// Stores [b, h, s, d] values, rounded and laid out.
    fn put(&mut self, name: &'static str, shape: [usize; 4], values: &[f64]) {
        let dtype = self.problem.dtype;
        let rounded: Vec<f32> = values.iter().map(|&x| round_to(dtype, x) as f32).collect();
        let shared = self.problem.memory == Memory::SharedKv && matches!(name, "k" | "v");
        let array = if shared {
            // One batch entry in memory, seen b times.
            let per_batch = rounded.len() / shape[0].max(1);
            let one = [1, shape[1], shape[2], shape[3]];
            let first = &rounded[..per_batch];
            let mut array = Array::arranged(&one, dtype, first, Memory::Dense, 2);
            array.shape[0] = shape[0];
            array.strides[0] = 0;
            array
        } else {
            Array::arranged(&shape, dtype, &rounded, self.problem.memory, 2)
        };
        self.arrays.insert(name, array);
    }

    fn attend(&mut self, a: &Attend) {
        self.hooks(a);
        let (q, k, v) = (
            [a.b, a.h_q, a.s_q, a.d],
            [a.b, a.h_kv, a.s_kv, a.d],
            [a.b, a.h_kv, a.s_kv, a.d_v],
        );
        let mut q_values = self.normals(q.iter().product());
        let mut k_values = self.normals(k.iter().product());
        let mut v_values = self.normals(v.iter().product());
        self.shape_logits(a, &mut q_values, &mut k_values);
        self.shape_values(v, &mut v_values);
        if self.problem.values == Values::HiddenNan {
            let seen = oracle::seen(a, &self.arrays);
            blank(&mut q_values, a.d, &seen.queries);
            blank(&mut k_values, a.d, &seen.keys);
            blank(&mut v_values, a.d_v, &seen.keys);
        }
        self.share_prefix(k, &mut k_values);
        self.share_prefix(v, &mut v_values);
        self.round_to_codes(k, 0, &mut k_values);
        self.round_to_codes(v, 1, &mut v_values);
        self.put("q", q, &q_values);
        self.put("k", k, &k_values);
        self.put("v", v, &v_values);
    }

    /// Gives every batch entry the first rows of entry 0, where the problem says so.
    fn share_prefix(&self, [b, h, s, d]: [usize; 4], values: &mut [f64]) {
        let Task::Decode(Decode { prefix, .. }) = self.problem.task else {
            return;
        };
        for (batch, head) in (1..b).flat_map(|batch| (0..h).map(move |head| (batch, head))) {
            let to = (batch * h + head) * s * d;
            values.copy_within(head * s * d..(head * s + prefix) * d, to);
        }
    }

    /// Rounds rows to what their codes and scales can say, where the problem's cache holds codes.
    fn round_to_codes(&self, [_, h, s, d]: [usize; 4], shift: usize, values: &mut [f64]) {
        let Task::Decode(decode) = &self.problem.task else {
            return;
        };
        if decode.codes.is_none() {
            return;
        }
        for (row, values) in values.chunks_mut(d.max(1)).enumerate() {
            let scale = decode.scale(row / s / h, row / s % h + shift, row % s);
            let scale = f64::from(scale);
            values
                .iter_mut()
                .for_each(|x| *x = scale * round_to(DType::E4M3, *x / scale));
        }
    }

    fn append(&mut self, a: &Append) {
        let b = a.lengths.len();
        for (name, s, d) in [
            ("k", a.s_kv, a.d.0),
            ("v", a.s_kv, a.d.1),
            ("k_new", a.s, a.d.0),
            ("v_new", a.s, a.d.1),
        ] {
            let shape = [b, a.h, s, d];
            let values = self.normals(shape.iter().product());
            self.put(name, shape, &values);
        }
        if let Some((_, columns)) = a.rope {
            let angle = |position: usize, pair: usize| {
                position as f64 * 1e4f64.powf(-2.0 * pair as f64 / columns as f64)
            };
            for (name, of) in [("cos", f64::cos as fn(f64) -> f64), ("sin", f64::sin)] {
                let pairs = columns / 2;
                let all = (0..a.s_kv).flat_map(|i| (0..pairs).map(move |x| of(angle(i, x)) as f32));
                let array = Array::floats(&[a.s_kv, pairs], DType::F32, all.collect());
                self.arrays.insert(name, array);
            }
        }
    }

    /// q and k of the distributions that prescribe logits. Only column 0 is used then.
    fn shape_logits(&mut self, a: &Attend, q: &mut [f64], k: &mut [f64]) {
        let scale = f64::from(a.scale());
        match self.problem.values {
            Values::LargeLogits => q.iter_mut().for_each(|x| *x *= 100.0),
            Values::EqualLogits => {
                for row in 1..k.len() / a.d {
                    let (first, rest) = k.split_at_mut(a.d);
                    rest[(row - 1) * a.d..row * a.d].copy_from_slice(first);
                }
            }
            Values::Spike | Values::Ascending | Values::Peak => {
                q.iter_mut().for_each(|x| *x = 0.0);
                k.iter_mut().for_each(|x| *x = 0.0);
                q.iter_mut().step_by(a.d).for_each(|x| *x = 1.0);
                for (row, x) in k.iter_mut().step_by(a.d).enumerate() {
                    let j = row % a.s_kv;
                    *x = match self.problem.values {
                        Values::Ascending => 0.25 * j as f64 / scale,
                        Values::Peak => 0.25 * j.min(a.s_kv - 1 - j) as f64 / scale,
                        _ if j == a.s_kv / 3 => 0.0,
                        _ => -7.0 / scale,
                    };
                }
            }
            _ => {}
        }
    }

    fn shape_values(&mut self, [_, h, s, d]: [usize; 4], v: &mut [f64]) {
        for (row, values) in v.chunks_mut(d.max(1)).enumerate() {
            let (j, head, batch) = (row % s, row / s % h, row / s / h);
            for (x, value) in values.iter_mut().enumerate() {
                match self.problem.values {
                    Values::OneHotV => *value = f64::from(x == j % d),
                    Values::IndexV => *value = ((j + 7 * head + 13 * batch + x) % 251) as f64,
                    Values::Spike => *value = 1.0,
                    _ => {}
                }
            }
        }
    }

    fn hooks(&mut self, a: &Attend) {
        let (cu_q, cu_kv) = a.cu_seqlens.as_ref().map(|(q, kv)| (q, kv)).unzip();
        for (name, lengths) in [
            ("lengths_q", a.lengths_q.as_ref()),
            ("lengths_kv", a.lengths_kv.as_ref()),
            ("cu_seqlens_q", cu_q),
            ("cu_seqlens_kv", cu_kv),
        ] {
            if let Some(lengths) = lengths {
                let words = lengths.iter().map(|&n| n as u32).collect();
                self.arrays
                    .insert(name, Array::dense(&[lengths.len()], Data::U32(words)));
            }
        }
        if let Some(count) = a.documents {
            for (name, s) in [("documents_q", a.s_q), ("documents_kv", a.s_kv)] {
                let ids = match a.scattered {
                    true => (0..a.b * s)
                        .map(|_| self.rng.random_range(0..count))
                        .collect(),
                    false => self.documents(a.b, s, count),
                };
                self.arrays
                    .insert(name, Array::dense(&[a.b, s], Data::U32(ids)));
            }
        }
        if let Some((width, shape)) = a.mask {
            let n = shape.iter().product();
            let hidden: Vec<u8> = (0..n)
                .map(|_| u8::from(self.rng.random_bool(0.3)))
                .collect();
            let data = match width {
                MaskWidth::U8 => Data::U8(hidden),
                // Any non-zero word hides, not only 1.
                MaskWidth::U32 => Data::U32(hidden.iter().map(|&x| u32::from(x) << 31).collect()),
            };
            self.arrays.insert("mask", Array::dense(&shape, data));
        }
        if let Some(shape) = a.bias {
            let n: usize = shape.iter().product();
            let bias: Vec<f32> = (0..n)
                .map(|_| match self.rng.random_bool(1.0 / 16.0) {
                    true => f32::NEG_INFINITY,
                    false => self.normal() as f32,
                })
                .collect();
            self.arrays
                .insert("bias", Array::floats(&shape, DType::F32, bias));
        }
        if let Some(slopes) = a.slopes() {
            self.arrays
                .insert("alibi", Array::floats(&[a.h_q], DType::F32, slopes));
        }
        if a.sinks {
            let sinks = (0..a.h_q).map(|_| 2.0 * self.normal() as f32).collect();
            self.arrays
                .insert("sinks", Array::floats(&[a.h_q], DType::F32, sinks));
        }
    }

    /// [b, s] ids that grow along s, `count` of them in every batch entry.
    fn documents(&mut self, b: usize, s: usize, count: u32) -> Vec<u32> {
        let mut ids = Vec::with_capacity(b * s);
        for _ in 0..b {
            let cuts: Vec<usize> = (1..count).map(|_| self.rng.random_range(0..=s)).collect();
            ids.extend((0..s).map(|i| cuts.iter().filter(|&&cut| cut <= i).count() as u32));
        }
        ids
    }

    fn backward(&mut self, a: &Attend) {
        self.attend(a);
        let shape = [a.b, a.h_q, a.s_q, a.d_v];
        let forward = oracle::forward_rounded(self.problem, a, &self.arrays);
        let mut d_out = self.normals(shape.iter().product());
        if self.problem.values == Values::HiddenNan {
            let seen = oracle::seen(a, &self.arrays);
            blank(&mut d_out, a.d_v, &seen.queries);
        }
        self.put("out", shape, &forward.out.data);
        self.put("d_out", shape, &d_out);
        let lse: Vec<f32> = forward.lse.iter().map(|&x| x as f32).collect();
        let lse = Array::arranged(&shape[..3], DType::F32, &lse, self.problem.memory, 2);
        self.arrays.insert("lse", lse);
    }

    fn merge(&mut self, m: &MergeSizes) {
        let rows = m.b * m.h * m.s;
        let spread = match self.problem.values {
            Values::LargeLogits => 1e4,
            _ => 3.0,
        };
        let mut outs: Vec<f32> = (0..m.n * rows * m.d_v)
            .map(|_| self.normal() as f32)
            .collect();
        let mut lses: Vec<f32> = (0..m.n * rows)
            .map(|_| (spread * self.normal()) as f32)
            .collect();
        if m.empty > 0 {
            for at in (0..lses.len()).filter(|at| (at / rows + at % rows).is_multiple_of(m.empty)) {
                lses[at] = f32::NEG_INFINITY;
                let fill = match self.problem.values {
                    Values::HiddenNan => f32::NAN,
                    _ => 0.0,
                };
                outs[at * m.d_v..(at + 1) * m.d_v].fill(fill);
            }
        }
        let memory = self.problem.memory;
        let shape = [m.n, m.b, m.h, m.s, m.d_v];
        let outs = Array::arranged(&shape, DType::F32, &outs, memory, 3);
        let lses = Array::arranged(&shape[..4], DType::F32, &lses, memory, 3);
        self.arrays.insert("outs", outs);
        self.arrays.insert("lses", lses);
    }

    fn packed(&mut self, p: &PackedSizes) {
        let sizes = oracle::packed_lengths(p);
        let plain = self.problem.values == Values::ZeroPoints;
        let mut words = |n: usize, fill: u32| -> Vec<u32> {
            (0..n)
                .map(|_| if plain { fill } else { self.rng.random() })
                .collect()
        };
        // Codes 1; zero points 0 as the format stores them: GPTQ v1 subtracts 1 word by word.
        let one = u32::MAX / ((1 << p.bits) - 1);
        let zero = match p.format {
            PackFormat::GptqV1 => 0u32.wrapping_sub(one),
            _ => 0,
        };
        let mut qweight = words(sizes.qweight, one);
        let qzeros = words(sizes.qzeros, zero);
        if p.format == PackFormat::GgufQ4_1 {
            self.heads(&mut qweight);
        }
        let scales = (0..sizes.scales)
            .map(|i| match i % 97 {
                // A subnormal, a zero and the largest that keeps 255 codes finite in f16.
                7 => 1e-6,
                31 => 0.0,
                53 => 250.0,
                _ => round_to(DType::F16, 0.02 * self.normal()) as f32,
            })
            .map(|x| round_to(DType::F16, f64::from(x)) as f32)
            .collect();
        let arrays = [
            (
                "qweight",
                Array::dense(&[sizes.qweight], Data::U32(qweight)),
            ),
            ("qzeros", Array::dense(&[sizes.qzeros], Data::U32(qzeros))),
            ("scales", Array::floats(&[sizes.scales], DType::F16, scales)),
        ];
        self.arrays.extend(arrays);
        if p.act_order {
            let groups = p.k.div_ceil(p.group) as u32;
            let g_idx = (0..p.k).map(|_| self.rng.random_range(0..groups)).collect();
            self.arrays
                .insert("g_idx", Array::dense(&[p.k], Data::U32(g_idx)));
        }
    }
}

impl Draw<'_> {
    /// Scales and minima of GGUF's blocks of 5 words: of either sign, subnormal, 0.
    fn heads(&mut self, blocks: &mut [u32]) {
        for (i, block) in blocks.chunks_exact_mut(5).enumerate() {
            let [scale, minimum] = [0.02, 0.2].map(|by| match i % 13 {
                7 => 1e-6,
                11 => 0.0,
                _ => by * self.normal(),
            });
            let bits = |x| u32::from(half::f16::from_f64(x).to_bits());
            block[0] = bits(scale) | bits(minimum) << 16;
        }
    }
}

/// NaN in the rows of `width` values that nobody sees.
fn blank(values: &mut [f64], width: usize, seen: &[bool]) {
    for (row, _) in seen.iter().enumerate().filter(|(_, seen)| !**seen) {
        values[row * width..(row + 1) * width].fill(f64::NAN);
    }
}
