//! Elements of device buffers as floats of the host.

use cubecl::prelude::Client;
use flashcube::{DType, Tensor};
use flashcube_reference::quant::float::{E4M3, Overflow, Round};
use half::{bf16, f16};
use rayon::prelude::*;

/// A dense device tensor of the values, rounded to `dtype`.
pub(crate) fn upload<const N: usize>(
    client: &Client,
    values: &[f32],
    shape: [usize; N],
    dtype: DType,
) -> Tensor<N> {
    let handle = client.create_from_slice(&encode(dtype, values));
    Tensor::contiguous(handle, shape, dtype)
}

/// The elements of a dense device tensor.
///
/// # Errors
/// What the device said.
pub(crate) fn download<const N: usize>(
    client: &Client,
    tensor: &Tensor<N>,
) -> Result<Vec<f32>, String> {
    let bytes = client.read_one(tensor.handle.clone());
    let mut values = decode(tensor.dtype, &bytes.map_err(|e| format!("{e:?}"))?);
    // Buffers are never empty, tensors may be.
    values.truncate(tensor.elements());
    Ok(values)
}

/// Each value as `dtype` holds it.
pub(crate) fn rounded(dtype: DType, values: &[f32]) -> Vec<f32> {
    decode(dtype, &encode(dtype, values))
}

/// Bytes of a device buffer.
fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    fn bytes<const N: usize>(values: &[f32], encode: impl Fn(f32) -> [u8; N] + Sync) -> Vec<u8> {
        let mut bytes = vec![0; N * values.len()];
        let (elements, _) = bytes.as_chunks_mut::<N>();
        elements
            .par_iter_mut()
            .zip(values)
            .for_each(|(element, &x)| *element = encode(x));
        bytes
    }
    match dtype {
        DType::F32 => bytes(values, f32::to_le_bytes),
        DType::F16 => bytes(values, |x| f16::from_f32(x).to_le_bytes()),
        DType::BF16 => bytes(values, |x| bf16::from_f32(x).to_le_bytes()),
        DType::E4M3 => bytes(values, |x| {
            let code = E4M3.encode(f64::from(x), Round::NearestEven, Overflow::Saturate);
            [code as u8]
        }),
    }
}

/// Elements of a device buffer.
pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let pairs = || bytes.as_chunks::<2>().0.par_iter();
    match dtype {
        DType::F32 => {
            let words = bytes.as_chunks::<4>().0.par_iter();
            words.map(|&x| f32::from_le_bytes(x)).collect()
        }
        DType::F16 => pairs().map(|&x| f16::from_le_bytes(x).to_f32()).collect(),
        DType::BF16 => pairs().map(|&x| bf16::from_le_bytes(x).to_f32()).collect(),
        DType::E4M3 => bytes
            .par_iter()
            .map(|&x| E4M3.decode(x.into()) as f32)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_holds_what_it_rounded() {
        let values: Vec<f32> = (0..100).map(|i| (i as f32 - 50.0) / 7.0).collect();
        for dtype in DType::ALL {
            let held = rounded(dtype, &values);
            assert_eq!(rounded(dtype, &held), held);
            let off = held.iter().zip(&values).map(|(a, b)| (a - b).abs());
            assert!(off.fold(0.0, f32::max) < 0.04);
        }
        assert_eq!(rounded(DType::F32, &values), values);
    }
}
