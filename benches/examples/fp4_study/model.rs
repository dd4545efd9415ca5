//! A small transformer on the CPU with its gradients by hand: f32 everywhere but in the attention's forward.
//!
//! Backward is what a FlashAttention in 16 bits does after a forward in few bits: P again from q and k that were not
//! quantized and the stored log-sum-exp, rowsum(dO O) from the stored out.

use flashcube_reference::Encoding;
use flashcube_reference::quant::direct::WeightFormat;
use flashcube_reference::quant::operand::{OperandFormat, round_columns, round_rows};
use flashcube_reference::{Options, Output, Tensor4, forward, forward_encoded};
use rayon::prelude::*;

pub(crate) const VOCABULARY: usize = 64;
pub(crate) const CONTEXT: usize = 128;
const WIDTH: usize = 64;
const HEADS: usize = 2;
const HEAD: usize = WIDTH / HEADS;
const LAYERS: usize = 2;
const HIDDEN: usize = 4 * WIDTH;

/// What attention's forward computes with.
#[derive(Clone, Copy)]
pub(crate) struct Precision {
    /// Format of q and k; `None` leaves them.
    pub(crate) scores: Option<OperandFormat>,
    /// Format of v and that of P; `None` is f64.
    pub(crate) values: Option<(OperandFormat, WeightFormat)>,
}

/// c [m, n] += a [m, k] b [k, n], with strides of a.
fn multiply(c: &mut [f32], a: &[f32], (row, column): (usize, usize), b: &[f32], n: usize) {
    let k = b.len() / n;
    c.par_chunks_mut(n).enumerate().for_each(|(i, c)| {
        for l in 0..k {
            let x = a[i * row + l * column];
            for (c, b) in c.iter_mut().zip(&b[l * n..]) {
                *c += x * b;
            }
        }
    });
}

fn transposed(x: &[f32], columns: usize) -> Vec<f32> {
    let rows = x.len() / columns;
    (0..columns)
        .flat_map(|c| (0..rows).map(move |r| x[r * columns + c]))
        .collect()
}

/// x [rows, k] w [k, n].
fn project(x: &[f32], w: &[f32], n: usize) -> Vec<f32> {
    let k = w.len() / n;
    let mut y = vec![0.0; x.len() / k * n];
    multiply(&mut y, x, (k, 1), w, n);
    y
}

/// Adds the gradient of w and returns that of x.
fn project_back(x: &[f32], w: &[f32], dy: &[f32], n: usize, dw: &mut [f32]) -> Vec<f32> {
    let k = w.len() / n;
    multiply(dw, x, (1, k), dy, n);
    project(dy, &transposed(w, n), k)
}

/// Rows over their root mean square, which is returned inverted.
fn normalise(x: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let inverse = |row: &[f32]| {
        let square: f32 = row.iter().map(|x| x * x).sum();
        (square / WIDTH as f32 + 1e-5).sqrt().recip()
    };
    let scales: Vec<f32> = x.chunks(WIDTH).map(inverse).collect();
    let rows = x.chunks(WIDTH).zip(&scales);
    (
        rows.flat_map(|(row, s)| row.iter().map(move |x| x * s))
            .collect(),
        scales,
    )
}

/// Adds the gradient of what was normalised to `dx`.
fn normalise_back(y: &[f32], scales: &[f32], dy: &[f32], dx: &mut [f32]) {
    let rows = y
        .chunks(WIDTH)
        .zip(dy.chunks(WIDTH))
        .zip(dx.chunks_mut(WIDTH));
    for (((y, dy), dx), scale) in rows.zip(scales) {
        let dot: f32 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
        for ((dx, dy), y) in dx.iter_mut().zip(dy).zip(y) {
            *dx += scale * (dy - y * dot / WIDTH as f32);
        }
    }
}

/// [tokens, WIDTH] as [b, HEADS, CONTEXT, HEAD].
fn heads(x: &[f32]) -> Tensor4 {
    let b = x.len() / WIDTH / CONTEXT;
    Tensor4::from_fn([b, HEADS, CONTEXT, HEAD], |[b, h, s, d]| {
        f64::from(x[(b * CONTEXT + s) * WIDTH + h * HEAD + d])
    })
}

fn joined(x: &Tensor4) -> Vec<f32> {
    let mut out = vec![0.0; x.data.len()];
    for (at, &value) in x.data.iter().enumerate() {
        let (d, s) = (at % HEAD, at / HEAD % CONTEXT);
        let (h, b) = (at / HEAD / CONTEXT % HEADS, at / HEAD / CONTEXT / HEADS);
        out[(b * CONTEXT + s) * WIDTH + h * HEAD + d] = value as f32;
    }
    out
}

