//! `merge_partials`: check, bind, launch.

use core::fmt;

use cubecl::prelude::{BufferArg, Client, CubeDim};

use super::{
    Caps, DType, Family, Tensor, address, buffer, check_dtype, check_launch, check_reach,
    cube_units, expect_axes, expect_dtype, spread,
};
use crate::attention::{MergeLayoutsLaunch, MergeShape, RowLayoutLaunch, merge_partials_fma};
use crate::error::{Error, NotAvailable};

/// Options of [`merge_partials`].
#[derive(Debug, Clone, Default)]
pub struct MergeOptions {
    /// Dtype of the merged out; f32 when absent.
    pub dtype: Option<DType>,
    /// Where to write out [b, h, s, d_v]; allocated dense when absent.
    pub out: Option<Tensor<4>>,
    /// Where to write lse f32 [b, h, s]; allocated dense when absent.
    pub lse: Option<Tensor<3>>,
}

/// Comptime choices of the merge kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MergeBlueprint {
    /// Dtype of the merged out.
    pub dtype: DType,
    /// Head dimension of v.
    pub d_v: usize,
    /// Elements of a vector load.
    pub vector: usize,
    /// Units of a cube.
    pub units: usize,
    /// Units that share an output, each with a part of the partials.
    pub teams: usize,
    /// 64-bit addressing.
    pub wide: bool,
}

impl fmt::Display for MergeBlueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "merge/unit/{}/d{}/u{}x{}/vec{}",
            self.dtype,
            self.d_v,
            self.units / self.teams,
            self.teams,
            self.vector
        )?;
        if self.wide {
            write!(f, "/wide")
        } else {
            Ok(())
        }
    }
}

/// Result of [`merge_partials`].
#[derive(Debug, Clone)]
pub struct Merged {
    /// [b, h, s, d_v].
    pub out: Tensor<4>,
    /// [b, h, s] f32, natural.
    pub lse: Tensor<3>,
    /// What ran; `None` when the result is empty.
    pub blueprint: Option<MergeBlueprint>,
}

/// Merges partial attention results over disjoint key sets.
///
/// ```text
/// w_p = e^(lse_p - max lse) ; out = sum_p w_p outs_p / sum_p w_p ; lse = max lse + ln sum_p w_p
/// ```
/// outs f32 [n, b, h, s, d_v] (last axis contiguous), lses f32 [n, b, h, s], any strides. Any n,
/// 0 included; empty partials have lse -inf. Deterministic.
///
/// # Errors
/// As [`attend_forward`](super::attend_forward).
///
/// ```no_run
/// # use flashcube_kernels::{DType, MergeOptions, Tensor, merge_partials};
/// # fn demo(client: &cubecl::prelude::Client) -> Result<(), flashcube_kernels::Error> {
/// let outs = Tensor::empty(client, [4, 1, 8, 1, 128], DType::F32); // 4 splits of one query
/// let lses = Tensor::empty(client, [4, 1, 8, 1], DType::F32);
/// let merged = merge_partials(client, &outs, &lses, &MergeOptions::default())?;
/// # let _ = merged;
/// # Ok(())
/// # }
/// ```
pub fn merge_partials(
    client: &Client,
    outs: &Tensor<5>,
    lses: &Tensor<4>,
    options: &MergeOptions,
) -> Result<Merged, Error> {
    let [n, b, h, s, d_v] = outs.shape;
    expect_axes("lses", ["n", "b", "h", "s"], lses.shape, [n, b, h, s])?;
    expect_dtype("outs", outs.dtype, DType::F32)?;
    expect_dtype("lses", lses.dtype, DType::F32)?;
    outs.check("outs")?;
    lses.check_bounds("lses")?;
    let dtype = options.dtype.unwrap_or(DType::F32);
    let out = match &options.out {
        Some(out) => {
            expect_axes("out", ["b", "h", "s", "d_v"], out.shape, [b, h, s, d_v])?;
            expect_dtype("out", out.dtype, dtype)?;
            out.check_output("out")?;
            out.clone()
        }
        None => Tensor::empty(client, [b, h, s, d_v], dtype),
    };
    let lse = match &options.lse {
        Some(lse) => {
            expect_axes("lse", ["b", "h", "s"], lse.shape, [b, h, s])?;
            expect_dtype("lse", lse.dtype, DType::F32)?;
            lse.check_rows("lse")?;
            lse.clone()
        }
        None => Tensor::empty(client, [b, h, s], DType::F32),
    };
    if lse.elements() == 0 {
        return Ok(Merged {
            out,
            lse,
            blueprint: None,
        });
    }
    if d_v == 0 {
        // Nothing to write but lse: merge the lses as if they were outs and drop the result.
        let [ln, lb, lh, ls] = lses.strides;
        let columns = Tensor::strided(
            lses.handle.clone(),
            [n, b, h, s, 1],
            [ln, lb, lh, ls, 1],
            lses.offset,
            DType::F32,
        );
        let options = MergeOptions {
            lse: Some(lse),
            ..MergeOptions::default()
        };
        let merged = merge_partials(client, &columns, lses, &options)?;
        return Ok(Merged { out, ..merged });
    }
    let (outs, lses) = (&outs.bindable(client), &lses.bindable(client));

    let caps = Caps::of(client);
    let vector = outs.vector(4).min(out.vector(4));
    let reach = outs.reach().max(lses.reach()).max(out.reach());
    let blueprint = select_merge(dtype, d_v, vector, reach, &caps)?;
    launch(client, &caps, outs, lses, &out, &lse, blueprint)?;
    Ok(Merged {
        out,
        lse,
        blueprint: Some(blueprint),
    })
}

