//! GGUF weight blocks: 32 values along k, for each of n outputs. Source: the `gguf` package,
//! `quants.py`.

use half::f16;

use crate::error::{FormatError, check_len, product};
use crate::int_weights::{IntWeights, QuantShape};

/// Values per block.
const BLOCK: usize = 32;

/// A block type; byte j of the quants holds value j in its low half and value j + 16 in its high
/// half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GgufKind {
    /// f16 d, 16 bytes: w = d * (q - 8).
    Q4_0,
    /// f16 d, f16 m, 16 bytes: w = d * q + m.
    Q4_1,
    /// f16 d, 32 signed bytes: w = d * q.
    Q8_0,
}

impl GgufKind {
    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 4 + 16,
            Self::Q8_0 => 2 + 32,
        }
    }

    fn bits(self) -> u32 {
        match self {
            Self::Q4_0 | Self::Q4_1 => 4,
            Self::Q8_0 => 8,
        }
    }

    fn check_holds(self, weights: &IntWeights) -> Result<(), FormatError> {
        let shape = weights.shape;
        let refuse = |what, value: String, limit| {
            Err(FormatError::unsupported(
                format!("{self:?}"),
                what,
                value,
                limit,
            ))
        };
        if shape.bits != self.bits() {
            let limit = "4 bits in Q4_0 and Q4_1, 8 in Q8_0";
            return refuse("bits", shape.bits.to_string(), limit);
        }
        if !shape.k.is_multiple_of(BLOCK) {
            return refuse("k", shape.k.to_string(), "a multiple of 32");
        }
        if weights.g_idx.is_some() {
            return refuse("g_idx", "act-order".into(), "rows in group order");
        }
        if shape.group != BLOCK && shape.k > 0 {
            return refuse("group", shape.group.to_string(), "32 rows");
        }
        match (self, &weights.minima) {
            (Self::Q4_1, None) => refuse("zero points", "integers".into(), "minima"),
            (Self::Q4_0 | Self::Q8_0, Some(_)) => {
                refuse("minima", "f16".into(), "symmetric weights")
            }
            (Self::Q4_0 | Self::Q8_0, None) if !weights.is_symmetric() => {
                refuse("zero points", "asymmetric".into(), "symmetric weights")
            }
            _ => Ok(()),
        }
    }
}

/// A weight W [k, n] as GGUF stores it: `bytes` is [n, k/32] blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufBlocks {
    kind: GgufKind,
    k: usize,
    n: usize,
    bytes: Vec<u8>,
}

impl GgufBlocks {
    /// Checked blocks.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] when 32 does not divide k, [`FormatError::WrongShape`] for a
    /// truncated or overlong buffer, [`FormatError::NotFinite`] for a block's d or m.
    pub fn new(kind: GgufKind, k: usize, n: usize, bytes: Vec<u8>) -> Result<Self, FormatError> {
        if !k.is_multiple_of(BLOCK) {
            return Err(FormatError::unsupported(
                format!("{kind:?}"),
                "k",
                k,
                "a multiple of 32",
            ));
        }
        product("weight", &[k, n, 4])?;
        check_len("blocks", bytes.len(), &[n, k / BLOCK, kind.block_bytes()])?;
        let blocks = Self { kind, k, n, bytes };
        for (index, block) in blocks.blocks().enumerate() {
            for value in [blocks.scale(block), blocks.minimum(block)] {
                if !value.is_finite() {
                    let value = value.to_f32();
                    return Err(FormatError::NotFinite {
                        tensor: "blocks".to_owned(),
                        index,
                        value,
                    });
                }
            }
        }
        Ok(blocks)
    }

