//! Every comptime choice of a kernel: one cache key, one printable line.

use core::fmt;

use super::{AttendOp, Caps, DType, Fault};
use crate::arch::fma::FmaShape;
use crate::arch::hopper::HopperShape;
use crate::arch::plane::PlaneShape;
use crate::arch::tcgen05::{BlackwellShape, STAGE_ROWS};
use crate::attention::{IssueOrder, LogitFeatures, LoopPlan, ScaledBy, TileShape, WeightFormat};
use crate::quant::{OperandFormat, ScaleRule};

/// Family of kernels, by what carries the arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TierName {
    /// FMA, no plane operations; any backend.
    Unit,
    /// mma.sync and cp.async, a plane a few rows; CUDA sm_80 and up, block-scaled on sm_120.
    Plane,
    /// TMA and wgmma with warp roles; CUDA sm_90.
    Hopper,
    /// TMA, tcgen05 and tensor memory with five warp roles; CUDA sm_100 and sm_103.
    Blackwell,
}

impl TierName {
    /// Every tier.
    pub const ALL: [TierName; 4] = [
        TierName::Unit,
        TierName::Plane,
        TierName::Hopper,
        TierName::Blackwell,
    ];
}

impl fmt::Display for TierName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TierName::Unit => "unit",
            TierName::Plane => "plane",
            TierName::Hopper => "hopper",
            TierName::Blackwell => "blackwell",
        })
    }
}

/// How the roles of the loop are dealt out to units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RoleSplit {
    /// Every unit plays all of them.
    None,
    /// Half the units compute the softmax, the other half everything else.
    Softmax,
}

/// Comptime choices of an attention kernel, forward or backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttendBlueprint {
    /// Direction.
    pub op: AttendOp,
    /// Tier.
    pub tier: TierName,
    /// Roles.
    pub roles: RoleSplit,
    /// Order of the products.
    pub order: IssueOrder,
    /// A second, maskless copy of the step for blocks that hide nothing.
    pub segmented: bool,
    /// Element type of q, k, v and out.
    pub dtype: DType,
    /// Head dimension of q and k.
    pub d: usize,
    /// Head dimension of v and out.
    pub d_v: usize,
    /// Query rows of a tile.
    pub rows: usize,
    /// Query heads of a group whose rows alternate in a tile: row r is query r / pack of head
    /// r % pack. 1 for tiles of one head.
    pub pack: usize,
    /// Keys of a block.
    pub block: usize,
    /// Stages of K and of V in shared memory; 0 on tiers that keep none there.
    pub stages: usize,
    /// Cubes that walk the same key blocks and load each of them once between them: on the Hopper tier with a
    /// tile each (TMA multicast within a cluster), on the Blackwell tier with the rows of one tile (`cta_group::2`).
    /// 1 for cubes on their own.
    pub cluster: usize,
    /// Parts of a split tile that a cube takes and merges, each with a plane of its own: 1 but on the plane
    /// tier.
    pub parts: usize,
    /// One tile holds all queries and query heads that read a row of K or V.
    pub once: bool,
    /// Elements of a vector load.
    pub vector: usize,
    /// 64-bit addressing.
    pub wide: bool,
    /// Scale folded into the exponential; see [`LoopPlan::folded`].
    pub folded: bool,
    /// Some exponentials by a polynomial, where the special-function units are the slower ones.
    pub polynomial: bool,
    /// Hooks compiled in.
    pub features: LogitFeatures,
    /// Sabotage; see [`Fault`].
    pub fault: Option<Fault>,
}

impl AttendBlueprint {
    /// Units of a cube.
    pub fn units(&self) -> usize {
        match (self.tier, self.roles) {
            (TierName::Hopper, _) => self.hopper_shape().units() as usize,
            (TierName::Blackwell, _) => self.blackwell_shape().units() as usize,
            (TierName::Plane, _) => self.plane_shape().units() as usize,
            (TierName::Unit, RoleSplit::None) => self.rows,
            (TierName::Unit, RoleSplit::Softmax) => 2 * self.rows,
        }
    }

