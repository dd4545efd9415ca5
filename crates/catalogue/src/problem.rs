//! A problem: plain data that, with a seed, determines every input bit.

use core::fmt;
use core::str::FromStr;

use flashcube::attention::MaskWidth;
use flashcube::{Alignment, DType, Instruction, Policy, TierName};
use flashcube_reference as reference;

use crate::bounds;
pub use crate::sizes::{
    Append, Decode, HadamardSizes, LinearSizes, MergeSizes, Operands, PackedSizes, QuantizeSizes,
};

/// An operation of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kernel {
    /// [`flashcube::attend_forward`].
    AttendForward,
    /// [`flashcube::attend_backward`].
    AttendBackward,
    /// [`flashcube::attend_decode`].
    AttendDecode,
    /// [`flashcube::attend_operands`].
    AttendOperands,
    /// [`flashcube::quantize_operand`].
    QuantizeOperand,
    /// [`flashcube::append`].
    Append,
    /// [`flashcube::merge_partials`].
    MergePartials,
    /// [`flashcube::dequantize_int4`].
    DequantizeInt4,
    /// [`flashcube::matmul_quantized`].
    W4a16,
    /// [`flashcube::hadamard_transform`].
    HadamardTransform,
    /// [`flashcube::run_instruction`].
    MatrixInstruction,
}

/// A kernel name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown kernel {found:?}: expected one of {expected}")]
pub struct UnknownKernel {
    /// The name.
    pub found: String,
    /// The names there are.
    pub expected: String,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Kernel; 11] = [
        Kernel::AttendForward,
        Kernel::AttendBackward,
        Kernel::AttendDecode,
        Kernel::AttendOperands,
        Kernel::QuantizeOperand,
        Kernel::Append,
        Kernel::MergePartials,
        Kernel::DequantizeInt4,
        Kernel::W4a16,
        Kernel::HadamardTransform,
        Kernel::MatrixInstruction,
    ];
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kernel::AttendForward => "attend_forward",
            Kernel::AttendBackward => "attend_backward",
            Kernel::AttendDecode => "attend_decode",
            Kernel::AttendOperands => "attend_operands",
            Kernel::QuantizeOperand => "quantize_operand",
            Kernel::Append => "append",
            Kernel::MergePartials => "merge_partials",
            Kernel::DequantizeInt4 => "dequantize_int4",
            Kernel::W4a16 => "w4a16",
            Kernel::HadamardTransform => "hadamard_transform",
            Kernel::MatrixInstruction => "matrix_instruction",
        })
    }
}

impl FromStr for Kernel {
    type Err = UnknownKernel;

    fn from_str(name: &str) -> Result<Self, UnknownKernel> {
        let known = Self::ALL.into_iter().find(|k| k.to_string() == name);
        known.ok_or_else(|| UnknownKernel {
            found: name.into(),
            expected: Self::ALL.map(|k| k.to_string()).join(", "),
        })
    }
}

/// One named problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Unique: kernel/feature/detail/dtype.
    pub name: String,
    /// What the problem is there for: a row of the list of required rows.
    pub feature: &'static str,
    /// The operation and its sizes.
    pub task: Task,
    /// Element type of the floating-point tensors (of the output, for merge and dequantize).
    pub dtype: DType,
    /// How the inputs are drawn.
    pub values: Values,
    /// How inputs and outputs lie in memory.
    pub memory: Memory,
    /// Part of the reduced set that `cargo test` runs on every backend.
    pub core: bool,
}

/// An operation and its sizes.
#[derive(Debug, Clone, PartialEq)]
pub enum Task {
    /// Attention forward: out and lse.
    Forward(Attend),
    /// Attention backward: dq, dk, dv from out and lse of the reference, rounded.
    Backward(Attend),
    /// Few queries against a cache: out and lse.
    Decode(Decode),
    /// Attention over operands of block-scaled products: out and lse.
    Operands(Operands),
    /// Codes and scales of a tensor: codes, one number each, and the bytes of the scales.
    Quantize(QuantizeSizes),
    /// New rows into a cache: k and v, 0 where no key lies.
    Append(Append),
    /// Merge of partial results: out and lse.
    Merge(MergeSizes),
    /// Unpacked weights: out.
    Dequantize(PackedSizes),
    /// Product with packed weights: out.
    Linear(LinearSizes),
    /// Walsh-Hadamard transform: out.
    Hadamard(HadamardSizes),
    /// One instruction, or conversion, alone: products by what their operands are like, what ldmatrix moved, codes.
    Instruction(Instruction),
}

