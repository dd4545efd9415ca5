//! Strided views of device memory, checked once on the host.

use core::fmt;

use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::Client;
use cubecl::server::Handle;

use crate::error::InvalidProblem;

/// Element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// FP8 with 4 bits of exponent and 3 of mantissa (OCP E4M3): what a cache may hold, with scales
    /// beside it. Nothing is computed in it.
    E4M3,
}

impl DType {
    /// Every dtype kernels compute with.
    pub const ALL: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::E4M3 => 1,
        }
    }

    /// CubeCL's name for it.
    pub(crate) fn elem(self) -> ElemType {
        ElemType::Float(match self {
            DType::F32 => FloatKind::F32,
            DType::F16 => FloatKind::F16,
            DType::BF16 => FloatKind::BF16,
            DType::E4M3 => FloatKind::E4M3,
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::E4M3 => "e4m3",
        })
    }
}

/// A strided view of `N` axes on device memory; strides and offset in elements.
///
/// ```
/// # use flashcube_kernels::{DType, Tensor};
/// # fn demo(handle: cubecl::server::Handle) {
/// // [b, s, h, d] memory seen as [b, h, s, d]: only the strides differ.
/// let (b, h, s, d) = (2, 4, 128, 64);
/// let q = Tensor::strided(handle, [b, h, s, d], [s * h * d, d, h * d, 1], 0, DType::F16);
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Tensor<const N: usize> {
    /// The memory.
    pub handle: Handle,
    /// Size of every axis.
    pub shape: [usize; N],
    /// Distance between neighbours along every axis, in elements.
    pub strides: [usize; N],
    /// First element of the view, in elements from the start of the handle.
    pub offset: usize,
    /// Element type.
    pub dtype: DType,
}

/// Bytes of the widest load of a kernel: the least that a bound buffer must hold.
const WIDEST_LOAD: usize = 16;

impl<const N: usize> Tensor<N> {
    /// The tensor, or for an empty one a stand-in that can be bound; kernels never read it.
    pub(crate) fn bindable(&self, client: &Client) -> Self {
        if self.elements() > 0 {
            return self.clone();
        }
        let stand_in = client.empty(WIDEST_LOAD);
        Self {
            handle: stand_in,
            offset: 0,
            ..self.clone()
        }
    }

    /// A dense row-major tensor over the whole handle.
    pub fn contiguous(handle: Handle, shape: [usize; N], dtype: DType) -> Self {
        Self::strided(handle, shape, row_major(shape), 0, dtype)
    }

    /// Any strides and offset, in elements.
    pub fn strided(
        handle: Handle,
        shape: [usize; N],
        strides: [usize; N],
        offset: usize,
        dtype: DType,
    ) -> Self {
        Self {
            handle,
            shape,
            strides,
            offset,
            dtype,
        }
    }

    /// Uninitialised dense memory on `client`.
    pub fn empty(client: &Client, shape: [usize; N], dtype: DType) -> Self {
        let elements: usize = shape.iter().product();
        // A binding of no bytes is not portable; one vector never read is.
        let handle = client.empty((elements * dtype.size()).max(WIDEST_LOAD));
        Self::contiguous(handle, shape, dtype)
    }

    /// Number of elements of the view.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements of the buffer that the view reaches: 1 + the largest index, 0 when empty.
    pub fn reach(&self) -> usize {
        if self.elements() == 0 {
            return 0;
        }
        let last = self
            .shape
            .iter()
            .zip(self.strides)
            .map(|(&n, stride)| (n as u128 - 1) * stride as u128)
            .sum::<u128>()
            + self.offset as u128;
        usize::try_from(last + 1).unwrap_or(usize::MAX)
    }

    /// Elements that the buffer can hold.
    pub fn capacity(&self) -> usize {
        self.handle.size_in_used() as usize / self.dtype.size()
    }

    /// Last axis contiguous, view inside its buffer.
    pub(crate) fn check(&self, name: &'static str) -> Result<(), InvalidProblem> {
        if N > 0 && self.shape[N - 1] > 1 && self.strides[N - 1] != 1 {
            return Err(InvalidProblem::NotContiguous {
                tensor: name,
                stride: self.strides[N - 1],
            });
        }
        self.check_bounds(name)
    }

