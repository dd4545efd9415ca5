//! Weights in the order in which products read them.
//!
//! W [k, n] becomes stored rows x columns, both rounded up to multiples of 64, in tiles of 64 x 64;
//! tile (row block tk, column block tn) is number tn * (rows / 64) + tk. A tile is 4 strips of 16
//! columns, a strip 32 lanes, a lane `bits` words: a little-endian stream of 32 codes, of which
//! number 8 s + f of lane 4 r + c stands for
//!
//! ```text
//! row    = 64 tk + 16 s + 8 ((f / 2) mod 2) + 2 c + f / 4
//! column = 64 tn + 16 strip + 2 r + f mod 2
//! ```
//!
//! Scales and zero points of column 64 tn + 16 strip + 2 r + h lie at 64 tn + 8 r + 2 strip + h of
//! their group's row. Where groups have 32 or a multiple of 64 consecutive rows, or one group has
//! all, rows are stored as they come; else (act-order, other group sizes) groups follow one another,
//! each padded to a whole number of stored groups, and `gather` tells which row is where.

mod files;
mod order;
mod shard;

pub use order::VERSION;

use half::f16;

use crate::error::{FormatError, check_len};
use crate::gguf::GgufBlocks;
use crate::int_weights::{IntWeights, QuantShape, check_finite, check_range};
use crate::packed::{Format, PackedLinear};
use order::{NO_ROW, Order, TILE, code_at, place};

/// An integer weight packed for products, and what it takes to give the source back.
///
/// ```
/// use flashcube_formats::{Format, IntWeights, PackedLinear, QuantShape, QuantizedLinear};
/// use half::f16;
///
/// let shape = QuantShape::new(8, 8, 4, None)?;
/// let weights = IntWeights::new(shape, vec![11; 64], vec![8; 8], vec![f16::ONE; 8], None)?;
/// let linear = QuantizedLinear::new(&weights)?;
/// assert_eq!((linear.rows, linear.zeros.is_none()), (64, true));
/// assert_eq!(linear.unpack()?, weights);
/// let gptq: PackedLinear = linear.pack(Format::GptqV2)?;
/// assert_eq!(QuantizedLinear::from_packed(&gptq)?, linear);
/// # Ok::<(), flashcube_formats::FormatError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedLinear {
    /// Sizes and groups of the source.
    pub shape: QuantShape,
    /// Stored rows, a multiple of 64.
    pub rows: usize,
    /// Stored rows that share a scale: 32 or a multiple of 64.
    pub group: usize,
    /// Codes: `rows * columns / 32 * bits` words.
    pub words: Vec<u32>,
    /// [stored groups, columns]; groups of the source that no row belongs to follow those in use.
    pub scales: Vec<f16>,
    /// Like the scales; None where every zero point is 2^(bits - 1).
    pub zeros: Option<Vec<u8>>,
    /// `[rows]`: the source's row of every stored one, `u32::MAX` for none; None where rows are as
    /// in the source.
    pub gather: Option<Vec<u32>>,
    /// The source's group of every stored one.
    pub sources: Vec<u32>,
    /// `[k]`: the source's g_idx.
    pub g_idx: Option<Vec<u32>>,
}

impl QuantizedLinear {
    /// Packs weights: [`unpack`](Self::unpack) gives back the same.
    ///
    /// # Errors
    /// Those of [`IntWeights::validate`]; [`FormatError::TooLarge`] past the address space.
    pub fn new(weights: &IntWeights) -> Result<Self, FormatError> {
        weights.validate()?;
        let order = Order::of(weights)?;
        let shape = weights.shape;
        let columns = shape.n.next_multiple_of(TILE);
        let mut words = vec![0u32; order.rows * columns / 32 * shape.bits as usize];
        for row in 0..order.rows {
            let Some(source) = order.source(row).filter(|&source| source < shape.k) else {
                continue;
            };
            let codes = &weights.codes[source * shape.n..(source + 1) * shape.n];
            for (column, &code) in codes.iter().enumerate() {
                let (at, shift) = code_at(row, column, order.rows, shape.bits);
                words[at] |= u32::from(code) << shift;
                if shift + shape.bits > 32 {
                    words[at + 1] |= u32::from(code) >> (32 - shift);
                }
            }
        }
        let mut scales = vec![f16::ZERO; order.sources.len() * columns];
        let mut zeros = vec![shape.mid_code(); scales.len()];
        for (stored, &source) in order.sources.iter().enumerate() {
            for column in 0..shape.n {
                let (to, from) = (
                    stored * columns + place(column),
                    source as usize * shape.n + column,
                );
                scales[to] = weights.scales[from];
                zeros[to] = weights.zeros[from];
            }
        }
        Ok(Self {
            shape,
            rows: order.rows,
            group: order.group,
            words,
            scales,
            zeros: (!weights.is_symmetric()).then_some(zeros),
            gather: order.gather,
            sources: order.sources,
            g_idx: weights.g_idx.clone(),
        })
    }

    /// From any format of integer checkpoints.
    ///
    /// # Errors
    /// Those of [`PackedLinear::unpack`] and [`QuantizedLinear::new`].
    pub fn from_packed(packed: &PackedLinear) -> Result<Self, FormatError> {
        Self::new(&packed.unpack()?)
    }

