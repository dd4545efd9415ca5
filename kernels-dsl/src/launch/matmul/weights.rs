//! Packed weights on the device, in the order that products read.

use cubecl::server::Handle;

use crate::error::InvalidProblem;
use crate::launch::{DType, holds, out_of_range};
use crate::quant::{ScaleType, TILE, WeightCodes, WeightTiles, ZeroType};

/// Smallest and largest |scale| but 0, for [`LinearWeights::scale_range`]; `None` where one is not finite or all
/// are 0.
pub fn scale_range(scales: impl IntoIterator<Item = f32>) -> Option<[f32; 2]> {
    let magnitudes = scales.into_iter().map(f32::abs).filter(|&x| x != 0.0);
    let range = magnitudes.fold([f32::MAX, 0.0], |[low, high], x| match x.is_finite() {
        true => [low.min(x), high.max(x)],
        false => [low, f32::INFINITY],
    });
    (range[0] <= range[1] && range[1].is_finite()).then_some(range)
}

/// A weight W [k, n] in tiles of 64 x 64; [`crate::quant`]'s `tiles` says how codes lie in them.
/// flashcube-formats makes the buffers from every checkpoint format (`QuantizedLinear`), and checks
/// what is in them; sizes are checked here.
#[derive(Debug, Clone)]
pub struct LinearWeights {
    /// Bits of a code: 2, 3, 4 or 8.
    pub bits: u32,
    /// What codes stand for.
    pub codes: WeightCodes,
    /// Input features: columns of x.
    pub k: usize,
    /// Output features: columns of y.
    pub n: usize,
    /// Stored rows, a multiple of 64: k rounded up, more where groups are padded.
    pub rows: usize,
    /// Stored rows that share a scale: 16, 32 or a multiple of 64; the last group may be short.
    pub group: usize,
    /// Codes: u32, `bits` words for each 32 of the padded rows x columns.
    pub words: Handle,
    /// Scales [groups, n rounded up to 64].
    pub scales: Handle,
    /// Their type.
    pub scale_type: ScaleType,
    /// Smallest and largest |scale| but 0, minima among them, where known ([`scale_range`]): tiers that multiply
    /// scales into weights need it to keep those inside 16 bits, and trust it. Without it group sums are scaled
    /// instead, and weights with minima are left to the unit tier.
    pub scale_range: Option<[f32; 2]>,
    /// One more scale, of all weights: finite.
    pub factor: f32,
    /// Zero points of integers, u8, or minima, f16, like the scales; `None` for 2^(bits - 1).
    pub zeros: Option<Handle>,
    /// Which of them.
    pub zero_type: ZeroType,
    /// Column of x for every stored row, u32 `[rows]`, [`NO_ROW`](crate::quant::NO_ROW) for none; `None` for the
    /// row's own number.
    pub gather: Option<Handle>,
}

impl LinearWeights {
    /// n rounded up to whole tiles.
    pub fn columns(&self) -> usize {
        self.n.next_multiple_of(TILE as usize)
    }

    /// Rows of scales and zero points.
    pub fn groups(&self) -> usize {
        self.rows.div_ceil(self.group.max(1))
    }

    /// Bytes of the codes, scales and zero points.
    pub fn bytes(&self) -> usize {
        let places = self.groups() * self.columns();
        let zeros = places * self.tiles().zero_bytes() as usize;
        let gather = if self.gather.is_some() {
            4 * self.rows
        } else {
            0
        };
        let scales = places * self.scale_type.bytes() as usize;
        self.rows * self.columns() / 8 * self.bits as usize + scales + zeros + gather
    }

