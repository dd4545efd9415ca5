//! The softmax of one block: scores to logits, maxima, weights.

use cubecl::prelude::*;

use super::forward::Carried;
use super::*;
use crate::tile::Fragment;

/// Scores -> logits, with the rows' maxima and the rescale factors.
#[cube]
pub(super) fn find_maxima<T: Tier>(
    carried: &mut Carried<T>,
    at: &TileCoords,
    inputs: &LogitInputs<'_>,
    j: u32,
    #[comptime] masked: bool,
    #[comptime] plan: LoopPlan,
) {
    let features = comptime!(plan.features);
    let rows = T::Scores::rows(&carried.scores);
    let cols = T::Scores::cols(&carried.scores);
    let key0 = j * comptime!(plan.block) + T::Scores::first_col(&carried.scores);
    #[unroll]
    for r in 0..rows {
        let row = T::Scores::row(&carried.scores, r);
        let i = at.query(row);
        let at = row_coords(inputs, at, row, features);
        let band = band(i, &at, inputs, features);
        // Columns [gap, room) of the block, counted from this unit's first.
        let room = band.hi - key0 as i32;
        let gap = band.lo - key0 as i32;
        #[unroll]
        for c in 0..cols {
            let step = T::Scores::col_step(&carried.scores, c);
            let mut x = T::Scores::get(&carried.scores, r, c);
            if comptime!(!plan.folded) {
                x = logit::<T::Exp>(x, i, key0 + step, &at, inputs, features);
            }
            if comptime!(masked) {
                let mut seen = comptime!(step as i32) < room;
                if comptime!(features.band_left) {
                    seen = seen && comptime!(step as i32) >= gap;
                }
                if comptime!(features.irregular()) {
                    seen = seen && admitted(i, key0 + step, &at, inputs, features);
                }
                x = select(seen, x, inputs.scalars.neg_inf);
            }
            if comptime!(masked || !plan.folded) {
                T::Scores::set(&mut carried.scores, r, c, x);
            }
        }
    }
    raise_maxima::<T::Scores, T::Exp>(
        &carried.scores,
        &mut carried.state,
        &mut carried.factors,
        scale::<T>(inputs),
        comptime!(plan.folded),
        comptime!(plan.slack),
        comptime!(plan.features.weights.encoded()),
    );
}

/// Logits -> weights, with the rows' sums.
#[cube]
pub(super) fn weigh<T: Tier>(
    carried: &mut Carried<T>,
    inputs: &LogitInputs<'_>,
    #[comptime] masked: bool,
    #[comptime] plan: LoopPlan,
) {
    if comptime!(plan.features.weights.encoded()) {
        encoded_weights::<T::Encode, T::Exp>(
            &mut carried.scores,
            &mut carried.state,
            &carried.factors,
            comptime!(plan.features.weights),
            comptime!(plan.block),
            comptime!(may_hide(masked, plan)),
        );
    } else {
        weights::<T::Scores, T::Exp>(
            &mut carried.scores,
            &mut carried.state,
            &carried.factors,
            scale::<T>(inputs),
            comptime!(plan.folded),
            comptime!(may_hide(masked, plan)),
        );
    }
}

/// Factor on a raw score in the base of the tier's exponential.
#[cube]
fn scale<T: Tier>(inputs: &LogitInputs<'_>) -> f32 {
    inputs.scalars.scale * T::Exp::per_nat()
}

/// Whether a weight of the block can be that of a hidden key: a bias of -inf hides as well.
pub(super) fn may_hide(masked: bool, plan: LoopPlan) -> bool {
    masked || plan.features.bias
}
