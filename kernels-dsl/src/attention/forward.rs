//! FlashAttention forward: one loop over key blocks for every tier, role set and issue order.
//!
//! Sources: Milakov & Gimelshein 2018 (online softmax), Dao 2023 (FlashAttention-2),
//! Shah et al. 2024 (FlashAttention-3: scores ahead, roles).

use cubecl::prelude::*;

use super::softmax::{find_maxima, may_hide, weigh};
use super::*;
use crate::tile::{Edge, Fragment, Product, ProductMode};

/// Comptime choices of the loop.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct LoopPlan {
    /// Keys of a block.
    pub block: u32,
    /// Order of the products.
    pub order: IssueOrder,
    /// Compile the step once more without masks, for the blocks that hide nothing. Off, every
    /// block is masked and the code is a third as long.
    pub segmented: bool,
    /// Hooks compiled in.
    pub features: LogitFeatures,
    /// Keep raw scores and fold the scale into the exponential's argument: one multiplication
    /// per score less. Needs a positive scale and no hook that changes a logit.
    pub folded: bool,
    /// How far logits (base of the tier's exponential) may exceed the running maximum before the
    /// accumulator is rescaled; 0 rescales at every new maximum. See [`raise_maxima()`].
    pub slack: u32,
    /// The first scores of a tile go out with the last values of the one before: wants room for
    /// two query tiles. See [`attend_stream()`].
    pub joined: bool,
}

impl LoopPlan {
    /// Whether some blocks run a maskless copy of the step: documents and boolean masks may hide
    /// a key of any block. Without a left edge the interior reaches down to the first block.
    fn has_interior(self) -> bool {
        self.segmented && !self.features.irregular()
    }
}

/// Everything the loop carries from block to block.
#[derive(CubeType)]
pub(super) struct Carried<T: Tier> {
    pub(super) state: RowState,
    pub(super) scores: <T::Scores as Fragment>::Regs,
    pub(super) probs: T::Probs,
    pub(super) acc: T::Acc,
    pub(super) factors: Array<f32>,
}

/// Carried values of a tile that saw nothing yet.
#[cube]
pub(super) fn carry<T: Tier>(ctx: &T::Ctx, neg_inf: f32, #[comptime] roles: Roles) -> Carried<T> {
    let rows = T::rows(ctx);
    Carried::<T> {
        state: RowState::new(neg_inf, rows),
        scores: T::scores(ctx),
        probs: T::probs(ctx),
        acc: T::acc(ctx, roles),
        factors: Array::<f32>::new(rows),
    }
}

/// Starts the rows of a tile, fresh from [`carry()`] or a restart, with the logit of their sink: in the
/// first part alone where the tile is split.
#[cube]
pub(super) fn take_sinks<T: Tier>(
    carried: &mut Carried<T>,
    at: &TileCoords,
    inputs: &LogitInputs<'_>,
    #[comptime] plan: LoopPlan,
    #[comptime] roles: Roles,
) {
    if comptime!(plan.features.sinks && roles.softmax) {
        let first = T::Scores::first_col(&carried.scores) == 0u32;
        let mut counts = true.runtime();
        if comptime!(plan.features.split) {
            counts = at.entry == at.batch * inputs.scalars.splits;
        }
        let rows = T::Scores::rows(&carried.scores);
        #[unroll]
        for r in 0..rows {
            let head = at.head_of(T::Scores::row(&carried.scores, r));
            let word = table_word(inputs.tensors, inputs.offsets.sinks + head as usize);
            let logit = f32::from_bits(word) * T::Exp::per_nat();
            let logit = select(counts, logit, inputs.scalars.neg_inf);
            carried.state.sink(r, logit, first && counts);
        }
    }
}

