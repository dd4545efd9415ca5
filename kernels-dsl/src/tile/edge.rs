//! How a value crosses from one role to the next.

use core::marker::PhantomData;

use cubecl::prelude::*;

/// A value handed from the units that play one role to those that play the next. The loop calls
/// `send` under the first role's guard and `receive` under the second's, always in pairs.
#[cube]
pub trait Edge {
    /// Where the value travels through.
    type Ctx: CubeType;
    /// What is handed over.
    type Value: CubeType;

    /// Publishes the value.
    fn send(ctx: &mut Self::Ctx, value: &Self::Value);
    /// Waits for the value and takes it.
    fn receive(ctx: &mut Self::Ctx, value: &mut Self::Value);
}

/// Both roles are played by the same units: the value already is where it must be.
pub struct InPlace<C, V>(PhantomData<(C, V)>);

#[cube]
impl<C: CubeType, V: CubeType> Edge for InPlace<C, V> {
    type Ctx = C;
    type Value = V;

    fn send(_ctx: &mut C, _value: &V) {}
    fn receive(_ctx: &mut C, _value: &mut V) {}
}
