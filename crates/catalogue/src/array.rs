//! Strided host arrays: what kernels receive, gaps and all.

use flashcube::DType;
use flashcube_reference::quant::float::{E4M3, Overflow, Round};
use half::{bf16, f16};

use crate::problem::Memory;

/// A buffer and the view that a kernel gets of it; strides and offset in elements.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Size of every axis.
    pub shape: Vec<usize>,
    /// Distance between neighbours along every axis.
    pub strides: Vec<usize>,
    /// First element of the view.
    pub offset: usize,
    /// The whole buffer, gaps included.
    pub data: Data,
}

/// Elements of a buffer.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// Floating-point values, each exactly representable in the dtype (or NaN).
    Float(DType, Vec<f32>),
    /// Words: packed weights, document ids, lengths, wide masks.
    U32(Vec<u32>),
    /// Bytes: narrow masks, signs.
    U8(Vec<u8>),
}

impl Array {
    /// A dense row-major array.
    pub fn dense(shape: &[usize], data: Data) -> Self {
        Self {
            shape: shape.to_vec(),
            strides: layout(shape, Memory::Dense, shape.len().saturating_sub(2)).0,
            offset: 0,
            data,
        }
    }

    /// Dense floats.
    pub fn floats(shape: &[usize], dtype: DType, values: Vec<f32>) -> Self {
        Self::dense(shape, Data::Float(dtype, values))
    }

    /// Moves dense floats to where `memory` wants them; the gaps hold NaN. `row_axis` is the axis
    /// of rows (s): the one that padding widens and that [`Memory::HeadsInside`] swaps with the
    /// axis before it.
    pub(crate) fn arranged(
        shape: &[usize],
        dtype: DType,
        values: &[f32],
        memory: Memory,
        row_axis: usize,
    ) -> Self {
        let (strides, offset) = layout(shape, memory, row_axis);
        let mut array = Self {
            shape: shape.to_vec(),
            strides,
            offset,
            data: Data::Float(dtype, Vec::new()),
        };
        // The gap after the last row is part of the buffer too.
        let gap = match memory {
            Memory::PaddedRows(gap) => gap,
            _ => 0,
        };
        let mut buffer = vec![f32::NAN; array.reach() + gap];
        for (at, &value) in array.positions().into_iter().zip(values) {
            buffer[at] = value;
        }
        array.data = Data::Float(dtype, buffer);
        array
    }

    /// Number of elements of the view.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Buffer positions of the view's elements in row-major order.
    pub fn positions(&self) -> Vec<usize> {
        let mut positions = Vec::with_capacity(self.elements());
        if self.elements() == 0 {
            return positions;
        }
        positions.push(self.offset);
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            positions = positions
                .iter()
                .flat_map(|&at| (0..size).map(move |i| at + i * stride))
                .collect();
        }
        positions
    }

    /// Buffer position of the element at `index`.
    pub fn position(&self, index: &[usize]) -> usize {
        let steps = index.iter().zip(&self.strides);
        self.offset + steps.map(|(&i, &stride)| i * stride).sum::<usize>()
    }

    /// The element at `index` as f32; words and bytes are converted.
    ///
    /// # Panics
    /// If the index lies outside the buffer.
    pub fn at(&self, index: &[usize]) -> f32 {
        let at = self.position(index);
        match &self.data {
            Data::Float(_, values) => values[at],
            Data::U32(words) => words[at] as f32,
            Data::U8(bytes) => f32::from(bytes[at]),
        }
    }

    /// The view's floats in row-major order; empty for words and bytes.
    pub fn values(&self) -> Vec<f32> {
        match &self.data {
            Data::Float(_, values) => self.positions().into_iter().map(|at| values[at]).collect(),
            _ => Vec::new(),
        }
    }

    /// The buffer's words; empty for other data.
    pub fn words(&self) -> &[u32] {
        match &self.data {
            Data::U32(words) => words,
            _ => &[],
        }
    }

    /// The buffer's elements as flags: non-zero is true.
    pub fn flags(&self) -> Vec<bool> {
        match &self.data {
            Data::Float(_, values) => values.iter().map(|&x| x != 0.0).collect(),
            Data::U32(words) => words.iter().map(|&x| x != 0).collect(),
            Data::U8(bytes) => bytes.iter().map(|&x| x != 0).collect(),
        }
    }

    /// The buffer in the device's representation, little-endian.
    pub fn bytes(&self) -> Vec<u8> {
        match &self.data {
            Data::Float(dtype, values) => encode(*dtype, values),
            Data::U32(words) => words.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::U8(bytes) => bytes.clone(),
        }
    }

    /// 1 + the largest position of the view, 0 when it is empty.
    pub fn reach(&self) -> usize {
        if self.elements() == 0 {
            return 0;
        }
        let steps = self.shape.iter().zip(&self.strides);
        1 + self.offset + steps.map(|(&n, &stride)| (n - 1) * stride).sum::<usize>()
    }
}

/// Strides and offset of `shape` under `memory`; see [`Array::arranged`].
pub(crate) fn layout(shape: &[usize], memory: Memory, row_axis: usize) -> (Vec<usize>, usize) {
    let axes = shape.len();
    // Axes from the outermost to the innermost.
    let mut order: Vec<usize> = (0..axes).collect();
    if memory == Memory::HeadsInside && axes > 2 && row_axis > 0 {
        order.swap(row_axis - 1, row_axis);
    }
    let gap = match memory {
        Memory::PaddedRows(gap) => gap,
        _ => 0,
    };
    let mut strides = vec![1; axes];
    let mut span = 1;
    for &axis in order.iter().rev() {
        if axis == row_axis {
            span += gap;
        }
        strides[axis] = span;
        span *= shape[axis].max(1);
    }
    let offset = match memory {
        Memory::Offset(offset) => offset,
        _ => 0,
    };
    (strides, offset)
}

/// Little-endian elements of `dtype`, each rounded to nearest even.
pub(crate) fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let bytes = |x: &f32| match dtype {
        DType::F32 => x.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(*x).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(*x).to_le_bytes().to_vec(),
        DType::E4M3 => {
            let code = E4M3.encode(f64::from(*x), Round::NearestEven, Overflow::Saturate);
            vec![code as u8]
        }
    };
    values.iter().flat_map(bytes).collect()
}

/// The inverse of [`encode`].
pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F32 => {
            let (words, _) = bytes.as_chunks::<4>();
            words.iter().map(|&x| f32::from_le_bytes(x)).collect()
        }
        DType::F16 => {
            let (words, _) = bytes.as_chunks::<2>();
            words
                .iter()
                .map(|&x| f16::from_le_bytes(x).to_f32())
                .collect()
        }
        DType::BF16 => {
            let (words, _) = bytes.as_chunks::<2>();
            words
                .iter()
                .map(|&x| bf16::from_le_bytes(x).to_f32())
                .collect()
        }
        DType::E4M3 => bytes
            .iter()
            .map(|&x| E4M3.decode(x.into()) as f32)
            .collect(),
    }
}

/// `x` rounded to nearest even in `dtype`.
pub(crate) fn round_to(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(x as f32),
        DType::F16 => f16::from_f64(x).to_f64(),
        DType::BF16 => bf16::from_f64(x).to_f64(),
        DType::E4M3 => E4M3.round(x, Overflow::Saturate),
    }
}
