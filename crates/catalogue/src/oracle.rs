//! What the reference says about a problem: the exact result, the ideal one, and the floor.

use std::collections::BTreeMap;

use flashcube::attention::RopePairs;
use flashcube::{PackFormat, ScaleType, WeightCodes};
use flashcube_reference as reference;
use flashcube_reference::quant::int::{Format, Packed};
use flashcube_reference::quant::operand::Operand;
use flashcube_reference::quant::tiled::{self, Codes, Scales, Tiled};
use flashcube_reference::{Broadcast, Options, Output, Rounding, Tensor4};
use half::f16;

use crate::array::{Array, Data, round_to};
use crate::bounds;
use crate::inputs::Inputs;
use crate::problem::{
    Append, Attend, HadamardSizes, LinearSizes, MergeSizes, PackedSizes, Problem, QuantizeSizes,
    Task,
};

/// One output: what it should be, and how far off it may be.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// Name of the output.
    pub name: &'static str,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The f64 result, row-major.
    pub exact: Vec<f64>,
    /// Largest |got - exact| allowed, element by element.
    pub bound: Vec<f64>,
}

/// Every output of `problem` on `inputs`.
///
/// # Errors
/// [`reference::Error`] when the problem contradicts itself.
pub fn expected(problem: &Problem, inputs: &Inputs) -> Result<Vec<Expected>, reference::Error> {
    match &problem.task {
        Task::Forward(attend) => bounds::forward(problem, attend, &[], inputs),
        Task::Decode(decode) => {
            let parts = decode.splits.unwrap_or(flashcube::MAX_SPLITS);
            let parts = parts.min(decode.attend.s_kv.max(1));
            let levels = match decode.prefix {
                0 if parts == 1 => vec![],
                0 => vec![parts],
                _ => vec![parts, 2],
            };
            bounds::forward(problem, &decode.attend, &levels, inputs)
        }
        Task::Operands(sizes) => bounds::operands(problem, sizes, inputs),
        Task::Quantize(sizes) => quantize(sizes, inputs),
        Task::Append(sizes) => Ok(append(problem, sizes, inputs)),
        Task::Backward(attend) => bounds::backward(problem, attend, inputs),
        Task::Merge(sizes) => merge(problem, sizes, inputs),
        Task::Dequantize(sizes) => dequantize(problem, sizes, inputs),
        Task::Linear(sizes) => linear(problem, sizes, inputs),
        Task::Hadamard(sizes) => hadamard(problem, sizes, inputs),
        Task::Instruction(instruction) => Ok(bounds::instruction(problem, *instruction, inputs)),
    }
}

/// What [`Options`] borrows.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    documents: Option<(Vec<u32>, Vec<u32>)>,
    mask: Option<(Vec<bool>, [usize; 4])>,
    pub(crate) bias: Option<(Vec<f64>, [usize; 4])>,
    pub(crate) alibi: Option<Vec<f64>>,
    pub(crate) sinks: Option<Vec<f64>>,
}

impl Hooks {
    pub(crate) fn of(arrays: &BTreeMap<&'static str, Array>) -> Self {
        let wide = |array: &Array| array.values().iter().map(|&x| f64::from(x)).collect();
        let axes = |array: &Array| [0, 1, 2, 3].map(|axis| array.shape[axis]);
        let words = |name: &str| arrays.get(name).map(|array| array.words().to_vec());
        Self {
            documents: words("documents_q").zip(words("documents_kv")),
            mask: arrays.get("mask").map(|m| (m.flags(), axes(m))),
            bias: arrays.get("bias").map(|b| (wide(b), axes(b))),
            alibi: arrays.get("alibi").map(wide),
            sinks: arrays.get("sinks").map(wide),
        }
    }

