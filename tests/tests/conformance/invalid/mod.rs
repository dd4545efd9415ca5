//! Bad input: a typed error that names tensor, value and limit; nothing is written.

mod attention;
mod operations;
mod varlen;

use cubecl::prelude::Client;
use flashcube::{Backend, DType, Tensor};

pub(crate) const Q: [usize; 4] = [2, 4, 5, 8];
pub(crate) const KV: [usize; 4] = [2, 2, 7, 8];

pub(crate) fn client() -> Client {
    Backend::Cpu.open().expect("the CPU backend")
}

pub(crate) fn zeros<const N: usize>(client: &Client, shape: [usize; N], dtype: DType) -> Tensor<N> {
    let bytes = vec![0u8; shape.iter().product::<usize>().max(1) * dtype.size()];
    Tensor::contiguous(client.create_from_slice(&bytes), shape, dtype)
}

pub(crate) fn f32s<const N: usize>(client: &Client, shape: [usize; N]) -> Tensor<N> {
    zeros(client, shape, DType::F32)
}