    /// A power of two that brings every scale times every number into the normal range of `dtype`, with nothing to
    /// spare for sums, which are f32; `None` where there is none, or the scales are unknown. With minima it is 1: their
    /// weights are multiples of the least f16, which lose nothing below the normal range.
    pub fn lift(&self, dtype: DType) -> Option<f32> {
        let [low, high] = match (self.scale_range, self.scale_type) {
            (Some(range), _) => range,
            // A non-negative E4M3, whatever it is.
            (None, ScaleType::E4M3) => [2f32.powi(-9), 448.0],
            (None, _) => return None,
        };
        // Smallest and largest number but 0 of a code, zero points up to 2^bits included.
        let (least, most) = match self.codes {
            WeightCodes::Int => (1.0, (1u32 << self.bits) as f32),
            WeightCodes::E2M1 => (0.5, 6.0),
            WeightCodes::E4M3 => (2f32.powi(-9), 448.0),
            WeightCodes::Nf4 => (2f32.powi(-4), 1.0),
        };
        // Normal f16 numbers; of bf16 those whose last half bits are normal as well.
        let (smallest, largest) = match dtype {
            DType::F16 => (2f32.powi(-14), 2f32.powi(15)),
            DType::BF16 => (2f32.powi(-110), 2f32.powi(120)),
            DType::F32 | DType::E4M3 => return None,
        };
        let lift = match dtype {
            DType::F16 => (largest / (high * most)).log2().floor().exp2(),
            _ => 1.0,
        };
        if self.tiles().minima() {
            return (lift >= 1.0).then_some(1.0);
        }
        let holds = low * least * lift >= smallest && high * most * lift <= largest;
        (holds && lift.is_finite() && (self.factor / lift).is_finite()).then_some(lift)
    }

    pub(super) fn tiles(&self) -> WeightTiles {
        WeightTiles {
            bits: self.bits,
            codes: self.codes,
            scales: self.scale_type,
            zeros: self.zeros.as_ref().map(|_| self.zero_type),
            groups: (TILE / self.group.clamp(1, TILE as usize) as u32).max(1),
            gathered: self.gather.is_some(),
        }
    }

    /// Sizes within the limits, every buffer long enough for them.
    pub(super) fn check(&self) -> Result<(), InvalidProblem> {
        const LIMIT: usize = 1 << 30;
        for (name, value) in [("k", self.k), ("n", self.n), ("rows", self.rows)] {
            if value > LIMIT {
                return Err(out_of_range(name, value as i128, LIMIT as i128));
            }
        }
        if !self.codes.takes(self.bits) {
            return Err(out_of_range("bits", self.bits as i128, 8));
        }
        if self.zeros.is_some() && self.codes != WeightCodes::Int {
            return Err(out_of_range("zero points of float codes", 1, 0));
        }
        if !self.factor.is_finite() {
            return Err(InvalidProblem::NotFinite {
                name: "factor",
                value: self.factor,
            });
        }
        let tile = TILE as usize;
        if !self.rows.is_multiple_of(tile) {
            return Err(out_of_range(
                "rows modulo 64",
                (self.rows % tile) as i128,
                0,
            ));
        }
        if self.gather.is_none() && self.rows != self.k.next_multiple_of(tile) {
            return Err(InvalidProblem::Shape {
                tensor: "words",
                axis: "rows",
                found: self.rows,
                expected: self.k.next_multiple_of(tile),
            });
        }
        if !matches!(self.group, 16 | 32) && (self.group == 0 || !self.group.is_multiple_of(tile)) {
            return Err(out_of_range("group modulo 64", self.group as i128, 0));
        }
        let places = self.groups() * self.columns();
        let words = self.rows * self.columns() / 32 * self.bits as usize;
        holds("words", &self.words, words, 4)?;
        holds(
            "scales",
            &self.scales,
            places,
            self.scale_type.bytes() as usize,
        )?;
        if let Some(zeros) = &self.zeros {
            holds("zeros", zeros, places, self.zero_type.bytes() as usize)?;
        }
        if let Some(gather) = &self.gather {
            holds("gather", gather, self.rows, 4)?;
        }
        Ok(())
    }
}