    /// Everything that hides keys.
    fn masks<'a>(&'a self, a: &'a Attend) -> Options<'a> {
        Options {
            scale: f64::from(a.scale()),
            causal: a.causal,
            alignment: match a.alignment {
                flashcube::Alignment::TopLeft => reference::Alignment::TopLeft,
                flashcube::Alignment::BottomRight => reference::Alignment::BottomRight,
            },
            window_left: a.window_left,
            window_right: a.window_right,
            lengths_q: a.lengths_q.as_deref(),
            lengths_kv: a.lengths_kv.as_deref(),
            cu_seqlens: a.cu_seqlens.as_ref().map(|(q, kv)| (&q[..], &kv[..])),
            documents: self.documents.as_ref().map(|(q, kv)| (&q[..], &kv[..])),
            mask: self.mask.as_ref().map(|(data, shape)| Broadcast {
                data,
                shape: *shape,
            }),
            ..Options::default()
        }
    }

    pub(crate) fn options<'a>(&'a self, a: &'a Attend) -> Options<'a> {
        Options {
            softcap: a.softcap.map(f64::from),
            bias: self.bias.as_ref().map(|(data, shape)| Broadcast {
                data,
                shape: *shape,
            }),
            alibi: self.alibi.as_deref(),
            sinks: self.sinks.as_deref(),
            ..self.masks(a)
        }
    }
}

/// Which rows take part at all.
pub(crate) struct Seen {
    /// [b, h_q, s_q]: the query sees some key.
    pub(crate) queries: Vec<bool>,
    /// [b, h_kv, s_kv]: some query sees the key.
    pub(crate) keys: Vec<bool>,
}

/// Visibility by the masks alone, from the weights of a problem whose scores are all 0.
pub(crate) fn seen(a: &Attend, arrays: &BTreeMap<&'static str, Array>) -> Seen {
    let hooks = Hooks::of(arrays);
    let options = hooks.masks(a);
    let q = Tensor4::zeros([a.b, a.h_q, a.s_q, 1]);
    let k = Tensor4::zeros([a.b, a.h_kv, a.s_kv, 1]);
    let mut seen = Seen {
        queries: vec![false; a.b * a.h_q * a.s_q],
        keys: vec![false; a.b * a.h_kv * a.s_kv],
    };
    for row in 0..seen.queries.len() {
        let (b, h, i) = (row / a.s_q / a.h_q, row / a.s_q % a.h_q, row % a.s_q);
        // The options were made for these sizes.
        let weights = reference::attention::weights(&q, &k, &k, &options, (b, h, i));
        let weights = weights.unwrap_or_default();
        let first = (b * a.h_kv + h / (a.h_q / a.h_kv)) * a.s_kv;
        for (j, _) in weights.iter().enumerate().filter(|(_, w)| **w > 0.0) {
            seen.queries[row] = true;
            seen.keys[first + j] = true;
        }
    }
    seen
}

/// The named [b, h, s, d] array in f64.
pub(crate) fn tensor(arrays: &BTreeMap<&'static str, Array>, name: &str) -> Tensor4 {
    let Some(array) = arrays.get(name) else {
        return Tensor4::zeros([0; 4]);
    };
    Tensor4 {
        shape: [0, 1, 2, 3].map(|axis| array.shape[axis]),
        data: array.values().iter().map(|&x| f64::from(x)).collect(),
    }
}

/// The ideal forward pass: f64, P and out rounded to what the kernel holds them in. The unit tier
/// keeps P in f32, matrix units multiply it in the dtype of v.
pub(crate) fn forward_rounded(
    problem: &Problem,
    a: &Attend,
    arrays: &BTreeMap<&'static str, Array>,
) -> Output {
    let hooks = Hooks::of(arrays);
    let on_matrix_units = bounds::Arithmetic::of(problem) != bounds::Arithmetic::Fma;
    let rounding = Rounding {
        p: Some(match on_matrix_units {
            false => |p| f64::from(p as f32),
            true => rounder(problem),
        }),
        // Matrix tiers sum P before it is rounded.
        sum_of_rounded: !on_matrix_units,
        out: rounder(problem),
    };
    let [q, k, v] = ["q", "k", "v"].map(|name| tensor(arrays, name));
    let output = reference::forward_rounded(&q, &k, &v, &hooks.options(a), &rounding);
    output.unwrap_or_else(|_| Output {
        out: Tensor4::zeros([a.b, a.h_q, a.s_q, a.d_v]),
        lse: vec![f64::NEG_INFINITY; a.b * a.h_q * a.s_q],
    })
}

