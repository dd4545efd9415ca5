//! `attend_decode`: few queries against a long cache, its keys split over cubes and merged.

use cubecl::prelude::Client;

use super::*;
use crate::error::{Error, InvalidProblem, NotAvailable};

/// Options of [`attend_decode`].
#[derive(Debug, Clone, Default)]
pub struct DecodeOptions<'a> {
    /// Logits, masks, lengths, out, lse and policy, as in [`attend_forward`]; neither packed
    /// sequences nor documents.
    pub attend: AttendOptions<'a>,
    /// Parts that the keys are cut into, at most [`MAX_SPLITS`]; [`plan_splits`] decides when absent.
    pub splits: Option<usize>,
    /// Where partial results go: f32, at least [`DecodePlan::workspace`] elements; allocated when absent.
    pub workspace: Option<Tensor<1>>,
}

/// What ran for [`attend_decode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodePlan {
    /// The attention kernel.
    pub blueprint: AttendBlueprint,
    /// How its keys were split.
    pub split: SplitPlan,
    /// Elements of partial results, 0 where nothing is merged.
    pub workspace: usize,
}

impl DecodePlan {
    /// Partial results of a tile that are merged through memory: one for every cube, none where one cube
    /// merges all parts itself.
    fn left(&self) -> usize {
        match self.split.splits / self.blueprint.parts {
            1 if self.blueprint.tier == TierName::Plane => 0,
            cubes => cubes,
        }
    }
}

/// Result of [`attend_decode`].
#[derive(Debug, Clone)]
pub struct Decoded {
    /// [b, h_q, s_q, d_v] in the dtype of q, or in f32 where such an out was supplied.
    pub out: Tensor<4>,
    /// [b, h_q, s_q] f32: natural log-sum-exp of every row, -inf where it saw no key.
    pub lse: Tensor<3>,
    /// What ran; `None` when the result is empty and nothing was launched.
    pub plan: Option<DecodePlan>,
}

