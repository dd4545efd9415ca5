//! Our own kernels on the inputs of a problem.

use cubecl::prelude::Client;
use cubecl::server::Handle;
use flashcube::{
    AttendBlueprint, AttendOptions, BoolMask, Caps, DType, DequantizeOptions, Error,
    HadamardOptions, LinearWeights, MatmulOptions, MatmulPolicy, MergeOptions, PackedWeights,
    Policy, RuntimeFailure, ScaleType, Tensor, plan_matmul, scale_range,
};
use flashcube_reference::quant::e8m0;

use crate::array::{Array, Data, decode, layout};
use crate::inputs::Inputs;
use crate::problem::{Attend, HadamardSizes, LinearSizes, Memory, PackedSizes, Problem, Task};
use crate::verdict::Outputs;

/// A byte that no kernel writes by chance: two of them are a NaN in f16, bf16 and f32 alike.
pub(crate) const POISON: u8 = 0xff;

/// What a launch gave.
#[derive(Debug, Clone)]
pub(crate) struct Launched {
    pub(crate) outputs: Outputs,
    /// The blueprint that ran; `None` when there was nothing to launch.
    pub(crate) blueprint: Option<String>,
    /// The attention blueprint as data, to be compared with what was asked for.
    pub(crate) attend: Option<AttendBlueprint>,
    /// Memory outside the outputs that changed.
    pub(crate) disturbed: Option<String>,
}

/// A caller-supplied output in poisoned memory, or none.
struct Place {
    shape: Vec<usize>,
    strides: Vec<usize>,
    offset: usize,
    dtype: DType,
    handle: Option<Handle>,
}

mod append;
mod decode;
mod instruction;
mod operands;

/// Runs the problem's kernel once and reads everything back.
pub(crate) fn launch(
    client: &Client,
    problem: &Problem,
    inputs: &Inputs,
    policy: Policy,
) -> Result<Launched, Error> {
    let supplied = problem.memory != Memory::Dense;
    launch_into(client, problem, inputs, policy, supplied)
}

/// [`launch`] with outputs in poisoned memory of ours, or as the kernel's function allocates them.
pub(crate) fn launch_into(
    client: &Client,
    problem: &Problem,
    inputs: &Inputs,
    policy: Policy,
    supplied: bool,
) -> Result<Launched, Error> {
    let run = Run {
        client,
        problem,
        inputs,
        supplied,
    };
    match &problem.task {
        Task::Forward(attend) => run.forward(attend, policy),
        Task::Backward(attend) => run.backward(attend, policy),
        Task::Decode(decode) if decode.prefix > 0 => run.cascade(decode, policy),
        Task::Decode(decode) => run.decode(decode, policy),
        Task::Operands(sizes) => run.operands(sizes, policy),
        Task::Quantize(sizes) => run.quantize(sizes),
        Task::Append(sizes) => run.append(sizes),
        Task::Merge(_) => run.merge(),
        Task::Dequantize(sizes) => run.dequantize(sizes),
        Task::Linear(sizes) => run.linear(sizes, policy),
        Task::Hadamard(sizes) => run.hadamard(sizes),
        Task::Instruction(instruction) => run.instruction(*instruction),
    }
}

struct Run<'a> {
    client: &'a Client,
    problem: &'a Problem,
    inputs: &'a Inputs,
    /// Outputs lie in poisoned memory.
    supplied: bool,
}

