//! What an architecture offers the attention loops.

use cubecl::prelude::*;

use super::{Encode, Exponential, Finished, Segments, TileCoords};
use crate::tile::{Edge, Fragment, Product};

/// Which parts of the loop the calling units play: comptime guards over one body.
///
/// FMA and mma.sync play all of them; Hopper has a loading role and a role for the rest;
/// Blackwell splits multiply, softmax and correct as well.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct Roles {
    /// Brings blocks of K and V to where the products read them.
    pub load: bool,
    /// Issues the products.
    pub multiply: bool,
    /// Turns scores into weights.
    pub softmax: bool,
    /// Rescales the output accumulator.
    pub correct: bool,
    /// Stores the result.
    pub store: bool,
}

impl Roles {
    /// One set of units does everything.
    pub const ALL: Roles = Roles {
        load: true,
        multiply: true,
        softmax: true,
        correct: true,
        store: true,
    };
    /// Everything but loading: Hopper's consumers.
    pub const CONSUME: Roles = Roles {
        load: false,
        ..Roles::ALL
    };
    /// Loading alone: Hopper's producer.
    pub const LOAD: Roles = Roles {
        load: true,
        multiply: false,
        softmax: false,
        correct: false,
        store: false,
    };
    /// Everything but the softmax.
    pub const PRODUCTS: Roles = Roles {
        softmax: false,
        ..Roles::ALL
    };
    /// Issuing the products alone: one of Blackwell's warps.
    pub const MULTIPLY: Roles = Roles {
        load: false,
        multiply: true,
        ..Roles::LOAD
    };
    /// Rescaling and storing the accumulator: Blackwell's correction.
    pub const CORRECT: Roles = Roles {
        load: false,
        correct: true,
        store: true,
        ..Roles::LOAD
    };
    /// The softmax alone.
    pub const SOFTMAX: Roles = Roles {
        load: false,
        multiply: false,
        softmax: true,
        correct: false,
        store: false,
    };
}

/// In which order a step issues its products.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub enum IssueOrder {
    /// S(j), softmax, O += P(j) V(j).
    Sequential,
    /// S(j) goes out before O += P(j-1) V(j-1), so that the softmax of j runs under both.
    ScoresAhead,
}

/// Registers, products and edges of one architecture. Markers only: the state is in
/// [`Ctx`](Tier::Ctx) and in the fragments. No method loops over key blocks or takes a maximum
/// or a sum of scores; that is the loops' part.
#[cube]
pub trait Tier {
    /// Where this unit finds its tiles.
    type Ctx: CubeType;
    /// Base of the exponentials.
    type Exp: Exponential;
    /// View of a block of scores.
    type Scores: Fragment;
    /// Where encoded weights go.
    type Encode: Encode<Scores = Self::Scores>;
    /// P as left operand of the second product.
    type Probs: CubeType;
    /// Output accumulator.
    type Acc: CubeType;
    /// S = Q K^T.
    type ScoreProduct: Product<Ctx = Self::Ctx, Lhs = (), Acc = <Self::Scores as Fragment>::Regs>;
    /// O += P V.
    type ValueProduct: Product<Ctx = Self::Ctx, Lhs = Self::Probs, Acc = Self::Acc>;
    /// Scores, from multiply to softmax.
    type ScoresEdge: Edge<Ctx = Self::Ctx, Value = <Self::Scores as Fragment>::Regs>;
    /// P, from softmax to multiply.
    type ProbsEdge: Edge<Ctx = Self::Ctx, Value = Self::Probs>;
    /// Rescale factors `[rows]`, from softmax to correct.
    type FactorsEdge: Edge<Ctx = Self::Ctx, Value = Array<f32>>;
    /// Normalisers and lse, from softmax to store.
    type FinishedEdge: Edge<Ctx = Self::Ctx, Value = Finished>;

    /// Rows of the tile that a unit works on.
    fn rows(ctx: &Self::Ctx) -> comptime_type!(usize);
    /// Room for a block of scores.
    fn scores(ctx: &Self::Ctx) -> <Self::Scores as Fragment>::Regs;
    /// Room for an encoded block.
    fn probs(ctx: &Self::Ctx) -> Self::Probs;
    /// The accumulator, zeroed where `roles` multiply; other roles never touch it.
    fn acc(ctx: &Self::Ctx, #[comptime] roles: Roles) -> Self::Acc;

    /// Start of a tile, once per role: loads the queries, or waits for them. Called for tiles
    /// without a visible key as well.
    fn begin(ctx: &mut Self::Ctx, at: &TileCoords, range: &Segments, #[comptime] roles: Roles);
    /// All scores of the tile have been computed: the queries may be replaced.
    fn scores_done(ctx: &mut Self::Ctx);
    /// Before the products of one step, scores among them: returns when their keys have arrived
    /// and, where several sets of multiplying units take turns, when it is this one's.
    fn turn_begin(ctx: &mut Self::Ctx);
    /// End of the turn.
    fn turn_end(ctx: &mut Self::Ctx);
    /// t + 1. Loading units with few registers hide the sum, so that no compiler unrolls their
    /// loop over blocks.
    fn after(t: u32) -> u32;
    /// Starts bringing key block `j`. Loads come in the order in which products read them.
    fn load_keys(ctx: &mut Self::Ctx, at: &TileCoords, j: u32);
    /// Starts bringing value block `j`; its product waits for it.
    fn load_values(ctx: &mut Self::Ctx, at: &TileCoords, j: u32);
    /// Weights -> left operand of the second product, in the type that it multiplies.
    fn encode(ctx: &mut Self::Ctx, s: &mut <Self::Scores as Fragment>::Regs, p: &mut Self::Probs);
    /// `acc row r *= factors[r]`.
    fn rescale(ctx: &mut Self::Ctx, acc: &mut Self::Acc, factors: &Array<f32>);
    /// Writes acc * inverse and lse for the rows of the tile that exist.
    fn store(ctx: &mut Self::Ctx, acc: &Self::Acc, done: &Finished);
}
