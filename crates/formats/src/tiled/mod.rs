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
//! their group's row. Where groups have 16, 32 or a multiple of 64 consecutive rows, or one group has
//! all, rows are stored as they come; else (act-order, other group sizes) groups follow one another,
//! each padded to a whole number of stored groups, and `gather` tells which row is where.

mod files;
mod order;
mod shard;
mod zeros;

pub use order::{TileOrder, VERSION};
pub use zeros::GroupZeros;

use half::f16;

use crate::error::{FormatError, check_len};
use crate::float_weights::{
    CodeType, FloatWeights, GroupScales, check_bits, check_codes, check_divisor,
};
use crate::gguf::{GgufBlocks, GgufKind};
use crate::int_weights::{IntWeights, QuantShape};
use crate::packed::{Format, PackedLinear};
use order::{NO_ROW, TILE, code_at, gather};

/// A quantized weight packed for products, and what it takes to give the source back.
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
    /// What codes stand for.
    pub code_type: CodeType,
    /// Stored rows, a multiple of 64.
    pub rows: usize,
    /// Stored rows that share a scale: 16, 32 or a multiple of 64.
    pub group: usize,
    /// Codes: `rows * columns / 32 * bits` words.
    pub words: Vec<u32>,
    /// [stored groups, columns]; groups of the source that no row belongs to follow those in use.
    pub scales: GroupScales,
    /// What every weight is divided by; 1 for integers.
    pub divisor: f32,
    /// Like the scales; None where every zero point of integers is 2^(bits - 1), and for floats.
    pub zeros: Option<GroupZeros>,
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
        let shape = weights.shape;
        let order = TileOrder::of(shape, weights.g_idx.as_deref())?;
        Ok(Self {
            shape,
            code_type: CodeType::Int,
            words: order.pack(&weights.codes, shape),
            scales: GroupScales::F16(order.spread(&weights.scales, shape.n, f16::ZERO)),
            divisor: 1.0,
            zeros: GroupZeros::spread(weights, &order),
            rows: order.rows,
            group: order.group,
            gather: order.gather,
            sources: order.sources,
            g_idx: weights.g_idx.clone(),
        })
    }

    /// Packs weights of small floats: [`unpack_floats`](Self::unpack_floats) gives back the same.
    ///
    /// # Errors
    /// Those of [`FloatWeights::validate`]; [`FormatError::TooLarge`] past the address space.
    pub fn from_floats(weights: &FloatWeights) -> Result<Self, FormatError> {
        weights.validate()?;
        let shape = weights.shape;
        let order = TileOrder::of(shape, None)?;
        let scales = match &weights.scales {
            GroupScales::F16(scales) => GroupScales::F16(order.spread(scales, shape.n, f16::ZERO)),
            GroupScales::E4M3(scales) => GroupScales::E4M3(order.spread(scales, shape.n, 0)),
            GroupScales::E8M0(scales) => GroupScales::E8M0(order.spread(scales, shape.n, 0)),
        };
        Ok(Self {
            shape,
            code_type: weights.code_type,
            words: order.pack(&weights.codes, shape),
            scales,
            divisor: weights.divisor,
            zeros: None,
            rows: order.rows,
            group: order.group,
            gather: order.gather,
            sources: order.sources,
            g_idx: None,
        })
    }

    /// From any format of integer checkpoints.
    ///
    /// # Errors
    /// Those of [`PackedLinear::unpack`] and [`QuantizedLinear::new`].
    pub fn from_packed(packed: &PackedLinear) -> Result<Self, FormatError> {
        Self::new(&packed.unpack()?)
    }

    /// From GGUF blocks: Q4_0, Q4_1 and Q8_0.
    ///
    /// # Errors
    /// Those of [`GgufBlocks::to_int_weights`].
    pub fn from_gguf(blocks: &GgufBlocks) -> Result<Self, FormatError> {
        Self::new(&blocks.to_int_weights()?)
    }

    /// The source as GGUF blocks, if those can hold it.
    ///
    /// # Errors
    /// Those of [`QuantizedLinear::unpack`] and [`GgufBlocks::from_int_weights`].
    pub fn to_gguf(&self, kind: GgufKind) -> Result<GgufBlocks, FormatError> {
        GgufBlocks::from_int_weights(&self.unpack()?, kind)
    }

    /// The source in `format`, if that can hold it.
    ///
    /// # Errors
    /// Those of [`QuantizedLinear::unpack`] and [`PackedLinear::pack`].
    pub fn pack(&self, format: Format) -> Result<PackedLinear, FormatError> {
        PackedLinear::pack(&self.unpack()?, format)
    }

    /// The logical form of integers.
    ///
    /// # Errors
    /// Those of [`QuantizedLinear::validate`]; [`FormatError::Unsupported`] for codes that are floats.
    pub fn unpack(&self) -> Result<IntWeights, FormatError> {
        self.validate()?;
        let GroupScales::F16(scales) = &self.scales else {
            return Err(self.no_integers());
        };
        if self.code_type != CodeType::Int {
            return Err(self.no_integers());
        }
        let shape = self.shape;
        let sizes = (shape.groups, shape.n);
        let sources = &self.sources;
        let (zeros, minima) =
            zeros::gathered(self.zeros.as_ref(), sources, sizes, shape.mid_code());
        let weights = IntWeights {
            shape,
            codes: self.codes(),
            zeros,
            scales: gather(scales, sources, sizes, f16::ZERO),
            g_idx: self.g_idx.clone(),
            minima,
        };
        weights.validate()?;
        Ok(weights)
    }

    fn no_integers(&self) -> FormatError {
        let found = format!("{:?}", self.code_type);
        FormatError::unsupported("integer weights", "codes", found, "Int")
    }

    /// The logical form of small floats.
    ///
    /// # Errors
    /// Those of [`QuantizedLinear::validate`]; [`FormatError::Unsupported`] for integers.
    pub fn unpack_floats(&self) -> Result<FloatWeights, FormatError> {
        self.validate()?;
        let sizes = (self.shape.groups, self.shape.n);
        let weights = FloatWeights {
            shape: self.shape,
            code_type: self.code_type,
            codes: self.codes(),
            scales: match &self.scales {
                GroupScales::F16(s) => GroupScales::F16(gather(s, &self.sources, sizes, f16::ZERO)),
                GroupScales::E4M3(s) => GroupScales::E4M3(gather(s, &self.sources, sizes, 0)),
                GroupScales::E8M0(s) => GroupScales::E8M0(gather(s, &self.sources, sizes, 0)),
            },
            divisor: self.divisor,
        };
        weights.validate()?;
        Ok(weights)
    }

    /// Codes [k, n].
    fn codes(&self) -> Vec<u8> {
        let shape = self.shape;
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
        codes
    }

    /// The scales of columns that exist, and their minima, which a weight may be, in no order to rely on.
    pub fn scale_values(&self) -> impl Iterator<Item = f32> {
        let groups = self.scales.len() / self.columns().max(1);
        let columns = (0..self.shape.n).map(order::place);
        let places = columns
            .flat_map(move |place| (0..groups).map(move |group| group * self.columns() + place));
        places.flat_map(|place| {
            let minimum = self.zeros.as_ref().map(|zeros| zeros.minimum(place));
            [Some(self.scales.value(place)), minimum]
                .into_iter()
                .flatten()
        })
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
    /// [`FormatError::NotFinite`] for a scale, a minimum or a code, [`FormatError::Unsupported`] for bits that the
    /// codes do not come in.
    pub fn validate(&self) -> Result<(), FormatError> {
        let (shape, columns) = (self.shape, self.columns());
        shape.check()?;
        check_bits(self.code_type, shape.bits)?;
        check_divisor(self.divisor)?;
        crate::error::product("words", &[self.rows, columns, shape.bits as usize])?;
        let groups_fit =
            matches!(self.group, 16 | 32) || (self.group > 0 && self.group.is_multiple_of(TILE));
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
        self.scales.check()?;
        check_codes(
            self.code_type,
            self.words.iter().flat_map(|word| word.to_le_bytes()),
        )?;
        if let Some(zeros) = &self.zeros {
            zeros.check(&[self.sources.len(), columns], shape.max_code())?;
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
