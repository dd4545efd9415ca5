//! Packed weights on the device, in the order that products read.

use cubecl::server::Handle;

use crate::error::InvalidProblem;
use crate::launch::{holds, out_of_range};
use crate::quant::{ScaleType, TILE, WeightCodes, WeightTiles};

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
    /// One more scale, of all weights: finite.
    pub factor: f32,
    /// Zero points of integers: u8 like the scales; `None` for 2^(bits - 1).
    pub zeros: Option<Handle>,
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
        let zeros = if self.zeros.is_some() { places } else { 0 };
        let gather = if self.gather.is_some() {
            4 * self.rows
        } else {
            0
        };
        let scales = places * self.scale_type.bytes() as usize;
        self.rows * self.columns() / 8 * self.bits as usize + scales + zeros + gather
    }

    pub(super) fn tiles(&self) -> WeightTiles {
        WeightTiles {
            bits: self.bits,
            codes: self.codes,
            scales: self.scale_type,
            zeros: self.zeros.is_some(),
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
            holds("zeros", zeros, places, 1)?;
        }
        if let Some(gather) = &self.gather {
            holds("gather", gather, self.rows, 4)?;
        }
        Ok(())
    }
}
