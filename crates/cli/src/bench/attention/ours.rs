//! This library's side: inputs on the device, launches, sampled rows against the reference.

use std::collections::BTreeMap;
use std::fmt;

use cubecl::prelude::Client;
use cubecl::prelude::CubeElement;
use cubecl::server::Handle;
use flashcube::{
    AttendOptions, CacheScales, Caps, DType, DecodeOptions, DeviceWords, KvView, PageTable, Policy,
    Tensor, TierName, attend_decode, attend_forward, plan_decode, row_major,
};
use flashcube_catalogue::{Array, Attend, Decode, Task};

use super::problem::{AttendProblem, Cache, Form};
use crate::bench::check::{sample, worst_share};
use crate::bench::draw::Drawn;
use crate::bench::measure::{Checked, capture, read, replay};
use crate::elements::decode;
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
            let dtype = match stream {
                1 => problem.dtype,
                _ => problem.kv_dtype(),
            };
            Drawn::normals(dtype, elements, seed ^ stream as u64)
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

/// What a launch gave.
pub(super) struct Launched {
    out: Handle,
    lse: Handle,
    blueprint: String,
    tier: Option<TierName>,
}

/// A problem ready to launch in one layout.
pub(super) struct Ours<'a> {
    pub(super) layout: Layout,
    problem: &'a AttendProblem,
    inputs: &'a Inputs,
    client: &'a Client,
    tensors: [Tensor<4>; 3],
    options: AttendOptions<'a>,
    /// A decode's cache, and where its parts go.
    cache: Option<(KvView<'static>, Option<Tensor<1>>)>,
    /// Page of every page of a sequence.
    pages: Vec<u32>,
    graph: Option<cubecl::client::Graph>,
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
        let mut tensors = [0, 1, 2].map(|i| tensor(&inputs.device[i], shape(problem, i)));
        for kv in &mut tensors[1..] {
            kv.dtype = problem.kv_dtype();
        }
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
            Form::Dense | Form::Cache(_) => {}
            Form::Window(left) => options.window_left = Some(left),
            Form::Lengths => options.lengths_kv = Some(&inputs.lengths),
            Form::Packed(_) => options.cu_seqlens = Some((&inputs.starts, &inputs.starts)),
        }
        let mut ours = Self {
            layout,
            problem,
            inputs,
            client,
            tensors,
            options,
            cache: None,
            pages: Vec::new(),
            graph: None,
        };
        if let Form::Cache(cache) = problem.form {
            ours.prepare(cache);
        }
        ours
    }

    /// The cache of a decode, and memory for its parts, so that a launch allocates nothing. Pages lie in
    /// the memory of q, k and v as they were drawn, in disorder, and the device alone knows where.
    fn prepare(&mut self, cache: Cache) {
        let [_, k, v] = self.tensors.clone();
        let view = match cache.page {
            None => KvView::contiguous(k, v),
            Some(page) => {
                let [b, h, s, d] = k.shape;
                let width = s / page;
                let count = b * width;
                let step = [7919, 7907, 1]
                    .into_iter()
                    .find(|x| !count.is_multiple_of(*x));
                let place = |i: usize| (i * step.unwrap_or(1) % count) as u32;
                self.pages = (0..count).map(place).collect();
                let shape = [count, h, page, d];
                let pool = |t: Tensor<4>| {
                    let strides = self.layout.strides(shape);
                    Tensor::strided(t.handle, shape, strides, 0, t.dtype)
                };
                let words = self.client.create_from_slice(u32::as_bytes(&self.pages));
                // SAFETY: the table names each of the pool's pages once.
                let words = unsafe { DeviceWords::unchecked(words, 0) };
                let (k, v) = (pool(k), pool(v));
                self.tensors[1] = k.clone();
                self.tensors[2] = v.clone();
                KvView::paged(k, v, PageTable::device(words, width, width))
            }
        };
        let view = match cache.codes {
            false => view,
            true => {
                let h = self.problem.h_kv;
                let ones = self.client.create_from_slice(&1f32.to_le_bytes().repeat(h));
                let scales = || Tensor::contiguous(ones.clone(), [1, h], DType::F32);
                view.with_scales(CacheScales {
                    k: scales(),
                    v: scales(),
                })
            }
        };
        let caps = Caps::of(self.client);
        let options = DecodeOptions {
            attend: self.options.clone(),
            ..DecodeOptions::default()
        };
        // What fails here fails again, and is told, at the launch.
        let plan = plan_decode(&self.tensors[0], &view, &options, &caps);
        let elements = plan.ok().flatten().map_or(0, |plan| plan.workspace);
        let workspace = (elements > 0).then(|| Tensor::empty(self.client, [elements], DType::F32));
        self.cache = Some((view, workspace));
    }

    /// Captures the step where the problem asks for it.
    pub(super) fn capture(&mut self) -> Result<()> {
        let Form::Cache(Cache { graph: true, .. }) = self.problem.form else {
            return Ok(());
        };
        self.graph = Some(capture(self.client, || self.launch().map(drop))?);
        Ok(())
    }

    /// A launch, or a replay of the captured one.
    pub(super) fn repeat(&self) -> Result<()> {
        match &self.graph {
            // SAFETY: every tensor that the graph reads or writes is held by `self`.
            Some(graph) => unsafe { replay(graph) },
            None => self.launch().map(drop),
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

    pub(super) fn launch(&self) -> Result<Launched> {
        let [q, k, v] = &self.tensors;
        let (out, lse, blueprint, tier) = match &self.cache {
            Some((cache, workspace)) => {
                let options = DecodeOptions {
                    attend: self.options.clone(),
                    workspace: workspace.clone(),
                    ..DecodeOptions::default()
                };
                let decoded = attend_decode(self.client, q, cache, &options);
                let decoded = decoded.map_err(Failure::failed)?;
                let tier = decoded.plan.map(|plan| plan.blueprint.tier);
                let plan = decoded.plan.map(|plan| match plan.split.splits {
                    1 => plan.blueprint.to_string(),
                    n => format!("{}/n{n}", plan.blueprint),
                });
                (decoded.out, decoded.lse, plan, tier)
            }
            None => {
                let attended = attend_forward(self.client, q, k, v, &self.options);
                let attended = attended.map_err(Failure::failed)?;
                let tier = attended.blueprint.map(|b| b.tier);
                let blueprint = attended.blueprint.map(|b| b.to_string());
                (attended.out, attended.lse, blueprint, tier)
            }
        };
        Ok(Launched {
            out: out.handle,
            lse: lse.handle,
            blueprint: blueprint.unwrap_or_default(),
            tier,
        })
    }

    /// Launches once more and compares sampled rows, each as a problem of its own: one query over
    /// the keys it sees, within the bounds of the tier that ran.
    pub(super) fn check(&self) -> Result<Checked> {
        let launched = self.launch()?;
        if self.graph.is_some() {
            // What the replay writes is what is looked at.
            self.repeat()?;
        }
        let problem = self.problem;
        let (d, dtype) = (problem.d, problem.dtype);
        let out = decode(dtype, &read(self.client, &launched.out)?);
        let lse = decode(DType::F32, &read(self.client, &launched.lse)?);
        let mut worst = 0f64;
        for row in sample(lse.len(), problem.sampled()) {
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
            let mut attend = Attend::plain(1, (1, 1), (1, seen), (d, d));
            attend.policy.tier = launched.tier;
            let task = match self.cache {
                None => Task::Forward(attend),
                Some(_) => Task::Decode(Decode {
                    attend,
                    page: None,
                    splits: None,
                    prefix: 0,
                    device_tables: false,
                    codes: None,
                }),
            };
            worst = worst.max(worst_share(task, dtype, arrays, &got)?);
        }
        Ok(Checked {
            blueprint: launched.blueprint,
            worst,
        })
    }

    /// First element of a row of q (as of out), k or v.
    fn offset(&self, which: usize, b: usize, h: usize, i: usize) -> usize {
        let [sb, sh, ss, _] = self.tensors[which].strides;
        if which > 0 && !self.pages.is_empty() {
            let page = self.tensors[which].shape[2];
            let entry = b * (self.problem.s_kv / page) + i / page;
            return self.pages[entry] as usize * sb + h * sh + i % page * ss;
        }
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
