//! The GGUF container: metadata and tensors of one memory-mapped file. Versions 2 and 3,
//! little-endian. Source: ggml's `docs/gguf.md`.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;

use crate::error::{FormatError, product};
use crate::gguf::{GgufBlocks, GgufKind};
use crate::gguf_reader::Reader;

/// A metadata value. Integers of every width are one kind, floats another.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum GgufValue {
    /// u8 to u64.
    Unsigned(u64),
    /// i8 to i64.
    Signed(i64),
    /// f32 and f64.
    Float(f64),
    /// bool.
    Bool(bool),
    /// A UTF-8 string.
    Text(String),
    /// Values of one type.
    Array(Vec<GgufValue>),
}

/// How a tensor's values are stored: the type's number in the file and its name, and how many
/// values make a block of how many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufType {
    id: u32,
    /// As ggml spells it.
    pub name: &'static str,
    /// Values along the first axis that are stored together.
    pub block: usize,
    /// Bytes of a block.
    pub bytes: usize,
}

const fn tensor_type(id: u32, name: &'static str, block: usize, bytes: usize) -> GgufType {
    GgufType {
        id,
        name,
        block,
        bytes,
    }
}

/// Every type whose size is known; those that can be read are in [`GgufTensor::to_f32`].
const TYPES: [GgufType; 20] = [
    tensor_type(0, "F32", 1, 4),
    tensor_type(1, "F16", 1, 2),
    tensor_type(2, "Q4_0", 32, 18),
    tensor_type(3, "Q4_1", 32, 20),
    tensor_type(6, "Q5_0", 32, 22),
    tensor_type(7, "Q5_1", 32, 24),
    tensor_type(8, "Q8_0", 32, 34),
    tensor_type(9, "Q8_1", 32, 36),
    tensor_type(10, "Q2_K", 256, 84),
    tensor_type(11, "Q3_K", 256, 110),
    tensor_type(12, "Q4_K", 256, 144),
    tensor_type(13, "Q5_K", 256, 176),
    tensor_type(14, "Q6_K", 256, 210),
    tensor_type(15, "Q8_K", 256, 292),
    tensor_type(24, "I8", 1, 1),
    tensor_type(25, "I16", 1, 2),
    tensor_type(26, "I32", 1, 4),
    tensor_type(27, "I64", 1, 8),
    tensor_type(28, "F64", 1, 8),
    tensor_type(30, "BF16", 1, 2),
];

/// An open GGUF file: the header is parsed and checked, tensor bytes stay on disk until they are
/// read. The file must not change while it is open: it is memory-mapped.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    map: Mmap,
    header: GgufHeader,
}

/// The header of a GGUF file, every tensor checked to lie inside the file and apart from the
/// others.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufHeader {
    metadata: BTreeMap<String, GgufValue>,
    tensors: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    kind: GgufType,
    /// Outermost first: [n, k] of a weight.
    shape: Vec<usize>,
    start: usize,
    end: usize,
}

/// One tensor of an open file.
#[derive(Debug, Clone, Copy)]
pub struct GgufTensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// How its values are stored.
    pub kind: GgufType,
    /// Its sizes, outermost first: [n, k] for the weight of a linear.
    pub shape: &'a [usize],
    /// Its blocks.
    pub bytes: &'a [u8],
}

impl GgufHeader {
    /// Parses the start of a file that has `bytes` in all.
    ///
    /// # Errors
    /// What is wrong, in words: another magic or version, a count or length past the end of the
    /// file, a name that comes twice, a tensor type of unknown size, a tensor that leaves the file
    /// or overlaps another.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = Reader::new(bytes);
        if reader.take(4)? != b"GGUF" {
            return Err("it does not start with GGUF".to_owned());
        }
        let version = reader.u32()?;
        if !matches!(version, 2 | 3) {
            return Err(format!("version {version}, versions 2 and 3 are known"));
        }
        // A tensor takes at least 8 + 4 + 4 + 8 bytes, a pair 8 + 4 + 1.
        let tensor_count = reader.count("tensors", 24)?;
        let pair_count = reader.count("metadata pairs", 13)?;
        let mut metadata = BTreeMap::new();
        for _ in 0..pair_count {
            let key = reader.text()?;
            let value = reader.tagged_value()?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(format!("metadata `{key}` comes twice"));
            }
        }
        let mut entries = Vec::new();
        for _ in 0..tensor_count {
            entries.push(tensor_info(&mut reader)?);
        }
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(GgufValue::Unsigned(value @ 1..=4096)) => *value as usize,
            Some(other) => return Err(format!("general.alignment is {other:?}")),
        };
        let data = reader.position().next_multiple_of(alignment);
        let tensors = place(entries, data, alignment, bytes.len())?;
        Ok(Self { metadata, tensors })
    }

    /// Metadata by key.
    pub fn metadata(&self) -> &BTreeMap<String, GgufValue> {
        &self.metadata
    }

    /// Every tensor name, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
}

/// Name, type, shape and relative offset of the next tensor.
fn tensor_info(reader: &mut Reader<'_>) -> Result<(String, GgufType, Vec<usize>, u64), String> {
    let name = reader.text()?;
    let axes = reader.u32()?;
    if axes > 4 {
        return Err(format!(
            "tensor `{name}` has {axes} axes, at most 4 are known"
        ));
    }
    let mut shape = Vec::new();
    for _ in 0..axes {
        let size = reader.u64()?;
        shape.push(usize::try_from(size).map_err(|_| format!("tensor `{name}` has size {size}"))?);
    }
    shape.reverse();
    let id = reader.u32()?;
    let kind = TYPES.iter().find(|kind| kind.id == id);
    let kind = *kind.ok_or_else(|| format!("tensor `{name}` has the unknown type {id}"))?;
    Ok((name, kind, shape, reader.u64()?))
}