/// Picks the blueprint of a merge: loads of `vector` elements, the largest element index being
/// `reach`.
///
/// # Errors
/// [`NotAvailable`] naming the limit: dtype, address width.
pub fn select_merge(
    dtype: DType,
    d_v: usize,
    vector: usize,
    reach: usize,
    caps: &Caps,
) -> Result<MergeBlueprint, NotAvailable> {
    check_dtype("merge_partials", dtype, caps)?;
    let units = cube_units(caps);
    // Where barriers are cheap: units wait for memory, and partials are many where rows are few.
    let teams = match caps.family {
        Family::Cpu => 1,
        _ if units.is_multiple_of(TEAMS) => TEAMS,
        _ => 1,
    };
    Ok(MergeBlueprint {
        dtype,
        d_v,
        vector,
        units,
        teams,
        wide: check_reach("merge_partials", reach, caps)?,
    })
}

/// Units that share an output.
const TEAMS: usize = 4;

fn launch(
    client: &Client,
    caps: &Caps,
    outs: &Tensor<5>,
    lses: &Tensor<4>,
    out: &Tensor<4>,
    lse: &Tensor<3>,
    blueprint: MergeBlueprint,
) -> Result<(), Error> {
    let v = blueprint.vector;
    let len = blueprint.d_v / v;
    let [n, b, h, s, _] = outs.shape;
    let total = b * h * s * len;
    let each = blueprint.units / blueprint.teams;
    let cubes = spread("merge_partials", total.div_ceil(each), caps)?;
    let shape = MergeShape {
        len,
        units: blueprint.units,
        teams: blueprint.teams,
    };
    let o = outs.strides.map(|x| x / v);
    let m = out.strides.map(|x| x / v);
    let (l, k) = (lses.strides, lse.strides);
    let layouts = MergeLayoutsLaunch::new(
        RowLayoutLaunch::new(outs.offset / v, o[0], o[1], o[2], o[3]),
        RowLayoutLaunch::new(lses.offset, l[0], l[1], l[2], l[3]),
        RowLayoutLaunch::new(out.offset / v, 0, m[0], m[1], m[2]),
        RowLayoutLaunch::new(lse.offset, 0, k[0], k[1], k[2]),
        h,
        s,
        n as u32,
        total,
        f32::NEG_INFINITY,
    );
    // SAFETY: every view was checked against its buffer, and units past `total` do nothing.
    unsafe {
        merge_partials_fma::launch_unchecked(
            client,
            cubes,
            CubeDim::new_1d(blueprint.units as u32),
            address(blueprint.wide),
            v,
            buffer(outs, v),
            BufferArg::from_raw_parts(lses.handle.clone(), lses.capacity()),
            buffer(out, v),
            BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
            layouts,
            shape,
            blueprint.dtype.elem(),
        );
    }
    check_launch(client, caps, &blueprint, [&out.handle, &lse.handle])
}