/// out = softmax(logits(q k^T)) v, lse = log sum exp(logits), for few queries and many keys.
///
/// q [b, h_q, s_q, d] with any s_q; one to a few dozen is what it is made for. k and v lie in one
/// piece for every sequence or in pages; see [`KvView`]. The query heads that share a key head fill
/// the rows of one tile, so that the cache is read once, and the keys of a tile are split over as
/// many cubes as keep the memory busy: their f32 parts and log-sum-exps are merged in the order of
/// the keys by [`merge_partials`], so that a plan gives the same bits each time. Rows past a
/// sequence's keys are never read, nor pages that no key lies in. Masks and logits as in [`attend_forward`]; a causal mask
/// is aligned bottom-right by default, so that query i of s_q sees all but the last s_q - 1 - i keys.
///
/// Nothing is allocated when out, lse and the workspace are supplied, and nothing is copied from the
/// host unless lengths, pages, slopes or sinks come as host slices: such a call can be captured.
///
/// # Errors
/// As [`attend_forward`]; [`InvalidProblem::Entry`] for a length past the table or a page that does
/// not exist.
///
/// ```no_run
/// use flashcube_kernels::{AttendOptions, DType, DecodeOptions, KvView, PageTable, Tensor, attend_decode};
///
/// # fn demo(client: &cubecl::prelude::Client) -> Result<(), flashcube_kernels::Error> {
/// // Two sequences of 70 and 5 keys in pages of 64.
/// let k = Tensor::empty(client, [100, 8, 64, 128], DType::BF16);
/// let v = Tensor::empty(client, [100, 8, 64, 128], DType::BF16);
/// let cache = KvView::paged(k, v, PageTable::checked(&[17, 4, 99, 0], 2));
/// let q = Tensor::empty(client, [2, 32, 1, 128], DType::BF16);
/// let options = DecodeOptions {
///     attend: AttendOptions { lengths_kv: Some(&[70, 5]), ..AttendOptions::default() },
///     ..DecodeOptions::default()
/// };
/// let decoded = attend_decode(client, &q, &cache, &options)?;
/// assert_eq!(decoded.out.shape, [2, 32, 1, 128]);
/// # Ok(())
/// # }
/// ```
pub fn attend_decode(
    client: &Client,
    q: &Tensor<4>,
    cache: &KvView<'_>,
    options: &DecodeOptions<'_>,
) -> Result<Decoded, Error> {
    let dims = check(q, cache, options)?;
    let attend = &options.attend;
    let shape = [dims.b, dims.h_q, dims.s_q, dims.d_v];
    let out = match &attend.out {
        // Parts of something larger stay in f32.
        Some(out) if out.dtype == DType::F32 => checked_out(out, &dims, DType::F32)?,
        Some(out) => checked_out(out, &dims, q.dtype)?,
        None => Tensor::empty(client, shape, q.dtype),
    };
    let lse = match &attend.lse {
        Some(lse) => checked_lse(lse, &dims)?,
        None => Tensor::empty(client, [dims.b, dims.h_q, dims.s_q], DType::F32),
    };
    let mut hooks = Hooks::check(&dims, attend)?;
    hooks.take_cache(cache)?;
    if lse.elements() == 0 {
        let plan = None;
        return Ok(Decoded { out, lse, plan });
    }
    if dims.d_v == 0 {
        // Nothing to write but lse: attend to the keys and drop the result.
        let mut keys = options.clone();
        (keys.attend.out, keys.attend.lse) = (None, Some(lse));
        let v = cache.k.clone();
        let mut halves = KvView { v, ..cache.clone() };
        if let Some(scales) = &mut halves.scales {
            scales.v = scales.k.clone();
        }
        let decoded = attend_decode(client, q, &halves, &keys)?;
        return Ok(Decoded { out, ..decoded });
    }
    let [k, v] = [cache.k.bindable(client), cache.v.bindable(client)];
    let caps = Caps::of(client);
    let plan = plan(&dims, &mut hooks, [q, &k, &v, &out], options, &caps)?;
    let call = ForwardCall {
        client,
        caps: &caps,
        dims,
        hooks: &hooks,
        listed: None,
        blueprint: plan.blueprint,
    };
    if !plan.blueprint.features.split {
        call.launch([q, &k, &v, &out], &lse)?;
    } else if plan.left() == 0 {
        // A cube merges all parts of its tile, and leaves none: out and lse stand in for them.
        call.plane_parts([q, &k, &v], (&out, &lse), (&out, &lse))?;
    } else {
        let parts = Parts::new(client, options.workspace.as_ref(), &dims, &plan)?;
        if plan.blueprint.tier == TierName::Plane {
            let left = (&parts.outs, &parts.lses);
            call.plane_parts([q, &k, &v], left, (&out, &lse))?;
        } else {
            call.launch([q, &k, &v, &parts.outs], &parts.lses)?;
            parts.merge(client, &dims, plan.left(), &out, &lse)?;
        }
    }
    let plan = Some(plan);
    Ok(Decoded { out, lse, plan })
}

/// What [`attend_decode`] would run on such a device: how much workspace to allocate, and whether a
/// change of lengths changes the plan that a captured graph holds.
///
/// # Errors
/// As [`attend_decode`].
pub fn plan_decode(
    q: &Tensor<4>,
    cache: &KvView<'_>,
    options: &DecodeOptions<'_>,
    caps: &Caps,
) -> Result<Option<DecodePlan>, Error> {
    let mut dims = check(q, cache, options)?;
    let mut hooks = Hooks::check(&dims, &options.attend)?;
    hooks.take_cache(cache)?;
    if dims.b * dims.h_q * dims.s_q == 0 {
        return Ok(None);
    }
    let v = if dims.d_v == 0 { &cache.k } else { &cache.v };
    dims.d_v = v.shape[3];
    let shape = [dims.b, dims.h_q, dims.s_q, dims.d_v];
    let fresh = Tensor::contiguous(q.handle.clone(), shape, q.dtype);
    let out = options.attend.out.as_ref().filter(|out| out.shape == shape);
    let views = [q, &cache.k, v, out.unwrap_or(&fresh)];
    plan(&dims, &mut hooks, views, options, caps).map(Some)
}

