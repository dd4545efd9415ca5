//! From a raw score to a logit: scale, softcap, ALiBi, bias and the masks.
//!
//! ```text
//! x = scale * q.k ; x = cap * tanh(x / cap) ; x += -slope * |i + shift - j| ; x += bias ;
//! x = -inf where hidden
//! ```
//! `i`, `j` are the query and key index and `shift = len_kv - len_q` for bottom-right alignment,
//! 0 for top-left. The order is FlashAttention-2's (softcap before ALiBi).

use cubecl::prelude::*;

use super::{Exponential, TableOffsets, TileCoords, WeightFormat, table_word};
use crate::quant::OperandFormat;
use crate::tile::Layout;

/// Storage of a boolean mask: true (non-zero) hides the key.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub enum MaskWidth {
    /// One byte an element.
    U8,
    /// One 32-bit word an element.
    U32,
}

/// What has a scale of its own where K and V are codes.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub enum ScaledBy {
    /// Every key head.
    Head,
    /// Every key head of every page.
    Page,
}

/// Which hooks a kernel is compiled with.
#[derive(Debug, Default, Hash, PartialEq, Eq, Clone, Copy)]
pub struct LogitFeatures {
    /// cap * tanh(x / cap).
    pub softcap: bool,
    /// Linear distance penalty with a slope per query head.
    pub alibi: bool,
    /// Dense additive bias.
    pub bias: bool,
    /// Keys left of the band are hidden (window).
    pub band_left: bool,
    /// Keys right of the band are hidden (causal, window).
    pub band_right: bool,
    /// Queries and keys of different documents do not see each other.
    pub documents: bool,
    /// Dense boolean mask.
    pub mask: Option<MaskWidth>,
    /// Sequence lengths differ from the tensor's.
    pub lengths: bool,
    /// Sequences lie one behind the other in the rows of the only batch entry; comes with
    /// `lengths`.
    pub varlen: bool,
    /// The tiles of a sequence are its only ones whatever its length, as a decode's are: no list.
    pub unlisted: bool,
    /// Tiles see a part of their blocks each; see [`Segments::part`](super::Segments::part).
    pub split: bool,
    /// Keys lie in pages of this many rows; the batch axis of k and v counts pages.
    pub page: Option<u32>,
    /// Key lengths are bound apart, since the host does not know them; comes with `lengths`.
    pub device_lengths: bool,
    /// So are the pages.
    pub device_pages: bool,
    /// K and V are E4M3 codes, with a scale for each head or for each head of each page.
    pub codes: Option<ScaledBy>,
    /// A learned logit per query head takes part in the normaliser, without a value.
    pub sinks: bool,
    /// What weights become before they multiply V.
    pub weights: WeightFormat,
    /// q and k are codes and scales of this format as block-scaled products take them, v those of the format of
    /// the weights.
    pub operands: Option<OperandFormat>,
}

impl LogitFeatures {
    /// Whether a visible pair's logit is scale * score and nothing else.
    pub fn plain(self) -> bool {
        !(self.softcap || self.alibi || self.bias)
    }

    /// Whether a block inside the band and the lengths may still hold a hidden key.
    pub fn irregular(self) -> bool {
        self.documents || self.mask.is_some()
    }

    /// Whether the forward's tiles differ so much that the host lists them; see
    /// [`listed_tile`](super::listed_tile()).
    pub fn listed(self) -> bool {
        (self.lengths || self.documents) && !self.unlisted
    }

    /// Whether a table buffer is bound; see [`TableOffsets`](super::TableOffsets).
    pub fn table(self) -> bool {
        let lengths = self.lengths && !self.device_lengths;
        let pages = self.page.is_some() && !self.device_pages;
        lengths || pages || self.documents || self.alibi || self.sinks
    }
}

/// The numbers behind the hooks. Those of absent hooks are ignored.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct LogitScalars {
    /// -inf, which WGSL cannot spell.
    pub neg_inf: f32,
    /// scale, or scale / cap under softcap; natural base.
    pub scale: f32,
    /// cap; natural base.
    pub softcap: f32,
    /// Keys j < i + shift - left are hidden.
    pub left: i32,
    /// Keys j > i + shift + right are hidden.
    pub right: i32,
    /// 1 for bottom-right alignment, 0 for top-left: shift = anchor * (len_kv - len_q).
    pub anchor: i32,
    /// Boolean mask [b, h_q, s_q, s_kv], in elements.
    pub mask: Layout,
    /// Its stride along s_kv: 0 when broadcast.
    pub mask_key: usize,
    /// Bias [b, h_q, s_q, s_kv], in elements.
    pub bias: Layout,
    /// Its stride along s_kv: 0 when broadcast.
    pub bias_key: usize,
    /// Parts that the blocks of a tile are cut into, 1 for none.
    pub splits: u32,
    /// Fewest blocks of a part that is not the last.
    pub part: u32,
}

/// Device tensors behind the hooks, absent ones not bound at all: WebGPU offers 8 bindings.
#[derive(CubeType, CubeLaunch)]
pub struct LogitTensors {
    /// Boolean mask as 32-bit words.
    pub mask: ComptimeOption<Box<[u32]>>,
    /// Bias, f32.
    pub bias: ComptimeOption<Box<[f32]>>,
    /// Lengths, documents, slopes, pages; see [`TableOffsets`].
    pub table: ComptimeOption<Box<[u32]>>,
    /// Key lengths that the host does not know, where the table has none.
    pub lengths: ComptimeOption<Box<[u32]>>,
    /// Page numbers that the host does not know, where the table has none.
    pub pages: ComptimeOption<Box<[u32]>>,
    /// Scales of K's codes.
    pub k_scales: ComptimeOption<Box<[f32]>>,
    /// Scales of V's codes.
    pub v_scales: ComptimeOption<Box<[f32]>>,
}

