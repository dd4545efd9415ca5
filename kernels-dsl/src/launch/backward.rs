//! `attend_backward`: check, select, bind, launch.

use cubecl::prelude::{BufferArg, Client, CubeDim};

use super::*;
use crate::arch::fma::{
    BackwardLayoutsLaunch, ForwardSizesLaunch, attend_backward_fma, attend_delta_fma,
};
use crate::attention::{IssueOrder, Side};
use crate::error::{Error, NotAvailable};
use crate::tile::LayoutLaunch;

/// Result of [`attend_backward`].
#[derive(Debug, Clone)]
pub struct Gradients {
    /// [b, h_q, s_q, d].
    pub dq: Tensor<4>,
    /// [b, h_kv, s_kv, d], summed over the query heads of the group.
    pub dk: Tensor<4>,
    /// [b, h_kv, s_kv, d_v], likewise.
    pub dv: Tensor<4>,
    /// What ran; `None` when every gradient is empty.
    pub blueprint: Option<AttendBlueprint>,
}

/// Gradients of [`attend_forward`] with respect to q, k and v.
///
/// ```text
/// p = e^(x - lse) ; ds = p (d_out v^T - delta) dx/ds ; delta = rowsum(d_out * out)
/// dV = p^T d_out ; dK = ds^T q ; dQ = ds k
/// ```
/// `out` and `lse` are the forward's results for the same arguments and options, `d_out` the
/// gradient of `out`. Two passes, one per side, without atomics: deterministic. Rows that see no
/// key and keys that nobody sees get 0. The options' `out` and `lse` are ignored.
///
/// # Errors
/// As [`attend_forward`].
///
/// ```no_run
/// # use flashcube_kernels::{AttendOptions, Tensor, attend_backward, attend_forward};
/// # fn demo(client: &cubecl::prelude::Client, [q, k, v, d_out]: [Tensor<4>; 4]) -> Result<(), flashcube_kernels::Error> {
/// let options = AttendOptions { causal: true, ..AttendOptions::default() };
/// let forward = attend_forward(client, &q, &k, &v, &options)?;
/// let gradients = attend_backward(client, &q, &k, &v, &forward.out, &forward.lse, &d_out, &options)?;
/// assert_eq!(gradients.dk.shape, k.shape);
/// # Ok(())
/// # }
/// ```
#[allow(clippy::too_many_arguments, reason = "the operation has seven tensors")]
pub fn attend_backward(
    client: &Client,
    q: &Tensor<4>,
    k: &Tensor<4>,
    v: &Tensor<4>,
    out: &Tensor<4>,
    lse: &Tensor<3>,
    d_out: &Tensor<4>,
    options: &AttendOptions<'_>,
) -> Result<Gradients, Error> {
    let dims = AttendDims::check(q, k, v)?;
    let rows = [dims.b, dims.h_q, dims.s_q];
    for (name, tensor) in [("out", out), ("d_out", d_out)] {
        let [b, h, s] = rows;
        expect_axes(
            name,
            ["b", "h_q", "s_q", "d_v"],
            tensor.shape,
            [b, h, s, dims.d_v],
        )?;
        expect_dtype(name, tensor.dtype, q.dtype)?;
        tensor.check(name)?;
    }
    expect_axes("lse", ["b", "h_q", "s_q"], lse.shape, rows)?;
    expect_dtype("lse", lse.dtype, DType::F32)?;
    lse.check_bounds("lse")?;
    let hooks = Hooks::check(&dims, options)?;
    if hooks.features.varlen {
        return Err(NotAvailable {
            what: "attend_backward".into(),
            device: client.name().into(),
            limit: "layouts of sequences",
            needed: "cu_seqlens".into(),
            available: "batch entries, padded".into(),
        }
        .into());
    }
    let fresh = |shape: [usize; 4]| match dims.d_v {
        // Without values nothing depends on q and k.
        0 => zeros(client, shape, q.dtype),
        _ => Tensor::empty(client, shape, q.dtype),
    };
    let gradients = Gradients {
        dq: fresh(q.shape),
        dk: fresh(k.shape),
        dv: fresh(v.shape),
        blueprint: None,
    };
    if dims.d_v == 0
        || gradients.dq.elements() + gradients.dk.elements() + gradients.dv.elements() == 0
    {
        return Ok(gradients);
    }

    let [q, k, v, out, d_out] = [q, k, v, out, d_out].map(|t| t.bindable(client));
    let (q, k, v, out, d_out) = (&q, &k, &v, &out, &d_out);
    let lse = &lse.bindable(client);
    let caps = Caps::of(client);
    let inputs = [q, k, v, out, d_out];
    let key = AttendKey {
        op: AttendOp::Backward,
        dtype: q.dtype,
        d: dims.d,
        d_v: dims.d_v,
        s_q: dims.s_q,
        group: 1,
        vector: inputs.map(|t| t.vector(4)).into_iter().min().unwrap_or(1),
        chunks: false,
        tma: false,
        positive_scale: false,
        reach: inputs
            .map(Tensor::reach)
            .into_iter()
            .max()
            .unwrap_or(0)
            .max(hooks.reach),
        features: hooks.features,
    };
    let policy = Policy {
        roles: Some(RoleSplit::None),
        order: Some(IssueOrder::Sequential),
        ..options.policy
    };
    let blueprint = select_attend(&key, &caps, &policy)?;
    let call = Call {
        client,
        caps: &caps,
        dims,
        hooks: &hooks,
        blueprint,
    };
    let delta = Tensor::<3>::empty(client, rows, DType::F32);
    call.delta(out, d_out, &delta)?;
    call.pass(Side::Queries, [q, k, v, d_out], lse, &delta, &gradients)?;
    call.pass(Side::Keys, [q, k, v, d_out], lse, &delta, &gradients)?;
    Ok(Gradients {
        blueprint: Some(blueprint),
        ..gradients
    })
}

