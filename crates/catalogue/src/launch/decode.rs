//! A decode's cache: in one piece as the inputs have it, or cut into pages that lie in disorder.

use cubecl::prelude::CubeElement;
use flashcube::attention::ScaledBy;
use flashcube::{
    AttendOptions, CacheScales, CascadeOptions, DType, DecodeOptions, DeviceWords, Error, KvView,
    PageTable, Policy, Tensor, attend_cascade, attend_decode,
};

use super::{HookArrays, Launched, POISON, Run, erase};
use crate::array::Array;
use crate::problem::{Attend, Decode};

/// Pages beyond those that sequences can have.
const SPARE: usize = 3;

impl Run<'_> {
    pub(super) fn decode(&self, decode: &Decode, policy: Policy) -> Result<Launched, Error> {
        let attend = &decode.attend;
        let q = self.tensor::<4>("q");
        let places = [
            self.place(0, self.problem.dtype, 2),
            self.place(1, DType::F32, 2),
        ];
        let hooks = HookArrays::of(self, attend);
        let lengths = lengths(attend);
        let table = decode
            .page
            .map(|page| Pages::of(attend.s_kv, page, &lengths));
        let coded = decode.codes.is_some();
        let mut cache = match &table {
            Some(pages) => {
                let dtype = if coded {
                    DType::E4M3
                } else {
                    self.problem.dtype
                };
                let of = |shift| move |n, h, key| decode.scale(n, h + shift, key);
                KvView::paged(
                    self.pool("k", pages, attend.d, dtype, of(0)),
                    self.pool("v", pages, attend.d_v, dtype, of(1)),
                    self.table(pages, decode.device_tables),
                )
            }
            None if coded => {
                KvView::contiguous(self.coded("k", decode, 0), self.coded("v", decode, 1))
            }
            None => KvView::contiguous(self.tensor("k"), self.tensor("v")),
        };
        if coded {
            cache = cache.with_scales(self.scales(decode, table.as_ref()));
        }
        let options = hooks.options(attend, policy);
        let mut options = DecodeOptions {
            attend: AttendOptions {
                out: places[0].tensor(),
                lse: places[1].tensor(),
                lengths_kv: (attend.lengths_kv.is_some() || table.is_some())
                    .then_some(&lengths[..]),
                ..options
            },
            splits: decode.splits,
            workspace: None,
        };
        if decode.device_tables {
            options.attend.lengths_kv = None;
            let words: Vec<u32> = lengths.iter().map(|&n| n as u32).collect();
            cache = cache.with_lengths(self.words(&words));
        }
        let decoded = attend_decode(self.client, &q, &cache, &options)?;
        let tensors = [erase(&decoded.out), erase(&decoded.lse)];
        let mut launched = self.collect(&places, &tensors)?;
        launched.blueprint = decoded.plan.map(|p| p.blueprint.to_string());
        launched.attend = decoded.plan.map(|p| p.blueprint);
        Ok(launched)
    }

    /// The first keys as one sequence's, the others as each sequence's own.
    pub(super) fn cascade(&self, decode: &Decode, policy: Policy) -> Result<Launched, Error> {
        let attend = &decode.attend;
        let q = self.tensor::<4>("q");
        let places = [
            self.place(0, self.problem.dtype, 2),
            self.place(1, DType::F32, 2),
        ];
        let cut = |name: &str, first: usize, end: usize, b: usize| {
            let mut tensor = self.tensor::<4>(name);
            tensor.offset += first * tensor.strides[2];
            (tensor.shape[0], tensor.shape[2]) = (b, end - first);
            tensor
        };
        let part =
            |first, end, b| KvView::contiguous(cut("k", first, end, b), cut("v", first, end, b));
        let prefix = part(0, decode.prefix, 1);
        let suffix = part(decode.prefix, attend.s_kv, attend.b);
        let hooks = HookArrays::of(self, attend);
        let lengths: Option<Vec<usize>> = attend
            .lengths_kv
            .as_ref()
            .map(|lengths| lengths.iter().map(|n| n - decode.prefix).collect());
        let options = CascadeOptions {
            attend: AttendOptions {
                out: places[0].tensor(),
                lse: places[1].tensor(),
                lengths_kv: lengths.as_deref(),
                ..hooks.options(attend, policy)
            },
            prefix: None,
            splits: decode.splits,
        };
        let cascaded = attend_cascade(self.client, &q, &prefix, &suffix, &options)?;
        let tensors = [erase(&cascaded.out), erase(&cascaded.lse)];
        let mut launched = self.collect(&places, &tensors)?;
        launched.blueprint = cascaded.suffix.map(|p| p.blueprint.to_string());
        launched.attend = cascaded.suffix.map(|p| p.blueprint);
        Ok(launched)
    }

    /// One word before the others, so that an offset that is left out shows.
    pub(super) fn words(&self, words: &[u32]) -> DeviceWords {
        let mut all = vec![u32::MAX; 1];
        all.extend(words);
        let handle = self.client.create_from_slice(u32::as_bytes(&all));
        // SAFETY: the words are those of the cache that the caller built.
        unsafe { DeviceWords::unchecked(handle, 1) }
    }

    pub(super) fn table<'a>(&self, pages: &'a Pages, device: bool) -> PageTable<'a> {
        match device {
            false => PageTable::checked(&pages.table, pages.width),
            true => {
                // Unused entries name a page that exists, and that only poison lies in.
                let free = pages.free as u32;
                let named = pages
                    .table
                    .iter()
                    .map(|&p| if p == u32::MAX { free } else { p });
                let named: Vec<u32> = named.collect();
                PageTable::device(self.words(&named), pages.width, pages.width)
            }
        }
    }

    /// [pages, h_kv, page, d] with the rows of the named input where the table says, poison elsewhere.
    pub(super) fn pool(
        &self,
        name: &str,
        pages: &Pages,
        d: usize,
        dtype: DType,
        scale: impl Fn(usize, usize, usize) -> f32,
    ) -> Tensor<4> {
        let size = dtype.size();
        let Some(array) = self.inputs.get(name) else {
            return Tensor::empty(self.client, [pages.count, 0, pages.page, d], dtype);
        };
        let h_kv = array.shape[1];
        let shape = [pages.count, h_kv, pages.page, d];
        let mut bytes = vec![POISON; (shape.iter().product::<usize>() * size).max(16)];
        for (sequence, &len) in pages.lengths.iter().enumerate() {
            for (key, h) in (0..len).flat_map(|key| (0..h_kv).map(move |h| (key, h))) {
                let page = pages.table[sequence * pages.width + key / pages.page] as usize;
                let row = (page * h_kv + h) * pages.page + key % pages.page;
                let by = scale(sequence, h, key);
                let values = (0..d).map(|x| array.at(&[sequence, h, key, x]) / by);
                let values = values.collect();
                let line = Array::floats(&[d], dtype, values).bytes();
                bytes[row * d * size..][..d * size].copy_from_slice(&line);
            }
        }
        Tensor::contiguous(self.client.create_from_slice(&bytes), shape, dtype)
    }
}