/// What the logits of a tile depend on beside its scores.
#[derive(CubeType)]
pub struct LogitInputs<'a> {
    /// Tensors behind the hooks.
    pub tensors: &'a LogitTensors,
    /// Numbers behind the hooks.
    pub scalars: &'a LogitScalars,
    /// Table layout.
    pub offsets: &'a TableOffsets,
    /// Queries of the tensor.
    pub s_q: u32,
    /// Keys of the tensor.
    pub s_kv: u32,
}

/// Score of query `i` and key `j` -> logit in the base of `X`; masks are the caller's part.
#[cube]
pub fn logit<X: Exponential>(
    score: f32,
    i: u32,
    j: u32,
    at: &TileCoords,
    inputs: &LogitInputs<'_>,
    #[comptime] features: LogitFeatures,
) -> f32 {
    let per_nat = X::per_nat();
    let mut x = score * (inputs.scalars.scale * per_nat);
    if comptime!(features.softcap) {
        // tanh is +-1 in f32 beyond 10; unclamped, some drivers' sinh/cosh form is inf/inf.
        let t = clamp_tanh(score * inputs.scalars.scale);
        x = t * (inputs.scalars.softcap * per_nat);
    }
    if comptime!(features.alibi) {
        let distance = i as i32 + at.shift - j as i32;
        x -= at.slope * per_nat * f32::cast_from(distance.abs());
    }
    if comptime!(features.bias) {
        let ii = i.min(inputs.s_q - 1u32);
        let jj = j.min(inputs.s_kv - 1u32);
        let index = inputs.scalars.bias.base(at.batch, at.head)
            + ii as usize * inputs.scalars.bias.row
            + jj as usize * inputs.scalars.bias_key;
        #[comptime]
        match &inputs.tensors.bias {
            ComptimeOption::Some(b) => x += b[index] * per_nat,
            ComptimeOption::None => {}
        }
    }
    x
}

/// d logit / d score in natural units: scale, times 1 - tanh^2 under softcap.
#[cube]
pub fn logit_slope(
    score: f32,
    inputs: &LogitInputs<'_>,
    #[comptime] features: LogitFeatures,
) -> f32 {
    if comptime!(features.softcap) {
        let t = clamp_tanh(score * inputs.scalars.scale);
        inputs.scalars.scale * inputs.scalars.softcap * (1.0f32 - t * t)
    } else {
        inputs.scalars.scale
    }
}

#[cube]
fn clamp_tanh(x: f32) -> f32 {
    let bounded = x.clamp(-10.0f32, 10.0f32);
    bounded.tanh()
}

/// Keys `[lo, hi)` that lengths, causal and window leave to a query.
#[derive(CubeType, Clone, Copy)]
pub struct Band {
    /// First key.
    pub lo: i32,
    /// One past the last key; 0 for a query past the sequence's length.
    pub hi: i32,
}

/// The band of query `i`.
#[cube]
pub fn band(
    i: u32,
    at: &TileCoords,
    inputs: &LogitInputs<'_>,
    #[comptime] features: LogitFeatures,
) -> Band {
    let diagonal = i as i32 + at.shift;
    let mut lo = 0i32;
    let mut hi = at.len_kv as i32;
    if comptime!(features.band_right) {
        hi = hi.min(diagonal + inputs.scalars.right + 1);
    }
    if comptime!(features.band_left) {
        lo = diagonal - inputs.scalars.left;
    }
    hi = select(i < at.len_q, hi, 0i32);
    Band { lo, hi }
}

/// Whether documents and boolean mask let query `i` see key `j`. Reads only inside the tensors.
#[cube]
pub fn admitted(
    i: u32,
    j: u32,
    at: &TileCoords,
    inputs: &LogitInputs<'_>,
    #[comptime] features: LogitFeatures,
) -> bool {
    let mut seen = true.runtime();
    let ii = i.min(inputs.s_q - 1u32) as usize;
    let jj = j.min(inputs.s_kv - 1u32) as usize;
    if comptime!(features.documents) {
        let row = at.batch as usize;
        let q = table_word(
            inputs.tensors,
            inputs.offsets.doc_q + row * inputs.s_q as usize + ii,
        );
        let k = table_word(
            inputs.tensors,
            inputs.offsets.doc_kv + row * inputs.s_kv as usize + jj,
        );
        seen = q == k;
    }
    if comptime!(features.mask.is_some()) {
        let index = inputs.scalars.mask.base(at.batch, at.head)
            + ii * inputs.scalars.mask.row
            + jj * inputs.scalars.mask_key;
        seen = seen && mask_word(inputs.tensors, index, features) == 0u32;
    }
    seen
}

/// Element `index` of the boolean mask; bytes are cut out of words, since WGSL has no u8.
#[cube]
fn mask_word(tensors: &LogitTensors, index: usize, #[comptime] features: LogitFeatures) -> u32 {
    #[comptime]
    match &tensors.mask {
        ComptimeOption::Some(m) => {
            if comptime!(features.mask == Some(MaskWidth::U8)) {
                let shift = (index as u32 % 4u32) * 8u32;
                (m[index / 4] >> shift) & 0xFFu32
            } else {
                m[index]
            }
        }
        ComptimeOption::None => 0u32,
    }
}
