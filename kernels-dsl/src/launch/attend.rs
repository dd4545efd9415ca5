//! `attend_forward`: check, select, bind, launch.

use cubecl::prelude::{BufferArg, Client};

use super::*;
use crate::attention::WeightFormat;
use crate::error::{Error, InvalidProblem};
use crate::tile::LayoutLaunch;

/// Result of [`attend_forward`].
#[derive(Debug, Clone)]
pub struct Attended {
    /// [b, h_q, s_q, d_v] in the dtype of q.
    pub out: Tensor<4>,
    /// [b, h_q, s_q] f32: natural log-sum-exp of every row, -inf where it saw no key.
    pub lse: Tensor<3>,
    /// What ran; `None` when the result is empty and nothing was launched.
    pub blueprint: Option<AttendBlueprint>,
}

const AXES: [&str; 4] = ["b", "h", "s", "d"];

/// Largest s_q and s_kv: masks compute with i32 indices and twice the length.
pub const MAX_SEQUENCE: usize = 1 << 30;

/// out = softmax(logits(q k^T)) v, lse = log sum exp(logits).
///
/// q [b, h_q, s_q, d], k [b, h_kv, s_kv, d], v [b, h_kv, s_kv, d_v], any strides with the last
/// axis contiguous, all of one dtype (f32, f16, bf16), h_q a multiple of h_kv. Accumulates in
/// f32. A row that sees no key gives out 0 and lse -inf. Runs on the client's stream and does
/// not wait for it, unless [`Policy::autotune`] asks for it. Logits and masks: [`AttendOptions`].
///
/// # Errors
/// [`InvalidProblem`] for contradictory or non-finite arguments, [`NotAvailable`] where the
/// device lacks the dtype, buffers or address width, [`RuntimeFailure`] when the compiler fails.
///
/// [`NotAvailable`]: crate::error::NotAvailable
/// [`RuntimeFailure`]: crate::error::RuntimeFailure
///
/// A padded batch:
///
/// ```no_run
/// use flashcube_kernels::{AttendOptions, DType, Tensor, attend_forward};
///
/// # fn demo(client: &cubecl::prelude::Client) -> Result<(), flashcube_kernels::Error> {
/// let q = Tensor::empty(client, [1, 8, 128, 64], DType::F16);
/// let k = Tensor::empty(client, [1, 2, 256, 64], DType::F16);
/// let v = Tensor::empty(client, [1, 2, 256, 64], DType::F16);
/// let options = AttendOptions { causal: true, ..AttendOptions::default() };
/// let attended = attend_forward(client, &q, &k, &v, &options)?;
/// assert_eq!(attended.out.shape, [1, 8, 128, 64]);
/// # Ok(())
/// # }
/// ```
///
/// Three sequences of 5, 0 and 7 tokens, packed without padding:
///
/// ```no_run
/// use flashcube_kernels::{AttendOptions, DType, Tensor, attend_forward};
///
/// # fn demo(client: &cubecl::prelude::Client) -> Result<(), flashcube_kernels::Error> {
/// // [total, h, d], as projections write them.
/// let q = Tensor::empty(client, [12, 8, 64], DType::F16);
/// let k = Tensor::empty(client, [12, 2, 64], DType::F16);
/// let v = Tensor::empty(client, [12, 2, 64], DType::F16);
/// let starts = [0, 5, 5, 12];
/// let options = AttendOptions {
///     causal: true,
///     cu_seqlens: Some((&starts, &starts)),
///     ..AttendOptions::default()
/// };
/// let attended = attend_forward(client, &q.packed(), &k.packed(), &v.packed(), &options)?;
/// // Dense [total, h, d] memory again, and lse [h, total].
/// assert_eq!(attended.out.strides, q.packed().strides);
/// assert_eq!(attended.lse.shape, [1, 8, 12]);
/// # Ok(())
/// # }
/// ```
pub fn attend_forward(
    client: &Client,
    q: &Tensor<4>,
    k: &Tensor<4>,
    v: &Tensor<4>,
    options: &AttendOptions<'_>,
) -> Result<Attended, Error> {
    attend(client, [q, k, v], options, WeightFormat::Wide)
}