    /// Cubes whose rows make a tile: 2 for pairs of the Blackwell tier.
    pub fn cubes_of_tile(&self) -> usize {
        match self.tier {
            TierName::Blackwell => self.cluster,
            _ => 1,
        }
    }

    /// Cubes that a multiprocessor holds at a time, as far as shared memory and units decide.
    pub(crate) fn resident(&self, caps: &Caps) -> usize {
        // What the driver takes of shared memory for each cube.
        const OWN: usize = 1024;
        let bytes = match self.tier {
            TierName::Unit => 0,
            TierName::Plane => self.plane_shape().smem_bytes() as usize,
            // Their registers leave room for no other.
            TierName::Hopper | TierName::Blackwell => caps.shared_memory,
        };
        let by_memory = (caps.shared_memory + OWN) / (bytes + OWN);
        by_memory.min(2048 / self.units()).clamp(1, 16)
    }

    pub(crate) fn loop_plan(&self) -> LoopPlan {
        LoopPlan {
            block: self.block as u32,
            order: self.order,
            segmented: self.segmented,
            features: self.features,
            folded: self.folded,
            slack: match self.tier {
                // A key that outweighs the others has the weight 1, which 16 bits hold; one below the
                // largest has a rounded one. With a slack of 8 errors are 4 % larger on normal
                // inputs and 14 % with outliers, even with one of 1/2 2 %.
                TierName::Unit | TierName::Plane | TierName::Hopper => 0,
                // Encoded weights reach 2^8 already.
                TierName::Blackwell if self.features.weights.encoded() => 0,
                // There a correction stalls a role of its own, and FlashAttention-4 does so too. Weights
                // up to 2^8 fit f16 with room for its largest sums of products.
                TierName::Blackwell => 8,
            },
            joined: self.tier == TierName::Hopper && self.hopper_shape().joined(),
        }
    }

    pub(crate) fn hopper_shape(&self) -> HopperShape {
        HopperShape {
            d: self.d as u32,
            d_v: self.d_v as u32,
            block: self.block as u32,
            consumers: self.rows as u32 / 64,
            stages: self.stages as u32,
            ty: self.ptx_type(),
            features: self.features,
            pack: self.pack as u32,
            cluster: self.cluster as u32,
        }
    }

    pub(crate) fn blackwell_shape(&self) -> BlackwellShape {
        BlackwellShape {
            d: self.d as u32,
            d_v: self.d_v as u32,
            block: self.block as u32,
            q_stages: self.rows as u32 / STAGE_ROWS / self.cluster as u32,
            stages: self.stages as u32,
            ty: self.ptx_type(),
            features: self.features,
            pack: self.pack as u32,
            cubes: self.cluster as u32,
        }
    }

    pub(crate) fn tile_shape(&self) -> TileShape {
        TileShape {
            rows: self.rows as u32,
            pack: self.pack as u32,
            single: self.once,
            features: self.features,
        }
    }

    pub(crate) fn plane_shape(&self) -> PlaneShape {
        PlaneShape {
            d: self.d as u32,
            d_v: self.d_v as u32,
            rows: self.rows as u32,
            block: self.block as u32,
            stages: self.stages as u32,
            ahead: self.order == IssueOrder::ScoresAhead,
            pack: self.pack as u32,
            split: self.features.split,
            parts: self.parts as u32,
            codes: self.features.codes,
            operands: self.operand_formats(),
            page: self.features.page,
            ty: self.ptx_type(),
        }
    }