impl Run<'_> {
    fn upload(&self, array: &Array) -> Handle {
        let mut bytes = array.bytes();
        // Byte masks are read in whole words, and nothing may be empty.
        let padding = match array.data {
            Data::Float(..) if !bytes.is_empty() => 0,
            _ => bytes.len().max(1).next_multiple_of(4) - bytes.len(),
        };
        bytes.extend(std::iter::repeat_n(POISON, padding));
        self.client.create_from_slice(&bytes)
    }

    fn tensor<const N: usize>(&self, name: &str) -> Tensor<N> {
        let empty = Array::floats(&[0; N], self.problem.dtype, Vec::new());
        let array = self.inputs.get(name).unwrap_or(&empty);
        let dtype = match array.data {
            Data::Float(dtype, _) => dtype,
            _ => DType::F32,
        };
        Tensor::strided(
            self.upload(array),
            std::array::from_fn(|axis| array.shape[axis]),
            std::array::from_fn(|axis| array.strides[axis]),
            array.offset,
            dtype,
        )
    }

    fn place(&self, output: usize, dtype: DType, row_axis: usize) -> Place {
        let shape = self.problem.outputs()[output].1.clone();
        let (strides, offset) = layout(&shape, self.problem.memory, row_axis);
        let mut place = Place {
            shape,
            strides,
            offset,
            dtype,
            handle: None,
        };
        if self.supplied {
            let elements = place.view().reach() + offset + 5;
            let bytes = vec![POISON; (elements * dtype.size()).next_multiple_of(4)];
            place.handle = Some(self.client.create_from_slice(&bytes));
        }
        place
    }

    fn forward(&self, attend: &Attend, policy: Policy) -> Result<Launched, Error> {
        let [q, k, v] = ["q", "k", "v"].map(|name| self.tensor::<4>(name));
        let places = [
            self.place(0, self.problem.dtype, 2),
            self.place(1, DType::F32, 2),
        ];
        let hooks = HookArrays::of(self, attend);
        let options = AttendOptions {
            out: places[0].tensor(),
            lse: places[1].tensor(),
            ..hooks.options(attend, policy)
        };
        let attended = flashcube::attend_forward(self.client, &q, &k, &v, &options)?;
        let tensors = [erase(&attended.out), erase(&attended.lse)];
        let mut launched = self.collect(&places, &tensors)?;
        launched.blueprint = attended.blueprint.map(|b| b.to_string());
        launched.attend = attended.blueprint;
        Ok(launched)
    }

    fn backward(&self, attend: &Attend, policy: Policy) -> Result<Launched, Error> {
        let [q, k, v] = ["q", "k", "v"].map(|name| self.tensor::<4>(name));
        let [out, d_out] = ["out", "d_out"].map(|name| self.tensor::<4>(name));
        let lse = self.tensor::<3>("lse");
        let hooks = HookArrays::of(self, attend);
        let options = hooks.options(attend, policy);
        let gradients =
            flashcube::attend_backward(self.client, &q, &k, &v, &out, &lse, &d_out, &options)?;
        let tensors = [&gradients.dq, &gradients.dk, &gradients.dv].map(erase);
        let mut launched = self.collect(&[], &tensors)?;
        launched.blueprint = gradients.blueprint.map(|b| b.to_string());
        launched.attend = gradients.blueprint;
        Ok(launched)
    }

    fn merge(&self) -> Result<Launched, Error> {
        let (outs, lses) = (self.tensor::<5>("outs"), self.tensor::<4>("lses"));
        let places = [
            self.place(0, self.problem.dtype, 2),
            self.place(1, DType::F32, 2),
        ];
        let options = MergeOptions {
            dtype: Some(self.problem.dtype),
            out: places[0].tensor(),
            lse: places[1].tensor(),
        };
        let merged = flashcube::merge_partials(self.client, &outs, &lses, &options)?;
        let tensors = [erase(&merged.out), erase(&merged.lse)];
        let mut launched = self.collect(&places, &tensors)?;
        launched.blueprint = merged.blueprint.map(|b| b.to_string());
        Ok(launched)
    }

    fn dequantize(&self, sizes: &PackedSizes) -> Result<Launched, Error> {
        let empty = Array::dense(&[0], Data::U32(Vec::new()));
        let handle = |name: &str| self.upload(self.inputs.get(name).unwrap_or(&empty));
        let weights = PackedWeights {
            format: sizes.format,
            bits: sizes.bits,
            k: sizes.k,
            n: sizes.n,
            group: sizes.group,
            qweight: handle("qweight"),
            qzeros: handle("qzeros"),
            scales: handle("scales"),
            g_idx: self.inputs.get("g_idx").map(|array| self.upload(array)),
        };
        let places = [self.place(0, self.problem.dtype, 0)];
        let options = DequantizeOptions {
            dtype: Some(self.problem.dtype),
            out: places[0].tensor(),
        };
        let weight = flashcube::dequantize_int4(self.client, &weights, &options)?;
        let mut launched = self.collect(&places, &[erase(&weight.out)])?;
        launched.blueprint = weight.blueprint.map(|b| b.to_string());
        Ok(launched)
    }

    fn linear(&self, sizes: &LinearSizes, policy: Policy) -> Result<Launched, Error> {
        let empty = Array::dense(&[0], Data::U32(Vec::new()));
        let handle = |name: &str| self.upload(self.inputs.get(name).unwrap_or(&empty));
        let optional = |name: &str| self.inputs.get(name).map(|array| self.upload(array));
        let weights = LinearWeights {
            bits: sizes.bits,
            codes: sizes.codes,
            k: sizes.k,
            n: sizes.n,
            rows: sizes.rows(),
            group: sizes.group,
            words: handle("words"),
            scales: handle("scales"),
            scale_type: sizes.scales,
            scale_range: self.scale_range(sizes),
            factor: sizes.factor(),
            zeros: optional("zeros"),
            zero_type: sizes.zeros.unwrap_or_default(),
            gather: optional("gather"),
        };
        let places = [self.place(0, self.problem.dtype, 0)];
        let mut options = MatmulOptions {
            workspace: None,
            bias: self.inputs.get("bias").map(|_| self.tensor("bias")),
            out: places[0].tensor(),
            policy: MatmulPolicy {
                tier: policy.tier,
                ..sizes.policy
            },
        };
        let x = self.tensor::<2>("x");
        let plan = plan_matmul(&x, &weights, &options, &Caps::of(self.client))?;
        options.workspace = plan.map(|plan| self.poisoned(plan.workspace));
        let multiplied = flashcube::matmul_quantized(self.client, &x, &weights, &options)?;
        let mut launched = self.collect(&places, &[erase(&multiplied.out)])?;
        launched.blueprint = multiplied.blueprint.map(|b| b.to_string());
        Ok(launched)
    }

    /// A workspace of f32 that are NaN.
    fn poisoned(&self, elements: usize) -> Tensor<1> {
        let handle = self
            .client
            .create_from_slice(&vec![POISON; 4 * elements.max(4)]);
        Tensor::contiguous(handle, [elements], DType::F32)
    }

    /// The range of the scales and minima of columns that exist: the others' are NaN.
    fn scale_range(&self, sizes: &LinearSizes) -> Option<[f32; 2]> {
        let bytes = self
            .inputs
            .get("scales")
            .map(Array::bytes)
            .unwrap_or_default();
        let values: Vec<f32> = match sizes.scales {
            ScaleType::F16 => self.inputs.values("scales"),
            ScaleType::E4M3 => return None,
            ScaleType::E8M0 => {
                let codes = bytes.iter().filter(|&&code| code != 255);
                codes.map(|&code| e8m0::decode(code) as f32).collect()
            }
        };
        let minima = match sizes.minima() {
            true => self.inputs.values("zeros"),
            false => Vec::new(),
        };
        scale_range(values.into_iter().chain(minima).filter(|x| !x.is_nan()))
    }

    fn hadamard(&self, sizes: &HadamardSizes) -> Result<Launched, Error> {
        let x = self.tensor::<2>("x");
        let signs = self.inputs.get("signs").map(Array::flags);
        let places = [self.place(0, self.problem.dtype, 0)];
        let options = HadamardOptions {
            signs: signs.as_deref(),
            inverse: sizes.inverse,
            out: places[0].tensor(),
        };
        let transformed = flashcube::hadamard_transform(self.client, &x, &options)?;
        let mut launched = self.collect(&places, &[erase(&transformed.out)])?;
        launched.blueprint = transformed.blueprint.map(|b| b.to_string());
        Ok(launched)
    }

    /// Reads the outputs back, and the memory around those that were supplied.
    fn collect(&self, places: &[Place], tensors: &[Erased]) -> Result<Launched, Error> {
        let mut launched = Launched {
            outputs: Outputs::default(),
            blueprint: None,
            attend: None,
            disturbed: None,
        };
        let names = self.problem.outputs();
        for (output, ((name, _), tensor)) in names.iter().zip(tensors).enumerate() {
            let mut values = Vec::new();
            if tensor.shape.iter().product::<usize>() > 0 {
                let bytes = self.read(&tensor.handle)?;
                let view = tensor.view();
                let buffer = decode(tensor.dtype, &bytes);
                values = view.positions().into_iter().map(|at| buffer[at]).collect();
                if places
                    .get(output)
                    .is_some_and(|place| place.handle.is_some())
                {
                    let disturbed = disturbed(name, &view, tensor.dtype, &bytes);
                    launched.disturbed = launched.disturbed.or(disturbed);
                }
            }
            launched.outputs = launched.outputs.with(name, values);
        }
        Ok(launched)
    }

    fn read(&self, handle: &Handle) -> Result<Vec<u8>, Error> {
        let bytes = self.client.read_one(handle.clone());
        let bytes = bytes.map_err(|error| RuntimeFailure {
            blueprint: self.problem.name.clone(),
            device: self.client.name().into(),
            message: format!("{error:?}"),
        })?;
        Ok(bytes.to_vec())
    }
}

