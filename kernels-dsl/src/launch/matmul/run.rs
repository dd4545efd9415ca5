//! The launches of a product, one per tier.

use cubecl::prelude::{BufferArg, Client, CubeDim};
use cubecl::server::Handle;

use super::{LinearWeights, MatmulBlueprint, MatmulFault};
use crate::arch::fma::matmul_quantized_fma;
use crate::arch::plane::matmul_quantized_plane;
use crate::error::Error;
use crate::launch::{Caps, Tensor, TierName, address, buffer, check_launch, counters, spread};
use crate::quant::{MatmulSizesLaunch, TILE};

/// A checked product with its blueprint.
pub(super) struct MatmulCall<'a> {
    pub(super) client: &'a Client,
    pub(super) caps: &'a Caps,
    pub(super) weights: &'a LinearWeights,
    pub(super) bias: Option<&'a Tensor<1>>,
    pub(super) blueprint: MatmulBlueprint,
    pub(super) splits: usize,
}

impl MatmulCall<'_> {
    pub(super) fn launch(&self, x: &Tensor<2>, out: &Tensor<2>) -> Result<(), Error> {
        let x = x.bindable(self.client);
        match self.blueprint.tier {
            TierName::Unit => self.unit(&x, out)?,
            TierName::Plane | TierName::Hopper => self.plane(&x, out)?,
        }
        check_launch(self.client, self.caps, &self.blueprint, [&out.handle])
    }

    /// Blocks of rows of x and of columns of W.
    fn blocks(&self, x: &Tensor<2>) -> (usize, usize) {
        let MatmulBlueprint { rows, columns, .. } = self.blueprint;
        (x.shape[0].div_ceil(rows), self.weights.n.div_ceil(columns))
    }

    fn sizes(&self, x: &Tensor<2>, out: &Tensor<2>) -> MatmulSizesLaunch {
        let weights = self.weights;
        let (m_blocks, n_blocks) = self.blocks(x);
        let group = match self.blueprint.fault {
            Some(MatmulFault::ScaleOfFirstGroup) => usize::MAX,
            _ => weights.group,
        };
        MatmulSizesLaunch::new(
            x.shape[0] as u32,
            weights.n as u32,
            weights.k as u32,
            (weights.rows / TILE as usize) as u32,
            (weights.columns() / TILE as usize) as u32,
            (group / 32).min(u32::MAX as usize) as u32,
            m_blocks as u32,
            n_blocks as u32,
            self.splits as u32,
            x.offset,
            x.strides[0],
            out.offset,
            out.strides[0],
            self.bias.map_or(0, |bias| bias.offset),
        )
    }

    fn bias(&self) -> Option<&Tensor<1>> {
        match self.blueprint.fault {
            Some(MatmulFault::BiasDropped) => None,
            _ => self.bias,
        }
    }

    fn unit(&self, x: &Tensor<2>, out: &Tensor<2>) -> Result<(), Error> {
        let (weights, blueprint) = (self.weights, self.blueprint);
        let total = self.blocks(x).0 * weights.n;
        let cubes = spread(
            "matmul_quantized",
            total.div_ceil(blueprint.units()),
            self.caps,
        )?;
        // SAFETY: `LinearWeights::check` found every buffer long enough for its sizes, x and out were
        // checked against theirs, and units past the last block do nothing.
        unsafe {
            matmul_quantized_fma::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                buffer(x, 1),
                words(self.client, &weights.words),
                words(self.client, &weights.scales),
                weights.zeros.as_ref().map(|z| words(self.client, z)).into(),
                weights
                    .gather
                    .as_ref()
                    .map(|g| words(self.client, g))
                    .into(),
                self.bias().map(|bias| buffer(bias, 1)).into(),
                buffer(out, 1),
                self.sizes(x, out),
                blueprint,
                blueprint.dtype.elem(),
            );
        }
        Ok(())
    }

    fn plane(&self, x: &Tensor<2>, out: &Tensor<2>) -> Result<(), Error> {
        let (weights, blueprint) = (self.weights, self.blueprint);
        let (m_blocks, n_blocks) = self.blocks(x);
        let total = m_blocks * n_blocks * self.splits;
        let cubes = spread("matmul_quantized", total, self.caps)?;
        let sums = if blueprint.split {
            self.client
                .empty(4 * total * blueprint.rows * blueprint.columns)
        } else {
            self.client.empty(16)
        };
        let counters = counters(self.client, super::select::COUNTERS);
        // SAFETY: as above; the counters belong to the client's stream, on which launches follow
        // one another, and `sums` holds a block for every cube.
        unsafe {
            matmul_quantized_plane::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                buffer(x, 1),
                words(self.client, &weights.words),
                words(self.client, &weights.scales),
                weights.zeros.as_ref().map(|z| words(self.client, z)).into(),
                weights
                    .gather
                    .as_ref()
                    .map(|g| words(self.client, g))
                    .into(),
                self.bias().map(|bias| buffer(bias, 1)).into(),
                buffer(out, 1),
                words(self.client, &sums),
                BufferArg::from_raw_parts(counters, super::select::COUNTERS),
                self.sizes(x, out),
                blueprint,
                blueprint.dtype.elem(),
            );
        }
        Ok(())
    }
}

/// The buffer in whole words, or a stand-in for an empty one, which kernels never read.
///
/// # Safety
/// The kernel reads no further than the buffer's sizes say.
unsafe fn words(client: &Client, handle: &Handle) -> BufferArg {
    let len = handle.size_in_used() as usize / 4;
    if len == 0 {
        let stand_in = client.empty(16);
        // SAFETY: 16 bytes are 4 words.
        return unsafe { BufferArg::from_raw_parts(stand_in, 4) };
    }
    // SAFETY: the length is the buffer's own.
    unsafe { BufferArg::from_raw_parts(handle.clone(), len) }
}
