//! A paged cache of keys and values that owns its pages.

mod ledger;

use core::fmt;

use cubecl::prelude::Client;
use flashcube_kernels::{
    AppendOptions, DType, DecodeOptions, Decoded, Error, InvalidProblem, KvView, PageTable, Rope,
    Tensor, append, attend_decode, copy_pages,
};

use ledger::{Held, Ledger};

/// Sizes of a [`KvCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvCacheSizes {
    /// Pages that all sequences share.
    pub pages: usize,
    /// Rows of a page.
    pub page: usize,
    /// Key heads.
    pub h_kv: usize,
    /// Head dimension of k.
    pub d: usize,
    /// Head dimension of v.
    pub d_v: usize,
    /// Element type.
    pub dtype: DType,
}

/// A sequence of a [`KvCache`]. Never given twice by one cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub(crate) u64);

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a [`KvCache`] refuses. The cache is as it was before the call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KvCacheError {
    /// Too few pages are free.
    #[error("the append needs {needed} pages, the cache has {free} free ones")]
    OutOfPages {
        /// Pages that the append takes.
        needed: usize,
        /// Pages that no sequence holds.
        free: usize,
    },
    /// No such sequence, or none any more.
    #[error("sequence {sequence} is not in the cache")]
    UnknownSequence {
        /// The sequence.
        sequence: SequenceId,
    },
    /// One call names a sequence twice.
    #[error("sequence {sequence} is named twice in one append")]
    RepeatedSequence {
        /// The sequence.
        sequence: SequenceId,
    },
    /// A sequence cannot be cut to more keys than it has.
    #[error("sequence {sequence} has {length} keys and cannot be cut to {asked}")]
    PastEnd {
        /// The sequence.
        sequence: SequenceId,
        /// Its keys.
        length: usize,
        /// Keys asked for.
        asked: usize,
    },
    /// The kernels refused or failed.
    #[error(transparent)]
    Kernel(#[from] Error),
}

impl From<InvalidProblem> for KvCacheError {
    fn from(error: InvalidProblem) -> Self {
        Self::Kernel(error.into())
    }
}

/// Keys and values of many sequences in pages of one pool, on the caller's client.
///
/// Sequences grow without being moved, share the pages of a common prefix after a [`fork`](Self::fork),
/// and copy a shared page only when they write to it. The host knows lengths and pages; the device is
/// told with every call, and never waited for.
///
/// ```
/// # #[cfg(feature = "cpu")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use flashcube::{Backend, DType, DecodeOptions, KvAppend, KvCache, KvCacheSizes, Tensor};
///
/// let client = Backend::Cpu.open()?;
/// let sizes = KvCacheSizes { pages: 8, page: 4, h_kv: 2, d: 8, d_v: 8, dtype: DType::F32 };
/// let mut cache = KvCache::new(&client, sizes)?;
/// let sequence = cache.allocate();
/// let ones = |h: usize, s: usize| {
///     let bytes = 1f32.to_le_bytes().repeat(h * s * 8);
///     Tensor::contiguous(client.create_from_slice(&bytes), [1, h, s, 8], DType::F32)
/// };
/// cache.append(&[sequence], &ones(2, 6), &ones(2, 6), &KvAppend::default())?;
/// let other = cache.fork(sequence)?; // six keys in the same two pages
/// cache.append(&[other], &ones(2, 1), &ones(2, 1), &KvAppend::default())?;
/// assert_eq!((cache.len(sequence)?, cache.len(other)?, cache.free_pages()), (6, 7, 5));
/// let decoded = cache.attend(&ones(4, 1), &[other], &DecodeOptions::default())?;
/// assert_eq!(decoded.out.shape, [1, 4, 1, 8]);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "cpu"))]
/// # fn main() {}
/// ```
pub struct KvCache {
    client: Client,
    sizes: KvCacheSizes,
    k: Tensor<4>,
    v: Tensor<4>,
    ledger: Ledger,
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("sizes", &self.sizes)
            .field("ledger", &self.ledger)
            .finish_non_exhaustive()
    }
}

