//! The CPU JIT as benchmarks use it.

use cubecl::prelude::{Client, CubeElement};
use cubecl::server::Handle;
use flashcube::{Backend, DType, Tensor};

use crate::widen;

/// A client of the CPU JIT.
pub fn open() -> Client {
    Backend::Cpu.open().expect("the CPU JIT opens everywhere")
}

/// Uploads dense f32 values.
pub fn upload<const N: usize>(client: &Client, shape: [usize; N], values: &[f32]) -> Tensor<N> {
    let handle = client.create_from_slice(f32::as_bytes(values));
    Tensor::contiguous(handle, shape, DType::F32)
}

/// Reads dense f32 values back, widened.
pub fn download(client: &Client, handle: &Handle) -> Vec<f64> {
    let bytes = client
        .read_one(handle.clone())
        .expect("results are readable");
    widen(f32::from_bytes(&bytes))
}

/// Waits for everything launched: a launch may return before its kernel ends.
pub fn wait(client: &Client) {
    cubecl::future::block_on(client.sync()).expect("the kernel runs to its end");
}

/// The name of what ran, which must be a blueprint of the unit tier.
pub fn unit_tier(blueprint: Option<impl ToString>) -> String {
    let name = blueprint.expect("the problem is not empty").to_string();
    assert!(
        name.split('/').nth(1) == Some("unit"),
        "the unit tier was asked for, {name} ran"
    );
    name
}