/// Sizes and hooks of an attention problem; see [`flashcube::AttendOptions`].
#[derive(Debug, Clone, PartialEq)]
pub struct Attend {
    /// Batch entries.
    pub b: usize,
    /// Query heads.
    pub h_q: usize,
    /// Key heads.
    pub h_kv: usize,
    /// Queries.
    pub s_q: usize,
    /// Keys.
    pub s_kv: usize,
    /// Head dimension of q and k.
    pub d: usize,
    /// Head dimension of v.
    pub d_v: usize,
    /// Factor on q.k; 1 / sqrt(d) when absent.
    pub scale: Option<f32>,
    /// Softcap.
    pub softcap: Option<f32>,
    /// Causal mask.
    pub causal: bool,
    /// Anchor of causal, window and ALiBi.
    pub alignment: Alignment,
    /// Window, left of the diagonal.
    pub window_left: Option<usize>,
    /// Window, right of the diagonal.
    pub window_right: Option<usize>,
    /// Queries of every batch entry.
    pub lengths_q: Option<Vec<usize>>,
    /// Keys of every batch entry.
    pub lengths_kv: Option<Vec<usize>>,
    /// Cumulative lengths of packed sequences, of queries and of keys; b is 1 then.
    pub cu_seqlens: Option<(Vec<usize>, Vec<usize>)>,
    /// Consecutive documents of random length, this many in every batch entry.
    pub documents: Option<u32>,
    /// Rows belong to documents at random instead of one document behind the other.
    pub scattered: bool,
    /// Random boolean mask of this width and shape, axes full or 1.
    pub mask: Option<(MaskWidth, [usize; 4])>,
    /// Random bias of this shape, one in sixteen -inf, axes full or 1.
    pub bias: Option<[usize; 4]>,
    /// ALiBi slopes 2^(-8 (h + 1) / h_q).
    pub alibi: bool,
    /// A random sink logit for every query head.
    pub sinks: bool,
    /// What selection is asked for.
    pub policy: Policy,
}

/// How inputs are drawn. Everything not named is N(0, 1); all of it is rounded to the dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// N(0, 1).
    Normal,
    /// N(0, 1) + N(0, 10^2) * Bernoulli(0.001), as in the FlashAttention-3 paper, section 4.3.
    Outliers,
    /// `V[j][x] = 1` where x = j mod d_v: out is the weights themselves.
    OneHotV,
    /// `V[j][x] = (j + 7 h + 13 b + x) mod 251`: a wrong key, head or batch entry shows.
    IndexV,
    /// q a hundred times larger: logits of the order of 1e4 with a scale of order 100.
    LargeLogits,
    /// All keys equal.
    EqualLogits,
    /// One logit 0, the others -7, V = 1: out is exactly 1.
    Spike,
    /// Logits that grow by 1/4 from key to key: forwards the maximum moves in every block.
    Ascending,
    /// Logits that grow by 1/4 up to the middle key and fall again: the maximum moves in half of
    /// the blocks, forwards and backwards.
    Peak,
    /// N(0, 1), and NaN in everything that no query may see: padding rows of q, hidden keys and
    /// their values, empty partials.
    HiddenNan,
    /// Dequantize: every zero point 0, every code 1.
    ZeroPoints,
    /// Products: the second half of every row of x is the first one's negative.
    Cancelling,
    /// Quantize: multiples of 1/4 up to 6, half of which lie midway between E2M1 codes.
    Ties,
}

