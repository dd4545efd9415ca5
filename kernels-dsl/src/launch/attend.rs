//! `attend_forward`: check, select, bind, launch.

use cubecl::prelude::{BufferArg, Client, CubeDim, CubeElement};

use super::*;
use crate::arch::fma::{ForwardLayoutsLaunch, ForwardSizesLaunch, attend_forward_fma};
use crate::attention::{
    LogitFeatures, LogitScalarsLaunch, LogitTensorsLaunch, MaskWidth, TableOffsetsLaunch,
};
use crate::error::{Error, InvalidProblem, RuntimeFailure};
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

/// Largest s_q and s_kv: masks compute with i32 indices and twice the length.
pub const MAX_SEQUENCE: usize = 1 << 30;

/// out = softmax(logits(q k^T)) v, lse = log sum exp(logits).
///
/// q [b, h_q, s_q, d], k [b, h_kv, s_kv, d], v [b, h_kv, s_kv, d_v], any strides with the last
/// axis contiguous, all of one dtype (f32, f16, bf16), h_q a multiple of h_kv. Accumulates in
/// f32. A row that sees no key gives out 0 and lse -inf. Runs on the client's stream and does
/// not wait for it. Logits and masks: [`AttendOptions`].
///
/// # Errors
/// [`InvalidProblem`] for contradictory or non-finite arguments, [`NotAvailable`] where the
/// device lacks the dtype, buffers or address width, [`RuntimeFailure`] when the compiler fails.
///
/// [`NotAvailable`]: crate::error::NotAvailable
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
pub fn attend_forward(
    client: &Client,
    q: &Tensor<4>,
    k: &Tensor<4>,
    v: &Tensor<4>,
    options: &AttendOptions<'_>,
) -> Result<Attended, Error> {
    let dims = AttendDims::check(q, k, v)?;
    let out = match &options.out {
        Some(out) => checked_out(out, &dims, q.dtype)?,
        None => Tensor::empty(client, [dims.b, dims.h_q, dims.s_q, dims.d_v], q.dtype),
    };
    let lse = match &options.lse {
        Some(lse) => checked_lse(lse, &dims)?,
        None => Tensor::empty(client, [dims.b, dims.h_q, dims.s_q], DType::F32),
    };
    let hooks = Hooks::check(&dims, options)?;
    if lse.elements() == 0 {
        return Ok(Attended {
            out,
            lse,
            blueprint: None,
        });
    }

    let caps = Caps::of(client);
    let vector = [q, k, v, &out]
        .map(|t| t.vector(4))
        .into_iter()
        .min()
        .unwrap_or(1);
    let reach = [q, k, v, &out]
        .map(Tensor::reach)
        .into_iter()
        .max()
        .unwrap_or(0)
        .max(hooks.reach);
    let key = AttendKey {
        dtype: q.dtype,
        d: dims.d,
        d_v: dims.d_v,
        s_q: dims.s_q,
        vector,
        reach,
        features: hooks.features,
    };
    let blueprint = select_attend(&key, &caps, &options.policy)?;
    launch(client, &caps, &dims, [q, k, v, &out], &lse, &hooks, blueprint)?;
    Ok(Attended {
        out,
        lse,
        blueprint: Some(blueprint),
    })
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
        let [b, h_q, s_q, d] = q.shape;
        let [_, h_kv, s_kv, _] = k.shape;
        let d_v = v.shape[3];
        expect_shape("k", k.shape, [b, h_kv, s_kv, d])?;
        expect_shape("v", v.shape, [b, h_kv, s_kv, d_v])?;
        for (name, tensor) in [("q", q), ("k", k), ("v", v)] {
            if tensor.dtype != q.dtype {
                return Err(InvalidProblem::Dtype {
                    tensor: name,
                    found: tensor.dtype,
                    expected: q.dtype.to_string(),
                });
            }
            tensor.check(name)?;
        }
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

fn expect_shape(
    tensor: &'static str,
    found: [usize; 4],
    expected: [usize; 4],
) -> Result<(), InvalidProblem> {
    const AXES: [&str; 4] = ["b", "h", "s", "d"];
    match (0..4).find(|&a| found[a] != expected[a]) {
        None => Ok(()),
        Some(a) => Err(InvalidProblem::Shape {
            tensor,
            axis: AXES[a],
            found: found[a],
            expected: expected[a],
        }),
    }
}

pub(crate) fn out_of_range(name: &'static str, value: i128, limit: i128) -> InvalidProblem {
    InvalidProblem::OutOfRange { name, value, limit }
}

fn checked_out(
    out: &Tensor<4>,
    dims: &AttendDims,
    dtype: DType,
) -> Result<Tensor<4>, InvalidProblem> {
    expect_shape("out", out.shape, [dims.b, dims.h_q, dims.s_q, dims.d_v])?;
    if out.dtype != dtype {
        return Err(InvalidProblem::Dtype {
            tensor: "out",
            found: out.dtype,
            expected: dtype.to_string(),
        });
    }
    out.check_output("out")?;
    Ok(out.clone())
}

fn checked_lse(lse: &Tensor<3>, dims: &AttendDims) -> Result<Tensor<3>, InvalidProblem> {
    let [b, h, s] = lse.shape;
    expect_shape("lse", [b, h, s, 1], [dims.b, dims.h_q, dims.s_q, 1])?;
    if lse.dtype != DType::F32 {
        return Err(InvalidProblem::Dtype {
            tensor: "lse",
            found: lse.dtype,
            expected: DType::F32.to_string(),
        });
    }
    // Any strides will do: rows are written one by one.
    let as_rows = Tensor::strided(
        lse.handle.clone(),
        [b, h, s, 1],
        [lse.strides[0], lse.strides[1], lse.strides[2], 1],
        lse.offset,
        lse.dtype,
    );
    as_rows.check_output("lse")?;
    Ok(lse.clone())
}

fn launch(
    client: &Client,
    caps: &Caps,
    dims: &AttendDims,
    [q, k, v, out]: [&Tensor<4>; 4],
    lse: &Tensor<3>,
    hooks: &Hooks,
    blueprint: AttendBlueprint,
) -> Result<(), Error> {
    let tiles = dims.s_q.div_ceil(blueprint.rows);
    let total = dims.b * dims.h_q * tiles;
    let cubes = spread("attend_forward", total, caps)?;
    let keys = match blueprint.fault {
        Some(Fault::LastKeyDropped) => dims.s_kv.saturating_sub(1),
        _ => dims.s_kv,
    };
    let sizes = ForwardSizesLaunch::new(
        dims.h_q as u32,
        (dims.h_q / dims.h_kv) as u32,
        dims.s_q as u32,
        keys as u32,
        tiles as u32,
        total,
    );
    let v_ = blueprint.vector;
    let layouts = ForwardLayoutsLaunch::new(
        layout(q, v_),
        layout(k, v_),
        layout(v, v_),
        layout(out, v_),
        LayoutLaunch::new(lse.offset, lse.strides[0], lse.strides[1], lse.strides[2]),
    );
    // SAFETY: every view was checked against its buffer; the kernel indexes rows below the
    // checked shape only (`BlockView::row` and `FmaCtx` clamp to the last row).
    unsafe {
        attend_forward_fma::launch_unchecked(
            client,
            cubes,
            CubeDim::new_1d(blueprint.units() as u32),
            address(blueprint.wide),
            blueprint.vector,
            buffer(q, v_),
            buffer(k, v_),
            buffer(v, v_),
            buffer(out, v_),
            BufferArg::from_raw_parts(lse.handle.clone(), lse.capacity()),
            hooks.tensors(client),
            layouts,
            sizes,
            hooks.scalars(blueprint.fault),
            hooks.offsets(),
            blueprint,
            blueprint.dtype.elem(),
        );
    }
    client
        .check([&out.handle, &lse.handle])
        .map_err(|e| RuntimeFailure {
            blueprint: blueprint.to_string(),
            device: caps.device.clone(),
            message: format!("{e:?}"),
        })?;
    Ok(())
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

/// The checked hooks of a call: features for the blueprint, numbers and tables for the launch.
pub(crate) struct Hooks {
    pub(crate) features: LogitFeatures,
    /// Largest element index of mask and bias.
    pub(crate) reach: usize,
    scale: f32,
    softcap: f32,
    left: i32,
    right: i32,
    anchor: i32,
    mask: Option<BoolMask>,
    bias: Option<Tensor<4>>,
    table: Table,
}

/// Words of the table buffer and where its parts start.
#[derive(Default)]
struct Table {
    words: Vec<u32>,
    len_q: usize,
    len_kv: usize,
    doc_q: usize,
    doc_kv: usize,
    slopes: usize,
}

impl Hooks {
    pub(crate) fn check(
        dims: &AttendDims,
        options: &AttendOptions<'_>,
    ) -> Result<Self, InvalidProblem> {
        let scale = options.scale.unwrap_or(1.0 / (dims.d as f32).sqrt());
        if !scale.is_finite() {
            return Err(InvalidProblem::NotFinite {
                name: "scale",
                value: scale,
            });
        }
        if let Some(cap) = options.softcap
            && !(cap.is_finite() && cap > 0.0)
        {
            return Err(InvalidProblem::NotFinite {
                name: "softcap",
                value: cap,
            });
        }
        let longest = dims.s_q.max(dims.s_kv);
        // A window no row can leave is no window; this also keeps the edges inside i32.
        let left = options.window_left.filter(|&w| w < longest);
        let right = match options.causal {
            true => Some(0),
            false => options.window_right.filter(|&w| w < longest),
        };
        let full = [dims.b, dims.h_q, dims.s_q, dims.s_kv];
        let mut hooks = Self {
            features: LogitFeatures {
                softcap: options.softcap.is_some(),
                alibi: options.alibi.is_some(),
                bias: options.bias.is_some(),
                band_left: left.is_some(),
                band_right: right.is_some(),
                documents: options.documents.is_some(),
                mask: options.mask.as_ref().map(|m| m.width),
                lengths: options.lengths_q.is_some() || options.lengths_kv.is_some(),
            },
            reach: 0,
            scale: options.softcap.map_or(scale, |cap| scale / cap),
            softcap: options.softcap.unwrap_or(0.0),
            left: left.unwrap_or(0) as i32,
            right: right.unwrap_or(0) as i32,
            anchor: (options.alignment == Alignment::BottomRight) as i32,
            mask: None,
            bias: None,
            table: Table::build(dims, options)?,
        };
        if let Some(mask) = &options.mask {
            hooks.take_mask(mask, full)?;
        }
        if let Some(bias) = &options.bias {
            hooks.take_bias(bias, full)?;
        }
        Ok(hooks)
    }

    fn take_mask(&mut self, mask: &BoolMask, full: [usize; 4]) -> Result<(), InvalidProblem> {
        let strides = broadcast("mask", mask.shape, mask.strides, full)?;
        let size = match mask.width {
            MaskWidth::U8 => 1,
            MaskWidth::U32 => 4,
        };
        let view = Tensor::strided(mask.handle.clone(), full, strides, mask.offset, DType::F32);
        let available = mask.handle.size_in_used() as usize / size;
        if view.reach() > available {
            return Err(InvalidProblem::OutOfBounds {
                tensor: "mask",
                needed: view.reach(),
                available,
            });
        }
        self.reach = self.reach.max(view.reach());
        self.mask = Some(BoolMask {
            strides,
            ..mask.clone()
        });
        Ok(())
    }

    fn take_bias(&mut self, bias: &Tensor<4>, full: [usize; 4]) -> Result<(), InvalidProblem> {
        if bias.dtype != DType::F32 {
            return Err(InvalidProblem::Dtype {
                tensor: "bias",
                found: bias.dtype,
                expected: DType::F32.to_string(),
            });
        }
        let strides = broadcast("bias", bias.shape, bias.strides, full)?;
        let view = Tensor::strided(bias.handle.clone(), full, strides, bias.offset, DType::F32);
        view.check_bounds("bias")?;
        self.reach = self.reach.max(view.reach());
        self.bias = Some(view);
        Ok(())
    }

    fn tensors(&self, client: &Client) -> LogitTensorsLaunch {
        let words = |bytes: u64| (bytes as usize).div_ceil(4);
        // SAFETY: lengths are those of the buffers; a byte mask's last word is inside its
        // allocation, which drivers align to 4 bytes.
        let mask = self.mask.as_ref().map(|m| unsafe {
            BufferArg::from_raw_parts(m.handle.clone(), words(m.handle.size_in_used()))
        });
        let bias = self
            .bias
            .as_ref()
            .map(|b| unsafe { BufferArg::from_raw_parts(b.handle.clone(), b.capacity()) });
        let table = (!self.table.words.is_empty()).then(|| {
            let handle = client.create_from_slice(u32::as_bytes(&self.table.words));
            unsafe { BufferArg::from_raw_parts(handle, self.table.words.len()) }
        });
        LogitTensorsLaunch::new(mask.into(), bias.into(), table.into())
    }

    fn scalars(&self, fault: Option<Fault>) -> LogitScalarsLaunch {
        let strided = |strides: [usize; 4], offset| {
            let first = if fault == Some(Fault::MaskOfFirstBatch) {
                0
            } else {
                strides[0]
            };
            LayoutLaunch::new(offset, first, strides[1], strides[2])
        };
        let mask = self.mask.as_ref().map_or(([0; 4], 0), |m| (m.strides, m.offset));
        let bias = self.bias.as_ref().map_or(([0; 4], 0), |b| (b.strides, b.offset));
        LogitScalarsLaunch::new(
            f32::NEG_INFINITY,
            self.scale,
            self.softcap,
            self.left + (fault == Some(Fault::BandLeftOffByOne)) as i32,
            self.right + (fault == Some(Fault::BandRightOffByOne)) as i32,
            match fault {
                Some(Fault::WrongAlignment) => 1 - self.anchor,
                _ => self.anchor,
            },
            strided(mask.0, mask.1),
            mask.0[3],
            strided(bias.0, bias.1),
            bias.0[3],
        )
    }

    fn offsets(&self) -> TableOffsetsLaunch {
        let t = &self.table;
        TableOffsetsLaunch::new(t.len_q, t.len_kv, t.doc_q, t.doc_kv, t.slopes)
    }
}

impl Table {
    fn build(dims: &AttendDims, options: &AttendOptions<'_>) -> Result<Self, InvalidProblem> {
        let mut table = Self::default();
        if options.lengths_q.is_some() || options.lengths_kv.is_some() {
            table.len_q = table.lengths("lengths_q", options.lengths_q, dims.b, dims.s_q)?;
            table.len_kv = table.lengths("lengths_kv", options.lengths_kv, dims.b, dims.s_kv)?;
        }
        if let Some((q, k)) = options.documents {
            expect_entries("documents of queries", q.len(), dims.b * dims.s_q)?;
            expect_entries("documents of keys", k.len(), dims.b * dims.s_kv)?;
            table.doc_q = table.append(q.iter().copied());
            table.doc_kv = table.append(k.iter().copied());
        }
        if let Some(slopes) = options.alibi {
            expect_entries("alibi", slopes.len(), dims.h_q)?;
            if let Some(&value) = slopes.iter().find(|s| !s.is_finite()) {
                return Err(InvalidProblem::NotFinite {
                    name: "alibi",
                    value,
                });
            }
            let of = |h: usize| match options.policy.fault {
                Some(Fault::SlopeOfFirstHead) => slopes[0],
                _ => slopes[h],
            };
            table.slopes = table.append((0..dims.h_q).map(|h| of(h).to_bits()));
        }
        Ok(table)
    }

    fn append(&mut self, words: impl Iterator<Item = u32>) -> usize {
        let at = self.words.len();
        self.words.extend(words);
        at
    }

    fn lengths(
        &mut self,
        name: &'static str,
        lengths: Option<&[usize]>,
        b: usize,
        limit: usize,
    ) -> Result<usize, InvalidProblem> {
        let Some(lengths) = lengths else {
            return Ok(self.append((0..b).map(|_| limit as u32)));
        };
        expect_entries(name, lengths.len(), b)?;
        if let Some((index, &value)) = lengths.iter().enumerate().find(|&(_, &n)| n > limit) {
            return Err(InvalidProblem::Entry {
                name,
                index,
                value,
                limit,
            });
        }
        Ok(self.append(lengths.iter().map(|&n| n as u32)))
    }
}

pub(crate) fn expect_entries(
    name: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), InvalidProblem> {
    if found == expected {
        return Ok(());
    }
    Err(InvalidProblem::Entries {
        name,
        found,
        expected,
    })
}
