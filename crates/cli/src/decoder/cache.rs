use cubecl::prelude::Client;
use flashcube::{
    AttendOptions, DType, DecodeOptions, KvAppend, KvCache, KvCacheSizes, SequenceId,
    attend_forward,
};
use flashcube_models::{AttentionCall, ModelError};

use crate::elements::{download, upload};

/// Rows of a page.
const PAGE: usize = 64;

/// The attention of a decoder that reads texts of equal length piece by piece: a first piece attends
/// to itself, later ones to the paged cache that all of them fill.
pub(crate) struct CachedAttention<'a> {
    client: &'a Client,
    /// Type of queries, keys and values.
    dtype: DType,
    /// Most keys of a text.
    capacity: usize,
    layers: Vec<Option<Layer>>,
}

struct Layer {
    cache: KvCache,
    sequences: Vec<SequenceId>,
}

impl<'a> CachedAttention<'a> {
    /// Nothing read yet; a text may have `capacity` tokens.
    pub(crate) fn new(client: &'a Client, dtype: DType, capacity: usize) -> Self {
        Self {
            client,
            dtype,
            capacity,
            layers: Vec::new(),
        }
    }

    /// One attention of the model; a past of 0 forgets what was kept.
    pub(crate) fn attend(&mut self, call: AttentionCall<'_, f32>) -> Result<Vec<f32>, ModelError> {
        self.attended(&call).map_err(|detail| ModelError::Device {
            what: "attention",
            detail,
        })
    }

    fn attended(&mut self, call: &AttentionCall<'_, f32>) -> Result<Vec<f32>, String> {
        let (client, dtype) = (self.client, self.dtype);
        let tensor = |values: &[f32], h| upload(client, values, [call.b, h, call.s, call.d], dtype);
        let q = tensor(call.q, call.h_q);
        let [k, v] = [call.k, call.v].map(|values| tensor(values, call.h_kv));
        let Layer { cache, sequences } = self.layer(call)?;
        cache
            .append(sequences, &k, &v, &KvAppend::default())
            .map_err(|e| e.to_string())?;
        let attend = AttendOptions {
            scale: Some(call.scale as f32),
            causal: call.causal,
            ..AttendOptions::default()
        };
        let out = match call.past {
            0 => attend_forward(client, &q, &k, &v, &attend).map(|attended| attended.out),
            _ => {
                let options = DecodeOptions {
                    attend,
                    ..DecodeOptions::default()
                };
                let decoded = cache.attend(&q, sequences, &options);
                return download(client, &decoded.map_err(|e| e.to_string())?.out);
            }
        };
        download(client, &out.map_err(|e| e.to_string())?)
    }

    /// The layer's cache, emptied or made where a text begins.
    fn layer(&mut self, call: &AttentionCall<'_, f32>) -> Result<&mut Layer, String> {
        if self.layers.len() <= call.layer {
            self.layers.resize_with(call.layer + 1, || None);
        }
        let slot = &mut self.layers[call.layer];
        if call.past == 0 {
            let sizes = KvCacheSizes {
                pages: call.b * self.capacity.div_ceil(PAGE),
                page: PAGE,
                h_kv: call.h_kv,
                d: call.d,
                d_v: call.d,
                dtype: self.dtype,
            };
            let mut layer = match slot.take().filter(|layer| layer.cache.sizes() == sizes) {
                Some(layer) => layer,
                None => Layer {
                    cache: KvCache::new(self.client, sizes).map_err(|e| e.to_string())?,
                    sequences: Vec::new(),
                },
            };
            for sequence in layer.sequences.drain(..) {
                layer.cache.release(sequence).map_err(|e| e.to_string())?;
            }
            layer.sequences = (0..call.b).map(|_| layer.cache.allocate()).collect();
            *slot = Some(layer);
        }
        let kept = |layer: &Layer| layer.cache.len(layer.sequences[0]).unwrap_or(0);
        match slot {
            Some(layer) if call.b == 0 || kept(layer) == call.past => Ok(layer),
            _ => Err(format!(
                "layer {} was not given the {} tokens before these",
                call.layer, call.past
            )),
        }
    }
}