/// Options of [`KvCache::append`].
#[derive(Debug, Clone, Default)]
pub struct KvAppend<'a> {
    /// See [`AppendOptions::rows`].
    pub rows: Option<&'a [(usize, usize)]>,
    /// See [`AppendOptions::rope`].
    pub rope: Option<Rope>,
}

/// Pages and lengths of a batch of sequences, as kernels take them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvBatch {
    /// [b, `width`] page numbers; 0 where a sequence has no page.
    pub pages: Vec<u32>,
    /// Pages of the longest sequence, at least 1.
    pub width: usize,
    /// Keys of every sequence.
    pub lengths: Vec<usize>,
}

impl KvCache {
    /// A cache with every page free. Its memory is not initialised.
    ///
    /// # Errors
    /// [`InvalidProblem::OutOfRange`] for pages of no rows or more than 2^32 pages.
    pub fn new(client: &Client, sizes: KvCacheSizes) -> Result<Self, KvCacheError> {
        let KvCacheSizes {
            pages,
            page,
            h_kv,
            d,
            d_v,
            dtype,
        } = sizes;
        for (name, value, fits, limit) in [
            ("rows of a page", page, page > 0, 1),
            (
                "pages",
                pages,
                u32::try_from(pages).is_ok(),
                u32::MAX as usize,
            ),
        ] {
            if !fits {
                let (value, limit) = (value as i128, limit as i128);
                return Err(InvalidProblem::OutOfRange { name, value, limit }.into());
            }
        }
        Ok(Self {
            client: client.clone(),
            sizes,
            k: Tensor::empty(client, [pages, h_kv, page, d], dtype),
            v: Tensor::empty(client, [pages, h_kv, page, d_v], dtype),
            ledger: Ledger::new(pages, page),
        })
    }

    /// The sizes it was made with.
    pub fn sizes(&self) -> KvCacheSizes {
        self.sizes
    }

    /// Pages that no sequence holds.
    pub fn free_pages(&self) -> usize {
        self.ledger.free_pages()
    }

    /// A sequence without keys.
    pub fn allocate(&mut self) -> SequenceId {
        self.ledger.insert(Held::default())
    }

    /// A sequence of the same keys, which share their pages until one of the two writes to them.
    ///
    /// # Errors
    /// [`KvCacheError::UnknownSequence`].
    pub fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, KvCacheError> {
        let held = self.ledger.held(sequence)?.clone();
        Ok(self.ledger.insert(held))
    }

    /// Keys of a sequence.
    ///
    /// # Errors
    /// [`KvCacheError::UnknownSequence`].
    pub fn len(&self, sequence: SequenceId) -> Result<usize, KvCacheError> {
        Ok(self.ledger.held(sequence)?.len)
    }

    /// Whether a sequence has no key.
    ///
    /// # Errors
    /// [`KvCacheError::UnknownSequence`].
    pub fn is_empty(&self, sequence: SequenceId) -> Result<bool, KvCacheError> {
        Ok(self.len(sequence)? == 0)
    }