/// A tensor of any number of axes.
struct Erased {
    handle: Handle,
    shape: Vec<usize>,
    strides: Vec<usize>,
    offset: usize,
    dtype: DType,
}

fn erase<const N: usize>(tensor: &Tensor<N>) -> Erased {
    Erased {
        handle: tensor.handle.clone(),
        shape: tensor.shape.to_vec(),
        strides: tensor.strides.to_vec(),
        offset: tensor.offset,
        dtype: tensor.dtype,
    }
}

impl Erased {
    fn view(&self) -> Array {
        Array {
            shape: self.shape.clone(),
            strides: self.strides.clone(),
            offset: self.offset,
            data: Data::U8(Vec::new()),
        }
    }
}

impl Place {
    fn view(&self) -> Array {
        Array {
            shape: self.shape.clone(),
            strides: self.strides.clone(),
            offset: self.offset,
            data: Data::U8(Vec::new()),
        }
    }

    fn tensor<const N: usize>(&self) -> Option<Tensor<N>> {
        let shape = std::array::from_fn(|axis| self.shape[axis]);
        let strides = std::array::from_fn(|axis| self.strides[axis]);
        let view = |handle| Tensor::strided(handle, shape, strides, self.offset, self.dtype);
        self.handle.clone().map(view)
    }
}