/// How tensors lie in memory. Gaps of inputs hold NaN; gaps of outputs must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Dense; the kernel allocates its outputs.
    Dense,
    /// Dense; the caller supplies outputs full of NaN.
    Poisoned,
    /// [b, s, h, d] memory, outputs alike.
    HeadsInside,
    /// Views that start this many elements into their buffer.
    Offset(usize),
    /// Rows this many elements apart from each other's end.
    PaddedRows(usize),
    /// K and V have batch stride 0.
    SharedKv,
}

impl Problem {
    /// The operation.
    pub fn kernel(&self) -> Kernel {
        match self.task {
            Task::Forward(_) => Kernel::AttendForward,
            Task::Backward(_) => Kernel::AttendBackward,
            Task::Decode(_) => Kernel::AttendDecode,
            Task::Operands(_) => Kernel::AttendOperands,
            Task::Quantize(_) => Kernel::QuantizeOperand,
            Task::Append(_) => Kernel::Append,
            Task::Merge(_) => Kernel::MergePartials,
            Task::Dequantize(_) => Kernel::DequantizeInt4,
            Task::Linear(_) => Kernel::W4a16,
            Task::Hadamard(_) => Kernel::HadamardTransform,
            Task::Instruction(_) => Kernel::MatrixInstruction,
        }
    }

    /// Sizes and hooks, if this is an attention problem.
    pub fn attend(&self) -> Option<&Attend> {
        match &self.task {
            Task::Forward(attend) | Task::Backward(attend) => Some(attend),
            Task::Decode(decode) => Some(&decode.attend),
            Task::Operands(operands) => Some(&operands.attend),
            _ => None,
        }
    }

    /// Checks what drawing inputs relies on; the reference checks the rest.
    ///
    /// # Errors
    /// [`reference::Error`] naming the size, its value and its limit.
    pub fn validate(&self) -> Result<(), reference::Error> {
        let at_least_1 = |name, value: usize| match value {
            0 => Err(reference::Error::Parameter {
                name,
                value: 0.0,
                requirement: "at least 1",
            }),
            _ => Ok(()),
        };
        match &self.task {
            Task::Forward(a)
            | Task::Backward(a)
            | Task::Decode(Decode { attend: a, .. })
            | Task::Operands(Operands { attend: a, .. }) => {
                at_least_1("d", a.d)?;
                if !a.h_q.is_multiple_of(a.h_kv) {
                    let (h_q, h_kv) = (a.h_q, a.h_kv);
                    return Err(reference::Error::Heads { h_q, h_kv });
                }
                Ok(())
            }
            Task::Append(_) | Task::Merge(_) | Task::Quantize(_) | Task::Instruction(_) => Ok(()),
            Task::Dequantize(p) => {
                at_least_1("group", p.group)?;
                at_least_1("bits", p.bits as usize)
            }
            Task::Linear(p) => {
                at_least_1("group", p.group)?;
                at_least_1("bits", p.bits as usize)
            }
            Task::Hadamard(h) => at_least_1("n", h.n),
        }
    }

    /// The tier that must run it: the one its policy names, `unit` otherwise.
    pub fn tier(&self) -> TierName {
        let tier = match &self.task {
            Task::Linear(sizes) => sizes.policy.tier,
            Task::Instruction(instruction) => Some(instruction.tier()),
            _ => self.attend().and_then(|a| a.policy.tier),
        };
        tier.unwrap_or(TierName::Unit)
    }