    /// View inside its buffer; any strides.
    pub(crate) fn check_bounds(&self, name: &'static str) -> Result<(), InvalidProblem> {
        let (needed, available) = (self.reach(), self.capacity());
        if needed > available {
            return Err(InvalidProblem::OutOfBounds {
                tensor: name,
                needed,
                available,
            });
        }
        Ok(())
    }

    /// [`check`](Self::check), and no element is named twice.
    pub(crate) fn check_output(&self, name: &'static str) -> Result<(), InvalidProblem> {
        self.check(name)?;
        self.check_distinct(name)
    }

    /// An output whose last axis may have any stride: inside its buffer, no element named twice.
    pub(crate) fn check_rows(&self, name: &'static str) -> Result<(), InvalidProblem> {
        self.check_bounds(name)?;
        self.check_distinct(name)
    }

    /// No element is named twice: sorted by stride, each axis must step over everything the
    /// smaller ones reach.
    fn check_distinct(&self, name: &'static str) -> Result<(), InvalidProblem> {
        if self.elements() == 0 {
            return Ok(());
        }
        let mut axes: Vec<usize> = (0..N).filter(|&a| self.shape[a] > 1).collect();
        axes.sort_by_key(|&a| self.strides[a]);
        let mut span = 1usize;
        for axis in axes {
            let stride = self.strides[axis];
            if stride < span {
                return Err(InvalidProblem::OverlappingOutput {
                    tensor: name,
                    axis,
                    stride,
                });
            }
            span = (self.shape[axis] - 1)
                .saturating_mul(stride)
                .saturating_add(span);
        }
        Ok(())
    }

    /// Largest of 4, 2, 1 elements that may be loaded at once: divides the last axis, every
    /// stride that is used, and the offset.
    pub(crate) fn vector(&self, widest: usize) -> usize {
        let divides = |v: usize| {
            self.offset.is_multiple_of(v)
                && self.shape[N - 1].is_multiple_of(v)
                && (0..N - 1).all(|a| self.shape[a] <= 1 || self.strides[a].is_multiple_of(v))
        };
        [4, 2]
            .into_iter()
            .find(|&v| v <= widest && divides(v))
            .unwrap_or(1)
    }
}

impl Tensor<3> {
    /// Packed tokens [total, h, d] as the [1, h, total, d] view that attention takes; see
    /// [`AttendOptions::cu_seqlens`](super::AttendOptions::cu_seqlens).
    pub fn packed(&self) -> Tensor<4> {
        let ([total, h, d], [row, head, column]) = (self.shape, self.strides);
        let strides = [total.saturating_mul(row), head, row, column];
        let handle = self.handle.clone();
        Tensor::strided(handle, [1, h, total, d], strides, self.offset, self.dtype)
    }
}

impl Tensor<2> {
    /// Whether every row starts at a multiple of 16 bytes, none where another does.
    pub(crate) fn row_chunks(&self) -> bool {
        self.rows_start_at(16)
    }

    /// Whether every row starts at a multiple of two elements.
    pub(crate) fn row_pairs(&self) -> bool {
        self.rows_start_at(2 * self.dtype.size())
    }

    fn rows_start_at(&self, bytes: usize) -> bool {
        let fits = |elements: usize| (elements * self.dtype.size()).is_multiple_of(bytes);
        let start = self.handle.offset_start.unwrap_or(0);
        fits(self.offset)
            && start.is_multiple_of(bytes as u64)
            && (self.shape[0] <= 1 || self.strides[0] > 0 && fits(self.strides[0]))
    }
}

impl Tensor<4> {
    /// Whether every row consists of aligned chunks of 16 bytes: so do the last axis, the strides
    /// of axes longer than 1, and the start.
    pub(crate) fn chunks(&self) -> bool {
        let fits = |elements: usize| (elements * self.dtype.size()).is_multiple_of(16);
        fits(self.offset)
            && fits(self.shape[3])
            && self.handle.offset_start.unwrap_or(0).is_multiple_of(16)
            && (0..3).all(|a| self.shape[a] <= 1 || fits(self.strides[a]))
    }

    /// Whether the Tensor Memory Accelerator can address the view: in chunks, no axis a broadcast.
    pub(crate) fn tma(&self) -> bool {
        self.chunks() && (0..3).all(|a| self.shape[a] <= 1 || self.strides[a] > 0)
    }
}

/// Strides of a dense row-major tensor.
pub fn row_major<const N: usize>(shape: [usize; N]) -> [usize; N] {
    let mut strides = [1; N];
    for axis in (0..N.saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1].max(1);
    }
    strides
}
