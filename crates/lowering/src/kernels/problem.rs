//! Problems, and the blueprint each gets on a device.

use flashcube_kernels::attention::{LogitFeatures, Side};
use flashcube_kernels::quant::{Packing, WeightTiles};
use flashcube_kernels::{
    AttendBlueprint, AttendKey, AttendOp, Caps, DType, Instruction, MatmulKey, MatmulPolicy,
    NotAvailable, Policy, cube_units, scaled_tier, select_attend, select_dequantize,
    select_hadamard, select_instruction, select_matmul, select_merge,
};

use super::{Blueprint, DataKernel};

/// The facts an attention kernel's blueprint depends on.
#[derive(Clone, Copy, Debug)]
pub struct AttendProblem {
    /// Element type of q, k, v and out.
    pub dtype: DType,
    /// Head dimension of q and k.
    pub d: usize,
    /// Head dimension of v and out.
    pub d_v: usize,
    /// Query heads that share a key head.
    pub group: usize,
    /// Queries of a sequence, unless the kernel is a decode's.
    pub s_q: usize,
    /// Hooks compiled in.
    pub features: LogitFeatures,
    /// What the caller asks of selection.
    pub policy: Policy,
}

/// The facts a kernel's blueprint depends on. Tensors are dense, long and within 32-bit reach.
#[derive(Clone, Copy, Debug)]
pub enum Problem {
    /// `attend_forward`.
    AttendForward(AttendProblem),
    /// `attend_decode` of one query.
    AttendDecode(AttendProblem),
    /// The pass of `attend_backward` over one side.
    AttendBackward(AttendProblem, Side),
    /// The first launch of `attend_backward`: rowsum(d_out * out).
    AttendDelta(AttendProblem),
    /// `merge_partials`.
    Merge {
        /// Dtype of the merged out.
        dtype: DType,
        /// Head dimension of v.
        d_v: usize,
    },
    /// `dequantize_int4`.
    Dequantize {
        /// Layout and bits.
        packing: Packing,
        /// Dtype written.
        dtype: DType,
    },
    /// `matmul_quantized`.
    Matmul(MatmulProblem),
    /// `hadamard_transform`.
    Hadamard {
        /// Dtype read and written.
        dtype: DType,
        /// Length of a row.
        n: usize,
        /// Signs are applied.
        signs: bool,
        /// Inverse transform.
        inverse: bool,
    },
    /// What moves, packs and converts tensors.
    Data(DataKernel),
    /// `run_instruction`.
    Instruction(Instruction),
}

impl Problem {
    /// The blueprint for a device with these capabilities, chosen by the same rules as a launch.
    ///
    /// # Errors
    /// [`NotAvailable`] naming the limit.
    pub fn select(&self, caps: &Caps) -> Result<Blueprint, NotAvailable> {
        match *self {
            Problem::AttendForward(problem) => problem
                .select(AttendOp::Forward, caps)
                .map(Blueprint::AttendForward),
            Problem::AttendDecode(problem) => problem
                .select(AttendOp::Decode, caps)
                .map(Blueprint::AttendDecode),
            Problem::AttendBackward(problem, side) => problem
                .select(AttendOp::Backward, caps)
                .map(|blueprint| Blueprint::AttendBackward(blueprint, side)),
            Problem::AttendDelta(problem) => {
                problem
                    .select(AttendOp::Backward, caps)
                    .map(|blueprint| Blueprint::AttendDelta {
                        blueprint,
                        units: cube_units(caps),
                    })
            }
            Problem::Merge { dtype, d_v } => {
                select_merge(dtype, d_v, widest_vector(&[d_v]), 1, caps).map(Blueprint::Merge)
            }
            Problem::Dequantize { packing, dtype } => {
                select_dequantize(packing, dtype, 1, caps).map(Blueprint::Dequantize)
            }
            Problem::Matmul(problem) => problem.select(caps).map(Blueprint::Matmul),
            Problem::Hadamard {
                dtype,
                n,
                signs,
                inverse,
            } => select_hadamard(dtype, n, [signs, inverse], 1, caps).map(Blueprint::Hadamard),
            Problem::Data(kernel) => kernel.select(caps).map(Blueprint::Data),
            Problem::Instruction(form) => {
                select_instruction(form, caps).map(Blueprint::Instruction)
            }
        }
    }
}

/// The facts a product with packed weights depends on.
#[derive(Clone, Copy, Debug)]
pub struct MatmulProblem {
    /// Element type of x and y.
    pub dtype: DType,
    /// Rows of x.
    pub m: usize,
    /// Columns of W.
    pub n: usize,
    /// How the weights are stored.
    pub tiles: WeightTiles,
    /// Rows of x consist of aligned chunks of 16 bytes.
    pub chunks: bool,
    /// What the caller asks of selection.
    pub policy: MatmulPolicy,
}

impl MatmulProblem {
    fn select(&self, caps: &Caps) -> Result<flashcube_kernels::MatmulBlueprint, NotAvailable> {
        let key = MatmulKey {
            dtype: self.dtype,
            m: self.m,
            n: self.n,
            rows: LONG,
            tiles: self.tiles,
            chunks: self.chunks,
            pairs: self.chunks,
            liftable: true,
            reach: 1,
        };
        select_matmul(&key, caps, &self.policy).map(|(blueprint, _)| blueprint)
    }
}

impl AttendProblem {
    fn select(&self, op: AttendOp, caps: &Caps) -> Result<AttendBlueprint, NotAvailable> {
        let key = AttendKey {
            op,
            dtype: self.dtype,
            d: self.d,
            d_v: self.d_v,
            s_q: match op {
                AttendOp::Decode => 1,
                _ => self.s_q,
            },
            group: self.group,
            vector: widest_vector(&[self.d, self.d_v]),
            chunks: true,
            tma: true,
            positive_scale: true,
            reach: 1,
            features: self.features,
        };
        // As `attend_operands` does: operands as they are on the tier that takes them, else decoded.
        if self.features.operands.is_some() {
            let scaled = Policy {
                tier: Some(scaled_tier(caps)),
                ..self.policy
            };
            if let Ok(blueprint) = select_attend(&key, caps, &scaled) {
                return Ok(blueprint);
            }
        }
        let decoded = LogitFeatures {
            operands: None,
            ..self.features
        };
        let key = AttendKey {
            features: decoded,
            ..key
        };
        select_attend(&key, caps, &self.policy)
    }
}

/// Queries: enough for full tiles.
pub(super) const LONG: usize = 4096;

/// Elements that dense rows of these lengths let a kernel load at once.
fn widest_vector(lengths: &[usize]) -> usize {
    let divides = |v: usize| lengths.iter().all(|length| length.is_multiple_of(v));
    [4, 2].into_iter().find(|&v| divides(v)).unwrap_or(1)
}
