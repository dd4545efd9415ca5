//! `repack`: a checkpoint's weight on the device, in the order that products read.

use cubecl::prelude::{Client, CubeDim};
use cubecl::server::Handle;
use half::f16;

use super::run::words;
use super::{LinearWeights, scale_range};
use crate::error::{Error, InvalidProblem, RuntimeFailure};
use crate::launch::{Caps, PackedWeights, address, check_launch, cube_units, out_of_range, spread};
use crate::quant::{
    NO_ROW, PackFormat, PackSizes, PackSizesLaunch, Packing, ScaleType, TILE, TileSizesLaunch,
    WeightCodes, ZeroType, repack_codes_fma, repack_scales_fma,
};

/// Which row and group of a weight every stored one is; flashcube-formats has the same of every checkpoint
/// (`TileOrder`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepackOrder {
    /// Stored rows, a multiple of 64.
    pub rows: usize,
    /// Stored rows that share a scale: 16, 32 or a multiple of 64.
    pub group: usize,
    /// `[rows]`: the weight's row of every stored one, [`NO_ROW`] for none; None for its own number.
    pub gather: Option<Vec<u32>>,
    /// The weight's group of every stored one.
    pub sources: Vec<u32>,
    /// Store zero points; without them every one is taken for 2^(bits - 1). Minima are stored in any case.
    pub zeros: bool,
}

/// Packs codes, scales and zero points anew: two launches that read the weight once. Nothing is rounded,
/// and `weights` may be freed afterwards. The scales are read back, for their range: this waits.
///
/// # Errors
/// [`InvalidProblem`] for impossible sizes, buffers shorter than the format needs, an order that names a row
/// or group that the weight lacks; [`NotAvailable`](crate::NotAvailable) where the launch is too large for the device.
///
/// ```no_run
/// # use flashcube_kernels::{PackedWeights, RepackOrder, repack};
/// # fn demo(client: &cubecl::prelude::Client, gptq: PackedWeights) -> Result<(), flashcube_kernels::Error> {
/// // 4096 rows in groups of 128, as they come.
/// let order = RepackOrder {
///     rows: 4096,
///     group: 128,
///     gather: None,
///     sources: (0..32).collect(),
///     zeros: true,
/// };
/// let weights = repack(client, &gptq, &order)?;
/// assert_eq!(weights.groups(), 32);
/// # Ok(())
/// # }
/// ```
pub fn repack(
    client: &Client,
    weights: &PackedWeights,
    order: &RepackOrder,
) -> Result<LinearWeights, Error> {
    let (sizes, packing) = weights.check()?;
    order.check(weights)?;
    let columns = weights.n.next_multiple_of(TILE as usize);
    let groups = order.rows.div_ceil(order.group);
    let bytes = |bytes: usize| client.empty(bytes.max(16));
    let upload = |values: &[u32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        client.create_from_slice(&bytes)
    };
    let (zeros, zero_type) = match packing.minima() {
        true => (true, ZeroType::Minimum),
        false => (order.zeros, ZeroType::Point),
    };
    let packed = LinearWeights {
        bits: weights.bits,
        codes: WeightCodes::Int,
        k: weights.k,
        n: weights.n,
        rows: order.rows,
        group: order.group,
        words: bytes(order.rows * columns / 8 * weights.bits as usize),
        scales: bytes(2 * groups * columns),
        scale_type: ScaleType::F16,
        scale_range: range_of(client, weights)?,
        factor: 1.0,
        zeros: zeros.then(|| bytes(groups * columns * zero_type.bytes() as usize)),
        zero_type,
        gather: order.gather.as_deref().map(upload),
    };
    packed.check()?;
    if order.rows * columns > 0 {
        let sources = upload(&order.sources[..groups]);
        launch(client, weights, (&sizes, packing), &packed, &sources)?;
    }
    Ok(packed)
}