/// o = softmax(logits(q k^T)) v and lse for the tile `at`, over the key blocks of `range`.
///
/// Each role calls this with its own `roles`; all of them see the same blocks, none included, so
/// that every edge is met by both its ends.
#[cube]
pub fn attend_tile<T: Tier>(
    ctx: &mut T::Ctx,
    at: &TileCoords,
    range: &Segments,
    inputs: &LogitInputs<'_>,
    #[comptime] plan: LoopPlan,
    #[comptime] roles: Roles,
) {
    let mut carried = carry::<T>(&*ctx, inputs.scalars.neg_inf, roles);
    take_sinks::<T>(&mut carried, at, inputs, plan, roles);
    T::begin(ctx, at, range, roles);
    if comptime!(plan.order == IssueOrder::Sequential) {
        sequential::<T>(ctx, &mut carried, at, range, inputs, plan, roles);
    } else {
        scores_first::<T>(ctx, &mut carried, at, range, roles);
        scores_ahead::<T>(ctx, &mut carried, at, range, inputs, plan, roles);
        values_last::<T>(ctx, &mut carried, at, range, roles);
    }
    conclude::<T>(ctx, &carried, inputs.scalars.neg_inf, plan, roles);
}

/// Normalisers and log-sum-exp from softmax to store, and the store.
#[cube]
pub(super) fn conclude<T: Tier>(
    ctx: &mut T::Ctx,
    carried: &Carried<T>,
    neg_inf: f32,
    #[comptime] plan: LoopPlan,
    #[comptime] roles: Roles,
) {
    let mut done = Finished::new(T::rows(&*ctx));
    if comptime!(roles.softmax) {
        let weights = comptime!(plan.features.weights);
        finish::<T::Scores, T::Exp>(&carried.state, &mut done, neg_inf, weights);
        T::FinishedEdge::send(ctx, &done);
    }
    if comptime!(roles.store) {
        T::FinishedEdge::receive(ctx, &mut done);
        T::store(ctx, &carried.acc, &done);
    }
}

/// Every block of the tile, one after the other.
#[cube]
fn sequential<T: Tier>(
    ctx: &mut T::Ctx,
    carried: &mut Carried<T>,
    at: &TileCoords,
    range: &Segments,
    inputs: &LogitInputs<'_>,
    #[comptime] plan: LoopPlan,
    #[comptime] roles: Roles,
) {
    walk::<T>(ctx, carried, at, range, inputs, 0u32, plan, roles);
    if comptime!(roles.multiply) {
        T::scores_done(ctx);
    }
}

/// Blocks from the last to the first without the `skipped` last ones; masks only where the
/// segment can hide a key.
#[cube]
fn walk<T: Tier>(
    ctx: &mut T::Ctx,
    carried: &mut Carried<T>,
    at: &TileCoords,
    range: &Segments,
    inputs: &LogitInputs<'_>,
    #[comptime] skipped: u32,
    #[comptime] plan: LoopPlan,
    #[comptime] roles: Roles,
) {
    let first = range.end - 1u32;
    let all = range.end - range.start;
    // Loads alone are the same in every segment.
    if comptime!(plan.has_interior() && (roles.multiply || roles.softmax)) {
        let right = (range.end - range.inner_end).max(skipped.runtime());
        let left = (range.end - range.inner_start).max(skipped.runtime());
        for t in skipped..right {
            step::<T>(ctx, carried, at, inputs, first - t, true, plan, roles);
        }
        for t in right..left {
            step::<T>(ctx, carried, at, inputs, first - t, false, plan, roles);
        }
        if comptime!(plan.features.band_left) {
            for t in left..all {
                step::<T>(ctx, carried, at, inputs, first - t, true, plan, roles);
            }
        }
    } else {
        let mut t = skipped.runtime();
        while t < all {
            step::<T>(ctx, carried, at, inputs, first - t, true, plan, roles);
            t = T::after(t);
        }
    }
}

