//! Every comptime choice of a product with packed weights, and what a caller may ask of it.

use core::fmt;

use crate::arch::hopper::HopperMatmulShape;
use crate::arch::plane::PlaneMatmulShape;
use crate::launch::{Caps, DType, TierName};
use crate::quant::{ScaleType, Scaling, WeightCodes, WeightTiles, ZeroType};

/// Multiprocessors of the device, or an H200's where it does not say.
pub(super) fn multiprocessors(caps: &Caps) -> usize {
    caps.multiprocessors.unwrap_or(132).max(1) as usize
}

/// What the caller wants of selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MatmulPolicy {
    /// Only this tier will do.
    pub tier: Option<TierName>,
    /// Rows of x of a block, where the tier leaves a choice.
    pub rows: Option<usize>,
    /// Parts that the rows of W are dealt out to; their sums are added in a fixed order.
    pub splits: Option<usize>,
    /// Where scales are multiplied in, where the tier leaves a choice.
    pub scaling: Option<Scaling>,
    /// Sabotage for the conformance suite; see [`MatmulFault`].
    pub fault: Option<MatmulFault>,
}

/// A deliberate error in the unit tier's kernel, which the conformance suite must be able to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatmulFault {
    /// Every group is scaled by the first one's scales.
    ScaleOfFirstGroup,
    /// Zero points are one too large.
    ZeroPointOffByOne,
    /// The two columns of a lane are exchanged.
    ColumnsSwapped,
    /// The last 64 rows of W are not multiplied.
    LastTileDropped,
    /// Rows stored in another order multiply the columns of x in x's own.
    GatherIgnored,
    /// The bias is left out.
    BiasDropped,
}

impl MatmulFault {
    /// All of them.
    pub const ALL: [MatmulFault; 6] = [
        MatmulFault::ScaleOfFirstGroup,
        MatmulFault::ZeroPointOffByOne,
        MatmulFault::ColumnsSwapped,
        MatmulFault::LastTileDropped,
        MatmulFault::GatherIgnored,
        MatmulFault::BiasDropped,
    ];
}

impl fmt::Display for MatmulFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MatmulFault::ScaleOfFirstGroup => "scale-of-first-group",
            MatmulFault::ZeroPointOffByOne => "zero-point-off-by-one",
            MatmulFault::ColumnsSwapped => "columns-swapped",
            MatmulFault::LastTileDropped => "last-tile-dropped",
            MatmulFault::GatherIgnored => "gather-ignored",
            MatmulFault::BiasDropped => "bias-dropped",
        })
    }
}

/// Comptime choices of a product with packed weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulBlueprint {
    /// Tier.
    pub tier: TierName,
    /// Dtype of x, bias and y.
    pub dtype: DType,
    /// How the weights are stored.
    pub tiles: WeightTiles,
    /// Rows of x of a block.
    pub rows: usize,
    /// Columns of W of a block.
    pub columns: usize,
    /// Tiles along k of a k-block.
    pub depth: usize,
    /// k-blocks in flight.
    pub stages: usize,
    /// Rows of x consist of aligned chunks of 16 bytes.
    pub chunks: bool,
    /// n is even and rows of y consist of aligned pairs of elements.
    pub pairs: bool,
    /// Where scales are multiplied in.
    pub scaling: Scaling,
    /// Some rows of W are summed apart from others.
    pub split: bool,
    /// 64-bit addressing.
    pub wide: bool,
    /// Sabotage.
    pub fault: Option<MatmulFault>,
}

