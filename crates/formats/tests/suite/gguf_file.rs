//! The GGUF container: what is read, and what is refused.

use flashcube_formats::*;
use half::f16;

/// A GGUF file in the making.
struct Writer {
    version: u32,
    pairs: Vec<Vec<u8>>,
    /// Name, axes innermost first, type, offset.
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
    data: Vec<u8>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Writer {
    fn new() -> Self {
        Self {
            version: 3,
            pairs: Vec::new(),
            tensors: Vec::new(),
            data: Vec::new(),
        }
    }

    fn pair(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.pairs
            .push([&text(key)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    /// A tensor behind the ones before it.
    fn tensor(mut self, name: &str, axes: &[u64], kind: u32, bytes: &[u8]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        let offset = self.data.len() as u64;
        self.tensors
            .push((name.to_owned(), axes.to_vec(), kind, offset));
        self.data.extend_from_slice(bytes);
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = [b"GGUF", &self.version.to_le_bytes()[..]].concat();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        out.extend(self.pairs.concat());
        for (name, axes, kind, offset) in &self.tensors {
            out.extend(text(name));
            out.extend((axes.len() as u32).to_le_bytes());
            axes.iter().for_each(|axis| out.extend(axis.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }
}

fn writer() -> Writer {
    let floats: Vec<u8> = [1.5f32, -2.0, 0.0, 3.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let half = |x: f32| f16::from_f32(x).to_le_bytes();
    // Code j in the low half, 15 - j in the high half: values j - 8 times 0.5, then 7 - j.
    let quants: Vec<u8> = (0..16).map(|j| j | (15 - j) << 4).collect();
    let block = [&half(0.5)[..], &quants].concat();
    let list = [
        &8u32.to_le_bytes()[..],
        &2u64.to_le_bytes(),
        &text("a"),
        &text("b c"),
    ];
    Writer::new()
        .pair("general.architecture", 8, &text("llama"))
        .pair("a.float", 6, &0.25f32.to_le_bytes())
        .pair("a.list", 9, &list.concat())
        .pair("a.signed", 5, &(-3i32).to_le_bytes())
        .pair("a.yes", 7, &[1])
        .tensor("norm", &[4], 0, &floats)
        .tensor("weight", &[32, 2], 2, &[block.clone(), block].concat())
}

pub(crate) fn sample() -> Vec<u8> {
    writer().bytes()
}

fn open(bytes: &[u8]) -> Result<Gguf, FormatError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    Gguf::open(file.path())
}

#[test]
fn metadata_and_tensors_are_read() {
    let gguf = open(&sample()).unwrap();
    let metadata = gguf.metadata();
    assert_eq!(
        metadata["general.architecture"],
        GgufValue::Text("llama".to_owned())
    );
    assert_eq!(metadata["a.float"], GgufValue::Float(0.25));
    assert_eq!(metadata["a.signed"], GgufValue::Signed(-3));
    assert_eq!(metadata["a.yes"], GgufValue::Bool(true));
    let list = ["a", "b c"].map(|text| GgufValue::Text(text.to_owned()));
    assert_eq!(metadata["a.list"], GgufValue::Array(list.to_vec()));
    assert_eq!(gguf.names().collect::<Vec<_>>(), ["norm", "weight"]);
    let norm = gguf.tensor("norm").unwrap();
    assert_eq!(
        (norm.shape, norm.to_f32().unwrap()),
        (&[4][..], vec![1.5, -2.0, 0.0, 3.0])
    );
    let weight = gguf.tensor("weight").unwrap();
    assert_eq!((weight.shape, weight.kind.name), (&[2, 32][..], "Q4_0"));
    let values = weight.to_f32().unwrap();
    assert_eq!(values[..3], [-4.0, -3.5, -3.0]);
    assert_eq!(values[16..18], [3.5, 3.0]);
    assert_eq!(values[..32], values[32..]);
    let blocks = weight.blocks().unwrap();
    assert_eq!(blocks.dequantize_rows(), values);
    assert!(matches!(
        gguf.tensor("x"),
        Err(FormatError::MissingTensor { .. })
    ));
}

#[test]
fn truncated_gguf_is_a_typed_error() {
    let bytes = sample();
    for length in 0..bytes.len() {
        match open(&bytes[..length]) {
            Err(FormatError::Corrupt { kind, .. }) => assert_eq!(kind, "GGUF file"),
            Err(FormatError::Io { .. }) if length == 0 => {}
            other => panic!("{length} bytes: {other:?}"),
        }
    }
}

#[test]
fn hostile_headers_are_refused_in_words() {
    let refused = |writer: Writer| GgufHeader::parse(&writer.bytes()).unwrap_err();
    let with = |axes: &[u64], kind, offset| {
        let mut writer = writer();
        writer
            .tensors
            .push(("bad".to_owned(), axes.to_vec(), kind, offset));
        refused(writer)
    };
    assert!(with(&[u64::MAX, 2], 0, 0).contains("multiply past the address space"));
    assert!(with(&[4], 0, u64::MAX - 4).contains("past any address"));
    assert!(with(&[4], 0, 1 << 40).contains("the file has"));
    assert!(with(&[4], 0, 4).contains("multiples of 32"));
    assert!(with(&[4], 0, 0).contains("overlap"));
    assert!(with(&[33], 2, 0).contains("not in 32s"));
    assert!(with(&[4], 99, 0).contains("unknown type 99"));
    assert!(with(&[1; 5], 0, 0).contains("5 axes"));

    let mut twice = writer();
    twice.tensors.push(twice.tensors[0].clone());
    assert!(refused(twice).contains("comes twice"));
    let pair = |kind, value: &[u8]| refused(writer().pair("bad", kind, value));
    assert!(refused(writer().pair("a.yes", 7, &[0])).contains("`a.yes` comes twice"));
    assert!(pair(7, &[2]).contains("a bool of 2"));
    assert!(pair(13, &[]).contains("unknown value type 13"));
    assert!(pair(8, &u64::MAX.to_le_bytes()).contains("has room for"));
    assert!(pair(8, &[&2u64.to_le_bytes()[..], &[0xff, 0xff]].concat()).contains("utf-8"));
    let huge = [&10u32.to_le_bytes()[..], &(1u64 << 60).to_le_bytes()].concat();
    assert!(pair(9, &huge).contains("array elements"));
    let nested: Vec<u8> = (0..9)
        .flat_map(|_| [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat())
        .collect();
    assert!(pair(9, &nested).contains("nested more than 4 deep"));
    assert!(
        refused(writer().pair("general.alignment", 4, &0u32.to_le_bytes())).contains("alignment")
    );

    let mut old = writer();
    old.version = 1;
    assert!(refused(old).contains("version 1"));
    let mut bytes = sample();
    bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(
        GgufHeader::parse(&bytes)
            .unwrap_err()
            .contains("tensors at byte 8")
    );
}

/// Types of known size that cannot be decoded are listed all the same.
#[test]
fn unread_types_are_listed_and_refused_by_name() {
    let gguf = open(&Writer::new().tensor("k", &[256], 12, &[0; 144]).bytes()).unwrap();
    let tensor = gguf.tensor("k").unwrap();
    assert_eq!(tensor.kind.name, "Q4_K");
    let error = tensor.to_f32().unwrap_err().to_string();
    assert_eq!(
        error,
        "tensor `k` has dtype Q4_K, expected F32, F16, BF16, Q4_0, Q4_1 or Q8_0"
    );
}
