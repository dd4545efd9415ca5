//! Tile after tile on the same units: what a persistent cube's consumers run.

use cubecl::prelude::*;

use super::forward::*;
use super::*;
use crate::tile::Product;

/// A tile of a [`Stream`].
#[derive(CubeType, Clone, Copy)]
pub struct StreamTile {
    /// Whether this is a tile; if not, the stream has ended and the rest says nothing.
    pub open: bool,
    /// Where it is.
    pub at: TileCoords,
    /// Its key blocks.
    pub range: Segments,
}

#[cube]
impl StreamTile {
    /// Takes the place of `self`.
    pub fn replace(&mut self, next: &StreamTile) {
        self.open = next.open;
        self.at.batch = next.at.batch;
        self.at.entry = next.at.entry;
        self.at.head = next.at.head;
        self.at.row0 = next.at.row0;
        self.at.len_q = next.at.len_q;
        self.at.len_kv = next.at.len_kv;
        self.at.shift = next.at.shift;
        self.at.slope = next.at.slope;
        self.at.first_q = next.at.first_q;
        self.at.first_kv = next.at.first_kv;
        self.at.rows_q = next.at.rows_q;
        self.at.keys_lo = next.at.keys_lo;
        self.at.keys_hi = next.at.keys_hi;
        self.range.start = next.range.start;
        self.range.inner_start = next.range.inner_start;
        self.range.inner_end = next.range.inner_end;
        self.range.end = next.range.end;
    }
}

/// A tier whose units work on one tile after another.
#[cube]
pub trait Stream: Tier {
    /// The next tile. Loading units decide which one that is; the others wait for it and its
    /// queries. Called once the scores of the tile before are done; its values need not be.
    fn next(ctx: &mut Self::Ctx, inputs: &LogitInputs<'_>, #[comptime] roles: Roles) -> StreamTile;
    /// Zeroes the accumulator.
    fn clear(acc: &mut Self::Acc);
}

/// [`attend_tile()`] for tile after tile of a [`Stream`], scores ahead: where a tile follows, its
/// first scores go out with the last values of the tile before, and run while that is stored.
/// Loading units run it as well, so that loads come in the order of their use.
#[cube]
pub fn attend_stream<T: Stream>(
    ctx: &mut T::Ctx,
    inputs: &LogitInputs<'_>,
    #[comptime] plan: LoopPlan,
    #[comptime] roles: Roles,
) {
    let neg_inf = inputs.scalars.neg_inf;
    let mut carried = carry::<T>(&*ctx, neg_inf, roles);
    let mut tile = T::next(ctx, inputs, roles);
    enter::<T>(ctx, &mut carried, &tile, inputs, plan, roles);
    while tile.open {
        scores_ahead::<T>(
            ctx,
            &mut carried,
            &tile.at,
            &tile.range,
            inputs,
            plan,
            roles,
        );
        if comptime!(plan.joined) {
            let next = T::next(ctx, inputs, roles);
            join::<T>(ctx, &mut carried, &tile, &next, inputs, plan, roles);
            tile.replace(&next);
        } else {
            values_last::<T>(ctx, &mut carried, &tile.at, &tile.range, roles);
            conclude::<T>(ctx, &carried, neg_inf, plan, roles);
            let next = T::next(ctx, inputs, roles);
            enter::<T>(ctx, &mut carried, &next, inputs, plan, roles);
            tile.replace(&next);
        }
    }
}

/// Begins a tile of a stream, if it is one, up to its first scores.
#[cube]
fn enter<T: Stream>(
    ctx: &mut T::Ctx,
    carried: &mut Carried<T>,
    tile: &StreamTile,
    inputs: &LogitInputs<'_>,
    #[comptime] plan: LoopPlan,
    #[comptime] roles: Roles,
) {
    restart::<T>(carried, inputs.scalars.neg_inf, roles);
    if tile.open {
        take_sinks::<T>(carried, &tile.at, inputs, plan, roles);
        T::begin(ctx, &tile.at, &tile.range, roles);
        scores_first::<T>(ctx, carried, &tile.at, &tile.range, roles);
    }
}

/// From the weights of a tile's last block to the scores of the next tile's first.
#[cube]
fn join<T: Stream>(
    ctx: &mut T::Ctx,
    carried: &mut Carried<T>,
    tile: &StreamTile,
    next: &StreamTile,
    inputs: &LogitInputs<'_>,
    #[comptime] plan: LoopPlan,
    #[comptime] roles: Roles,
) {
    let neg_inf = inputs.scalars.neg_inf;
    if next.open && !tile.range.is_empty() && !next.range.is_empty() {
        // Straight-line code from issue to wait: a value in flight must not cross a branch.
        let (last, first) = (tile.range.start, next.range.end - 1u32);
        if comptime!(roles.multiply) {
            T::turn_begin(ctx);
            issue_values::<T>(ctx, carried, last, true);
        }
        T::begin(ctx, &next.at, &next.range, roles);
        if comptime!(roles.load) {
            // Before the values, which wait for a stage while the keys' is free.
            T::load_keys(ctx, &next.at, first);
            T::load_values(ctx, &tile.at, last);
        }
        if comptime!(roles.multiply) {
            issue_scores::<T>(ctx, carried, first);
            T::turn_end(ctx);
            T::ValueProduct::wait(ctx, &carried.probs, &mut carried.acc, last, 1u32);
        }
        conclude::<T>(ctx, &*carried, neg_inf, plan, roles);
        restart::<T>(carried, neg_inf, roles);
        take_sinks::<T>(carried, &next.at, inputs, plan, roles);
        if comptime!(roles.multiply) {
            T::ScoreProduct::wait(ctx, &(), &mut carried.scores, first, 0u32);
        }
    } else {
        values_last::<T>(ctx, carried, &tile.at, &tile.range, roles);
        conclude::<T>(ctx, &*carried, neg_inf, plan, roles);
        enter::<T>(ctx, carried, next, inputs, plan, roles);
    }
}

#[cube]
fn restart<T: Stream>(carried: &mut Carried<T>, neg_inf: f32, #[comptime] roles: Roles) {
    if comptime!(roles.softmax) {
        carried.state.restart(neg_inf);
    }
    if comptime!(roles.multiply) {
        T::clear(&mut carried.acc);
    }
}