#[cube]
fn step<T: Tier>(
    ctx: &mut T::Ctx,
    carried: &mut Carried<T>,
    at: &TileCoords,
    inputs: &LogitInputs<'_>,
    j: u32,
    #[comptime] masked: bool,
    #[comptime] plan: LoopPlan,
    #[comptime] roles: Roles,
) {
    if comptime!(plan.order == IssueOrder::Sequential) {
        sequential_step::<T>(ctx, carried, at, inputs, j, masked, plan, roles);
    } else {
        ahead_step::<T>(ctx, carried, at, inputs, j, masked, plan, roles);
    }
}

#[cube]
fn sequential_step<T: Tier>(
    ctx: &mut T::Ctx,
    carried: &mut Carried<T>,
    at: &TileCoords,
    inputs: &LogitInputs<'_>,
    j: u32,
    #[comptime] masked: bool,
    #[comptime] plan: LoopPlan,
    #[comptime] roles: Roles,
) {
    if comptime!(roles.load) {
        T::load_keys(ctx, at, j);
        T::load_values(ctx, at, j);
    }
    if comptime!(roles.multiply) {
        issue_scores::<T>(ctx, carried, j);
        T::ScoreProduct::wait(ctx, &(), &mut carried.scores, j, 0u32);
        T::ScoresEdge::send(ctx, &carried.scores);
    }
    if comptime!(roles.softmax) {
        T::ScoresEdge::receive(ctx, &mut carried.scores);
        find_maxima::<T>(carried, at, inputs, j, masked, plan);
        T::FactorsEdge::send(ctx, &carried.factors);
    }
    // Before the exponentials, so that nothing separates them from the values' product and they
    // may run under it; masked steps are few and rather keep few values alive.
    if comptime!(roles.correct && !masked) {
        correct::<T>(ctx, carried);
    }
    if comptime!(roles.softmax) {
        weigh::<T>(carried, inputs, masked, plan);
        T::encode(ctx, &mut carried.scores, &mut carried.probs);
        T::ProbsEdge::send(ctx, &carried.probs);
    }
    if comptime!(roles.correct && masked) {
        correct::<T>(ctx, carried);
    }
    if comptime!(roles.multiply) {
        T::ProbsEdge::receive(ctx, &mut carried.probs);
        issue_values::<T>(ctx, carried, j, comptime!(may_hide(masked, plan)));
        T::ValueProduct::wait(ctx, &carried.probs, &mut carried.acc, j, 0u32);
    }
}

/// Scores of the first block, which is the last one: that is the block that a causal mask or the
/// end of the keys cuts, and it is masked in any case.
#[cube]
pub(super) fn scores_first<T: Tier>(
    ctx: &mut T::Ctx,
    carried: &mut Carried<T>,
    at: &TileCoords,
    range: &Segments,
    #[comptime] roles: Roles,
) {
    if !range.is_empty() {
        let first = range.end - 1u32;
        if comptime!(roles.load) {
            T::load_keys(ctx, at, first);
        }
        if comptime!(roles.multiply) {
            T::turn_begin(ctx);
            issue_scores::<T>(ctx, carried, first);
            T::turn_end(ctx);
            T::ScoreProduct::wait(ctx, &(), &mut carried.scores, first, 0u32);
        }
    }
}

/// From the scores of the first block to the weights of the last: scores of a block go out before
/// the values of the one before it.
#[cube]
pub(super) fn scores_ahead<T: Tier>(
    ctx: &mut T::Ctx,
    carried: &mut Carried<T>,
    at: &TileCoords,
    range: &Segments,
    inputs: &LogitInputs<'_>,
    #[comptime] plan: LoopPlan,
    #[comptime] roles: Roles,
) {
    if !range.is_empty() {
        let first = range.end - 1u32;
        if comptime!(roles.multiply) {
            T::ScoresEdge::send(ctx, &carried.scores);
        }
        if comptime!(roles.softmax) {
            T::ScoresEdge::receive(ctx, &mut carried.scores);
            find_maxima::<T>(carried, at, inputs, first, true, plan);
            weigh::<T>(carried, inputs, true, plan);
            T::FactorsEdge::send(ctx, &carried.factors);
            T::encode(ctx, &mut carried.scores, &mut carried.probs);
            T::ProbsEdge::send(ctx, &carried.probs);
        }
        if comptime!(roles.correct) {
            T::FactorsEdge::receive(ctx, &mut carried.factors);
        }
        walk::<T>(ctx, carried, at, range, inputs, 1u32, plan, roles);
    }
    if comptime!(roles.multiply) {
        T::scores_done(ctx);
    }
}

