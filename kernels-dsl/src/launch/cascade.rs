//! `attend_cascade`: a prefix that all sequences share is read once for all of them.

use cubecl::prelude::Client;

use super::*;
use crate::error::{Error, InvalidProblem};

/// Options of [`attend_cascade`].
#[derive(Debug, Clone, Default)]
pub struct CascadeOptions<'a> {
    /// Logits, out, lse and policy of the whole; masks, lengths and sinks of the suffix. No hook that
    /// counts from the first key: window, ALiBi, mask, bias.
    pub attend: AttendOptions<'a>,
    /// Keys of the prefix; all that its cache can have when absent.
    pub prefix: Option<usize>,
    /// Parts of each of the two; see [`DecodeOptions::splits`].
    pub splits: Option<usize>,
}

/// Result of [`attend_cascade`].
#[derive(Debug, Clone)]
pub struct Cascaded {
    /// [b, h_q, s_q, d_v] in the dtype of q.
    pub out: Tensor<4>,
    /// [b, h_q, s_q] f32, natural.
    pub lse: Tensor<3>,
    /// What ran over the prefix.
    pub prefix: Option<DecodePlan>,
    /// What ran over the suffixes.
    pub suffix: Option<DecodePlan>,
}

/// [`attend_decode`] over `prefix` followed by each sequence's own `suffix`.
///
/// ```text
/// out = merge(attend(q, prefix), attend(q, suffix))     by their log-sum-exps, in f32: exact
/// ```
/// `prefix` holds one sequence that every query sees whole. Where q's batch and sequence axes can be
/// walked as one (one query a sequence, or [b, s, h, d] memory) the queries of all sequences are rows
/// of one sequence, so that the prefix is read once; otherwise it is read for each. A causal mask is
/// that of the suffix alone.
///
/// # Errors
/// As [`attend_decode`]; [`InvalidProblem::Conflict`] for hooks that count from the first key.
///
/// ```no_run
/// use flashcube_kernels::{CascadeOptions, DType, KvView, Tensor, attend_cascade};
///
/// # fn demo(client: &cubecl::prelude::Client) -> Result<(), flashcube_kernels::Error> {
/// let cache = |b, s| {
///     let tensor = || Tensor::empty(client, [b, 8, s, 128], DType::BF16);
///     KvView::contiguous(tensor(), tensor())
/// };
/// let q = Tensor::empty(client, [32, 32, 1, 128], DType::BF16);
/// let options = CascadeOptions::default();
/// let cascaded = attend_cascade(client, &q, &cache(1, 4096), &cache(32, 100), &options)?;
/// assert_eq!(cascaded.out.shape, [32, 32, 1, 128]);
/// # Ok(())
/// # }
/// ```
pub fn attend_cascade(
    client: &Client,
    q: &Tensor<4>,
    prefix: &KvView<'_>,
    suffix: &KvView<'_>,
    options: &CascadeOptions<'_>,
) -> Result<Cascaded, Error> {
    check_cascade(prefix, &options.attend)?;
    let [b, h, s, _] = q.shape;
    let d_v = suffix.v.shape[3];
    let both = Halves::new(client, [b, h, s, d_v]);
    let mut of_suffix = options.attend.clone();
    (of_suffix.out, of_suffix.lse) = (Some(both.out(1)), Some(both.lse(1)));
    let own = DecodeOptions {
        attend: of_suffix,
        splits: options.splits,
        workspace: None,
    };
    let suffix = attend_decode(client, q, suffix, &own)?;

    let together = s <= 1 || b <= 1 || q.strides[0] == s * q.strides[2];
    let shared = if together { 1 } else { b };
    let lengths = vec![options.prefix.unwrap_or(prefix.capacity()); shared];
    let table = prefix.pages.as_ref().map(|pages| match pages.source() {
        PageSource::Host(words) => (words.repeat(shared), pages.width()),
        PageSource::Device(_) => (Vec::new(), pages.width()),
    });
    let mut cache = prefix.clone();
    if let (Some((words, width)), Some(pages)) = (&table, &prefix.pages) {
        cache.pages = Some(match pages.source() {
            PageSource::Host(_) => PageTable::checked(words, *width),
            // The same row for every sequence.
            PageSource::Device(words) => PageTable::device(words.clone(), *width, 0),
        });
    } else {
        for tensor in [&mut cache.k, &mut cache.v] {
            (tensor.shape[0], tensor.strides[0]) = (shared, 0);
        }
    }
    let attend = AttendOptions {
        causal: false,
        lengths_q: None,
        lengths_kv: Some(&lengths),
        sinks: None,
        out: Some(both.shared_out(together)),
        lse: Some(both.shared_lse(together)),
        ..options.attend.clone()
    };
    let all = DecodeOptions {
        attend,
        splits: options.splits,
        workspace: None,
    };
    let queries = if together {
        as_one_sequence(q)
    } else {
        q.clone()
    };
    let prefix = attend_decode(client, &queries, &cache, &all)?;
    let merge = MergeOptions {
        dtype: Some(q.dtype),
        out: options.attend.out.clone(),
        lse: options.attend.lse.clone(),
    };
    let merged = merge_partials(client, &both.outs, &both.lses, &merge)?;
    Ok(Cascaded {
        out: merged.out,
        lse: merged.lse,
        prefix: prefix.plan,
        suffix: suffix.plan,
    })
}

