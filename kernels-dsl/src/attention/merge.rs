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

/// Partials of a launch whose loads a unit has under way at a time.
const GROUP: u32 = 8;

/// Comptime choices of a merge.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct MergeShape {
    /// Vectors of a row.
    pub len: usize,
    /// Units of a cube.
    pub units: usize,
    /// Units that share an output, a divisor of `units`: unit t takes partials t, t + teams, ...
    pub teams: usize,
}

/// The partials of one vector of a row.
#[cube]
pub trait Partials<N: Size>: CubeType {
    /// Log-sum-exp of partial `p`; -inf where it saw no key.
    fn lse(&self, p: u32) -> f32;
    /// What it weighs; anything where it saw no key.
    fn out(&self, p: u32) -> Vector<f32, N>;
}

/// Partials in memory: f32, or their bits.
#[derive(CubeType)]
pub struct InMemory<'a, E: Numeric, N: Size> {
    /// Vectors of outs.
    pub outs: &'a [Vector<E, N>],
    /// Log-sum-exps.
    pub lses: &'a [f32],
    /// Where the first partial's vector lies.
    pub out_at: usize,
    /// Where its log-sum-exp lies.
    pub lse_at: usize,
    /// From one partial's vector to the next one's.
    pub out_step: usize,
    /// The same of log-sum-exps.
    pub lse_step: usize,
}

#[cube]
impl<'a, E: Numeric, N: Size> InMemory<'a, E, N> {
    /// Partials from these places on, so many apart.
    pub fn new(
        outs: &'a [Vector<E, N>],
        lses: &'a [f32],
        out_at: usize,
        lse_at: usize,
        out_step: usize,
        lse_step: usize,
    ) -> InMemory<'a, E, N> {
        InMemory::<'a, E, N> {
            outs,
            lses,
            out_at,
            lse_at,
            out_step,
            lse_step,
        }
    }
}

#[cube]
impl<'a, E: Numeric, N: Size> Partials<N> for InMemory<'a, E, N> {
    fn lse(&self, p: u32) -> f32 {
        self.lses[self.lse_at + p as usize * self.lse_step]
    }
    fn out(&self, p: u32) -> Vector<f32, N> {
        Vector::<f32, N>::reinterpret(self.outs[self.out_at + p as usize * self.out_step])
    }
}

/// What a unit has merged: the largest lse, the sum of the weights against it, and the weighted sum.
#[derive(CubeType)]
pub struct Share<N: Size> {
    max: f32,
    sum: f32,
    acc: Vector<f32, N>,
}

#[cube]
impl<N: Size> Share<N> {
    /// Nothing merged yet.
    pub fn none(neg_inf: f32) -> Share<N> {
        Share::<N> {
            max: neg_inf,
            sum: 0.0f32,
            acc: Vector::<f32, N>::zeroed(),
        }
    }
    /// Out and lse of the keys merged: 0 and -inf where there were none.
    pub fn result(&self, neg_inf: f32) -> (Vector<f32, N>, f32) {
        let empty = self.sum == 0.0f32;
        let safe = select(empty, 1.0f32, self.sum);
        let merged = self.acc * Vector::<f32, N>::new(1.0f32 / safe);
        let lse = self.max + Natural::log(safe);
        (
            select(empty, Vector::<f32, N>::zeroed(), merged),
            select(empty, neg_inf, lse),
        )
    }
}

/// Merges team `team`'s of `n` partials, in order, `group` at a time.
#[cube]
pub fn merge_share<N: Size, P: Partials<N>>(
    from: &P,
    n: u32,
    team: u32,
    neg_inf: f32,
    #[comptime] teams: u32,
    #[comptime] group: u32,
) -> Share<N> {
    let mut share = Share::<N>::none(neg_inf);
    for round in 0..n.div_ceil(comptime!(group * teams)) {
        let first = team + round * comptime!(group * teams);
        merge_group::<N, P>(&mut share, from, n, first, neg_inf, teams, group);
    }
    share
}

