//! The attention of models that read whole texts, on a device.

use cubecl::prelude::Client;
use flashcube::{AttendOptions, Attended, DType, attend_forward};
use flashcube_models::{AttentionCall, ModelError};

use crate::elements::{download, upload};

/// One attention over the keys and values of the call, which has no past.
pub(crate) fn launch(client: &Client, call: &AttentionCall<'_, f32>) -> Result<Attended, String> {
    let tensor =
        |values: &[f32], h| upload(client, values, [call.b, h, call.s, call.d], DType::F32);
    // Rows of equal length need no lengths.
    let full = call.lengths.iter().all(|&length| length == call.s);
    let options = AttendOptions {
        scale: Some(call.scale as f32),
        causal: call.causal,
        lengths_kv: (!full).then_some(call.lengths),
        ..AttendOptions::default()
    };
    let q = tensor(call.q, call.h_q);
    let [k, v] = [call.k, call.v].map(|part| tensor(part, call.h_kv));
    attend_forward(client, &q, &k, &v, &options).map_err(|e| e.to_string())
}

/// The result of one attention: [b, h_q, s, d].
pub(crate) fn attend(
    client: &Client,
    call: &AttentionCall<'_, f32>,
) -> Result<Vec<f32>, ModelError> {
    let attended = launch(client, call).and_then(|attended| download(client, &attended.out));
    attended.map_err(|detail| ModelError::Device {
        what: "attention",
        detail,
    })
}
