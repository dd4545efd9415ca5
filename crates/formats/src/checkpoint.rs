//! Reading safetensors: one file, or shards with `model.safetensors.index.json`, memory-mapped.
//!
//! Format: <https://github.com/huggingface/safetensors#format>.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, SafeTensors};

use crate::element::{self, Element};
use crate::error::FormatError;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// An open checkpoint: the headers are parsed and checked, tensor bytes stay on disk until they are
/// read.
///
/// The files must not change while it is open: they are memory-mapped.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    shards: Vec<Shard>,
    /// Tensor name -> position in `shards`.
    index: BTreeMap<String, usize>,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Shard {
    map: Mmap,
    header: Metadata,
    /// First byte of tensor data: 8 bytes of length plus the header.
    data: usize,
}

/// One tensor of an open checkpoint: row-major, little-endian, at any alignment.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Its name in the checkpoint.
    pub name: &'a str,
    /// Its element type.
    pub dtype: Dtype,
    /// Its sizes, outermost first.
    pub shape: &'a [usize],
    /// Its elements.
    pub bytes: &'a [u8],
}

impl Checkpoint {
    /// Opens a `.safetensors` file, an index `.json`, or a folder that holds
    /// `model.safetensors.index.json` or `model.safetensors`.
    ///
    /// # Errors
    /// [`FormatError::Io`] when a file cannot be read; [`FormatError::Corrupt`] for a bad header, a
    /// file cut short or with bytes left over, overlapping tensors, or a shard name that leaves the
    /// folder; [`FormatError::MissingTensor`] when a shard lacks a tensor that the index promises.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        let path = path.as_ref();
        if path.is_dir() {
            let index = path.join(INDEX);
            return if index.exists() {
                Self::sharded(&index)
            } else {
                Self::single(&path.join(SINGLE))
            };
        }
        match path.extension() {
            Some(extension) if extension == "json" => Self::sharded(path),
            _ => Self::single(path),
        }
    }

    fn single(path: &Path) -> Result<Self, FormatError> {
        let shard = Shard::open(path)?;
        let index = shard
            .header
            .tensors()
            .into_keys()
            .map(|name| (name, 0))
            .collect();
        let metadata = shard
            .header
            .metadata()
            .clone()
            .unwrap_or_default()
            .into_iter()
            .collect();
        Ok(Self {
            path: path.to_owned(),
            shards: vec![shard],
            index,
            metadata,
        })
    }

    fn sharded(path: &Path) -> Result<Self, FormatError> {
        #[derive(serde::Deserialize)]
        struct Index {
            #[serde(default)]
            metadata: HashMap<String, serde_json::Value>,
            weight_map: BTreeMap<String, String>,
        }
        const KIND: &str = "safetensors index";
        let text = std::fs::read(path).map_err(FormatError::io(path))?;
        let parsed: Index =
            serde_json::from_slice(&text).map_err(|e| FormatError::corrupt(path, KIND, e))?;

        let files: BTreeSet<&str> = parsed.weight_map.values().map(String::as_str).collect();
        let mut shards = Vec::with_capacity(files.len());
        let mut position = HashMap::new();
        for file in files {
            if Path::new(file).file_name() != Some(file.as_ref()) {
                let reason = format!("shard name `{file}` is not a plain file name");
                return Err(FormatError::corrupt(path, KIND, reason));
            }
            let shard = path.with_file_name(file);
            position.insert(file.to_owned(), (shards.len(), shard.clone()));
            shards.push(Shard::open(&shard)?);
        }

        let mut index = BTreeMap::new();
        for (tensor, file) in parsed.weight_map {
            let (at, shard) = &position[&file];
            if shards[*at].header.info(&tensor).is_none() {
                return Err(FormatError::MissingTensor {
                    tensor,
                    path: shard.clone(),
                });
            }
            index.insert(tensor, *at);
        }
        let metadata = parsed
            .metadata
            .into_iter()
            .map(|(key, value)| {
                (
                    key,
                    value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned),
                )
            })
            .collect();
        Ok(Self {
            path: path.to_owned(),
            shards,
            index,
            metadata,
        })
    }

    /// The file that was opened: the tensors' own, or the index.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every tensor name, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.index.keys().map(String::as_str)
    }

    /// Whether a tensor of this name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// The `__metadata__` of a single file, or the index's `metadata` (numbers as their JSON text).
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// One tensor, or [`FormatError::MissingTensor`].
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, FormatError> {
        let missing = || FormatError::MissingTensor {
            tensor: name.to_owned(),
            path: self.path.clone(),
        };
        let (name, &shard) = self.index.get_key_value(name).ok_or_else(missing)?;
        let shard = &self.shards[shard];
        let info = shard.header.info(name).ok_or_else(missing)?;
        let (start, end) = info.data_offsets;
        let bytes = &shard.map[shard.data + start..shard.data + end];
        Ok(TensorView {
            name,
            dtype: info.dtype,
            shape: &info.shape,
            bytes,
        })
    }

    /// One tensor if it exists.
    pub fn optional(&self, name: &str) -> Result<Option<TensorView<'_>>, FormatError> {
        self.contains(name).then(|| self.tensor(name)).transpose()
    }
}