/// Gives every tensor its bytes and checks that they are its own.
fn place(
    entries: Vec<(String, GgufType, Vec<usize>, u64)>,
    data: usize,
    alignment: usize,
    file: usize,
) -> Result<BTreeMap<String, Entry>, String> {
    let mut tensors = BTreeMap::new();
    for (name, kind, shape, offset) in entries {
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(kind.block) {
            let GgufType {
                name: kind, block, ..
            } = kind;
            return Err(format!(
                "tensor `{name}`: {kind} rows hold {row} values, not in {block}s"
            ));
        }
        let sizes = [&shape[..], &[kind.bytes]].concat();
        let length = product(&name, &sizes).map_err(|e| e.to_string())? / kind.block;
        let start = usize::try_from(offset)
            .ok()
            .and_then(|offset| data.checked_add(offset));
        let end = start.and_then(|start| start.checked_add(length));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(format!(
                "tensor `{name}` starts at {offset}, past any address"
            ));
        };
        if end > file || !(start - data).is_multiple_of(alignment) {
            let limit =
                format!("the file has {file} bytes, tensors lie at multiples of {alignment}");
            return Err(format!("tensor `{name}` lies at {start}..{end}: {limit}"));
        }
        let entry = Entry {
            kind,
            shape,
            start,
            end,
        };
        if tensors.insert(name.clone(), entry).is_some() {
            return Err(format!("tensor `{name}` comes twice"));
        }
    }
    let mut filled: Vec<_> = tensors.iter().filter(|(_, e)| e.start < e.end).collect();
    filled.sort_by_key(|(_, entry)| entry.start);
    match filled
        .windows(2)
        .find(|pair| pair[1].1.start < pair[0].1.end)
    {
        Some(pair) => Err(format!(
            "tensors `{}` and `{}` overlap",
            pair[0].0, pair[1].0
        )),
        None => Ok(tensors),
    }
}

impl Gguf {
    /// Opens a file.
    ///
    /// # Errors
    /// [`FormatError::Io`]; [`FormatError::Corrupt`] for what [`GgufHeader::parse`] refuses.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(FormatError::io(path))?;
        // SAFETY: a mapping is sound as long as nobody changes the file below it, which `Gguf` asks
        // of its caller. Every bit pattern is a valid u8, and the header check bounds every tensor
        // by the mapped length. Test: `truncated_gguf_is_a_typed_error`.
        let map = unsafe { Mmap::map(&file) }.map_err(FormatError::io(path))?;
        let header = GgufHeader::parse(&map)
            .map_err(|reason| FormatError::corrupt(path, "GGUF file", reason))?;
        Ok(Self {
            path: path.to_owned(),
            map,
            header,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Metadata by key.
    pub fn metadata(&self) -> &BTreeMap<String, GgufValue> {
        &self.header.metadata
    }

    /// Every tensor name, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.names()
    }

    /// Whether a tensor of this name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.header.tensors.contains_key(name)
    }

    /// One tensor, or [`FormatError::MissingTensor`].
    pub fn tensor(&self, name: &str) -> Result<GgufTensor<'_>, FormatError> {
        let found = self.header.tensors.get_key_value(name);
        let (name, entry) = found.ok_or_else(|| FormatError::MissingTensor {
            tensor: name.to_owned(),
            path: self.path.clone(),
        })?;
        Ok(GgufTensor {
            name,
            kind: entry.kind,
            shape: &entry.shape,
            bytes: &self.map[entry.start..entry.end],
        })
    }
}

impl GgufTensor<'_> {
    /// The values in f32, row-major by `shape`, from F32, F16, BF16, Q4_0, Q4_1, Q8_0.
    ///
    /// # Errors
    /// [`FormatError::WrongDtype`] for another type, [`FormatError::NotFinite`] for a block's scale.
    pub fn to_f32(&self) -> Result<Vec<f32>, FormatError> {
        let halves = |widen: fn([u8; 2]) -> f32| {
            let (pairs, _) = self.bytes.as_chunks::<2>();
            pairs.iter().map(|&pair| widen(pair)).collect()
        };
        Ok(match self.kind.name {
            "F32" => {
                let (words, _) = self.bytes.as_chunks::<4>();
                words.iter().map(|&word| f32::from_le_bytes(word)).collect()
            }
            "F16" => halves(|pair| f16::from_le_bytes(pair).to_f32()),
            "BF16" => halves(|pair| bf16::from_le_bytes(pair).to_f32()),
            _ => self.blocks()?.dequantize_rows(),
        })
    }

    /// The blocks of a quantized weight [n, k].
    ///
    /// # Errors
    /// [`FormatError::WrongDtype`] for other types than Q4_0, Q4_1, Q8_0, those of
    /// [`GgufBlocks::new`].
    pub fn blocks(&self) -> Result<GgufBlocks, FormatError> {
        let kind = match self.kind.name {
            "Q4_0" => GgufKind::Q4_0,
            "Q4_1" => GgufKind::Q4_1,
            "Q8_0" => GgufKind::Q8_0,
            other => {
                return Err(FormatError::WrongDtype {
                    tensor: self.name.to_owned(),
                    found: other.to_owned(),
                    expected: "F32, F16, BF16, Q4_0, Q4_1 or Q8_0".to_owned(),
                });
            }
        };
        let (k, outer) = match self.shape {
            [] => (1, &self.shape[..0]),
            [outer @ .., k] => (*k, outer),
        };
        GgufBlocks::new(kind, k, outer.iter().product(), self.bytes.to_vec())
    }
}
