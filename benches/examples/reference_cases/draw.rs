//! The tensors of a case, and the reference's results.

use flashcube_formats::{Element, FormatError, TensorData};
use flashcube_reference::{Broadcast, Error, Options, Tensor4, backward, forward};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::StandardNormal;

use crate::case::{Case, Full, Values};

/// A broadcast operand: values and [b, h_q, s_q, s_kv], axes of size 1 included.
type Pairs<T> = (Vec<T>, [usize; 4]);

/// Everything drawn for one case.
pub(crate) struct Drawn {
    q: Tensor4,
    k: Tensor4,
    v: Tensor4,
    d_out: Tensor4,
    d_lse: Option<Vec<f64>>,
    alibi: Option<Vec<f64>>,
    bias: Option<Pairs<f64>>,
    mask: Option<Pairs<bool>>,
    lengths: Option<(Vec<usize>, Vec<usize>)>,
    /// [b, s_q] and [b, s_kv]
    documents: Option<(Vec<u32>, Vec<u32>)>,
}

type Named = Vec<(&'static str, TensorData)>;

impl Drawn {
    /// The same values for the same case and seed.
    pub(crate) fn new(case: &Case, seed: u64) -> Result<Self, Error> {
        let [b, h_q, h_kv, s_q, s_kv, d, d_v] = case.sizes;
        let mut rng = StdRng::seed_from_u64(seed);
        let mut draw = |shape: [usize; 4], values| tensor(&mut rng, shape, values);
        // Only scores are to be large, and only v tells keys apart by their index.
        let (of_scores, of_v) = match case.values {
            Values::Large(_) => (case.values, Values::Normal),
            Values::Indexed => (Values::Normal, case.values),
            other => (other, other),
        };
        let q = draw([b, h_q, s_q, d], of_scores)?;
        let k = draw([b, h_kv, s_kv, d], of_scores)?;
        let v = draw([b, h_kv, s_kv, d_v], of_v)?;
        let d_out = draw([b, h_q, s_q, d_v], Values::Normal)?;
        let d_lse = case.d_lse.then(|| normal(&mut rng, b * h_q * s_q));
        Ok(Self {
            q,
            k,
            v,
            d_out,
            d_lse,
            alibi: case.alibi.then(|| slopes(h_q)),
            bias: case.bias.map(|full| bias(&mut rng, case, full)),
            mask: case.mask.map(|full| mask(&mut rng, case, full)),
            lengths: case.lengths.map(|(q, kv)| (q.to_vec(), kv.to_vec())),
            documents: case
                .documents
                .map(|(in_q, in_kv)| (document_ids(b, s_q, in_q), document_ids(b, s_kv, in_kv))),
        })
    }

    /// The inputs by name.
    pub(crate) fn tensors(&self) -> Result<Named, FormatError> {
        let [b, h_q, s_q, _] = self.q.shape;
        let s_kv = self.k.shape[2];
        let mut named = vec![
            ("q", dense(&self.q)?),
            ("k", dense(&self.k)?),
            ("v", dense(&self.v)?),
            ("d_out", dense(&self.d_out)?),
        ];
        let mut push = |name, tensor: Option<Result<TensorData, FormatError>>| {
            if let Some(tensor) = tensor {
                named.push((name, tensor?));
            }
            Ok::<(), FormatError>(())
        };
        let d_lse = self.d_lse.as_ref();
        push("d_lse", d_lse.map(|x| TensorData::new(&[b, h_q, s_q], x)))?;
        push(
            "alibi",
            self.alibi.as_ref().map(|x| TensorData::new(&[h_q], x)),
        )?;
        push("bias", self.bias.as_ref().map(pairs))?;
        push("mask", self.mask.as_ref().map(pairs))?;
        if let Some((q, kv)) = &self.lengths {
            push("lengths_q", Some(indices(&[b], q)))?;
            push("lengths_kv", Some(indices(&[b], kv)))?;
        }
        if let Some((q, kv)) = &self.documents {
            push("documents_q", Some(indices(&[b, s_q], q)))?;
            push("documents_kv", Some(indices(&[b, s_kv], kv)))?;
        }
        Ok(named)
    }

    /// The reference's out, lse, dq, dk and dv.
    pub(crate) fn results(&self, case: &Case) -> Result<Named, Box<dyn std::error::Error>> {
        let options = self.options(case);
        let (q, k, v) = (&self.q, &self.k, &self.v);
        let result = forward(q, k, v, &options)?;
        let grads = backward(q, k, v, &self.d_out, &options, self.d_lse.as_deref())?;
        Ok(vec![
            ("out", dense(&result.out)?),
            ("lse", TensorData::new(&q.shape[..3], &result.lse)?),
            ("dq", dense(&grads.dq)?),
            ("dk", dense(&grads.dk)?),
            ("dv", dense(&grads.dv)?),
        ])
    }

    fn options(&self, case: &Case) -> Options<'_> {
        let lengths = self.lengths.as_ref();
        let documents = self.documents.as_ref();
        Options {
            scale: case.scale(),
            softcap: case.softcap,
            causal: case.causal,
            alignment: case.alignment,
            window_left: case.window_left,
            window_right: case.window_right,
            lengths_q: lengths.map(|(q, _)| q.as_slice()),
            lengths_kv: lengths.map(|(_, kv)| kv.as_slice()),
            cu_seqlens: None,
            documents: documents.map(|(q, kv)| (q.as_slice(), kv.as_slice())),
            mask: self.mask.as_ref().map(broadcast),
            bias: self.bias.as_ref().map(broadcast),
            alibi: self.alibi.as_deref(),
            sinks: None,
        }
    }
}