fn zeros(client: &Client, shape: [usize; 4], dtype: DType) -> Tensor<4> {
    let bytes = shape.iter().product::<usize>() * dtype.size();
    Tensor::contiguous(client.create_from_slice(&vec![0; bytes]), shape, dtype)
}

/// What the three launches of a backward share.
struct Call<'a> {
    client: &'a Client,
    caps: &'a Caps,
    dims: AttendDims,
    hooks: &'a Hooks,
    blueprint: AttendBlueprint,
}

impl Call<'_> {
    fn sizes(&self, tiles: usize, total: usize) -> ForwardSizesLaunch {
        let dims = &self.dims;
        ForwardSizesLaunch::new(
            dims.h_q as u32,
            (dims.h_q / dims.h_kv.max(1)).max(1) as u32,
            dims.s_q as u32,
            dims.s_kv as u32,
            tiles as u32,
            total,
        )
    }

    fn delta(&self, out: &Tensor<4>, d_out: &Tensor<4>, delta: &Tensor<3>) -> Result<(), Error> {
        let total = delta.elements();
        if total == 0 {
            return Ok(());
        }
        let v = self.blueprint.vector;
        let units = cube_units(self.caps);
        let cubes = spread("attend_delta", total.div_ceil(units), self.caps)?;
        // SAFETY: views checked against their buffers; units past `total` do nothing.
        unsafe {
            attend_delta_fma::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(units as u32),
                address(self.blueprint.wide),
                v,
                buffer(out, v),
                buffer(d_out, v),
                buffer(delta, 1),
                layout(out, v),
                layout(d_out, v),
                self.sizes(1, total),
                self.blueprint.d_v / v,
                self.blueprint.dtype.elem(),
            );
        }
        check_launch(self.client, self.caps, &self.blueprint, [&delta.handle])
    }

    fn pass(
        &self,
        side: Side,
        [q, k, v, d_out]: [&Tensor<4>; 4],
        lse: &Tensor<3>,
        delta: &Tensor<3>,
        gradients: &Gradients,
    ) -> Result<(), Error> {
        let blueprint = self.blueprint;
        let (first, second, heads, own) = match side {
            Side::Keys => (
                &gradients.dk,
                Some(&gradients.dv),
                self.dims.h_kv,
                self.dims.s_kv,
            ),
            Side::Queries => (&gradients.dq, None, self.dims.h_q, self.dims.s_q),
        };
        let tiles = own.div_ceil(blueprint.rows);
        let total = self.dims.b * heads * tiles;
        if total == 0 {
            return Ok(());
        }
        let cubes = spread("attend_backward", total, self.caps)?;
        let w = blueprint.vector;
        let layouts = BackwardLayoutsLaunch::new(
            layout(q, w),
            layout(k, w),
            layout(v, w),
            layout(d_out, w),
            LayoutLaunch::new(lse.offset, lse.strides[0], lse.strides[1], lse.strides[2]),
            layout(first, w),
            layout(second.unwrap_or(first), w),
        );
        // SAFETY: inputs were checked against their buffers, gradients are dense and of the
        // checked shapes; rows are clamped to the last one.
        unsafe {
            attend_backward_fma::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(blueprint.units() as u32),
                address(blueprint.wide),
                w,
                buffer(q, w),
                buffer(k, w),
                buffer(v, w),
                buffer(d_out, w),
                BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
                buffer(delta, 1),
                buffer(first, w),
                second.map(|t| buffer(t, w)).into(),
                self.hooks.tensors(self.client),
                layouts,
                self.sizes(tiles, total),
                self.hooks.scalars(blueprint.fault),
                self.hooks.offsets(),
                side,
                blueprint,
                blueprint.dtype.elem(),
            );
        }
        check_launch(self.client, self.caps, &blueprint, [&first.handle])
    }
}
