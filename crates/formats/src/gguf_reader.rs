//! Reading the parts of a GGUF header, each length checked against what is left of the file.

use crate::gguf_file::GgufValue;

/// Arrays of arrays are allowed, but not without end.
const MOST_NESTED: u32 = 4;

/// A position in a file; every error says where.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        if count > self.left() {
            let (at, left) = (self.at, self.left());
            return Err(format!(
                "it ends at byte {at}: {count} more needed, {left} there"
            ));
        }
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of things that take at least `least` bytes each.
    pub(crate) fn count(&mut self, what: &str, least: usize) -> Result<usize, String> {
        let at = self.at;
        let count = self.u64()?;
        let most = self.left() / least;
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(format!(
                "{count} {what} at byte {at}, the file has room for {most}"
            )),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String, String> {
        let at = self.at;
        let length = self.count("bytes of text", 1)?;
        let text = std::str::from_utf8(self.take(length)?);
        text.map(str::to_owned)
            .map_err(|error| format!("text at byte {at}: {error}"))
    }

    /// A value behind the number of its type.
    pub(crate) fn tagged_value(&mut self) -> Result<GgufValue, String> {
        let kind = self.u32()?;
        self.value(kind, 0)
    }

    fn value(&mut self, kind: u32, nested: u32) -> Result<GgufValue, String> {
        use GgufValue::{Array, Bool, Float, Signed, Text, Unsigned};
        Ok(match kind {
            0 => Unsigned(u8::from_le_bytes(self.array()?).into()),
            1 => Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Unsigned(self.u32()?.into()),
            5 => Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Float(f32::from_le_bytes(self.array()?).into()),
            7 => match self.array()? {
                [0] => Bool(false),
                [1] => Bool(true),
                [other] => return Err(format!("a bool of {other} at byte {}", self.at - 1)),
            },
            8 => Text(self.text()?),
            9 if nested < MOST_NESTED => {
                let kind = self.u32()?;
                let least = match kind {
                    0 | 1 | 7 => 1,
                    2 | 3 => 2,
                    4..=6 => 4,
                    _ => 8,
                };
                let count = self.count("array elements", least)?;
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.value(kind, nested + 1)?);
                }
                Array(values)
            }
            10 => Unsigned(self.u64()?),
            11 => Signed(i64::from_le_bytes(self.array()?)),
            12 => Float(f64::from_le_bytes(self.array()?)),
            9 => return Err(format!("arrays nested more than {MOST_NESTED} deep")),
            other => return Err(format!("unknown value type {other} at byte {}", self.at)),
        })
    }
}