    /// Keeps the first `len` keys of a sequence and gives the pages behind them back.
    ///
    /// # Errors
    /// [`KvCacheError::UnknownSequence`], [`KvCacheError::PastEnd`].
    pub fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), KvCacheError> {
        self.ledger.truncate(sequence, len)
    }

    /// Gives a sequence's pages back and forgets it.
    ///
    /// # Errors
    /// [`KvCacheError::UnknownSequence`].
    pub fn release(&mut self, sequence: SequenceId) -> Result<(), KvCacheError> {
        self.ledger.remove(sequence)
    }

    /// Writes new keys and values behind those of each sequence; see [`append`].
    ///
    /// # Errors
    /// [`KvCacheError::OutOfPages`] before anything is written, and what [`append`] refuses. On any
    /// error every sequence has the keys and pages that it had.
    pub fn append(
        &mut self,
        sequences: &[SequenceId],
        k_new: &Tensor<4>,
        v_new: &Tensor<4>,
        options: &KvAppend<'_>,
    ) -> Result<(), KvCacheError> {
        let (b, s) = (sequences.len(), k_new.shape[2]);
        if k_new.shape[0] != b {
            return Err(InvalidProblem::Shape {
                tensor: "k_new",
                axis: "b",
                found: k_new.shape[0],
                expected: b,
            }
            .into());
        }
        let counts = match options.rows {
            Some(rows) if rows.len() != b => {
                return Err(InvalidProblem::Entries {
                    name: "rows",
                    found: rows.len(),
                    expected: b,
                }
                .into());
            }
            Some(rows) => rows.iter().map(|&(_, count)| count).collect(),
            None => vec![s; b],
        };
        if let Some(index) = (0..b).find(|&i| counts[i] > s) {
            return Err(InvalidProblem::Entry {
                name: "rows",
                index,
                value: counts[index],
                limit: s,
            }
            .into());
        }
        let growth = self.ledger.plan(sequences, &counts)?;
        let lengths: Vec<usize> = sequences
            .iter()
            .map(|&id| self.len(id))
            .collect::<Result<_, _>>()?;
        let batch = KvBatch::of(growth.after.iter().map(|(_, held)| held));
        let append_options = AppendOptions {
            lengths: Some(&lengths),
            rows: options.rows,
            rope: options.rope.clone(),
            advance: false,
        };
        // Written pages belong to nobody until the last launch is accepted.
        copy_pages(&self.client, &self.k, &growth.copies)?;
        copy_pages(&self.client, &self.v, &growth.copies)?;
        append(
            &self.client,
            &self.view(&batch),
            k_new,
            v_new,
            &append_options,
        )?;
        self.ledger.commit(growth);
        Ok(())
    }

    /// Pages and lengths of some sequences, in that order.
    ///
    /// # Errors
    /// [`KvCacheError::UnknownSequence`].
    pub fn batch(&self, sequences: &[SequenceId]) -> Result<KvBatch, KvCacheError> {
        let held: Vec<&Held> = sequences
            .iter()
            .map(|&id| self.ledger.held(id))
            .collect::<Result<_, _>>()?;
        Ok(KvBatch::of(held.into_iter()))
    }

    /// K and V as kernels take them.
    pub fn view<'a>(&self, batch: &'a KvBatch) -> KvView<'a> {
        let pages = PageTable::checked(&batch.pages, batch.width);
        KvView::paged(self.k.clone(), self.v.clone(), pages)
    }

    /// [`attend_decode`] over the keys of some sequences, q [b, h_q, s_q, d]. Their lengths take the
    /// place of those of the options.
    ///
    /// # Errors
    /// [`KvCacheError::UnknownSequence`], and as [`attend_decode`].
    pub fn attend(
        &self,
        q: &Tensor<4>,
        sequences: &[SequenceId],
        options: &DecodeOptions<'_>,
    ) -> Result<Decoded, KvCacheError> {
        let batch = self.batch(sequences)?;
        let mut options = options.clone();
        options.attend.lengths_kv = Some(&batch.lengths);
        Ok(attend_decode(
            &self.client,
            q,
            &self.view(&batch),
            &options,
        )?)
    }
}

impl KvBatch {
    fn of<'a>(held: impl Iterator<Item = &'a Held> + Clone) -> Self {
        let width = held.clone().map(|held| held.pages.len()).max();
        let width = width.unwrap_or(0).max(1);
        let mut pages = Vec::new();
        for held in held.clone() {
            pages.extend(&held.pages);
            pages.resize(pages.len() + width - held.pages.len(), 0);
        }
        Self {
            pages,
            width,
            lengths: held.map(|held| held.len).collect(),
        }
    }
}