    /// Outputs by name and shape, in the order of the operation's results.
    pub fn outputs(&self) -> Vec<(&'static str, Vec<usize>)> {
        match &self.task {
            Task::Forward(a)
            | Task::Decode(Decode { attend: a, .. })
            | Task::Operands(Operands { attend: a, .. }) => vec![
                ("out", vec![a.b, a.h_q, a.s_q, a.d_v]),
                ("lse", vec![a.b, a.h_q, a.s_q]),
            ],
            Task::Backward(a) => vec![
                ("dq", vec![a.b, a.h_q, a.s_q, a.d]),
                ("dk", vec![a.b, a.h_kv, a.s_kv, a.d]),
                ("dv", vec![a.b, a.h_kv, a.s_kv, a.d_v]),
            ],
            Task::Quantize(sizes) => vec![
                ("codes", sizes.codes().to_vec()),
                ("scales", vec![sizes.scales()]),
            ],
            Task::Append(a) => vec![
                ("k", vec![a.lengths.len(), a.h, a.s_kv, a.d.0]),
                ("v", vec![a.lengths.len(), a.h, a.s_kv, a.d.1]),
            ],
            Task::Merge(m) => vec![
                ("out", vec![m.b, m.h, m.s, m.d_v]),
                ("lse", vec![m.b, m.h, m.s]),
            ],
            Task::Dequantize(p) => vec![("out", vec![p.k, p.n])],
            Task::Linear(p) => vec![("out", vec![p.m, p.n])],
            Task::Hadamard(h) => vec![("out", vec![h.rows, h.n])],
            Task::Instruction(instruction) => bounds::instruction_outputs(*instruction),
        }
    }
}

impl Attend {
    /// b batch entries, (h_q, h_kv) heads, (s_q, s_kv) rows, (d, d_v) columns, no hook.
    pub fn plain(b: usize, h: (usize, usize), s: (usize, usize), d: (usize, usize)) -> Self {
        Self {
            b,
            h_q: h.0,
            h_kv: h.1,
            s_q: s.0,
            s_kv: s.1,
            d: d.0,
            d_v: d.1,
            scale: None,
            softcap: None,
            causal: false,
            alignment: Alignment::BottomRight,
            window_left: None,
            window_right: None,
            lengths_q: None,
            lengths_kv: None,
            cu_seqlens: None,
            documents: None,
            scattered: false,
            mask: None,
            bias: None,
            alibi: false,
            sinks: false,
            policy: Policy::default(),
        }
    }

    /// Sequences of (queries, keys) packed one behind the other, and `spare` rows of each after the
    /// last that belong to none.
    pub fn packed(
        sequences: &[(usize, usize)],
        spare: (usize, usize),
        h: (usize, usize),
        d: (usize, usize),
    ) -> Self {
        let (mut cu_q, mut cu_kv) = (vec![0], vec![0]);
        let (mut end_q, mut end_kv) = (0, 0);
        for &(q, kv) in sequences {
            (end_q, end_kv) = (end_q + q, end_kv + kv);
            cu_q.push(end_q);
            cu_kv.push(end_kv);
        }
        Self {
            cu_seqlens: Some((cu_q, cu_kv)),
            ..Self::plain(1, h, (end_q + spare.0, end_kv + spare.1), d)
        }
    }

    /// The key that query i of batch entry b stands on; before the first if negative.
    pub fn diagonal(&self, b: usize, i: usize) -> i64 {
        let length = |lengths: &Option<Vec<usize>>, s| lengths.as_ref().map_or(s, |l| l[b]);
        let (mut queries, mut keys) = (
            0..length(&self.lengths_q, self.s_q),
            0..length(&self.lengths_kv, self.s_kv),
        );
        if let Some((cu_q, cu_kv)) = &self.cu_seqlens {
            let mut sequences = cu_q.windows(2).zip(cu_kv.windows(2));
            let own = sequences.find(|(q, _)| (q[0]..q[1]).contains(&i));
            (queries, keys) = own.map_or((0..0, 0..0), |(q, kv)| (q[0]..q[1], kv[0]..kv[1]));
        }
        let shift = match self.alignment {
            Alignment::TopLeft => 0,
            Alignment::BottomRight => keys.len() as i64 - queries.len() as i64,
        };
        keys.start as i64 + i as i64 - queries.start as i64 + shift
    }

    /// The factor on q.k.
    pub fn scale(&self) -> f32 {
        self.scale.unwrap_or(1.0 / (self.d as f32).sqrt())
    }

    /// The slopes `[h_q]`, if ALiBi is on: Press et al. 2022 for any number of heads.
    pub fn slopes(&self) -> Option<Vec<f32>> {
        let slope = |h: usize| (-8.0 * (h + 1) as f32 / self.h_q as f32).exp2();
        self.alibi.then(|| (0..self.h_q).map(slope).collect())
    }
}