impl Run<'_> {
    /// [b, h_kv, s_kv, d] as codes.
    fn coded(&self, name: &str, decode: &Decode, shift: usize) -> Tensor<4> {
        let empty = Array::floats(&[0; 4], DType::E4M3, Vec::new());
        let array = self.inputs.get(name).unwrap_or(&empty);
        let shape: [usize; 4] = std::array::from_fn(|axis| array.shape[axis]);
        let [_, h, s, d] = shape;
        let values = array.values().into_iter().enumerate().map(|(i, x)| {
            let row = i / d;
            x / decode.scale(row / s / h, row / s % h + shift, row % s)
        });
        let mut bytes = Array::floats(&shape, DType::E4M3, values.collect()).bytes();
        bytes.resize(bytes.len().next_multiple_of(16).max(16), POISON);
        Tensor::contiguous(self.client.create_from_slice(&bytes), shape, DType::E4M3)
    }

    /// Scales where the table says, NaN in free pages.
    fn scales(&self, decode: &Decode, pages: Option<&Pages>) -> CacheScales {
        let h = decode.attend.h_kv;
        let of = |shift: usize| {
            let by_page = pages.filter(|_| decode.codes == Some(ScaledBy::Page));
            let rows = by_page.map_or(1, |pages| pages.count);
            let mut values = vec![f32::NAN; rows * h];
            match by_page {
                None => (0..h).for_each(|head| values[head] = decode.scale(0, head + shift, 0)),
                Some(pages) => {
                    let used = pages
                        .table
                        .iter()
                        .enumerate()
                        .filter(|(_, p)| **p != u32::MAX);
                    for ((at, &page), head) in
                        used.flat_map(|entry| (0..h).map(move |head| (entry, head)))
                    {
                        let (n, key) = (at / pages.width, at % pages.width * pages.page);
                        values[page as usize * h + head] = decode.scale(n, head + shift, key);
                    }
                }
            }
            let handle = self.client.create_from_slice(f32::as_bytes(&values));
            Tensor::contiguous(handle, [rows, h], DType::F32)
        };
        CacheScales { k: of(0), v: of(1) }
    }
}

fn lengths(attend: &Attend) -> Vec<usize> {
    let all = || vec![attend.s_kv; attend.b];
    attend.lengths_kv.clone().unwrap_or_else(all)
}

/// Where the keys of a paged cache lie.
pub(super) struct Pages {
    pub(super) lengths: Vec<usize>,
    pub(super) page: usize,
    /// Pages of a sequence, at most.
    pub(super) width: usize,
    /// Pages of the pool.
    count: usize,
    /// [b, width]; `u32::MAX` where no key lies.
    pub(super) table: Vec<u32>,
    /// A page of the pool that no key lies in.
    free: usize,
}

impl Pages {
    /// Pages for sequences of these lengths that can have `s_kv` keys.
    pub(super) fn of(s_kv: usize, page: usize, lengths: &[usize]) -> Self {
        let (b, width) = (lengths.len(), s_kv.div_ceil(page));
        let count = b * width + SPARE;
        let coprime = [7, 11, 13, 17, 1];
        let step = coprime
            .into_iter()
            .find(|step| !count.is_multiple_of(*step));
        let place = |index: usize| (index * step.unwrap_or(1) + 2) % count;
        let table = (0..b * width).map(|index| {
            let used = index % width < lengths[index / width].div_ceil(page);
            if used { place(index) as u32 } else { u32::MAX }
        });
        Self {
            lengths: lengths.to_vec(),
            page,
            width,
            count,
            table: table.collect(),
            free: place(b * width),
        }
    }
}
