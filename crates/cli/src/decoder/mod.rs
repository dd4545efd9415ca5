//! Decoders whose parts run on a device: attention over a paged cache, linears by packed weights.

mod agreement;
mod cache;
mod linear;

pub(crate) use agreement::{Agreement, agreement};
pub(crate) use cache::CachedAttention;

use cubecl::prelude::Client;
use flashcube::DType;
use flashcube_models::{Linear, Llama, Model, dense};

use crate::failure::{Failure, Result};
use linear::PackedOnDevice;

/// The decoder of a quantized model, its packed linears on a device, those left in floats on the host.
///
/// # Errors
/// [`Failure::Usage`] for a model that is not quantized, or is no decoder.
pub(crate) fn packed_decoder(model: &Model, client: &Client, dtype: DType) -> Result<Llama> {
    let Some(checkpoint) = model.quantized() else {
        let what = format!("{}: its linears are not quantized", model.path.display());
        return Err(Failure::usage(
            what,
            "`flashcube quantize` makes such a model",
        ));
    };
    let decoder = model.decoder(Some(&|prefix, k, n| -> Result<Box<dyn Linear>, _> {
        match checkpoint.is_packed(prefix) {
            true => {
                let linear = PackedOnDevice::load(client, checkpoint, prefix, [k, n], dtype)?;
                Ok(Box::new(linear))
            }
            false => dense(model.weights(), prefix, k, n),
        }
    }))?;
    Ok(decoder)
}