fn scale() -> f64 {
    1.0 / (HEAD as f64).sqrt()
}

fn attend(q: &Tensor4, k: &Tensor4, v: &Tensor4, precision: Precision) -> Output {
    let options = Options {
        scale: scale(),
        causal: true,
        ..Options::default()
    };
    let rows = |x: &Tensor4| match precision.scores {
        None => x.clone(),
        Some(format) => round_rows(x, format).expect("a format"),
    };
    let (q, k) = (rows(q), rows(k));
    let done = match precision.values {
        None => forward(&q, &k, v, &options),
        Some((format, weights)) => {
            let whole = || std::iter::once(0..CONTEXT).collect();
            let sequences: Vec<_> = (0..v.shape[0]).map(|_| whole()).collect();
            let v = round_columns(v, &sequences, format).expect("a format");
            forward_encoded(&q, &k, &v, &options, Encoding::new(weights))
        }
    };
    done.expect("a problem")
}

/// dq, dk, dv.
fn attend_back(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    done: &Output,
    d_out: &Tensor4,
) -> [Tensor4; 3] {
    let shape = q.shape;
    let lanes = shape[0] * shape[1];
    let parts: Vec<[Vec<f64>; 3]> = (0..lanes)
        .into_par_iter()
        .map(|lane| {
            let (b, h) = (lane / HEADS, lane % HEADS);
            let mut parts = [0; 3].map(|_| vec![0.0; CONTEXT * HEAD]);
            let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
            let add = |to: &mut [f64], factor: f64, x: &[f64]| {
                to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
            };
            for i in 0..CONTEXT {
                let lse = done.lse[lane * CONTEXT + i];
                let (q_row, d_row) = (q.row(b, h, i), d_out.row(b, h, i));
                let delta = dot(d_row, done.out.row(b, h, i));
                for j in 0..=i {
                    let p = (scale() * dot(q_row, k.row(b, h, j)) - lse).exp();
                    let ds = scale() * p * (dot(d_row, v.row(b, h, j)) - delta);
                    add(&mut parts[0][i * HEAD..(i + 1) * HEAD], ds, k.row(b, h, j));
                    add(&mut parts[1][j * HEAD..(j + 1) * HEAD], ds, q_row);
                    add(&mut parts[2][j * HEAD..(j + 1) * HEAD], p, d_row);
                }
            }
            parts
        })
        .collect();
    [0, 1, 2].map(|which| Tensor4 {
        shape,
        data: parts
            .iter()
            .flat_map(|part| part[which].iter().copied())
            .collect(),
    })
}

/// Places of a layer's weights.
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const O: usize = 3;
const UP: usize = 4;
const DOWN: usize = 5;

/// Weights, all matrices row-major.
pub(crate) struct Model {
    /// Token and position embeddings, the head, then six for each layer.
    pub(crate) weights: Vec<Vec<f32>>,
}

/// What a layer's backward needs of its forward.
struct Trace {
    first: (Vec<f32>, Vec<f32>),
    qkv: [Tensor4; 3],
    done: Output,
    attended: Vec<f32>,
    second: (Vec<f32>, Vec<f32>),
    up: Vec<f32>,
    active: Vec<f32>,
}

fn add(to: &mut [f32], x: &[f32]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += x);
}

impl Model {
    /// Weights N(0, 1 / sqrt(rows)) from `normal`.
    pub(crate) fn new(mut normal: impl FnMut() -> f32) -> Self {
        let mut matrix = |rows: usize, columns: usize, scale: f32| -> Vec<f32> {
            (0..rows * columns).map(|_| scale * normal()).collect()
        };
        let one = (WIDTH as f32).sqrt().recip();
        let mut weights = vec![
            matrix(VOCABULARY, WIDTH, 1.0),
            matrix(CONTEXT, WIDTH, 0.5),
            matrix(WIDTH, VOCABULARY, one),
        ];
        for _ in 0..LAYERS {
            weights.extend((0..4).map(|_| matrix(WIDTH, WIDTH, one)));
            weights.push(matrix(WIDTH, HIDDEN, one));
            weights.push(matrix(HIDDEN, WIDTH, 0.5 * one));
        }
        Self { weights }
    }

    fn layer(&self, layer: usize) -> &[Vec<f32>] {
        &self.weights[3 + 6 * layer..9 + 6 * layer]
    }

