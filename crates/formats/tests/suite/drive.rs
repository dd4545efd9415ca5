//! What a stranger's bytes are put through: every reader, as far as it goes. Nothing may panic, and
//! what is accepted must hold together. Shared with the fuzz targets.

use std::io::Write;

use flashcube_formats::*;

/// Values decoded of one tensor at most: a hostile header must cost no time either.
const MOST: usize = 1 << 16;

fn file(bytes: &[u8], suffix: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(suffix).tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// A safetensors file; whether it was accepted.
pub(crate) fn safetensors(bytes: &[u8]) -> bool {
    let file = file(bytes, ".safetensors");
    let Ok(checkpoint) = Checkpoint::open(file.path()) else {
        return false;
    };
    for name in checkpoint.names() {
        let view = checkpoint.tensor(name).unwrap();
        if view.bytes.len() > MOST {
            continue;
        }
        let elements: usize = view.shape.iter().product();
        if let Ok(values) = view.to_f32() {
            assert_eq!(values.len(), elements);
        }
        let _ = (view.to_words(), view.to_f16_exact(), view.to_vec::<bool>());
        let _ = input_divisor(&checkpoint, name, elements);
    }
    linear(&checkpoint);
    true
}

/// The linear of a golden file, by the configuration in its metadata.
fn linear(checkpoint: &Checkpoint) {
    let json = checkpoint.metadata().get("quantization_config");
    let json = json.and_then(|text| serde_json::from_str(text).ok());
    let Some(Ok(config)) = json.map(|json| QuantConfig::from_json(&json)) else {
        return;
    };
    if let Ok(packed) = PackedLinear::load(checkpoint, "linear", &config)
        && packed.shape.k.saturating_mul(packed.shape.n) <= MOST
        && let Ok(weights) = packed.unpack()
    {
        weights.validate().unwrap();
        let again = PackedLinear::pack(&weights, packed.format);
        if let Ok(again) = again {
            assert_eq!(again.unpack().unwrap(), weights);
        }
    }
    if let Ok(linear) = Nvfp4Linear::load(checkpoint, "linear")
        && linear.k.saturating_mul(linear.n) <= MOST
        && let Ok(weights) = linear.unpack()
    {
        weights.validate().unwrap();
    }
}

/// A GGUF file; whether it was accepted.
pub(crate) fn gguf(bytes: &[u8]) -> bool {
    let parsed = GgufHeader::parse(bytes);
    let file = file(bytes, ".gguf");
    let opened = Gguf::open(file.path());
    assert_eq!(parsed.is_ok(), opened.is_ok() && !bytes.is_empty());
    let Ok(gguf) = opened else { return false };
    for name in gguf.names() {
        let tensor = gguf.tensor(name).unwrap();
        if tensor.bytes.len() > MOST {
            continue;
        }
        if let Ok(values) = tensor.to_f32() {
            assert_eq!(values.len(), tensor.shape.iter().product::<usize>());
        }
    }
    true
}

/// A quantization config; whether it was accepted.
pub(crate) fn config(bytes: &[u8]) -> bool {
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(bytes) else {
        return false;
    };
    let Ok(config) = QuantConfig::from_json(&json) else {
        return false;
    };
    // What was read can be written and read again, and says the same.
    let again = QuantConfig::from_json(&config.to_json()).unwrap();
    assert_eq!(
        (again.bits, again.packing, again.ignore),
        (config.bits, config.packing, config.ignore)
    );
    true
}
