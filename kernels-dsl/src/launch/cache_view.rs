//! K and V of a decode: where they lie and how long they are.

use cubecl::server::Handle;

use super::{DType, Tensor, expect_axes, expect_dtype, expect_entries};
use crate::error::InvalidProblem;

/// u32 words in device memory that the host does not read: lengths or page numbers.
#[derive(Debug, Clone)]
pub struct DeviceWords {
    pub(crate) handle: Handle,
    pub(crate) offset: usize,
}

impl DeviceWords {
    /// Words of `handle` from word `offset` on.
    ///
    /// # Safety
    /// What they say when a kernel runs must be true of the cache: lengths within the pages that the
    /// table names, page numbers below the number of pages, and enough of both for every sequence.
    pub unsafe fn unchecked(handle: Handle, offset: usize) -> Self {
        Self { handle, offset }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.handle.size_in_used() as usize / 4
    }

    /// The buffer holds `words` words from the offset on.
    pub(crate) fn check(&self, tensor: &'static str, words: usize) -> Result<(), InvalidProblem> {
        let (needed, available) = (self.offset.saturating_add(words), self.capacity());
        match needed > available {
            true => Err(InvalidProblem::OutOfBounds {
                tensor,
                needed,
                available,
            }),
            false => Ok(()),
        }
    }
}

/// Which pages hold the keys of every sequence: entry `key / page` of its row.
#[derive(Debug, Clone)]
pub struct PageTable<'a> {
    source: PageSource<'a>,
    width: usize,
    row: usize,
}

#[derive(Debug, Clone)]
pub(crate) enum PageSource<'a> {
    Host(&'a [u32]),
    Device(DeviceWords),
}

impl<'a> PageTable<'a> {
    /// [b, `width`] page numbers, checked at every call: those of the keys that exist must be below
    /// the number of pages, the others are not looked at.
    pub fn checked(words: &'a [u32], width: usize) -> Self {
        Self {
            source: PageSource::Host(words),
            width,
            row: width,
        }
    }

    /// `width` page numbers a sequence, one sequence `row` words after the other. The words carry the
    /// promise; see [`DeviceWords::unchecked`].
    pub fn device(words: DeviceWords, width: usize, row: usize) -> Self {
        Self {
            source: PageSource::Device(words),
            width,
            row,
        }
    }

    /// Pages that a sequence may have.
    pub fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn row(&self) -> usize {
        self.row
    }

    pub(crate) fn source(&self) -> &PageSource<'a> {
        &self.source
    }

    pub(crate) fn check(&self, b: usize) -> Result<(), InvalidProblem> {
        match &self.source {
            PageSource::Host(words) => expect_entries("pages", words.len(), b * self.width),
            PageSource::Device(words) => {
                words.check("pages", b.saturating_sub(1) * self.row + self.width)
            }
        }
    }
}

/// K and V of a decode.
#[derive(Debug, Clone)]
pub struct KvView<'a> {
    /// [b, h_kv, s_kv, d], or [pages, h_kv, page, d] with a page table; any strides, the last axis
    /// contiguous.
    pub k: Tensor<4>,
    /// [b, h_kv, s_kv, d_v] or [pages, h_kv, page, d_v].
    pub v: Tensor<4>,
    /// Where the keys of every sequence lie.
    pub pages: Option<PageTable<'a>>,
    /// Keys of every sequence `[b]`, where only the device knows them; excludes
    /// [`AttendOptions::lengths_kv`](super::AttendOptions::lengths_kv).
    pub lengths: Option<DeviceWords>,
    /// Scales of k and v where they hold E4M3 codes; neither goes without the other.
    pub scales: Option<CacheScales>,
}

/// Factors on the E4M3 codes of a cache: a key is its codes times the scale of its head, or of its head
/// in its page.
#[derive(Debug, Clone)]
pub struct CacheScales {
    /// f32 [1, h_kv], or [pages, h_kv] beside a page table; any strides.
    pub k: Tensor<2>,
    /// The same for v.
    pub v: Tensor<2>,
}

impl<'a> KvView<'a> {
    /// A cache in one piece for every sequence.
    pub fn contiguous(k: Tensor<4>, v: Tensor<4>) -> Self {
        Self {
            k,
            v,
            pages: None,
            lengths: None,
            scales: None,
        }
    }

    /// A cache in pages.
    pub fn paged(k: Tensor<4>, v: Tensor<4>, pages: PageTable<'a>) -> Self {
        Self {
            pages: Some(pages),
            ..Self::contiguous(k, v)
        }
    }

    /// The same with lengths that only the device knows.
    pub fn with_lengths(self, lengths: DeviceWords) -> Self {
        Self {
            lengths: Some(lengths),
            ..self
        }
    }

    /// The same of E4M3 codes.
    pub fn with_scales(self, scales: CacheScales) -> Self {
        Self {
            scales: Some(scales),
            ..self
        }
    }

    /// Scales are there where codes are, and as many as there are heads and pages.
    pub(crate) fn check_scales(&self) -> Result<(), InvalidProblem> {
        let [entries, h_kv, ..] = self.k.shape;
        let coded = self.k.dtype == DType::E4M3;
        expect_dtype("v of the cache", self.v.dtype, self.k.dtype)?;
        let Some(scales) = &self.scales else {
            return match coded {
                true => expect_entries("scales of an e4m3 cache", 0, h_kv),
                false => Ok(()),
            };
        };
        expect_dtype("cache with scales", self.k.dtype, DType::E4M3)?;
        for (name, tensor) in [("scales of k", &scales.k), ("scales of v", &scales.v)] {
            expect_dtype(name, tensor.dtype, DType::F32)?;
            let rows = match self.pages {
                Some(_) if scales.k.shape[0] != 1 => entries,
                _ => 1,
            };
            expect_axes(name, ["pages", "h_kv"], tensor.shape, [rows, h_kv])?;
            tensor.check_bounds(name)?;
        }
        for (name, tensor) in [("k", &self.k), ("v", &self.v)] {
            // Kernels read codes four at a time.
            let bytes = tensor.handle.size_in_used() as usize;
            let (needed, available) = (tensor.reach().next_multiple_of(4), bytes / 4 * 4);
            if needed > available {
                return Err(InvalidProblem::OutOfBounds {
                    tensor: name,
                    needed,
                    available,
                });
            }
        }
        Ok(())
    }

    /// Keys that a sequence can have.
    pub fn capacity(&self) -> usize {
        match &self.pages {
            Some(pages) => pages.width.saturating_mul(self.k.shape[2]),
            None => self.k.shape[2],
        }
    }
}

/// The pages of all keys that exist are there; `keys(s)` is how many sequence s has at most.
pub(crate) fn check_pages(
    words: &[u32],
    width: usize,
    cache: &KvView<'_>,
    keys: impl Fn(usize) -> usize,
) -> Result<(), InvalidProblem> {
    let pages = cache.k.shape[0];
    for (sequence, row) in words.chunks(width.max(1)).enumerate() {
        let used = keys(sequence).div_ceil(cache.k.shape[2].max(1));
        let wrong = row[..used.min(row.len())]
            .iter()
            .position(|&page| page as usize >= pages);
        if let Some(at) = wrong {
            return Err(InvalidProblem::Entry {
                name: "pages",
                index: sequence * width + at,
                value: row[at] as usize,
                limit: pages.saturating_sub(1),
            });
        }
    }
    Ok(())
}