    /// From GGUF blocks with integer zero points: Q4_0 and Q8_0.
    ///
    /// # Errors
    /// Those of [`GgufBlocks::to_int_weights`].
    pub fn from_gguf(blocks: &GgufBlocks) -> Result<Self, FormatError> {
        Self::new(&blocks.to_int_weights()?)
    }

    /// The source in `format`, if that can hold it.
    ///
    /// # Errors
    /// Those of [`QuantizedLinear::unpack`] and [`PackedLinear::pack`].
    pub fn pack(&self, format: Format) -> Result<PackedLinear, FormatError> {
        PackedLinear::pack(&self.unpack()?, format)
    }

    /// The logical form.
    ///
    /// # Errors
    /// Those of [`QuantizedLinear::validate`].
    pub fn unpack(&self) -> Result<IntWeights, FormatError> {
        self.validate()?;
        let (shape, columns) = (self.shape, self.columns());
        let mask = (1u32 << shape.bits) - 1;
        let mut codes = vec![0u8; shape.k * shape.n];
        for row in 0..self.rows {
            let Some(source) = self.source(row) else {
                continue;
            };
            for column in 0..shape.n {
                let (at, shift) = code_at(row, column, self.rows, shape.bits);
                let mut code = self.words[at] >> shift;
                if shift + shape.bits > 32 {
                    code |= self.words[at + 1] << (32 - shift);
                }
                codes[source * shape.n + column] = (code & mask) as u8;
            }
        }
        let mut scales = vec![f16::ZERO; shape.groups * shape.n];
        let mut zeros = vec![shape.mid_code(); shape.groups * shape.n];
        for (stored, &source) in self.sources.iter().enumerate() {
            for column in 0..shape.n {
                let (from, to) = (
                    stored * columns + place(column),
                    source as usize * shape.n + column,
                );
                scales[to] = self.scales[from];
                if let Some(stored) = &self.zeros {
                    zeros[to] = stored[from];
                }
            }
        }
        IntWeights::new(shape, codes, zeros, scales, self.g_idx.clone())
    }

    /// Stored columns.
    pub fn columns(&self) -> usize {
        self.shape.n.next_multiple_of(TILE)
    }

    /// The source's row of a stored one.
    fn source(&self, row: usize) -> Option<usize> {
        match &self.gather {
            None => (row < self.shape.k).then_some(row),
            Some(gather) => (gather[row] != NO_ROW).then_some(gather[row] as usize),
        }
    }

    /// Checks lengths and ranges: what a kernel relies on.
    ///
    /// # Errors
    /// [`FormatError::WrongShape`] for a truncated or overlong buffer or sizes that disagree,
    /// [`FormatError::OutOfRange`] for a zero point, group or row past its limit,
    /// [`FormatError::NotFinite`] for a scale.
    pub fn validate(&self) -> Result<(), FormatError> {
        let (shape, columns) = (self.shape, self.columns());
        shape.check()?;
        crate::error::product("words", &[self.rows, columns, shape.bits as usize])?;
        let groups_fit = self.group == 32 || (self.group > 0 && self.group.is_multiple_of(TILE));
        if !self.rows.is_multiple_of(TILE) || !groups_fit {
            return Err(FormatError::WrongShape {
                tensor: "words".to_owned(),
                found: vec![self.rows, self.group],
                expected: vec![self.rows.next_multiple_of(TILE), TILE],
            });
        }
        if self.gather.is_none() && self.rows != shape.k.next_multiple_of(TILE) {
            return Err(FormatError::WrongShape {
                tensor: "words".to_owned(),
                found: vec![self.rows],
                expected: vec![shape.k.next_multiple_of(TILE)],
            });
        }
        let words = [self.rows, columns / 32, shape.bits as usize];
        check_len("words", self.words.len(), &words)?;
        let used = self.rows.div_ceil(self.group);
        if self.sources.len() < used {
            check_len("sources", self.sources.len(), &[used])?;
        }
        check_len("scales", self.scales.len(), &[self.sources.len(), columns])?;
        check_finite("scales", &self.scales)?;
        if let Some(zeros) = &self.zeros {
            check_len("zeros", zeros.len(), &[self.sources.len(), columns])?;
            check_range("zeros", zeros, u64::from(shape.max_code()) + 1)?;
        }
        check_below("sources", &self.sources, shape.groups, None)?;
        if let Some(g_idx) = &self.g_idx {
            check_len("g_idx", g_idx.len(), &[shape.k])?;
            check_below("g_idx", g_idx, shape.groups, None)?;
        }
        if let Some(gather) = &self.gather {
            check_len("gather", gather.len(), &[self.rows])?;
            check_below("gather", gather, shape.k, Some(NO_ROW))?;
        }
        Ok(())
    }
}

/// Every value is below `limit`, or `none`.
fn check_below(
    tensor: &str,
    values: &[u32],
    limit: usize,
    none: Option<u32>,
) -> Result<(), FormatError> {
    let bad = |&value: &u32| value as usize >= limit && Some(value) != none;
    match values.iter().position(bad) {
        None => Ok(()),
        Some(index) => Err(FormatError::OutOfRange {
            tensor: tensor.to_owned(),
            index,
            value: values[index].into(),
            limit: limit as u64,
        }),
    }
}