/// [`attend_forward`] with weights encoded before they multiply v.
pub(crate) fn attend(
    client: &Client,
    [q, k, v]: [&Tensor<4>; 3],
    options: &AttendOptions<'_>,
    weights: WeightFormat,
) -> Result<Attended, Error> {
    let dims = AttendDims::check(q, k, v)?;
    let (out, lse) = results(client, &dims, q.dtype, options)?;
    let mut hooks = Hooks::check(&dims, options)?;
    hooks.features.weights = weights;
    if lse.elements() == 0 {
        return Ok(Attended {
            out,
            lse,
            blueprint: None,
        });
    }

    if dims.d_v == 0 {
        // Nothing to write but lse: attend to the keys and drop the result.
        let keys = AttendOptions {
            out: None,
            lse: Some(lse),
            ..options.clone()
        };
        let attended = attend(client, [q, k, k], &keys, weights)?;
        return Ok(Attended { out, ..attended });
    }
    let [k, v] = [k.bindable(client), v.bindable(client)];
    let (k, v) = (&k, &v);

    let caps = Caps::of(client);
    let views = [q, k, v, &out];
    let (policy, key) = (&options.policy, forward_key(&dims, &hooks, views));
    let mut launch = |blueprint: AttendBlueprint| {
        let listed = key.features.listed();
        let listed = listed.then(|| hooks.list_tiles(&dims, &blueprint));
        let call = ForwardCall {
            client,
            caps: &caps,
            dims,
            hooks: &hooks,
            listed,
            blueprint,
        };
        call.launch(views, &lse)
    };
    let blueprint = match policy.autotune {
        true => autotune(client, &caps, (&key, &dims), policy, &mut launch)?,
        false => select_attend(&key, &caps, policy)?,
    };
    launch(blueprint)?;
    Ok(Attended {
        out,
        lse,
        blueprint: Some(blueprint),
    })
}

/// out and lse: the caller's, checked, or new ones.
pub(crate) fn results(
    client: &Client,
    dims: &AttendDims,
    dtype: DType,
    options: &AttendOptions<'_>,
) -> Result<(Tensor<4>, Tensor<3>), InvalidProblem> {
    let out = match &options.out {
        Some(out) => checked_out(out, dims, dtype)?,
        // Packed sequences come back as packed tokens [total_q, h_q, d_v].
        None if options.cu_seqlens.is_some() => {
            Tensor::empty(client, [dims.s_q, dims.h_q, dims.d_v], dtype).packed()
        }
        None => Tensor::empty(client, [dims.b, dims.h_q, dims.s_q, dims.d_v], dtype),
    };
    let lse = match &options.lse {
        Some(lse) => checked_lse(lse, dims)?,
        None => Tensor::empty(client, [dims.b, dims.h_q, dims.s_q], DType::F32),
    };
    Ok((out, lse))
}

/// Bytes of device memory that [`attend_forward`] takes on such a device beside out and lse: the
/// table of lengths, documents, slopes and tiles, at most a few words for every row of q and k and
/// every head. There is no buffer of s_q times s_kv, whatever the options.
///
/// # Errors
/// As [`attend_forward`].
pub fn workspace_bytes(
    q: &Tensor<4>,
    k: &Tensor<4>,
    v: &Tensor<4>,
    options: &AttendOptions<'_>,
    caps: &Caps,
) -> Result<usize, Error> {
    let mut dims = AttendDims::check(q, k, v)?;
    let mut hooks = Hooks::check(&dims, options)?;
    if dims.b * dims.h_q * dims.s_q == 0 {
        return Ok(0);
    }
    // Without values the keys stand in for them.
    let v = if dims.d_v == 0 { k } else { v };
    dims.d_v = v.shape[3];
    // Selection looks at the strides of an out that would be allocated, not at its memory.
    let shape = [dims.b, dims.h_q, dims.s_q, dims.d_v];
    let fresh = Tensor::contiguous(q.handle.clone(), shape, q.dtype);
    let out = options.out.as_ref().filter(|out| out.shape == shape);
    let views = [q, k, v, out.unwrap_or(&fresh)];
    let key = forward_key(&dims, &hooks, views);
    let blueprint = select_attend(&key, caps, &options.policy)?;
    if key.features.listed() {
        hooks.list_tiles(&dims, &blueprint);
    }
    Ok(hooks.table_bytes())
}

/// The facts that selection needs of a checked call on q, k, v and out.
pub(crate) fn forward_key(dims: &AttendDims, hooks: &Hooks, views: [&Tensor<4>; 4]) -> AttendKey {
    let vectors = views.map(|t| t.vector(4));
    let reaches = views.map(Tensor::reach);
    AttendKey {
        op: AttendOp::Forward,
        dtype: views[0].dtype,
        d: dims.d,
        d_v: dims.d_v,
        s_q: match hooks.features.varlen {
            true => hooks.longest_q(),
            false => dims.s_q,
        },
        group: dims.h_q / dims.h_kv.max(1),
        vector: vectors.into_iter().min().unwrap_or(1),
        chunks: views.iter().all(|t| t.chunks()),
        tma: views.iter().all(|t| t.tma()),
        positive_scale: hooks.scale > 0.0,
        reach: reaches.into_iter().fold(hooks.reach, usize::max),
        features: hooks.features,
    }
}