/// Rounding to the problem's dtype.
pub(crate) fn rounder(problem: &Problem) -> fn(f64) -> f64 {
    match problem.dtype {
        flashcube::DType::F32 => |x| round_to(flashcube::DType::F32, x),
        flashcube::DType::F16 => |x| round_to(flashcube::DType::F16, x),
        flashcube::DType::BF16 => |x| round_to(flashcube::DType::BF16, x),
        flashcube::DType::E4M3 => |x| round_to(flashcube::DType::E4M3, x),
    }
}

/// Codes and scales: every bit.
fn quantize(sizes: &QuantizeSizes, inputs: &Inputs) -> Result<Vec<Expected>, reference::Error> {
    let x = tensor(&inputs.arrays, "x");
    let [b, h, _, columns] = sizes.codes();
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    let heads: Vec<(usize, usize)> = (0..b).flat_map(|b| (0..h).map(move |h| (b, h))).collect();
    for together in heads.chunks(sizes.pack) {
        let operand = |&at| -> Result<Operand, reference::Error> {
            Ok(sizes.operand(&x, at)?.widened(columns))
        };
        let together: Vec<Operand> = together.iter().map(operand).collect::<Result<_, _>>()?;
        let all = together.iter().flat_map(|head| &head.codes);
        codes.extend(all.map(|&code| f64::from(code)));
        for rows in Operand::alternating(&together, &sizes.row_spans()) {
            scales.extend(rows.tiled_scales().iter().map(|&code| f64::from(code)));
        }
    }
    let exact = |name, shape: Vec<usize>, exact: Vec<f64>| Expected {
        name,
        shape,
        bound: vec![0.0; exact.len()],
        exact,
    };
    Ok(vec![
        exact("codes", sizes.codes().to_vec(), codes),
        exact("scales", vec![sizes.scales()], scales),
    ])
}

/// The cache afterwards: rows that were there keep their bits, new ones are copied or rotated.
fn append(problem: &Problem, a: &Append, inputs: &Inputs) -> Vec<Expected> {
    let of = |name: &'static str, new: &str, d: usize, rope: Option<(RopePairs, usize)>| {
        let (old, new) = (tensor(&inputs.arrays, name), tensor(&inputs.arrays, new));
        let b = a.lengths.len();
        let mut exact = vec![0.0; b * a.h * a.s_kv * d];
        let mut bound = vec![0.0; exact.len()];
        for (at, (exact, bound)) in exact
            .chunks_mut(d.max(1))
            .zip(bound.chunks_mut(d.max(1)))
            .enumerate()
        {
            let (row, h, n) = (at % a.s_kv, at / a.s_kv % a.h, at / a.s_kv / a.h);
            let (first, count) = a.rows_of(n);
            if row < a.lengths[n] {
                exact.copy_from_slice(old.row(n, h, row));
            } else if row < a.lengths[n] + count {
                let x = new.row(n, h, first + row - a.lengths[n]);
                rotate(x, row, rope, inputs, exact, bound);
                for (exact, bound) in exact.iter().zip(bound.iter_mut()) {
                    *bound = 2.0 * bounds::rounded(problem, *exact) + 2.0 * *bound;
                }
            }
        }
        Expected {
            name,
            shape: vec![b, a.h, a.s_kv, d],
            exact,
            bound,
        }
    };
    vec![
        of("k", "k_new", a.d.0, a.rope),
        of("v", "v_new", a.d.1, None),
    ]
}

