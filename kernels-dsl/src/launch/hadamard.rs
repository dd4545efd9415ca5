//! `hadamard_transform`: check, bind, launch.

use core::fmt;

use cubecl::prelude::{BufferArg, Client, CubeDim, CubeElement};

use super::{
    Caps, DType, Family, Tensor, address, buffer, check_dtype, check_launch, check_reach,
    expect_axes, expect_dtype, expect_entries, spread,
};
use crate::error::{Error, InvalidProblem, NotAvailable};
use crate::quant::hadamard_transform_fma;

/// Options of [`hadamard_transform`].
#[derive(Debug, Clone, Default)]
pub struct HadamardOptions<'a> {
    /// Signs `[n]`, true = negative; all positive when absent.
    pub signs: Option<&'a [bool]>,
    /// Undo the transform of the same signs.
    pub inverse: bool,
    /// Where to write [rows, n]; allocated dense when absent.
    pub out: Option<Tensor<2>>,
}

/// Comptime choices of the Hadamard kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HadamardBlueprint {
    /// Dtype read and written.
    pub dtype: DType,
    /// Length of a row.
    pub n: usize,
    /// Units of a cube.
    pub units: usize,
    /// Signs are applied.
    pub signs: bool,
    /// Inverse transform.
    pub inverse: bool,
    /// 64-bit addressing.
    pub wide: bool,
}

impl fmt::Display for HadamardBlueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "hadamard/unit/{}/n{}/u{}",
            self.dtype, self.n, self.units
        )?;
        let tags = [
            (self.signs, "/signs"),
            (self.inverse, "/inverse"),
            (self.wide, "/wide"),
        ];
        for (_, tag) in tags.into_iter().filter(|(on, _)| *on) {
            write!(f, "{tag}")?;
        }
        Ok(())
    }
}

/// Result of [`hadamard_transform`].
#[derive(Debug, Clone)]
pub struct Transformed {
    /// [rows, n] in the dtype of x.
    pub out: Tensor<2>,
    /// What ran; `None` when the result is empty.
    pub blueprint: Option<HadamardBlueprint>,
}

/// y = H diag(signs) x / sqrt(n) for every row of x [rows, n]; n a power of two.
///
/// H is the Walsh-Hadamard matrix in natural order. The transform is orthogonal: applied to the
/// rows of q and k alike it leaves q k^T unchanged and spreads outliers over all columns
/// (QuIP 2023; FlashAttention-3, section 3.3). Computes in f32 in shared memory, so 4 n bytes
/// must fit there.
///
/// # Errors
/// [`InvalidProblem`] when n is no power of two or the signs have another length;
/// [`NotAvailable`] when a row does not fit into shared memory.
///
/// ```no_run
/// # use flashcube_kernels::{DType, HadamardOptions, Tensor, hadamard_transform};
/// # fn demo(client: &cubecl::prelude::Client) -> Result<(), flashcube_kernels::Error> {
/// let x = Tensor::empty(client, [1024, 128], DType::F16);
/// let signs: Vec<bool> = (0..128).map(|i| i % 3 == 0).collect();
/// let options = HadamardOptions { signs: Some(&signs), ..Default::default() };
/// let y = hadamard_transform(client, &x, &options)?;
/// # let _ = y;
/// # Ok(())
/// # }
/// ```
pub fn hadamard_transform(
    client: &Client,
    x: &Tensor<2>,
    options: &HadamardOptions<'_>,
) -> Result<Transformed, Error> {
    let [rows, n] = x.shape;
    x.check("x")?;
    if n > 0 && !n.is_power_of_two() {
        return Err(InvalidProblem::NotPowerOfTwo {
            name: "n",
            value: n,
        }
        .into());
    }
    if let Some(signs) = options.signs {
        expect_entries("signs", signs.len(), n)?;
    }
    let out = match &options.out {
        Some(out) => {
            expect_axes("out", ["rows", "n"], out.shape, x.shape)?;
            expect_dtype("out", out.dtype, x.dtype)?;
            out.check_output("out")?;
            out.clone()
        }
        None => Tensor::empty(client, x.shape, x.dtype),
    };
    if rows * n == 0 {
        return Ok(Transformed {
            out,
            blueprint: None,
        });
    }
    let caps = Caps::of(client);
    let reach = x.reach().max(out.reach());
    let tags = [options.signs.is_some(), options.inverse];
    let blueprint = select_hadamard(x.dtype, n, tags, reach, &caps)?;
    launch(client, &caps, x, &out, options, blueprint)?;
    Ok(Transformed {
        out,
        blueprint: Some(blueprint),
    })
}

/// Picks the blueprint of a transform of rows of `n`, the largest element index being `reach`.
///
/// # Errors
/// [`NotAvailable`] naming the limit: dtype, shared memory, address width.
pub fn select_hadamard(
    dtype: DType,
    n: usize,
    [signs, inverse]: [bool; 2],
    reach: usize,
    caps: &Caps,
) -> Result<HadamardBlueprint, NotAvailable> {
    const WHAT: &str = "hadamard_transform";
    check_dtype(WHAT, dtype, caps)?;
    if 4 * n > caps.shared_memory {
        return Err(NotAvailable {
            what: WHAT.into(),
            device: caps.device.clone(),
            limit: "shared memory (bytes)",
            needed: (4 * n).to_string(),
            available: caps.shared_memory.to_string(),
        });
    }
    Ok(HadamardBlueprint {
        dtype,
        n,
        units: row_units(n, caps),
        signs,
        inverse,
        wide: check_reach(WHAT, reach, caps)?,
    })
}

/// Units of a row's cube: one butterfly each and stage at most. The CPU JIT's barriers spin, and
/// cost more than the few butterflies they separate.
fn row_units(n: usize, caps: &Caps) -> usize {
    match caps.family {
        Family::Cpu => 1,
        _ => (n / 2).clamp(1, (caps.units_per_cube as usize).min(256)),
    }
}

fn launch(
    client: &Client,
    caps: &Caps,
    x: &Tensor<2>,
    out: &Tensor<2>,
    options: &HadamardOptions<'_>,
    blueprint: HadamardBlueprint,
) -> Result<(), Error> {
    let [rows, n] = x.shape;
    let cubes = spread("hadamard_transform", rows, caps)?;
    let signs = options.signs.map(|signs| {
        let mut words = vec![0u32; n.div_ceil(32)];
        for (i, _) in signs.iter().enumerate().filter(|(_, s)| **s) {
            words[i / 32] |= 1 << (i % 32);
        }
        let handle = client.create_from_slice(u32::as_bytes(&words));
        // SAFETY: the length is that of the slice just uploaded.
        unsafe { BufferArg::from_raw_parts(handle, words.len()) }
    });
    // SAFETY: both views were checked against their buffers, cubes past `rows` do nothing, and a
    // cube reads its row whole before it writes it.
    unsafe {
        hadamard_transform_fma::launch_unchecked(
            client,
            cubes,
            CubeDim::new_1d(blueprint.units as u32),
            address(blueprint.wide),
            buffer(x, 1),
            buffer(out, 1),
            signs.into(),
            x.offset,
            x.strides[0],
            out.offset,
            out.strides[0],
            rows,
            (1.0 / (n as f64).sqrt()) as f32,
            n as u32,
            blueprint.inverse,
            blueprint.dtype.elem(),
        );
    }
    check_launch(client, caps, &blueprint, [&out.handle])
}