/// The range of a checkpoint's scales and minima, which are read back for it.
fn range_of(client: &Client, weights: &PackedWeights) -> Result<Option<[f32; 2]>, Error> {
    let blocks = weights.format == PackFormat::GgufQ4_1;
    let scales = match blocks {
        true => &weights.qweight,
        false => &weights.scales,
    };
    let bytes = client.read_one(scales.clone());
    let bytes = bytes.map_err(|error| RuntimeFailure {
        blueprint: "repack".into(),
        device: Caps::of(client).device,
        message: format!("reading scales: {error:?}"),
    })?;
    let scale = |pair: &[u8]| f16::from_le_bytes([pair[0], pair[1]]).to_f32();
    // Of a block of 20 bytes the first 4.
    Ok(match blocks {
        true => {
            let heads = bytes.chunks_exact(20).map(|block| &block[..4]);
            scale_range(heads.flat_map(|head| head.chunks_exact(2)).map(scale))
        }
        false => scale_range(bytes.chunks_exact(2).map(scale)),
    })
}

impl RepackOrder {
    fn check(&self, weights: &PackedWeights) -> Result<(), InvalidProblem> {
        if self.group == 0 {
            return Err(out_of_range("group", 0, 1));
        }
        let groups = self.rows.div_ceil(self.group);
        if self.sources.len() < groups {
            return Err(InvalidProblem::OutOfBounds {
                tensor: "sources",
                needed: groups,
                available: self.sources.len(),
            });
        }
        let stored = weights.k.div_ceil(weights.group.clamp(1, weights.k.max(1)));
        check_below("sources", &self.sources[..groups], stored, None)?;
        let Some(gather) = &self.gather else {
            return Ok(());
        };
        if gather.len() != self.rows {
            return Err(InvalidProblem::OutOfBounds {
                tensor: "gather",
                needed: self.rows,
                available: gather.len(),
            });
        }
        check_below("gather", gather, weights.k, Some(NO_ROW))
    }
}

/// Every value is below `limit`, or `none`.
fn check_below(
    name: &'static str,
    values: &[u32],
    limit: usize,
    none: Option<u32>,
) -> Result<(), InvalidProblem> {
    let bad = values
        .iter()
        .find(|&&value| value as usize >= limit && Some(value) != none);
    match bad {
        None => Ok(()),
        Some(&value) => Err(out_of_range(name, value.into(), limit as i128 - 1)),
    }
}

fn launch(
    client: &Client,
    weights: &PackedWeights,
    (sizes, packing): (&PackSizes, Packing),
    packed: &LinearWeights,
    sources: &Handle,
) -> Result<(), Error> {
    let caps = Caps::of(client);
    let units = cube_units(&caps);
    let (k_tiles, n_tiles) = (
        packed.rows / TILE as usize,
        packed.columns() / TILE as usize,
    );
    let wide = crate::launch::check_reach("repack", packed.rows * packed.columns(), &caps)?;
    let cubes = |units_needed: usize| spread("repack", units_needed.div_ceil(units), &caps);
    let (code_cubes, scale_cubes) = (
        cubes(k_tiles * n_tiles * 128)?,
        cubes(packed.groups() * n_tiles * 16)?,
    );
    let dim = CubeDim::new_1d(units as u32);
    let sizes = || {
        PackSizesLaunch::new(
            sizes.k,
            sizes.n,
            sizes.group,
            sizes.code_words,
            sizes.zero_words,
        )
    };
    let tiles = || TileSizesLaunch::new(k_tiles as u32, n_tiles as u32, packed.groups() as u32);
    let scales = match packing.minima() {
        true => &weights.qweight,
        false => &weights.scales,
    };
    let stand_in = client.empty(16);
    let zeros = packed.zeros.as_ref().unwrap_or(&stand_in);
    // SAFETY: `PackedWeights::check` and `RepackOrder::check` found every buffer and index within the
    // weight, `packed` holds a place for every unit that writes one, and the stand-in is not
    // written.
    unsafe {
        repack_codes_fma::launch_unchecked(
            client,
            code_cubes,
            dim,
            address(wide),
            words(client, &weights.qweight),
            packed
                .gather
                .as_ref()
                .map(|gather| words(client, gather))
                .into(),
            words(client, &packed.words),
            sizes(),
            tiles(),
            packing,
        );
        repack_scales_fma::launch_unchecked(
            client,
            scale_cubes,
            dim,
            address(wide),
            words(client, &weights.qzeros),
            words(client, scales),
            words(client, sources),
            words(client, &packed.scales),
            words(client, zeros),
            sizes(),
            tiles(),
            packing,
            packed.zeros.is_some(),
        );
    }
    check_launch(client, &caps, &"repack", [&packed.words, &packed.scales])
}