/// The rotated row, and what three f32 operations may cost each of its elements.
fn rotate(
    x: &[f64],
    position: usize,
    rope: Option<(RopePairs, usize)>,
    inputs: &Inputs,
    exact: &mut [f64],
    error: &mut [f64],
) {
    exact.copy_from_slice(x);
    let Some((pairs, columns)) = rope else {
        return;
    };
    let angle = |name: &str, i| {
        inputs
            .get(name)
            .map_or(0.0, |t| f64::from(t.at(&[position, i])))
    };
    for i in 0..columns / 2 {
        let (one, two) = match pairs {
            RopePairs::Interleaved => (2 * i, 2 * i + 1),
            RopePairs::HalfSplit => (i, i + columns / 2),
        };
        let (c, s) = (angle("cos", i), angle("sin", i));
        exact[one] = x[one] * c - x[two] * s;
        exact[two] = x[two] * c + x[one] * s;
        error[one] = 3.0 * bounds::U * ((x[one] * c).abs() + (x[two] * s).abs()) + bounds::TINY;
        error[two] = 3.0 * bounds::U * ((x[two] * c).abs() + (x[one] * s).abs()) + bounds::TINY;
    }
}

fn merge(
    problem: &Problem,
    m: &MergeSizes,
    inputs: &Inputs,
) -> Result<Vec<Expected>, reference::Error> {
    let wide =
        |name: &str| -> Vec<f64> { inputs.values(name).iter().map(|&x| f64::from(x)).collect() };
    let (outs, lses) = (wide("outs"), wide("lses"));
    let rows = m.b * m.h * m.s;
    let parts: Vec<(&[f64], &[f64])> = (0..m.n)
        .map(|p| {
            let out = &outs[p * rows * m.d_v..(p + 1) * rows * m.d_v];
            (out, &lses[p * rows..(p + 1) * rows])
        })
        .collect();
    let (out, lse) = reference::merge(&parts, rows, m.d_v)?;
    Ok(bounds::merge(problem, m, &parts, out, lse))
}

/// Buffer lengths of a packed weight: words, words, f16.
pub(crate) struct PackedLengths {
    pub(crate) qweight: usize,
    pub(crate) qzeros: usize,
    pub(crate) scales: usize,
}

pub(crate) fn packed_lengths(p: &PackedSizes) -> PackedLengths {
    let (k, n, bits, groups) = (p.k, p.n, p.bits as usize, p.k.div_ceil(p.group));
    let (qweight, qzeros, scales) = match p.format {
        PackFormat::GptqV1 | PackFormat::GptqV2 => (
            (k * bits).div_ceil(32) * n,
            groups * (n * bits).div_ceil(32),
            groups * n,
        ),
        PackFormat::AwqGemm => (k * n / 8, groups * n / 8, groups * n),
        PackFormat::AwqGemv => {
            // AutoAWQ rounds the words of a row up to 1, 2 or 4.
            let multiple = match p.group {
                32 => 4,
                64 => 2,
                _ => 1,
            };
            let zeros = groups.div_ceil(8).next_multiple_of(multiple);
            (n * k / 8, n * zeros, n * zeros * 8)
        }
        PackFormat::GgufQ4_1 => (n * (k / 32 * 5), 0, 0),
    };
    PackedLengths {
        qweight,
        qzeros,
        scales,
    }
}

fn dequantize(
    problem: &Problem,
    p: &PackedSizes,
    inputs: &Inputs,
) -> Result<Vec<Expected>, reference::Error> {
    let words = |name: &str| inputs.get(name).map(Array::words);
    let scales: Vec<f16> = match inputs.get("scales").map(|array| &array.data) {
        Some(Data::Float(_, values)) => values.iter().map(|&x| f16::from_f32(x)).collect(),
        _ => Vec::new(),
    };
    let packed = Packed {
        format: match p.format {
            PackFormat::GptqV1 => Format::GptqV1,
            PackFormat::GptqV2 => Format::GptqV2,
            PackFormat::AwqGemm => Format::AwqGemm,
            PackFormat::AwqGemv => Format::AwqGemv,
            PackFormat::GgufQ4_1 => Format::GgufQ4_1,
        },
        bits: p.bits,
        k: p.k,
        n: p.n,
        group: p.group,
        qweight: words("qweight").unwrap_or_default(),
        qzeros: words("qzeros").unwrap_or_default(),
        scales: &scales,
        g_idx: words("g_idx"),
    };
    let exact = packed.dequantize()?;
    // A minimum is added in f32.
    let added = match p.format {
        PackFormat::GgufQ4_1 => bounds::U,
        _ => 0.0,
    };
    let bound = |&w: &f64| bounds::rounded(problem, w) + added * w.abs();
    let bound = exact.iter().map(bound).collect();
    Ok(vec![Expected {
        name: "out",
        shape: vec![p.k, p.n],
        exact,
        bound,
    }])
}

