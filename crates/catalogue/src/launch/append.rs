//! New rows into a cache, and the cache read back as every sequence sees it.

use cubecl::prelude::CubeElement;
use flashcube::{AppendOptions, Error, KvView, Rope, Tensor, append};

use super::decode::Pages;
use super::{Launched, POISON, Run};
use crate::array::{Array, Data, decode};
use crate::problem::Append;
use crate::verdict::Outputs;

impl Run<'_> {
    pub(super) fn append(&self, sizes: &Append) -> Result<Launched, Error> {
        // Pages for all that will be there, filled up to what is.
        let ends: Vec<usize> = (0..sizes.lengths.len()).map(|n| sizes.end(n)).collect();
        let table = sizes.page.map(|page| {
            let mut pages = Pages::of(sizes.s_kv, page, &ends);
            pages.lengths = sizes.lengths.clone();
            pages
        });
        let dtype = self.problem.dtype;
        let mut cache = match &table {
            Some(pages) => KvView::paged(
                self.pool("k", pages, sizes.d.0, dtype, |_, _, _| 1.0),
                self.pool("v", pages, sizes.d.1, dtype, |_, _, _| 1.0),
                self.table(pages, sizes.device_tables),
            ),
            None => KvView::contiguous(self.piece("k", sizes), self.piece("v", sizes)),
        };
        let mut options = AppendOptions {
            lengths: Some(&sizes.lengths),
            rows: sizes.rows.as_deref(),
            rope: sizes.rope.map(|(pairs, _)| Rope {
                cos: self.tensor("cos"),
                sin: self.tensor("sin"),
                pairs,
            }),
            advance: sizes.device_tables,
        };
        let words: Vec<u32> = sizes.lengths.iter().map(|&n| n as u32).collect();
        let lengths = self.client.create_from_slice(u32::as_bytes(&words));
        if sizes.device_tables {
            options.lengths = None;
            // SAFETY: the lengths are those of the cache built above.
            cache = cache
                .with_lengths(unsafe { flashcube::DeviceWords::unchecked(lengths.clone(), 0) });
        }
        let (k, v) = (self.tensor::<4>("k_new"), self.tensor::<4>("v_new"));
        let blueprint = append(self.client, &cache, &k, &v, &options)?;
        let mut disturbed = None;
        if sizes.device_tables {
            let told = self.read(&lengths)?;
            let wanted: Vec<u32> = ends.iter().map(|&n| n as u32).collect();
            if told[..4 * wanted.len()] != *u32::as_bytes(&wanted) {
                disturbed = Some("the device counts other lengths than were appended".to_owned());
            }
        }
        let mut outputs = Outputs::default();
        for (name, pool) in [("k", &cache.k), ("v", &cache.v)] {
            let (values, wild) = self.gather(pool, table.as_ref(), &ends, sizes.s_kv)?;
            outputs = outputs.with(name, values);
            disturbed = disturbed.or(wild
                .map(|at| format!("{name}: element {at} belongs to no key and was overwritten")));
        }
        Ok(Launched {
            outputs,
            blueprint: blueprint.map(|b| b.to_string()),
            attend: None,
            disturbed,
        })
    }

    /// The named input in one piece, poison behind what each sequence has.
    fn piece(&self, name: &str, sizes: &Append) -> Tensor<4> {
        let mut array = match self.inputs.get(name) {
            Some(array) => array.clone(),
            None => Array::floats(&[0; 4], self.problem.dtype, Vec::new()),
        };
        let [b, h, s, d] = std::array::from_fn(|axis| array.shape[axis]);
        let mut bytes = array.bytes();
        let size = self.problem.dtype.size();
        let none = bytes.is_empty();
        for at in (0..b * h * s).filter(|_| !none) {
            if at % s >= sizes.lengths[at / s / h] {
                let row = array.position(&[at / s / h, at / s % h, at % s, 0]);
                bytes[row * size..][..d * size].fill(POISON);
            }
        }
        bytes.resize(bytes.len().max(16), POISON);
        array.data = Data::U8(Vec::new());
        let strides = std::array::from_fn(|axis| array.strides[axis]);
        let handle = self.client.create_from_slice(&bytes);
        Tensor::strided(
            handle,
            [b, h, s, d],
            strides,
            array.offset,
            self.problem.dtype,
        )
    }

    /// [b, h, s_kv, d] as every sequence sees it, 0 past its end; and an element that lies in no key
    /// and is poison no more.
    fn gather(
        &self,
        pool: &Tensor<4>,
        pages: Option<&Pages>,
        ends: &[usize],
        s_kv: usize,
    ) -> Result<(Vec<f32>, Option<usize>), Error> {
        let bytes = self.read(&pool.handle)?;
        let size = pool.dtype.size();
        let buffer = decode(pool.dtype, &bytes);
        let [_, h, _, d] = pool.shape;
        let mut named = vec![false; buffer.len()];
        let mut values = Vec::new();
        for (n, &end) in ends.iter().enumerate() {
            for (head, key) in (0..h).flat_map(|head| (0..s_kv).map(move |key| (head, key))) {
                if key >= end || d == 0 {
                    values.extend(vec![0.0; d]);
                    continue;
                }
                let (entry, row) = match pages {
                    Some(p) => (p.table[n * p.width + key / p.page] as usize, key % p.page),
                    None => (n, key),
                };
                let [batch, lane, line, _] = pool.strides;
                let at = pool.offset + entry * batch + head * lane + row * line;
                values.extend(&buffer[at..at + d]);
                named[at..at + d].fill(true);
            }
        }
        let poison = |at: usize| bytes[at * size..][..size].iter().all(|&b| b == POISON);
        // Gaps of an arranged input hold another NaN.
        let wild = (0..buffer.len()).find(|&at| !named[at] && !poison(at) && !buffer[at].is_nan());
        Ok((values, wild))
    }
}