/// Values of the last block.
#[cube]
pub(super) fn values_last<T: Tier>(
    ctx: &mut T::Ctx,
    carried: &mut Carried<T>,
    at: &TileCoords,
    range: &Segments,
    #[comptime] roles: Roles,
) {
    if !range.is_empty() {
        let last = range.start;
        if comptime!(roles.load) {
            T::load_values(ctx, at, last);
        }
        if comptime!(roles.multiply) {
            T::ProbsEdge::receive(ctx, &mut carried.probs);
            issue_values::<T>(ctx, carried, last, true);
            T::ValueProduct::wait(ctx, &carried.probs, &mut carried.acc, last, 0u32);
        }
    }
}

#[cube]
fn ahead_step<T: Tier>(
    ctx: &mut T::Ctx,
    carried: &mut Carried<T>,
    at: &TileCoords,
    inputs: &LogitInputs<'_>,
    j: u32,
    #[comptime] masked: bool,
    #[comptime] plan: LoopPlan,
    #[comptime] roles: Roles,
) {
    if comptime!(roles.load) {
        T::load_keys(ctx, at, j);
        T::load_values(ctx, at, j + 1u32);
    }
    if comptime!(roles.multiply) {
        T::ProbsEdge::receive(ctx, &mut carried.probs);
        T::turn_begin(ctx);
        issue_scores::<T>(ctx, carried, j);
        // The block before may have been masked although j is not.
        issue_values::<T>(ctx, carried, j + 1u32, true);
        T::turn_end(ctx);
        T::ScoreProduct::wait(ctx, &(), &mut carried.scores, j, 1u32);
        T::ScoresEdge::send(ctx, &carried.scores);
    }
    // The softmax of j overwrites probs and factors only after the values before it are done.
    if comptime!(roles.softmax) {
        T::ScoresEdge::receive(ctx, &mut carried.scores);
        find_maxima::<T>(carried, at, inputs, j, masked, plan);
        weigh::<T>(carried, inputs, masked, plan);
        T::FactorsEdge::send(ctx, &carried.factors);
    }
    if comptime!(roles.multiply) {
        T::ValueProduct::wait(ctx, &carried.probs, &mut carried.acc, j + 1u32, 0u32);
    }
    if comptime!(roles.correct) {
        correct::<T>(ctx, carried);
    }
    if comptime!(roles.softmax) {
        T::encode(ctx, &mut carried.scores, &mut carried.probs);
        T::ProbsEdge::send(ctx, &carried.probs);
    }
}

/// Scales what the accumulator holds by the factors of the newest maxima.
#[cube]
fn correct<T: Tier>(ctx: &mut T::Ctx, carried: &mut Carried<T>) {
    T::FactorsEdge::receive(ctx, &mut carried.factors);
    T::rescale(ctx, &mut carried.acc, &carried.factors);
}

#[cube]
pub(super) fn issue_scores<T: Tier>(ctx: &mut T::Ctx, carried: &mut Carried<T>, j: u32) {
    let mode = comptime!(ProductMode {
        accumulate: false,
        hidden: false,
    });
    T::ScoreProduct::issue(ctx, &(), j, &mut carried.scores, mode);
}

#[cube]
pub(super) fn issue_values<T: Tier>(
    ctx: &mut T::Ctx,
    carried: &mut Carried<T>,
    j: u32,
    #[comptime] hidden: bool,
) {
    let mode = comptime!(ProductMode {
        accumulate: true,
        hidden,
    });
    T::ValueProduct::issue(ctx, &carried.probs, j, &mut carried.acc, mode);
}
