//! This library's side: inputs on the device, launches, sampled rows against the reference.

use std::collections::BTreeMap;
use std::fmt;

use cubecl::prelude::Client;
use cubecl::server::Handle;
use flashcube::{
    AttendOptions, Attended, DType, Policy, Tensor, TierName, attend_forward, row_major,
};
use flashcube_catalogue::{Array, Attend, Task};

use super::problem::{AttendProblem, Form};
use crate::bench::check::{sample, worst_share};
use crate::bench::draw::{Drawn, decode};
use crate::bench::measure::{Checked, read};
use crate::failure::{Failure, Result};

/// Order of the axes of q, k, v and out in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// As PyTorch's scaled_dot_product_attention takes them.
    Bhsd,
    /// As FlashAttention's own functions take them.
    Bshd,
}

impl Layout {
    pub(super) const ALL: [Layout; 2] = [Layout::Bhsd, Layout::Bshd];

    /// Strides of the axes [b, h, s, d].
    fn strides(self, [b, h, s, d]: [usize; 4]) -> [usize; 4] {
        match self {
            Layout::Bhsd => row_major([b, h, s, d]),
            Layout::Bshd => {
                let [b, s, h, d] = row_major([b, s, h, d]);
                [b, h, s, d]
            }
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Layout::Bhsd => "bhsd",
            Layout::Bshd => "bshd",
        })
    }
}

/// N(0, 1) in q, k and v, on the host and on the device. Both layouts read the same memory.
pub(super) struct Inputs {
    host: [Drawn; 3],
    device: [Handle; 3],
    /// Where each packed sequence starts, and where the last one ends.
    starts: Vec<usize>,
    /// Keys of every batch entry.
    lengths: Vec<usize>,
}

impl Inputs {
    pub(super) fn draw(client: &Client, problem: &AttendProblem, seed: u64) -> Self {
        let host = [1, 2, 3].map(|stream| {
            let elements = shape(problem, stream - 1).iter().product();
            Drawn::normals(problem.dtype, elements, seed ^ stream as u64)
        });
        let device = [0, 1, 2].map(|i| host[i].upload(client, shape(problem, i)).handle);
        let starts = match &problem.form {
            Form::Packed(lengths) => (0..=lengths.len())
                .map(|i| lengths[..i].iter().sum())
                .collect(),
            _ => Vec::new(),
        };
        Self {
            host,
            device,
            starts,
            lengths: vec![problem.s_kv; problem.b],
        }
    }
}

/// Shape of q (0), k (1) or v (2).
fn shape(problem: &AttendProblem, which: usize) -> [usize; 4] {
    let &AttendProblem {
        b,
        h_q,
        h_kv,
        s_q,
        s_kv,
        d,
        ..
    } = problem;
    match which {
        0 => [b, h_q, s_q, d],
        _ => [b, h_kv, s_kv, d],
    }
}

/// A problem ready to launch in one layout.
pub(super) struct Ours<'a> {
    pub(super) layout: Layout,
    problem: &'a AttendProblem,
    inputs: &'a Inputs,
    client: &'a Client,
    tensors: [Tensor<4>; 3],
    options: AttendOptions<'a>,
}

impl<'a> Ours<'a> {
    pub(super) fn new(
        client: &'a Client,
        problem: &'a AttendProblem,
        inputs: &'a Inputs,
        layout: Layout,
        tier: Option<TierName>,
    ) -> Self {
        let tensor = |handle: &Handle, shape| {
            Tensor::strided(
                handle.clone(),
                shape,
                layout.strides(shape),
                0,
                problem.dtype,
            )
        };
        let tensors = [0, 1, 2].map(|i| tensor(&inputs.device[i], shape(problem, i)));
        let [b, h, s, _] = tensors[0].shape;
        let out = Tensor::empty(client, tensors[0].shape, problem.dtype);
        let mut options = AttendOptions {
            causal: problem.causal,
            out: Some(tensor(&out.handle, out.shape)),
            lse: Some(Tensor::empty(client, [b, h, s], DType::F32)),
            policy: Policy {
                tier,
                ..Policy::default()
            },
            ..AttendOptions::default()
        };
        match problem.form {
            Form::Dense => {}
            Form::Window(left) => options.window_left = Some(left),
            Form::Lengths => options.lengths_kv = Some(&inputs.lengths),
            Form::Packed(_) => options.cu_seqlens = Some((&inputs.starts, &inputs.starts)),
        }
        Self {
            layout,
            problem,
            inputs,
            client,
            tensors,
            options,
        }
    }

    /// The row's name: the problem's, and the layout where it is not the usual one.
    pub(super) fn name(&self) -> String {
        let problem = self.problem.name();
        match self.layout {
            Layout::Bhsd => problem,
            Layout::Bshd => format!("{problem}/bshd"),
        }
    }

    pub(super) fn launch(&self) -> Result<Attended> {
        let [q, k, v] = &self.tensors;
        attend_forward(self.client, q, k, v, &self.options).map_err(Failure::failed)
    }

    /// Launches once more and compares sampled rows, each as a problem of its own: one query over
    /// the keys it sees.
    pub(super) fn check(&self) -> Result<Checked> {
        let attended = self.launch()?;
        let problem = self.problem;
        let (d, dtype) = (problem.d, problem.dtype);
        let out = decode(dtype, &read(self.client, &attended.out.handle)?);
        let lse = decode(DType::F32, &read(self.client, &attended.lse.handle)?);
        let mut worst = 0f64;
        for row in sample(lse.len(), SAMPLED) {
            let (i, head) = (row % problem.s_q, row / problem.s_q);
            let (b, h) = (head / problem.h_q, head % problem.h_q);
            let h_kv = h / (problem.h_q / problem.h_kv);
            let keys = problem.keys_of(i);
            let seen = keys.len();
            let arrays = BTreeMap::from([
                ("q", self.rows(0, (b, h), i..i + 1)),
                ("k", self.rows(1, (b, h_kv), keys.clone())),
                ("v", self.rows(2, (b, h_kv), keys)),
            ]);
            let at = self.offset(0, b, h, i);
            let got = [("out", &out[at..at + d]), ("lse", &lse[row..row + 1])];
            let task = Task::Forward(Attend::plain(1, (1, 1), (1, seen), (d, d)));
            worst = worst.max(worst_share(task, dtype, arrays, &got)?);
        }
        let blueprint = attended.blueprint.map(|b| b.to_string());
        Ok(Checked {
            blueprint: blueprint.unwrap_or_default(),
            worst,
        })
    }

    /// First element of a row of q (as of out), k or v.
    fn offset(&self, which: usize, b: usize, h: usize, i: usize) -> usize {
        let [sb, sh, ss, _] = self.tensors[which].strides;
        b * sb + h * sh + i * ss
    }

    /// The host's copy of rows of q, k or v: [1, 1, rows, d].
    fn rows(&self, which: usize, (b, h): (usize, usize), rows: std::ops::Range<usize>) -> Array {
        let d = self.problem.d;
        let values = &self.inputs.host[which].values;
        let count = rows.len();
        let taken = rows
            .flat_map(|i| {
                let at = self.offset(which, b, h, i);
                values[at..at + d].iter().copied()
            })
            .collect();
        Array::floats(&[1, 1, count, d], self.problem.dtype, taken)
    }
}

/// Rows checked of each problem.
const SAMPLED: usize = 9;