/// Sizes of an attention problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttendDims {
    pub(crate) b: usize,
    pub(crate) h_q: usize,
    pub(crate) h_kv: usize,
    pub(crate) s_q: usize,
    pub(crate) s_kv: usize,
    pub(crate) d: usize,
    pub(crate) d_v: usize,
}

impl AttendDims {
    pub(crate) fn check(
        q: &Tensor<4>,
        k: &Tensor<4>,
        v: &Tensor<4>,
    ) -> Result<Self, InvalidProblem> {
        Self::check_cache(q, k, v, q.shape[0], k.shape[2], false)
    }

    /// As [`check`](Self::check) with `rows` entries along the first axis of k and v, which hold
    /// `s_kv` keys of a sequence, as codes if they are `coded`.
    pub(crate) fn check_cache(
        q: &Tensor<4>,
        k: &Tensor<4>,
        v: &Tensor<4>,
        rows: usize,
        s_kv: usize,
        coded: bool,
    ) -> Result<Self, InvalidProblem> {
        let dims = Self::of_shapes([q.shape, k.shape, v.shape], rows, s_kv)?;
        for (name, tensor) in [("q", q), ("k", k), ("v", v)] {
            // Codes come with scales: their owner checks both.
            if tensor.dtype != DType::E4M3 || name == "q" || !coded {
                expect_dtype(name, tensor.dtype, q.dtype)?;
            }
            tensor.check(name)?;
        }
        Ok(dims)
    }

    /// Sizes of q, k and v with these shapes, `rows` entries along the first axis of k and v and `s_kv` keys in a sequence.
    pub(crate) fn of_shapes(
        [q, k, v]: [[usize; 4]; 3],
        rows: usize,
        s_kv: usize,
    ) -> Result<Self, InvalidProblem> {
        let [b, h_q, s_q, d] = q;
        let [_, h_kv, s, _] = k;
        let d_v = v[3];
        expect_axes("k", AXES, k, [rows, h_kv, s, d])?;
        expect_axes("v", AXES, v, [rows, h_kv, s, d_v])?;
        if (h_kv == 0 && h_q > 0) || (h_kv > 0 && !h_q.is_multiple_of(h_kv)) {
            return Err(InvalidProblem::HeadGroups { h_q, h_kv });
        }
        for (name, value) in [("s_q", s_q), ("s_kv", s_kv)] {
            if value > MAX_SEQUENCE {
                return Err(out_of_range(name, value as i128, MAX_SEQUENCE as i128));
            }
        }
        if d == 0 {
            return Err(out_of_range("d", 0, 1));
        }
        Ok(Self {
            b,
            h_q,
            h_kv,
            s_q,
            s_kv,
            d,
            d_v,
        })
    }
}

pub(crate) fn out_of_range(name: &'static str, value: i128, limit: i128) -> InvalidProblem {
    InvalidProblem::OutOfRange { name, value, limit }
}

pub(crate) fn checked_out(
    out: &Tensor<4>,
    dims: &AttendDims,
    dtype: DType,
) -> Result<Tensor<4>, InvalidProblem> {
    expect_axes(
        "out",
        AXES,
        out.shape,
        [dims.b, dims.h_q, dims.s_q, dims.d_v],
    )?;
    expect_dtype("out", out.dtype, dtype)?;
    out.check_output("out")?;
    Ok(out.clone())
}

pub(crate) fn checked_lse(lse: &Tensor<3>, dims: &AttendDims) -> Result<Tensor<3>, InvalidProblem> {
    expect_axes(
        "lse",
        ["b", "h", "s"],
        lse.shape,
        [dims.b, dims.h_q, dims.s_q],
    )?;
    expect_dtype("lse", lse.dtype, DType::F32)?;
    lse.check_rows("lse")?;
    Ok(lse.clone())
}

/// Strides of a view in vectors of `v` elements.
pub(crate) fn layout(t: &Tensor<4>, v: usize) -> LayoutLaunch {
    let [b, h, s, _] = t.strides;
    LayoutLaunch::new(t.offset / v, b / v, h / v, s / v)
}

/// The whole buffer of a view, in vectors of `v` elements.
///
/// # Safety
/// The kernel must stay inside the view.
pub(crate) unsafe fn buffer<const N: usize>(t: &Tensor<N>, v: usize) -> BufferArg {
    // SAFETY: the length is the buffer's own.
    unsafe { BufferArg::from_raw_parts(t.handle.clone(), t.capacity() / v) }
}
