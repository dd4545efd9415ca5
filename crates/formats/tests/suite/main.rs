//! Tests of the checkpoint formats, in one binary.

mod checkpoint;
mod config;
mod damage;
mod golden;
mod linear;
mod round_trip;
mod sizes;
mod tiled;
mod tiled_floats;