/// Sizes of the problem; s_kv is what a sequence can have.
fn check(
    q: &Tensor<4>,
    cache: &KvView<'_>,
    options: &DecodeOptions<'_>,
) -> Result<AttendDims, InvalidProblem> {
    let with = "attend_decode";
    for (option, present) in [
        ("cu_seqlens", options.attend.cu_seqlens.is_some()),
        ("documents", options.attend.documents.is_some()),
    ] {
        if present {
            return Err(InvalidProblem::Conflict { option, with });
        }
    }
    for (with, present) in [
        ("lengths_kv", options.attend.lengths_kv.is_some()),
        // They would be read from a table that the host does not write.
        ("lengths_q", options.attend.lengths_q.is_some()),
    ] {
        if present && cache.lengths.is_some() {
            let option = "lengths of the device";
            return Err(InvalidProblem::Conflict { option, with });
        }
    }
    let b = q.shape[0];
    let rows = match &cache.pages {
        Some(_) => cache.k.shape[0],
        None => b,
    };
    let dims = AttendDims::check_cache(
        q,
        &cache.k,
        &cache.v,
        rows,
        cache.capacity(),
        cache.scales.is_some(),
    )?;
    cache.check_scales()?;
    if let Some(pages) = &cache.pages {
        pages.check(b)?;
    }
    if let Some(lengths) = &cache.lengths {
        lengths.check("lengths of the device", b)?;
    }
    if let Some(splits) = options.splits
        && !(1..=MAX_SPLITS).contains(&splits)
    {
        let (value, limit) = (splits as i128, MAX_SPLITS as i128);
        return Err(out_of_range("splits", value, limit));
    }
    Ok(dims)
}

/// The blueprint, and how many parts it is launched in.
fn plan(
    dims: &AttendDims,
    hooks: &mut Hooks,
    views: [&Tensor<4>; 4],
    options: &DecodeOptions<'_>,
    caps: &Caps,
) -> Result<DecodePlan, Error> {
    let policy = &options.attend.policy;
    let select = |split: bool, hooks: &mut Hooks| {
        hooks.features.split = split;
        let mut key = forward_key(dims, hooks, views);
        key.op = AttendOp::Decode;
        select_attend(&key, caps, policy)
    };
    // A result of another type than q's goes through parts, were it through one.
    let same = views[3].dtype == views[0].dtype;
    let mut blueprint = select(options.splits != Some(1) || !same, hooks)?;
    let problem = split_problem(dims, hooks, &blueprint, caps);
    let mut split = plan_splits(&problem);
    if let Some(splits) = options.splits {
        split = SplitPlan { splits, part: 1 };
    }
    if split.splits == 1 && same {
        hooks.splits = SplitPlan::WHOLE;
        let blueprint = select(false, hooks)?;
        return Ok(DecodePlan {
            blueprint,
            split: SplitPlan::WHOLE,
            workspace: 0,
        });
    }
    hooks.splits = split;
    blueprint.parts = problem.parts_of_a_cube(split.splits);
    let mut plan = DecodePlan {
        blueprint,
        split,
        workspace: 0,
    };
    if blueprint.tier == TierName::Plane && plan.left() > 1 && problem.tiles > COUNTERS {
        let (needed, available) = (problem.tiles.to_string(), COUNTERS.to_string());
        return Err(Error::NotAvailable(NotAvailable {
            what: "attend_decode".into(),
            device: caps.device.clone(),
            limit: "tiles that several cubes share",
            needed,
            available,
        }));
    }
    let rows = dims.b * dims.h_q * dims.s_q * plan.left();
    plan.workspace = rows * (dims.d_v.next_multiple_of(4) + 1);
    Ok(plan)
}

