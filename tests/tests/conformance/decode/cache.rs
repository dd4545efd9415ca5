//! `KvCache`: what it holds is what was appended, whoever shares its pages.

use cubecl::prelude::Client;
use flashcube::{
    AttendOptions, DType, DecodeOptions, Error, KvAppend, KvCache, KvCacheError, KvCacheSizes,
    SequenceId, Tensor, attend_forward,
};

use super::invalid::client;

const SIZES: KvCacheSizes = KvCacheSizes {
    pages: 12,
    page: 4,
    h_kv: 2,
    d: 8,
    d_v: 8,
    dtype: DType::F32,
};

/// [1, h, s, 8] of numbers that no other `from` gives.
fn rows(client: &Client, h: usize, s: usize, from: usize) -> Tensor<4> {
    let values = (0..h * s * 8).map(|i| (((i * 37 + from * 101) % 199) as f32 - 99.0) / 50.0);
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    Tensor::contiguous(client.create_from_slice(&bytes), [1, h, s, 8], DType::F32)
}

fn read(client: &Client, tensor: &Tensor<4>) -> Vec<f32> {
    let bytes = client.read_one(tensor.handle.clone()).unwrap();
    let (words, _) = bytes.as_chunks::<4>();
    let all: Vec<f32> = words.iter().map(|&w| f32::from_le_bytes(w)).collect();
    all[tensor.offset..tensor.offset + tensor.elements()].to_vec()
}

/// k and v of one sequence in one piece, as a cache should hold them.
#[derive(Clone, Default)]
struct Mirror {
    parts: Vec<(usize, usize)>,
}

impl Mirror {
    fn tensor(&self, client: &Client, v: usize) -> Tensor<4> {
        let len: usize = self.parts.iter().map(|(s, _)| s).sum();
        let mut values = vec![0f32; 2 * len * 8];
        let mut first = 0;
        for &(s, from) in &self.parts {
            let part = read(client, &rows(client, 2, s, from + v));
            for h in 0..2 {
                let to = (h * len + first) * 8;
                values[to..to + s * 8].copy_from_slice(&part[h * s * 8..][..s * 8]);
            }
            first += s;
        }
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let handle = client.create_from_slice(&bytes);
        Tensor::contiguous(handle, [1, 2, len, 8], DType::F32)
    }
}

fn add(
    cache: &mut KvCache,
    client: &Client,
    id: SequenceId,
    mirror: &mut Mirror,
    s: usize,
    from: usize,
) {
    let (k, v) = (rows(client, 2, s, from), rows(client, 2, s, from + 1));
    cache.append(&[id], &k, &v, &KvAppend::default()).unwrap();
    mirror.parts.push((s, from));
}

/// The cache's result is that of the keys in one piece, bit for bit: both are one tile.
fn same(cache: &KvCache, client: &Client, id: SequenceId, mirror: &Mirror) {
    let q = rows(client, 4, 1, 77);
    let options = DecodeOptions {
        splits: Some(1),
        ..DecodeOptions::default()
    };
    let decoded = cache.attend(&q, &[id], &options).unwrap();
    let (k, v) = (mirror.tensor(client, 0), mirror.tensor(client, 1));
    let attended = attend_forward(client, &q, &k, &v, &AttendOptions::default()).unwrap();
    assert_eq!(read(client, &decoded.out), read(client, &attended.out));
}

#[test]
fn forks_share_keys_until_one_of_them_writes() {
    let client = client();
    let mut cache = KvCache::new(&client, SIZES).unwrap();
    let (a, mut of_a) = (cache.allocate(), Mirror::default());
    add(&mut cache, &client, a, &mut of_a, 6, 10);
    let (b, mut of_b) = (cache.fork(a).unwrap(), of_a.clone());
    assert_eq!(cache.free_pages(), 10);
    same(&cache, &client, b, &of_b);
    // The page that both hold half full is copied for the first to write.
    add(&mut cache, &client, b, &mut of_b, 3, 20);
    assert_eq!(cache.free_pages(), 8);
    same(&cache, &client, a, &of_a);
    same(&cache, &client, b, &of_b);
    add(&mut cache, &client, a, &mut of_a, 1, 30);
    assert_eq!(cache.free_pages(), 8);
    same(&cache, &client, a, &of_a);
    same(&cache, &client, b, &of_b);
    cache.release(b).unwrap();
    assert_eq!(cache.free_pages(), 10);
    same(&cache, &client, a, &of_a);
    assert_eq!(
        cache.len(b),
        Err(KvCacheError::UnknownSequence { sequence: b })
    );
}