/// The first element outside the view that is no longer poison.
fn disturbed(name: &str, view: &Array, dtype: DType, bytes: &[u8]) -> Option<String> {
    let size = dtype.size();
    let mut inside = vec![false; bytes.len() / size];
    for at in view.positions() {
        inside[at] = true;
    }
    let intact = |at: usize| {
        bytes[at * size..(at + 1) * size]
            .iter()
            .all(|&b| b == POISON)
    };
    let at = (0..inside.len()).find(|&at| !inside[at] && !intact(at))?;
    Some(format!(
        "{name}: element {at} of the buffer is outside the view and was overwritten"
    ))
}

/// Device and host arrays behind the hooks.
struct HookArrays {
    mask: Option<BoolMask>,
    bias: Option<Tensor<4>>,
    alibi: Option<Vec<f32>>,
    sinks: Option<Vec<f32>>,
    documents: Option<(Vec<u32>, Vec<u32>)>,
}

impl HookArrays {
    fn of(run: &Run<'_>, attend: &Attend) -> Self {
        let words = |name: &str| run.inputs.get(name).map(|array| array.words().to_vec());
        let mask = run.inputs.get("mask").zip(attend.mask);
        Self {
            mask: mask.map(|(array, (width, shape))| BoolMask {
                handle: run.upload(array),
                shape,
                strides: std::array::from_fn(|axis| array.strides[axis]),
                offset: array.offset,
                width,
            }),
            bias: run.inputs.get("bias").map(|_| run.tensor("bias")),
            alibi: run.inputs.get("alibi").map(Array::values),
            sinks: run.inputs.get("sinks").map(Array::values),
            documents: words("documents_q").zip(words("documents_kv")),
        }
    }

    fn options<'a>(&'a self, attend: &'a Attend, policy: Policy) -> AttendOptions<'a> {
        AttendOptions {
            scale: attend.scale,
            softcap: attend.softcap,
            causal: attend.causal,
            alignment: attend.alignment,
            window_left: attend.window_left,
            window_right: attend.window_right,
            lengths_q: attend.lengths_q.as_deref(),
            lengths_kv: attend.lengths_kv.as_deref(),
            cu_seqlens: attend.cu_seqlens.as_ref().map(|(q, kv)| (&q[..], &kv[..])),
            documents: self.documents.as_ref().map(|(q, kv)| (&q[..], &kv[..])),
            mask: self.mask.clone(),
            bias: self.bias.clone(),
            alibi: self.alibi.as_deref(),
            sinks: self.sinks.as_deref(),
            policy,
            ..AttendOptions::default()
        }
    }
}