fn broadcast<T>((data, shape): &Pairs<T>) -> Broadcast<'_, T> {
    Broadcast {
        data,
        shape: *shape,
    }
}

fn normal(rng: &mut StdRng, count: usize) -> Vec<f64> {
    rng.sample_iter(StandardNormal).take(count).collect()
}

fn tensor(rng: &mut StdRng, shape: [usize; 4], values: Values) -> Result<Tensor4, Error> {
    let mut data = normal(rng, shape.iter().product());
    match values {
        Values::Normal => {}
        Values::Large(factor) => data.iter_mut().for_each(|x| *x *= factor),
        Values::Outliers => {
            let hit = data.iter_mut().filter(|_| rng.random_ratio(1, 1000));
            hit.for_each(|x| *x *= 10.0);
        }
        Values::Indexed => {
            let [_, _, s, d] = shape;
            let rows = data.chunks_exact_mut(d).enumerate();
            rows.for_each(|(row, x)| x[0] = (row % s) as f64);
        }
    }
    Tensor4::new(shape, data)
}

/// 2^(-8 (h + 1) / h_q), the slopes of the paper (Press et al., arXiv 2108.12409).
fn slopes(h_q: usize) -> Vec<f64> {
    let slope = |h| (-8.0 * (h + 1) as f64 / h_q as f64).exp2();
    (0..h_q).map(slope).collect()
}

/// Normal values, every ninth -inf.
fn bias(rng: &mut StdRng, case: &Case, full: Full) -> Pairs<f64> {
    let shape = case.pair_shape(full);
    let mut values = normal(rng, shape.iter().product());
    let hidden = values.iter_mut().filter(|_| rng.random_ratio(1, 9));
    hidden.for_each(|x| *x = f64::NEG_INFINITY);
    (values, shape)
}

/// A third of the pairs hidden, and all of query 0.
fn mask(rng: &mut StdRng, case: &Case, full: Full) -> Pairs<bool> {
    let shape = case.pair_shape(full);
    let [b, h, s_q, s_kv] = shape;
    let rows = (0..b * h * s_q).flat_map(|row| (0..s_kv).map(move |_| row));
    let hidden = rows.map(|row| (full[2] && row % s_q == 0) || rng.random_ratio(1, 3));
    (hidden.collect(), shape)
}

/// [b, s]: documents of `length`, numbered from the batch entry's own number on.
fn document_ids(b: usize, s: usize, length: usize) -> Vec<u32> {
    let ids = (0..b).flat_map(|b| (0..s).map(move |i| (b + i / length) as u32));
    ids.collect()
}

fn dense(tensor: &Tensor4) -> Result<TensorData, FormatError> {
    TensorData::new(&tensor.shape, &tensor.data)
}

fn pairs<T: Element>((values, shape): &Pairs<T>) -> Result<TensorData, FormatError> {
    TensorData::new(shape, values)
}

fn indices<T: Copy + TryInto<i64>>(
    shape: &[usize],
    values: &[T],
) -> Result<TensorData, FormatError> {
    let values = values.iter().map(|&x| x.try_into().unwrap_or(i64::MAX));
    TensorData::new(shape, &values.collect::<Vec<i64>>())
}