    fn layer_forward(&self, layer: usize, x: &mut [f32], precision: Precision) -> Trace {
        let w = self.layer(layer);
        let first = normalise(x);
        let qkv = [Q, K, V].map(|at| heads(&project(&first.0, &w[at], WIDTH)));
        let done = attend(&qkv[0], &qkv[1], &qkv[2], precision);
        let attended = joined(&done.out);
        add(x, &project(&attended, &w[O], WIDTH));
        let second = normalise(x);
        let up = project(&second.0, &w[UP], HIDDEN);
        let active: Vec<f32> = up.iter().map(|x| x.max(0.0)).collect();
        add(x, &project(&active, &w[DOWN], WIDTH));
        Trace {
            first,
            qkv,
            done,
            attended,
            second,
            up,
            active,
        }
    }

    fn layer_back(&self, layer: usize, trace: &Trace, dx: &mut [f32], gradients: &mut [Vec<f32>]) {
        let w = self.layer(layer);
        let g = &mut gradients[3 + 6 * layer..9 + 6 * layer];
        let mut d_up = project_back(&trace.active, &w[DOWN], dx, WIDTH, &mut g[DOWN]);
        let dead = d_up.iter_mut().zip(&trace.up).filter(|(_, up)| **up <= 0.0);
        dead.for_each(|(d, _)| *d = 0.0);
        let d_second = project_back(&trace.second.0, &w[UP], &d_up, HIDDEN, &mut g[UP]);
        normalise_back(&trace.second.0, &trace.second.1, &d_second, dx);
        let d_out = project_back(&trace.attended, &w[O], dx, WIDTH, &mut g[O]);
        let [q, k, v] = &trace.qkv;
        let parts = attend_back(q, k, v, &trace.done, &heads(&d_out));
        for (at, part) in [Q, K, V].into_iter().zip(&parts) {
            let d_first = project_back(&trace.first.0, &w[at], &joined(part), WIDTH, &mut g[at]);
            normalise_back(&trace.first.0, &trace.first.1, &d_first, dx);
        }
    }

    /// Mean cross entropy of the next token over [b, CONTEXT + 1] tokens, with its gradients where wanted.
    pub(crate) fn loss(
        &self,
        tokens: &[u8],
        precision: Precision,
        gradients: Option<&mut [Vec<f32>]>,
    ) -> f32 {
        let (inputs, targets): (Vec<usize>, Vec<usize>) = tokens
            .chunks(CONTEXT + 1)
            .flat_map(|row| {
                row.windows(2)
                    .map(|pair| (pair[0] as usize, pair[1] as usize))
            })
            .unzip();
        let mut x: Vec<f32> = Vec::with_capacity(inputs.len() * WIDTH);
        for (at, &token) in inputs.iter().enumerate() {
            let (token, place) = (token * WIDTH, at % CONTEXT * WIDTH);
            x.extend((0..WIDTH).map(|c| self.weights[0][token + c] + self.weights[1][place + c]));
        }
        let mut traces = Vec::new();
        for layer in 0..LAYERS {
            traces.push(self.layer_forward(layer, &mut x, precision));
        }
        let last = normalise(&x);
        let mut logits = project(&last.0, &self.weights[2], VOCABULARY);
        let mut loss = 0.0;
        for (row, &target) in logits.chunks_mut(VOCABULARY).zip(&targets) {
            let max = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f32 = row.iter().map(|x| (x - max).exp()).sum();
            loss += max + sum.ln() - row[target];
            row.iter_mut().for_each(|x| *x = (*x - max).exp() / sum);
            row[target] -= 1.0;
        }
        let count = targets.len() as f32;
        if let Some(gradients) = gradients {
            logits.iter_mut().for_each(|x| *x /= count);
            let mut dx = vec![0.0; x.len()];
            let d_last = project_back(
                &last.0,
                &self.weights[2],
                &logits,
                VOCABULARY,
                &mut gradients[2],
            );
            normalise_back(&last.0, &last.1, &d_last, &mut dx);
            for layer in (0..LAYERS).rev() {
                self.layer_back(layer, &traces[layer], &mut dx, gradients);
            }
            for (at, (&token, dx)) in inputs.iter().zip(dx.chunks(WIDTH)).enumerate() {
                add(&mut gradients[0][token * WIDTH..(token + 1) * WIDTH], dx);
                let place = at % CONTEXT * WIDTH;
                add(&mut gradients[1][place..place + WIDTH], dx);
            }
        }
        loss / count
    }
}