fn check_cascade(prefix: &KvView<'_>, attend: &AttendOptions<'_>) -> Result<(), InvalidProblem> {
    for (option, present) in [
        ("window_left", attend.window_left.is_some()),
        ("window_right", attend.window_right.is_some()),
        ("alibi", attend.alibi.is_some()),
        ("mask", attend.mask.is_some()),
        ("bias", attend.bias.is_some()),
        // Its rows would see the prefix.
        ("lengths_q", attend.lengths_q.is_some()),
        (
            "lengths of the device for a prefix",
            prefix.lengths.is_some(),
        ),
    ] {
        if present {
            let with = "attend_cascade";
            return Err(InvalidProblem::Conflict { option, with });
        }
    }
    if prefix.pages.is_none() && prefix.k.shape[0] != 1 {
        return Err(InvalidProblem::Shape {
            tensor: "prefix",
            axis: "b",
            found: prefix.k.shape[0],
            expected: 1,
        });
    }
    Ok(())
}

/// [b, h, s, d] as [1, h, b s, d].
fn as_one_sequence(q: &Tensor<4>) -> Tensor<4> {
    let ([b, h, s, d], [batch, head, row, column]) = (q.shape, q.strides);
    let row = if s == 1 { batch } else { row };
    let strides = [batch.saturating_mul(b.max(1)), head, row, column];
    Tensor::strided(
        q.handle.clone(),
        [1, h, b * s, d],
        strides,
        q.offset,
        q.dtype,
    )
}

/// f32 results over the prefix (0) and over the suffix (1): [2, h, b, s, d_v] in memory, so that b and s
/// are walked as one.
struct Halves {
    outs: Tensor<5>,
    lses: Tensor<4>,
}

impl Halves {
    fn new(client: &Client, [b, h, s, d_v]: [usize; 4]) -> Self {
        let outs = Tensor::<5>::empty(client, [2, h, b, s, d_v], DType::F32);
        let lses = Tensor::<4>::empty(client, [2, h, b, s], DType::F32);
        let ([n, head, batch, row, _], [m, lane, entry, _]) = (outs.strides, lses.strides);
        let strides = [n, batch, head, row, 1];
        Self {
            outs: Tensor::strided(outs.handle, [2, b, h, s, d_v], strides, 0, DType::F32),
            lses: Tensor::strided(
                lses.handle,
                [2, b, h, s],
                [m, entry, lane, 1],
                0,
                DType::F32,
            ),
        }
    }

    fn out(&self, half: usize) -> Tensor<4> {
        let ([_, b, h, s, d], [n, batch, head, row, _]) = (self.outs.shape, self.outs.strides);
        let strides = [batch, head, row, 1];
        let handle = self.outs.handle.clone();
        Tensor::strided(handle, [b, h, s, d], strides, half * n, DType::F32)
    }

    fn lse(&self, half: usize) -> Tensor<3> {
        let ([_, b, h, s], [n, batch, head, row]) = (self.lses.shape, self.lses.strides);
        let strides = [batch, head, row];
        let handle = self.lses.handle.clone();
        Tensor::strided(handle, [b, h, s], strides, half * n, DType::F32)
    }

    fn shared_out(&self, together: bool) -> Tensor<4> {
        let out = self.out(0);
        if together { as_one_sequence(&out) } else { out }
    }

    fn shared_lse(&self, together: bool) -> Tensor<3> {
        let lse = self.lse(0);
        if !together {
            return lse;
        }
        let ([b, h, s], [_, head, _]) = (lse.shape, lse.strides);
        Tensor::strided(
            lse.handle,
            [1, h, b * s],
            [h * b * s, head, 1],
            0,
            DType::F32,
        )
    }
}
