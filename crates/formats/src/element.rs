//! Element types of safetensors files and how they lie in bytes (little-endian, any alignment).

use half::{bf16, f16};
use safetensors::Dtype;

/// A type that a tensor can be read as or written from without conversion.
pub trait Element: Copy + sealed::Sealed {
    /// Its dtype in the file.
    const DTYPE: Dtype;
    /// The value of `bytes`, or None where the bit pattern is no value of this type (a bool of 2).
    fn from_le(bytes: &[u8]) -> Option<Self>;
    /// Appends the bytes of `self`.
    fn push_le(self, out: &mut Vec<u8>);
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! number {
    ($($ty:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: Dtype = Dtype::$dtype;
            fn from_le(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(<$ty>::from_le_bytes)
            }
            fn push_le(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

number!(u8 => U8, i8 => I8, i32 => I32, u32 => U32, i64 => I64, f16 => F16, bf16 => BF16, f32 => F32, f64 => F64);

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: Dtype = Dtype::BOOL;
    fn from_le(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
    fn push_le(self, out: &mut Vec<u8>) {
        out.push(self.into());
    }
}

/// Reads `bytes` as elements; the error is the position of the first one that is no value of `T`.
pub(crate) fn decode<T: Element>(bytes: &[u8]) -> Result<Vec<T>, usize> {
    let size = T::DTYPE.bitsize() / 8;
    bytes
        .chunks_exact(size)
        .enumerate()
        .map(|(index, chunk)| T::from_le(chunk).ok_or(index))
        .collect()
}