/// Merges partials `first`, `first + teams`, .. into `share`, as many of `group` as there are. Their loads do not wait for
/// each other; what `share` holds is scaled where one of them has a larger log-sum-exp.
#[cube]
pub fn merge_group<N: Size, P: Partials<N>>(
    share: &mut Share<N>,
    from: &P,
    n: u32,
    first: u32,
    neg_inf: f32,
    #[comptime] teams: u32,
    #[comptime] group: u32,
) {
    let mut lse = Array::<f32>::new(comptime!(group as usize));
    let mut o = Array::<Vector<f32, N>>::new(comptime!(group as usize));
    #[unroll]
    for g in 0..comptime!(group as usize) {
        let p = (first + teams * g as u32).min(n - 1u32);
        lse[g] = from.lse(p);
        o[g] = from.out(p);
    }
    let mut top = share.max;
    #[unroll]
    for g in 0..comptime!(group as usize) {
        lse[g] = select(first + teams * (g as u32) < n, lse[g], neg_inf);
        top = top.max(lse[g]);
    }
    let kept = weight::<Natural>(share.max, top);
    let mut sum = share.sum * kept;
    let mut acc = share.acc * Vector::<f32, N>::new(kept);
    #[unroll]
    for g in 0..comptime!(group as usize) {
        let w = weight::<Natural>(lse[g], top);
        sum += w;
        let more = fma(Vector::<f32, N>::new(w), o[g], acc);
        acc = select(lse[g] < LOWEST, acc, more);
    }
    share.max = top;
    share.sum = sum;
    share.acc = acc;
}

/// ```text
/// m = max_p lse_p ; w_p = e^(lse_p - m) ; out = sum_p w_p out_p / sum_p w_p ; lse = m + ln sum_p w_p
/// ```
/// `teams` units per vector of the output, whose shares are merged by the same rule; partials and
/// shares in order, so the result does not depend on the launch. An empty partial (lse -inf) has weight 0
/// and its out is never read into the sum; when all are empty, or there are none, out is 0 and lse
/// -inf.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn merge_partials_fma<E: Float, N: Size>(
    outs: &[Vector<f32, N>],
    lses: &[f32],
    out: &mut [Vector<E, N>],
    lse: &mut [f32],
    layouts: &MergeLayouts,
    #[comptime] shape: MergeShape,
    #[define(E)] _dtype: ElemType,
) {
    let teams = comptime!(shape.teams as u32);
    let each = comptime!(shape.units / shape.teams);
    let team = UNIT_POS / each as u32;
    let position = CUBE_POS * each + UNIT_POS as usize % each;
    // Units past the outputs follow the last one, so that the barrier is met by all.
    let place = position.min(layouts.total - 1);
    let x = place % comptime!(shape.len);
    let lane = place / comptime!(shape.len);
    let row = lane % layouts.s;
    let head = lane / layouts.s % layouts.h;
    let batch = lane / layouts.s / layouts.h;
    let lse_at = layouts.lses.at(batch, head, row);
    let out_at = layouts.outs.at(batch, head, row) + x;
    let (out_step, lse_step) = (layouts.outs.partial, layouts.lses.partial);
    let from = InMemory::<f32, N>::new(outs, lses, out_at, lse_at, out_step, lse_step);
    let own = merge_share::<N, InMemory<'_, f32, N>>(
        &from,
        layouts.n,
        team,
        layouts.neg_inf,
        teams,
        comptime!(GROUP),
    );
    let share = if comptime!(teams > 1) {
        merge_shares::<N>(&own, shape)
    } else {
        own
    };
    if team == 0u32 && position < layouts.total {
        let (kept, total) = share.result(layouts.neg_inf);
        out[layouts.out.at(batch, head, row) + x] = Vector::<E, N>::cast_from(kept);
        if x == 0 {
            lse[layouts.lse.at(batch, head, row)] = total;
        }
    }
}

/// The shares of all teams of this unit's output, through shared memory.
#[cube]
fn merge_shares<N: Size>(share: &Share<N>, #[comptime] shape: MergeShape) -> Share<N> {
    let each = comptime!(shape.units / shape.teams);
    let mut maxima = Shared::<[f32]>::new_slice(comptime!(shape.units));
    let mut sums = Shared::<[f32]>::new_slice(comptime!(shape.units));
    let mut accs = Shared::<[Vector<f32, N>]>::new_slice(comptime!(shape.units));
    let own = UNIT_POS as usize;
    maxima[own] = share.max;
    sums[own] = share.sum;
    accs[own] = share.acc;
    sync_cube();
    let first = own % each;
    let mut max = maxima[first];
    #[unroll]
    for team in 1..comptime!(shape.teams) {
        max = max.max(maxima[first + team * each]);
    }
    let mut sum = 0.0f32;
    let mut acc = Vector::<f32, N>::zeroed();
    #[unroll]
    for team in 0..comptime!(shape.teams) {
        let at = first + team * each;
        let w = weight::<Natural>(maxima[at], max);
        sum = fma(w, sums[at], sum);
        acc = fma(Vector::<f32, N>::new(w), accs[at], acc);
    }
    Share::<N> { max, sum, acc }
}