impl MatmulBlueprint {
    /// What matrix instructions call the dtype.
    fn ptx_type(&self) -> &'static str {
        match self.dtype {
            DType::F16 => "f16",
            _ => "bf16",
        }
    }

    pub(crate) fn plane_shape(&self) -> PlaneMatmulShape {
        PlaneMatmulShape {
            rows: self.rows as u32,
            columns: self.columns as u32,
            planes_k: self.depth as u32,
            stages: self.stages as u32,
            tiles: self.tiles,
            chunks: self.chunks,
            split: self.split,
            ty: self.ptx_type(),
        }
    }

    pub(crate) fn hopper_shape(&self) -> HopperMatmulShape {
        HopperMatmulShape {
            rows: self.rows as u32,
            depth: self.depth as u32,
            stages: self.stages as u32,
            tiles: self.tiles,
            scaling: self.scaling,
            split: self.split,
            pairs: self.pairs,
            ty: self.ptx_type(),
        }
    }

    /// Blocks of rows of x and of columns of W.
    pub(super) fn blocks(&self, m: usize, n: usize) -> (usize, usize) {
        (m.div_ceil(self.rows), n.div_ceil(self.columns))
    }

    /// Of `blocks` blocks those that one cube sums: as many as fill the multiprocessors once or several times, where
    /// cubes stay and take one block after the other.
    pub(super) fn whole(&self, blocks: usize, caps: &Caps) -> usize {
        match self.tier {
            TierName::Hopper => blocks - blocks % multiprocessors(caps),
            _ => 0,
        }
    }

    /// f32 elements in which cubes of a block of y [m, n] leave their sums: a multiple of 4.
    pub(super) fn sums(&self, (m, n): (usize, usize), splits: usize, caps: &Caps) -> usize {
        let (m_blocks, n_blocks) = self.blocks(m, n);
        let blocks = m_blocks * n_blocks;
        match self.split {
            true => (blocks - self.whole(blocks, caps)) * splits * self.rows * self.columns,
            false => 0,
        }
    }

    /// f32 elements that hold x [m, rows] in the order of the stored rows of W, where that is not x's own.
    pub(super) fn arranged(&self, m: usize, rows: usize) -> usize {
        match self.tier == TierName::Hopper && !self.chunks {
            // No buffer is empty.
            true => (m * rows / 2).max(4),
            false => 0,
        }
    }

    /// Units of a cube.
    pub fn units(&self) -> usize {
        match self.tier {
            TierName::Unit => self.columns,
            TierName::Plane => self.plane_shape().units() as usize,
            TierName::Hopper | TierName::Blackwell => self.hopper_shape().units() as usize,
        }
    }
}

impl fmt::Display for MatmulBlueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WeightTiles {
            bits,
            codes,
            scales,
            zeros,
            groups,
            gathered,
        } = self.tiles;
        let (tier, dtype) = (self.tier, self.dtype);
        let codes = match codes {
            WeightCodes::Int => "b",
            WeightCodes::E2M1 => "e2m1-b",
            WeightCodes::E4M3 => "e4m3-b",
            WeightCodes::Nf4 => "nf4-b",
        };
        let (rows, columns, depth) = (self.rows, self.columns, 64 * self.depth);
        write!(
            f,
            "w4a16/{tier}/{dtype}/{codes}{bits}/m{rows}xn{columns}xk{depth}"
        )?;
        if self.stages > 0 {
            write!(f, "/st{}", self.stages)?;
        }
        let tags = [
            (zeros == Some(ZeroType::Point), "zeros"),
            (zeros == Some(ZeroType::Minimum), "minima"),
            (groups == 2, "g32"),
            (groups == 4, "g16"),
            (scales == ScaleType::E4M3, "e4m3-scales"),
            (scales == ScaleType::E8M0, "e8m0-scales"),
            (gathered, "gathered"),
            (!self.chunks && self.tier == TierName::Plane, "scalar-x"),
            (!self.chunks && self.tier == TierName::Hopper, "arranged-x"),
            (self.scaling == Scaling::Weights, "scaled-weights"),
            (self.split, "split"),
            (self.wide, "wide"),
        ];
        for (_, tag) in tags.into_iter().filter(|(on, _)| *on) {
            write!(f, "/{tag}")?;
        }
        match self.fault {
            Some(fault) => write!(f, "/FAULT-{fault}"),
            None => Ok(()),
        }
    }
}