fn split_problem(
    dims: &AttendDims,
    hooks: &Hooks,
    blueprint: &AttendBlueprint,
    caps: &Caps,
) -> SplitProblem {
    let AttendBlueprint {
        rows, pack, block, ..
    } = *blueprint;
    let queries = rows.div_ceil(pack).min(dims.s_q);
    // What the device cannot be asked, cubes of the CPU JIT run one after the other.
    let guess = if caps.family == Family::Cpu { 1 } else { 16 };
    SplitProblem {
        tiles: dims.b * (dims.h_q / pack) * (dims.s_q * pack).div_ceil(rows),
        blocks: hooks.widest_span(queries).div_ceil(block),
        block,
        block_bytes: block * (dims.d + dims.d_v) * hooks.kv_size(blueprint.dtype),
        part_bytes: queries * pack * (dims.d_v + 1) * 4,
        multiprocessors: caps.multiprocessors.unwrap_or(guess) as usize,
        resident: blueprint.resident(caps) * blueprint.parts,
        busy: BUSY[blueprint.features.codes.is_some() as usize],
        merges: blueprint.tier == TierName::Plane,
        together: blueprint.parts,
    }
}

/// Partial results: [b * splits, h_q, s_q, d_v] and [b * splits, h_q, s_q], the parts of a sequence one
/// after the other.
struct Parts {
    outs: Tensor<4>,
    lses: Tensor<3>,
}

impl Parts {
    fn new(
        client: &Client,
        workspace: Option<&Tensor<1>>,
        dims: &AttendDims,
        plan: &DecodePlan,
    ) -> Result<Self, InvalidProblem> {
        let memory = match workspace {
            Some(memory) => {
                expect_dtype("workspace", memory.dtype, DType::F32)?;
                memory.check_output("workspace")?;
                let (needed, available) = (plan.workspace, memory.shape[0]);
                if needed > available {
                    return Err(InvalidProblem::OutOfBounds {
                        tensor: "workspace",
                        needed,
                        available,
                    });
                }
                memory.clone()
            }
            None => Tensor::empty(client, [plan.workspace], DType::F32),
        };
        let (b, row) = (dims.b * plan.left(), dims.d_v.next_multiple_of(4));
        let (h, s) = (dims.h_q, dims.s_q);
        let outs = b * h * s * row;
        let at = |offset| (memory.handle.clone(), memory.offset + offset);
        let (handle, offset) = at(0);
        let shape = [b, h, s, dims.d_v];
        let strides = [h * s * row, s * row, row, 1];
        let (lses, lses_offset) = at(outs);
        Ok(Self {
            outs: Tensor::strided(handle, shape, strides, offset, DType::F32),
            lses: Tensor::strided(lses, [b, h, s], [h * s, s, 1], lses_offset, DType::F32),
        })
    }

    fn merge(
        &self,
        client: &Client,
        dims: &AttendDims,
        n: usize,
        out: &Tensor<4>,
        lse: &Tensor<3>,
    ) -> Result<(), Error> {
        let b = dims.b;
        let [_, h, s, d_v] = self.outs.shape;
        let [part, head, row, _] = self.outs.strides;
        let outs = Tensor::strided(
            self.outs.handle.clone(),
            [n, b, h, s, d_v],
            [part, n * part, head, row, 1],
            self.outs.offset,
            DType::F32,
        );
        let [part, head, row] = self.lses.strides;
        let lses = Tensor::strided(
            self.lses.handle.clone(),
            [n, b, h, s],
            [part, n * part, head, row],
            self.lses.offset,
            DType::F32,
        );
        let options = MergeOptions {
            dtype: Some(out.dtype),
            out: Some(out.clone()),
            lse: Some(lse.clone()),
        };
        merge_partials(client, &outs, &lses, &options).map(drop)
    }
}