#[test]
fn a_truncated_sequence_grows_again_over_what_it_lost() {
    let client = client();
    let mut cache = KvCache::new(&client, SIZES).unwrap();
    let (a, mut of_a) = (cache.allocate(), Mirror::default());
    add(&mut cache, &client, a, &mut of_a, 5, 1);
    let kept = of_a.clone();
    add(&mut cache, &client, a, &mut of_a, 7, 2);
    cache.truncate(a, 5).unwrap();
    of_a = kept;
    same(&cache, &client, a, &of_a);
    add(&mut cache, &client, a, &mut of_a, 2, 3);
    same(&cache, &client, a, &of_a);
    let (sequence, length, asked) = (a, 7, 8);
    let past = KvCacheError::PastEnd {
        sequence,
        length,
        asked,
    };
    assert_eq!(cache.truncate(a, 8), Err(past));
}

#[test]
fn an_append_that_fails_loses_nothing() {
    let client = client();
    let mut cache = KvCache::new(&client, SIZES).unwrap();
    let (a, mut of_a) = (cache.allocate(), Mirror::default());
    add(&mut cache, &client, a, &mut of_a, 6, 10);
    let b = cache.fork(a).unwrap();
    let many = rows(&client, 2, 60, 5);
    let refused = cache.append(&[b], &many, &many, &KvAppend::default());
    let (needed, free) = (16, 10);
    assert_eq!(refused, Err(KvCacheError::OutOfPages { needed, free }));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the append needs 16 pages, the cache has 10 free ones"
    );
    // Refused by the kernel after the pages were found.
    let wide = Tensor::<4>::empty(&client, [1, 2, 1, 16], DType::F32);
    let refused = cache.append(&[b], &wide, &wide, &KvAppend::default());
    assert!(matches!(
        refused,
        Err(KvCacheError::Kernel(Error::InvalidProblem(_)))
    ));
    let twice = Tensor::<4>::empty(&client, [2, 2, 1, 8], DType::F32);
    let refused = cache.append(&[b, b], &twice, &twice, &KvAppend::default());
    assert_eq!(refused, Err(KvCacheError::RepeatedSequence { sequence: b }));
    assert_eq!((cache.free_pages(), cache.len(b)), (10, Ok(6)));
    same(&cache, &client, a, &of_a);
    same(&cache, &client, b, &of_a);
    add(&mut cache, &client, b, &mut of_a, 1, 40);
    same(&cache, &client, b, &of_a);
}

#[test]
fn batches_of_sequences_of_all_lengths_are_attended_together() {
    let client = client();
    let mut cache = KvCache::new(&client, SIZES).unwrap();
    let ids = [0, 3, 9].map(|s: usize| {
        let (id, mut mirror) = (cache.allocate(), Mirror::default());
        if s > 0 {
            add(&mut cache, &client, id, &mut mirror, s, s);
        }
        (id, mirror)
    });
    // Left-padded and ragged: three rows each, of which 1, 2 and 0 are tokens.
    let new = |from| {
        let all: Vec<u8> = (0..3usize)
            .flat_map(|n| read(&client, &rows(&client, 2, 3, from + 10 * n)))
            .flat_map(f32::to_le_bytes)
            .collect();
        Tensor::<4>::contiguous(client.create_from_slice(&all), [3, 2, 3, 8], DType::F32)
    };
    let options = KvAppend {
        rows: Some(&[(2, 1), (1, 2), (0, 0)]),
        ..KvAppend::default()
    };
    let order = [ids[0].0, ids[1].0, ids[2].0];
    cache.append(&order, &new(50), &new(51), &options).unwrap();
    assert_eq!(order.map(|id| cache.len(id).unwrap()), [1, 5, 9]);
    let q = {
        let one = read(&client, &rows(&client, 4, 1, 77));
        let bytes: Vec<u8> = one.repeat(3).iter().flat_map(|x| x.to_le_bytes()).collect();
        Tensor::contiguous(client.create_from_slice(&bytes), [3, 4, 1, 8], DType::F32)
    };
    let together = cache.attend(&q, &order, &DecodeOptions::default()).unwrap();
    let all = read(&client, &together.out);
    same(&cache, &client, order[2], &ids[2].1);
    for (n, id) in order.into_iter().enumerate() {
        let alone = cache.attend(&rows(&client, 4, 1, 77), &[id], &DecodeOptions::default());
        assert_eq!(all[n * 32..][..32], read(&client, &alone.unwrap().out)[..]);
    }
}