fn linear(
    problem: &Problem,
    p: &LinearSizes,
    inputs: &Inputs,
) -> Result<Vec<Expected>, reference::Error> {
    let wide =
        |name: &str| -> Vec<f64> { inputs.values(name).iter().map(|&x| f64::from(x)).collect() };
    let bytes = |name: &str| match inputs.get(name).map(|array| &array.data) {
        Some(Data::U8(bytes)) => Some(&bytes[..]),
        _ => None,
    };
    let scales: Vec<f16> = match p.scales {
        ScaleType::F16 => inputs
            .values("scales")
            .into_iter()
            .map(f16::from_f32)
            .collect(),
        _ => Vec::new(),
    };
    let minima: Vec<f16> = match p.minima() {
        true => inputs
            .values("zeros")
            .into_iter()
            .map(f16::from_f32)
            .collect(),
        false => Vec::new(),
    };
    let scale_bytes = bytes("scales").unwrap_or_default();
    let weight = Tiled {
        bits: p.bits,
        codes: match p.codes {
            WeightCodes::Int if p.minima() => Codes::Minima(&minima),
            WeightCodes::Int => Codes::Int(bytes("zeros")),
            WeightCodes::E2M1 => Codes::E2M1,
            WeightCodes::E4M3 => Codes::E4M3,
            WeightCodes::Nf4 => Codes::Nf4,
        },
        k: p.k,
        n: p.n,
        rows: p.rows(),
        group: p.group,
        words: inputs.get("words").map(Array::words).unwrap_or_default(),
        scales: match p.scales {
            ScaleType::F16 => Scales::F16(&scales),
            ScaleType::E4M3 => Scales::E4M3(scale_bytes),
            ScaleType::E8M0 => Scales::E8M0(scale_bytes),
        },
        factor: p.factor(),
        gather: inputs.get("gather").map(Array::words),
    }
    .dequantize()?;
    let (x, bias) = (wide("x"), inputs.get("bias").map(|_| wide("bias")));
    let mnk = [p.m, p.k, p.n];
    let exact = tiled::linear(&x, &weight, bias.as_deref(), mnk)?;
    let magnitude = |values: &[f64]| -> Vec<f64> { values.iter().map(|x| x.abs()).collect() };
    let bias = bias.as_deref().map(magnitude);
    let magnitudes = tiled::linear(&magnitude(&x), &magnitude(&weight), bias.as_deref(), mnk)?;
    Ok(vec![bounds::linear(problem, p, exact, &magnitudes)])
}

fn hadamard(
    problem: &Problem,
    h: &HadamardSizes,
    inputs: &Inputs,
) -> Result<Vec<Expected>, reference::Error> {
    let x: Vec<f64> = inputs.values("x").iter().map(|&x| f64::from(x)).collect();
    let signs = inputs.get("signs").map_or(vec![false; h.n], Array::flags);
    let signs = signs.iter().map(|&s| if s { -1.0 } else { 1.0 }).collect();
    let map = reference::Hadamard::new(signs)?;
    let exact = match h.inverse {
        false => map.forward(&x)?,
        true => map.inverse(&x)?,
    };
    Ok(vec![bounds::hadamard(problem, h, &x, exact)])
}
