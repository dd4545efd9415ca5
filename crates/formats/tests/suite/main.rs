//! Tests of the checkpoint formats, in one binary.

mod checkpoint;
mod config;
mod damage;
mod drive;
mod gguf;
mod gguf_file;
mod golden;
mod hostile;
mod linear;
mod round_trip;
mod sizes;
mod tiled;
mod tiled_floats;