    /// The blocks of output 0, then of output 1, ...
    fn blocks(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.kind.block_bytes())
    }

    fn scale(&self, block: &[u8]) -> f16 {
        f16::from_le_bytes([block[0], block[1]])
    }

    fn minimum(&self, block: &[u8]) -> f16 {
        match self.kind {
            GgufKind::Q4_1 => f16::from_le_bytes([block[2], block[3]]),
            GgufKind::Q4_0 | GgufKind::Q8_0 => f16::ZERO,
        }
    }

    /// The code of value `at` of a block as an unsigned number: Q8_0 with 128 added.
    fn code(&self, block: &[u8], at: usize) -> u8 {
        let nibble = |quants: &[u8]| quants[at % 16] >> (4 * (at / 16)) & 15;
        match self.kind {
            GgufKind::Q4_0 => nibble(&block[2..]),
            GgufKind::Q4_1 => nibble(&block[4..]),
            GgufKind::Q8_0 => block[2 + at] ^ 0x80,
        }
    }

    /// Calls `each(row, column, code, block)` for every weight.
    fn visit(&self, mut each: impl FnMut(usize, usize, u8, &[u8])) {
        let per_output = self.k / BLOCK;
        for (index, block) in self.blocks().enumerate() {
            let (column, first) = (index / per_output, index % per_output * BLOCK);
            (0..BLOCK).for_each(|at| each(first + at, column, self.code(block, at), block));
        }
    }

    /// W [k, n] in f32, with the roundings of the gguf package: exact for Q4_0 and Q8_0, one
    /// rounding for Q4_1.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut weight = vec![0.0; self.k * self.n];
        self.visit(|row, column, code, block| {
            weight[row * self.n + column] = self.value(code, block);
        });
        weight
    }

    /// The same as [n, k], the order in which it is stored.
    pub fn dequantize_rows(&self) -> Vec<f32> {
        let mut weight = Vec::with_capacity(self.k * self.n);
        self.visit(|_, _, code, block| weight.push(self.value(code, block)));
        weight
    }

    /// The weight of a code.
    fn value(&self, code: u8, block: &[u8]) -> f32 {
        let (scale, code) = (self.scale(block).to_f32(), f32::from(code));
        match self.kind {
            GgufKind::Q4_0 => scale * (code - 8.0),
            GgufKind::Q4_1 => scale * code + self.minimum(block).to_f32(),
            GgufKind::Q8_0 => scale * (code - 128.0),
        }
    }

    /// The same weight in the common logical form, groups of 32, symmetric or with minima: exact.
    ///
    /// # Errors
    /// [`FormatError::TooLarge`] past the address space.
    pub fn to_int_weights(&self) -> Result<IntWeights, FormatError> {
        let shape = QuantShape::new(self.k, self.n, self.kind.bits(), Some(BLOCK))?;
        let mut codes = vec![0; self.k * self.n];
        let mut scales = vec![f16::ZERO; shape.groups * self.n];
        let mut minima = scales.clone();
        self.visit(|row, column, code, block| {
            codes[row * self.n + column] = code;
            let place = row / BLOCK * self.n + column;
            scales[place] = self.scale(block);
            minima[place] = self.minimum(block);
        });
        let zero = match self.kind {
            GgufKind::Q4_1 => 0,
            GgufKind::Q4_0 | GgufKind::Q8_0 => shape.mid_code(),
        };
        let zeros = vec![zero; shape.groups * self.n];
        let weights = IntWeights::new(shape, codes, zeros, scales, None)?;
        match self.kind {
            GgufKind::Q4_1 => weights.with_minima(minima),
            GgufKind::Q4_0 | GgufKind::Q8_0 => Ok(weights),
        }
    }

    /// Integers as blocks of `kind`: [`to_int_weights`](Self::to_int_weights) gives back the same.
    ///
    /// # Errors
    /// Those of [`IntWeights::validate`]; [`FormatError::Unsupported`] for other bits, groups that are not of
    /// 32 rows, act-order, a k that 32 does not divide, zero points in Q4_0 and Q8_0 and none but minima in
    /// Q4_1.
    pub fn from_int_weights(weights: &IntWeights, kind: GgufKind) -> Result<Self, FormatError> {
        weights.validate()?;
        kind.check_holds(weights)?;
        let QuantShape { k, n, groups, .. } = weights.shape;
        let mut bytes = Vec::with_capacity(n * groups * kind.block_bytes());
        for (column, group) in (0..n).flat_map(|c| (0..groups).map(move |g| (c, g))) {
            let place = group * n + column;
            bytes.extend(weights.scales[place].to_le_bytes());
            if let Some(minima) = &weights.minima {
                bytes.extend(minima[place].to_le_bytes());
            }
            let code = |at: usize| weights.codes[(group * BLOCK + at) * n + column];
            match kind {
                GgufKind::Q8_0 => bytes.extend((0..BLOCK).map(|at| code(at) ^ 0x80)),
                _ => bytes.extend((0..BLOCK / 2).map(|at| code(at) | code(at + 16) << 4)),
            }
        }
        Self::new(kind, k, n, bytes)
    }

    /// The block type.
    pub fn kind(&self) -> GgufKind {
        self.kind
    }

    /// (k, n).
    pub fn sizes(&self) -> (usize, usize) {
        (self.k, self.n)
    }

    /// [n, k/32] blocks, for a kernel to load.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