impl Shard {
    fn open(path: &Path) -> Result<Self, FormatError> {
        let file = File::open(path).map_err(FormatError::io(path))?;
        // SAFETY: a mapping is sound as long as nobody changes the file below it, which
        // `Checkpoint` asks of its caller. Every bit pattern is a valid u8, no other type is ever
        // laid over the map, and the header check below bounds every tensor by the mapped length.
        // Test: `truncated_file_is_a_typed_error`.
        let map = unsafe { Mmap::map(&file) }.map_err(FormatError::io(path))?;
        let (header_len, header) = SafeTensors::read_metadata(&map)
            .map_err(|error| FormatError::corrupt(path, "safetensors file", error))?;
        Ok(Self {
            map,
            header,
            data: 8 + header_len,
        })
    }
}

impl TensorView<'_> {
    /// The elements as they are stored.
    ///
    /// # Errors
    /// [`FormatError::WrongDtype`] when the tensor holds another type, [`FormatError::OutOfRange`]
    /// for a bool that is neither 0 nor 1.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, FormatError> {
        if self.dtype != T::DTYPE {
            return Err(self.wrong_dtype(&[T::DTYPE]));
        }
        element::decode(self.bytes).map_err(|index| FormatError::OutOfRange {
            tensor: self.name.to_owned(),
            index,
            value: self.bytes[index].into(),
            limit: 2,
        })
    }

    /// The elements widened to f32, from F32, F16 or BF16: exact.
    pub fn to_f32(&self) -> Result<Vec<f32>, FormatError> {
        Ok(match self.dtype {
            Dtype::F16 => self.to_vec::<f16>()?.into_iter().map(f16::to_f32).collect(),
            Dtype::BF16 => self
                .to_vec::<bf16>()?
                .into_iter()
                .map(bf16::to_f32)
                .collect(),
            Dtype::F32 => self.to_vec()?,
            _ => return Err(self.wrong_dtype(&[Dtype::F32, Dtype::F16, Dtype::BF16])),
        })
    }

    /// The elements as f16, from F16, or from BF16 or F32 where every one is exact.
    ///
    /// # Errors
    /// [`FormatError::Inexact`] for the first value that f16 would round; NaN and infinities pass.
    pub fn to_f16_exact(&self) -> Result<Vec<f16>, FormatError> {
        if self.dtype == Dtype::F16 {
            return self.to_vec();
        }
        let narrow = |(index, value): (usize, f32)| {
            let half = f16::from_f32(value);
            let exact = half.to_f32() == value || value.is_nan();
            exact.then_some(half).ok_or_else(|| FormatError::Inexact {
                tensor: self.name.to_owned(),
                index,
                value,
            })
        };
        self.to_f32()?.into_iter().enumerate().map(narrow).collect()
    }

    /// 32-bit words of packed fields, from I32 or U32.
    pub fn to_words(&self) -> Result<Vec<u32>, FormatError> {
        match self.dtype {
            Dtype::U32 => self.to_vec(),
            Dtype::I32 => Ok(self
                .to_vec::<i32>()?
                .into_iter()
                .map(|word| word as u32)
                .collect()),
            _ => Err(self.wrong_dtype(&[Dtype::I32, Dtype::U32])),
        }
    }

    /// This tensor if it has exactly this shape, else [`FormatError::WrongShape`].
    pub fn with_shape(self, expected: &[usize]) -> Result<Self, FormatError> {
        if self.shape == expected {
            return Ok(self);
        }
        Err(FormatError::WrongShape {
            tensor: self.name.to_owned(),
            found: self.shape.to_vec(),
            expected: expected.to_vec(),
        })
    }

    pub(crate) fn wrong_dtype(&self, expected: &[Dtype]) -> FormatError {
        let expected: Vec<_> = expected.iter().map(|dtype| format!("{dtype:?}")).collect();
        FormatError::WrongDtype {
            tensor: self.name.to_owned(),
            found: format!("{:?}", self.dtype),
            expected: expected.join(" or "),
        }
    }
}
