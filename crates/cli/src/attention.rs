//! The models' attention on a device.

use cubecl::prelude::Client;
use cubecl::server::Handle;
use flashcube::{AttendOptions, Attended, DType, Tensor, attend_forward};
use flashcube_models::{AttentionCall, ModelError};

/// One attention over given keys and values [b, h_kv, s_kv, d]; the new ones are the last.
pub(crate) fn launch(
    client: &Client,
    call: &AttentionCall<'_, f32>,
    keys: &[f32],
    values: &[f32],
    s_kv: usize,
) -> Result<Attended, String> {
    let tensor = |values: &[f32], h: usize, s: usize| {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let shape = [call.b, h, s, call.d];
        Tensor::contiguous(client.create_from_slice(&bytes), shape, DType::F32)
    };
    // Rows of equal length need no lengths, and a past has none.
    let full = call.lengths.iter().all(|&length| length == call.s);
    let options = AttendOptions {
        scale: Some(call.scale as f32),
        causal: call.causal,
        lengths_kv: (!full).then_some(call.lengths),
        ..AttendOptions::default()
    };
    let q = tensor(call.q, call.h_q, call.s);
    let [k, v] = [keys, values].map(|part| tensor(part, call.h_kv, s_kv));
    attend_forward(client, &q, &k, &v, &options).map_err(|e| e.to_string())
}

/// Reads floats back.
pub(crate) fn read(client: &Client, handle: Handle) -> Result<Vec<f32>, String> {
    let bytes = client.read_one(handle).map_err(|e| format!("{e:?}"))?;
    let (words, _) = bytes.as_chunks::<4>();
    Ok(words.iter().map(|&word| f32::from_le_bytes(word)).collect())
}

/// Computes the attention of a model that reads one text, piece by piece: keys and values of
/// earlier pieces are kept on the host and grow with it.
pub(crate) struct GrowingCache<'a> {
    client: &'a Client,
    /// For each layer, keys and values: a list [tokens, d] for every (batch row, head).
    layers: Vec<[Vec<Vec<f32>>; 2]>,
}

impl<'a> GrowingCache<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        Self {
            client,
            layers: Vec::new(),
        }
    }

    /// One attention of the model; a past of 0 forgets what was kept.
    pub(crate) fn attend(&mut self, call: AttentionCall<'_, f32>) -> Result<Vec<f32>, ModelError> {
        let s_kv = call.past + call.s;
        let [keys, values] = self.extend(&call);
        let device = |detail| ModelError::Device {
            what: "attention",
            detail,
        };
        let attended = launch(self.client, &call, &keys, &values, s_kv).map_err(device)?;
        read(self.client, attended.out.handle).map_err(device)
    }

    /// Appends the new keys and values; all of them, [b, h_kv, past + s, d].
    fn extend(&mut self, call: &AttentionCall<'_, f32>) -> [Vec<f32>; 2] {
        if self.layers.len() <= call.layer {
            self.layers.resize_with(call.layer + 1, Default::default);
        }
        let kept = &mut self.layers[call.layer];
        let rows = call.b * call.h_kv;
        for (kept, new) in kept.iter_mut().zip([call.k, call.v]) {
            if call.past == 0 {
                *kept = vec![Vec::new(); rows];
            }
            let piece = (call.s * call.d).max(1);
            for (kept, new) in kept.iter_mut().zip(new.chunks_exact(piece)) {
                kept.extend_from_slice(new);
            }
        }
        [0, 1].map(|part| kept[part].concat())
    }
}
