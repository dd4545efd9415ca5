//! Writing safetensors: whole files through a temporary file beside the target, so that a reader
//! sees the old file or the new one and never half of either.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use safetensors::Dtype;
use serde_json::{Map, Value, json};

use crate::checkpoint::TensorView;
use crate::element::Element;
use crate::error::{FormatError, check_len};

/// A tensor to write.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorData {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl TensorData {
    /// A row-major tensor; [`FormatError::WrongShape`] when `values` has another length than
    /// `shape`.
    pub fn new<T: Element>(shape: &[usize], values: &[T]) -> Result<Self, FormatError> {
        check_len("values", values.len(), shape)?;
        let mut bytes = Vec::with_capacity(values.len() * T::DTYPE.bitsize() / 8);
        for &value in values {
            value.push_le(&mut bytes);
        }
        Ok(Self {
            dtype: T::DTYPE,
            shape: shape.to_vec(),
            bytes,
        })
    }

    /// A tensor of a byte-sized dtype that has no Rust type here, such as F8_E4M3.
    pub fn from_bytes(dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Result<Self, FormatError> {
        let bits = [shape, &[dtype.bitsize()]].concat();
        let total = crate::error::product("bytes", &bits)?;
        if total != bytes.len() * 8 {
            let tensor = "bytes".to_owned();
            return Err(FormatError::WrongShape {
                tensor,
                found: vec![bytes.len()],
                expected: shape.to_vec(),
            });
        }
        Ok(Self {
            dtype,
            shape: shape.to_vec(),
            bytes,
        })
    }

    /// Its element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its elements, row-major and little-endian.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The tensor under a name, as a reader would see it.
    pub fn view<'a>(&'a self, name: &'a str) -> TensorView<'a> {
        TensorView {
            name,
            dtype: self.dtype,
            shape: &self.shape,
            bytes: &self.bytes,
        }
    }
}

/// Writes one safetensors file: the same input gives the same bytes.
///
/// The file appears under its name only when it is complete and on disk; an older file of that name
/// is replaced.
///
/// # Errors
/// [`FormatError::Io`]; the target is then as it was before.
pub fn save(
    path: impl AsRef<Path>,
    tensors: &BTreeMap<String, TensorData>,
    metadata: &BTreeMap<String, String>,
) -> Result<(), FormatError> {
    save_views(path, named_views(tensors), metadata)
}

fn named_views(tensors: &BTreeMap<String, TensorData>) -> Vec<TensorView<'_>> {
    tensors
        .iter()
        .map(|(name, tensor)| tensor.view(name))
        .collect()
}

/// Writes `model-00001-of-0000N.safetensors` files of at most `max_bytes` of tensor data each (a
/// larger tensor gets its own) and, last, their `model.safetensors.index.json`.
pub fn save_sharded(
    folder: impl AsRef<Path>,
    tensors: &BTreeMap<String, TensorData>,
    metadata: &BTreeMap<String, String>,
    max_bytes: usize,
) -> Result<(), FormatError> {
    save_sharded_views(folder, named_views(tensors), metadata, max_bytes)
}

/// [`save_sharded`] of tensors that lie anywhere: those of open checkpoints are copied from file to
/// file without being held in memory.
///
/// # Errors
/// As [`save_views`].
pub fn save_sharded_views(
    folder: impl AsRef<Path>,
    tensors: Vec<TensorView<'_>>,
    metadata: &BTreeMap<String, String>,
    max_bytes: usize,
) -> Result<(), FormatError> {
    let folder = folder.as_ref();
    let mut shards: Vec<Vec<TensorView<'_>>> = vec![Vec::new()];
    let (mut filled, mut total) = (0usize, 0usize);
    for tensor in tensors {
        if filled > 0 && filled.saturating_add(tensor.bytes.len()) > max_bytes {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += tensor.bytes.len();
        total += tensor.bytes.len();
        if let Some(shard) = shards.last_mut() {
            shard.push(tensor);
        }
    }
    let mut weight_map = Map::new();
    let count = shards.len();
    for (at, shard) in shards.into_iter().enumerate() {
        let file = format!("model-{:05}-of-{count:05}.safetensors", at + 1);
        weight_map.extend(
            shard
                .iter()
                .map(|tensor| (tensor.name.to_owned(), Value::from(file.as_str()))),
        );
        save_views(folder.join(&file), shard, metadata)?;
    }
    let mut index_metadata: Map<String, Value> = metadata
        .iter()
        .map(|(key, value)| (key.clone(), json!(value)))
        .collect();
    index_metadata.insert("total_size".to_owned(), json!(total));
    let index = json!({ "metadata": index_metadata, "weight_map": weight_map });
    save_json(folder.join("model.safetensors.index.json"), &index)
}

/// The key of a header that holds no tensor.
const METADATA: &str = "__metadata__";

/// [`save`] of tensors that lie anywhere.
///
/// # Errors
/// [`FormatError::Io`], [`FormatError::Unsupported`] for the name `__metadata__` or one that comes
/// twice; the target is then as it was before.
pub fn save_views(
    path: impl AsRef<Path>,
    mut tensors: Vec<TensorView<'_>>,
    metadata: &BTreeMap<String, String>,
) -> Result<(), FormatError> {
    let path = path.as_ref();
    let refuse =
        |name: &str, limit| FormatError::unsupported("safetensors", "a tensor name", name, limit);
    let mut seen = BTreeSet::new();
    for tensor in &tensors {
        if tensor.name == METADATA {
            return Err(refuse(METADATA, "the name is reserved"));
        }
        if !seen.insert(tensor.name) {
            return Err(refuse(tensor.name, "every name comes once"));
        }
    }
    // Widest elements first, so that every tensor starts at a multiple of its element size.
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.bitsize()));
    replace(path, |out| write_safetensors(out, &tensors, metadata)).map_err(FormatError::io(path))
}

fn write_safetensors(
    out: &mut impl Write,
    tensors: &[TensorView<'_>],
    metadata: &BTreeMap<String, String>,
) -> io::Result<()> {
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert(METADATA.to_owned(), json!(metadata));
    }
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + tensor.bytes.len();
        let entry =
            json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end] });
        header.insert(tensor.name.to_owned(), entry);
        offset = end;
    }
    let mut text = serde_json::to_vec(&header)?;
    text.resize(text.len().next_multiple_of(8), b' ');
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(&text)?;
    tensors
        .iter()
        .try_for_each(|tensor| out.write_all(tensor.bytes))
}

/// Writes a JSON file, whole or not at all.
///
/// # Errors
/// [`FormatError::Io`].
pub fn save_json(path: impl AsRef<Path>, value: &Value) -> Result<(), FormatError> {
    let path = path.as_ref();
    replace(path, |out| {
        serde_json::to_writer_pretty(out, value).map_err(io::Error::from)
    })
    .map_err(FormatError::io(path))
}

/// Fills a temporary file in the target's own folder (a rename across file systems would copy) and
/// renames it.
fn replace(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Temporary files are private by default; a checkpoint gets the permissions of any other
        // output.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let temporary = builder.prefix(".partial-").tempfile_in(folder)?;
    let mut out = BufWriter::new(temporary.as_file());
    fill(&mut out)?;
    out.flush()?;
    drop(out);
    temporary.as_file().sync_all()?;
    temporary
        .persist(path)
        .map(drop)
        .map_err(|error| error.error)
}
