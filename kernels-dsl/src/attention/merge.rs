//! The softmax-rescaling kernel: partial results over disjoint key sets -> the result over all.

use cubecl::prelude::*;

use super::{Exponential, LOWEST, Natural, weight};

/// Strides of the partial and merged tensors, in vectors (lse: in elements).
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct MergeLayouts {
    /// Partial outs [n, b, h, s, d_v]: offset and strides of n and of the three row axes.
    pub outs: RowLayout,
    /// Partial lses [n, b, h, s].
    pub lses: RowLayout,
    /// Merged out [b, h, s, d_v].
    pub out: RowLayout,
    /// Merged lse [b, h, s].
    pub lse: RowLayout,
    /// Heads.
    pub h: usize,
    /// Rows.
    pub s: usize,
    /// Partials.
    pub n: u32,
    /// b * h * s * len.
    pub total: usize,
    /// -inf, which WGSL cannot spell.
    pub neg_inf: f32,
}

/// Strides over (partial, batch, head, row).
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct RowLayout {
    /// First element.
    pub offset: usize,
    /// From one partial to the next; 0 for merged tensors.
    pub partial: usize,
    /// From one batch entry to the next.
    pub batch: usize,
    /// From one head to the next.
    pub head: usize,
    /// From one row to the next.
    pub row: usize,
}

#[cube]
impl RowLayout {
    /// Row `row` of partial 0.
    fn at(&self, batch: usize, head: usize, row: usize) -> usize {
        self.offset + batch * self.batch + head * self.head + row * self.row
    }
}

/// Partials whose loads are under way at a time.
const GROUP: u32 = 16;

/// Log-sum-exps of a group of partials of one row; -inf past the last partial.
#[cube]
fn group_of(lses: &[f32], at: usize, group: u32, layouts: &MergeLayouts) -> Array<f32> {
    let mut lse = Array::<f32>::new(comptime!(GROUP as usize));
    #[unroll]
    for g in 0..comptime!(GROUP as usize) {
        let p = group * GROUP + g as u32;
        let there = lses[at + p.min(layouts.n - 1u32) as usize * layouts.lses.partial];
        lse[g] = select(p < layouts.n, there, layouts.neg_inf);
    }
    lse
}

/// ```text
/// m = max_p lse_p ; w_p = e^(lse_p - m) ; out = sum_p w_p out_p / sum_p w_p ; lse = m + ln sum_p w_p
/// ```
/// One unit per vector of the output; partials in order, so the result does not depend on the
/// launch. An empty partial (lse -inf) has weight 0 and its out is never read into the sum; when
/// all are empty, or there are none, out is 0 and lse -inf.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn merge_partials_fma<E: Float, N: Size>(
    outs: &[Vector<f32, N>],
    lses: &[f32],
    out: &mut [Vector<E, N>],
    lse: &mut [f32],
    layouts: &MergeLayouts,
    #[comptime] len: usize,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS < layouts.total {
        let x = ABSOLUTE_POS % len;
        let lane = ABSOLUTE_POS / len;
        let row = lane % layouts.s;
        let head = lane / layouts.s % layouts.h;
        let batch = lane / layouts.s / layouts.h;
        let lse_at = layouts.lses.at(batch, head, row);
        let out_at = layouts.outs.at(batch, head, row) + x;

        let mut max = layouts.neg_inf;
        for group in 0..layouts.n.div_ceil(GROUP) {
            let lse = group_of(lses, lse_at, group, layouts);
            #[unroll]
            for g in 0..comptime!(GROUP as usize) {
                max = max.max(lse[g]);
            }
        }
        let mut sum = 0.0f32;
        let mut acc = Vector::<f32, N>::zeroed();
        for group in 0..layouts.n.div_ceil(GROUP) {
            let lse = group_of(lses, lse_at, group, layouts);
            let mut o = Array::<Vector<f32, N>>::new(comptime!(GROUP as usize));
            #[unroll]
            for g in 0..comptime!(GROUP as usize) {
                let p = (group * GROUP + g as u32).min(layouts.n - 1u32);
                o[g] = outs[out_at + p as usize * layouts.outs.partial];
            }
            #[unroll]
            for g in 0..comptime!(GROUP as usize) {
                let w = weight::<Natural>(lse[g], max);
                sum += w;
                let more = fma(Vector::<f32, N>::new(w), o[g], acc);
                acc = select(lse[g] < LOWEST, acc, more);
            }
        }
        let empty = sum == 0.0f32;
        let safe = select(empty, 1.0f32, sum);
        let merged = acc * Vector::<f32, N>::new(1.0f32 / safe);
        let kept = select(empty, Vector::<f32, N>::zeroed(), merged);
        out[layouts.out.at(batch, head, row) + x] = Vector::<E, N>::cast_from(kept);
        if x == 0 {
            let total = max + Natural::log(safe);
            lse[layouts.lse.at(batch, head, row)] = select(empty, layouts.neg_inf, total);
        }
    }
}
