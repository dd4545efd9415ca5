//! The launches of a product, one per tier.

use cubecl::prelude::{BufferArg, Client, CubeCount, CubeDim};
use cubecl::server::Handle;

use super::{LinearWeights, MatmulBlueprint, MatmulFault, multiprocessors};
use crate::arch::fma::matmul_quantized_fma;
use crate::arch::hopper::{arrange_x, matmul_quantized_hopper};
use crate::arch::plane::matmul_quantized_plane;
use crate::error::Error;
use crate::launch::{
    COUNTERS, Caps, Tensor, TierName, address, buffer, check_launch, counters, spread, tensor_map,
};
use crate::quant::{MatmulSizesLaunch, Scaling, TILE};

/// A checked product with its blueprint.
pub(super) struct MatmulCall<'a> {
    pub(super) client: &'a Client,
    pub(super) caps: &'a Caps,
    pub(super) weights: &'a LinearWeights,
    pub(super) bias: Option<&'a Tensor<1>>,
    /// Dense: sums of parts, then x in the order of the stored rows.
    pub(super) workspace: Tensor<1>,
    pub(super) blueprint: MatmulBlueprint,
    pub(super) splits: usize,
}

impl MatmulCall<'_> {
    pub(super) fn launch(&self, x: &Tensor<2>, out: &Tensor<2>) -> Result<(), Error> {
        let x = x.bindable(self.client);
        match self.blueprint.tier {
            TierName::Unit => self.unit(&x, out)?,
            TierName::Plane => self.plane(&x, out)?,
            // Selection gives Blackwell no kernel of its own.
            TierName::Hopper | TierName::Blackwell => self.hopper(&x, out)?,
        }
        check_launch(self.client, self.caps, &self.blueprint, [&out.handle])
    }

    /// Blocks of rows of x and of columns of W.
    fn blocks(&self, x: &Tensor<2>) -> (usize, usize) {
        self.blueprint.blocks(x.shape[0], self.weights.n)
    }

    fn sizes(&self, x: &Tensor<2>, out: &Tensor<2>) -> MatmulSizesLaunch {
        let weights = self.weights;
        let (m_blocks, n_blocks) = self.blocks(x);
        let lift = match self.blueprint.scaling {
            Scaling::Sums => 1.0,
            // Selection found one, or the tier's weights are f32.
            Scaling::Weights => weights.lift(x.dtype).unwrap_or(1.0),
        };
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
            (group / 16).min(u32::MAX as usize) as u32,
            m_blocks as u32,
            n_blocks as u32,
            self.blueprint.whole(m_blocks * n_blocks, self.caps) as u32,
            self.splits as u32,
            x.offset,
            x.strides[0],
            out.offset,
            out.strides[0],
            self.bias.map_or(0, |bias| bias.offset),
            weights.factor / lift,
            lift,
        )
    }

    fn bias(&self) -> Option<&Tensor<1>> {
        match self.blueprint.fault {
            Some(MatmulFault::BiasDropped) => None,
            _ => self.bias,
        }
    }

    /// A part of the weights that not every format has, as [`words`].
    ///
    /// # Safety
    /// As for [`words`].
    unsafe fn optional(&self, part: &Option<Handle>) -> Option<BufferArg> {
        // SAFETY: the caller's.
        part.as_ref()
            .map(|handle| unsafe { words(self.client, handle) })
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
                self.optional(&weights.zeros).into(),
                self.optional(&weights.gather).into(),
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
        let blocks = m_blocks * n_blocks;
        let cubes = spread("matmul_quantized", blocks * self.splits, self.caps)?;
        let counters = counters(self.client);
        // SAFETY: as above; the counters belong to the client's stream, on which launches follow
        // one another, and the workspace holds a block for every cube.
        unsafe {
            matmul_quantized_plane::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                buffer(x, 1),
                words(self.client, &weights.words),
                words(self.client, &weights.scales),
                self.optional(&weights.zeros).into(),
                self.optional(&weights.gather).into(),
                self.bias().map(|bias| buffer(bias, 1)).into(),
                buffer(out, 1),
                words(self.client, &self.workspace.handle),
                BufferArg::from_raw_parts(counters, COUNTERS),
                self.sizes(x, out),
                blueprint,
                blueprint.dtype.elem(),
            );
        }
        Ok(())
    }

    fn hopper(&self, x: &Tensor<2>, out: &Tensor<2>) -> Result<(), Error> {
        let (weights, blueprint) = (self.weights, self.blueprint);
        let arranged;
        let lined = match blueprint.chunks {
            true => x,
            false => {
                arranged = self.arrange(x, out)?;
                &arranged
            }
        };
        let (m_blocks, n_blocks) = self.blocks(x);
        let blocks = m_blocks * n_blocks;
        let whole = blueprint.whole(blocks, self.caps);
        let units = whole + (blocks - whole) * self.splits;
        let cubes = multiprocessors(self.caps).min(units) as u32;
        let counters = counters(self.client);
        // SAFETY: as above; rows of x past its shape arrive as zeros and are not stored.
        unsafe {
            matmul_quantized_hopper::launch_unchecked(
                self.client,
                CubeCount::Static(cubes, 1, 1),
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                tensor_map(lined, [blueprint.rows, TILE as usize]),
                words(self.client, &weights.words),
                words(self.client, &weights.scales),
                self.optional(&weights.zeros).into(),
                self.bias().map(|bias| buffer(bias, 1)).into(),
                buffer(out, 1),
                words(self.client, &self.workspace.handle),
                BufferArg::from_raw_parts(counters, COUNTERS),
                self.sizes(x, out),
                blueprint,
                blueprint.dtype.elem(),
            );
        }
        Ok(())
    }

    /// x [m, rows] in the order of the stored rows of W.
    fn arrange(&self, x: &Tensor<2>, out: &Tensor<2>) -> Result<Tensor<2>, Error> {
        let weights = self.weights;
        let shape = [x.shape[0], weights.rows];
        let sums = self
            .blueprint
            .sums((shape[0], weights.n), self.splits, self.caps);
        let memory = self.workspace.handle.clone().offset_start(4 * sums as u64);
        let arranged = Tensor::contiguous(memory, shape, x.dtype);
        let chunks = arranged.elements() / 8;
        if chunks == 0 {
            return Ok(arranged);
        }
        let cubes = spread("matmul_quantized", chunks.div_ceil(UNITS), self.caps)?;
        // SAFETY: `arranged` holds 8 elements for every unit with a chunk; x was checked against its
        // buffer, and only its columns are read.
        unsafe {
            arrange_x::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(UNITS as u32),
                address(self.blueprint.wide),
                buffer(x, 1),
                self.optional(&weights.gather).into(),
                buffer(&arranged, 8),
                self.sizes(x, out),
            );
        }
        Ok(arranged)
    }
}

/// Units of a cube that arranges x.
const UNITS: usize = 256;

/// The buffer in whole words, or a stand-in for an empty one, which kernels never read.
///
/// # Safety
/// The kernel reads no further than the buffer's sizes say.
pub(super) unsafe fn words(client: &Client, handle: &Handle) -> BufferArg {
    let len = handle.size_in_used() as usize / 4;
    if len == 0 {
        let stand_in = client.empty(16);
        // SAFETY: 16 bytes are 4 words.
        return unsafe { BufferArg::from_raw_parts(stand_in, 4) };
    }
    // SAFETY: the length is the buffer's own.
    unsafe { BufferArg::from_raw_parts(handle.clone(), len) }
}