    /// Formats of q and k, and of P and v, where products take them as they are stored.
    fn operand_formats(&self) -> Option<(OperandFormat, OperandFormat)> {
        let values = match self.features.weights {
            WeightFormat::Wide | WeightFormat::E4m3 => OperandFormat::Mxfp8(ScaleRule::default()),
            WeightFormat::Nvfp4 => OperandFormat::Nvfp4 { exponent: 0 },
            WeightFormat::Mxfp4(rule) => OperandFormat::Mxfp4(rule),
        };
        self.features.operands.map(|scores| (scores, values))
    }

    /// What matrix instructions call the dtype.
    fn ptx_type(&self) -> &'static str {
        match self.dtype {
            DType::F16 => "f16",
            _ => "bf16",
        }
    }

    pub(crate) fn fma_shape(&self) -> FmaShape {
        FmaShape {
            block: self.block,
            len: self.d / self.vector,
            len_v: self.d_v / self.vector,
            units: self.rows,
            fault: self.fault,
        }
    }
}

impl fmt::Display for AttendBlueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            AttendOp::Forward => "attn_fwd",
            AttendOp::Decode => "attn_dec",
            AttendOp::Backward => "attn_bwd",
        };
        write!(f, "{op}/{}/{}/d{}", self.tier, self.dtype, self.d)?;
        if self.d_v != self.d {
            write!(f, "v{}", self.d_v)?;
        }
        write!(f, "/q{}xkv{}", self.rows, self.block)?;
        if self.stages > 0 {
            write!(f, "/st{}", self.stages)?;
        }
        if self.cluster > 1 {
            write!(f, "/cl{}", self.cluster)?;
        }
        if self.parts > 1 {
            write!(f, "/parts{}", self.parts)?;
        }
        write!(f, "/vec{}", self.vector)?;
        if self.pack > 1 {
            write!(f, "/pack{}", self.pack)?;
        }
        let x = &self.features;
        let tags = [
            (self.roles == RoleSplit::Softmax, "split-softmax"),
            (self.order == IssueOrder::ScoresAhead, "scores-ahead"),
            (self.segmented, "segmented"),
            (self.folded, "folded"),
            (self.polynomial, "polynomial"),
            (self.wide, "wide"),
            (self.once, "once"),
            (x.softcap, "softcap"),
            (x.alibi, "alibi"),
            (x.bias, "bias"),
            (x.band_left, "left"),
            (x.band_right, "right"),
            (x.documents, "documents"),
            (x.mask.is_some(), "mask"),
            (x.lengths && !x.varlen, "lengths"),
            (x.varlen, "varlen"),
            (x.sinks, "sinks"),
            (x.split, "split"),
            (x.operands.is_some_and(OperandFormat::nvfp4), "qk-nvfp4"),
            (
                matches!(x.operands, Some(OperandFormat::Mxfp4(_))),
                "qk-mxfp4",
            ),
            (
                matches!(x.operands, Some(OperandFormat::Mxfp8(_))),
                "qk-mxfp8",
            ),
            (x.operands.is_some_and(OperandFormat::unscaled), "qk-fp8"),
            (x.codes == Some(ScaledBy::Head), "e4m3"),
            (x.codes == Some(ScaledBy::Page), "e4m3-pages"),
            (x.weights == WeightFormat::E4m3, "p-e4m3"),
            (x.weights == WeightFormat::Nvfp4, "p-nvfp4"),
            (
                x.weights == WeightFormat::Mxfp4(ScaleRule::Floor),
                "p-mxfp4-floor",
            ),
            (x.weights == WeightFormat::Mxfp4(ScaleRule::Ceil), "p-mxfp4"),
            (
                x.weights == WeightFormat::Mxfp4(ScaleRule::RoundEven),
                "p-mxfp4-even",
            ),
        ];
        for (_, tag) in tags.into_iter().filter(|(on, _)| *on) {
            write!(f, "/{tag}")?;
        }
        if let Some(page) = x.page {
            write!(f, "/page{page}")?;
        }
        match self.fault {
            Some(fault) => write!(f, "/FAULT-{fault}"),
            None => Ok(()),
        }
    }
}
