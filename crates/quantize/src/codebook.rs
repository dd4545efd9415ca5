//! Rounding to formats that are no integer grid: NF4, MXFP4, NVFP4. All round to the nearest
//! value; ties are named with each.

pub use flashcube_formats::NF4;
use flashcube_formats::{FloatWeights, FormatError, Nvfp4Weights};
use flashcube_reference::quant::blocks::{MxElement, MxRow, Nvfp4Row, nvfp4_encode_factor};
pub use flashcube_reference::quant::e8m0::ScaleRule;
pub use flashcube_reference::quant::float::Round;
use rayon::prelude::*;

use crate::error::QuantizeError;
use crate::weight::{Weight, transposed};

/// An NF4 weight: W[k, n] = NF4[codes[n, k]] * absmax of its block.
#[derive(Debug, Clone, PartialEq)]
pub struct Nf4Weights {
    /// Input features.
    pub k: usize,
    /// Output features.
    pub n: usize,
    /// Values that share a scale, along the flat [n, k] weight.
    pub block: usize,
    /// [n, k], each below 16.
    pub codes: Vec<u8>,
    /// [ceil(n k / block)], the largest magnitude of each block.
    pub absmax: Vec<f32>,
}

/// Rounds to NF4, each value to the nearest of the table; halfway goes to the upper one.
///
/// # Errors
/// [`QuantizeError::Unsupported`] for a block of 0.
pub fn round_nf4(weight: Weight<'_>, block: usize) -> Result<Nf4Weights, QuantizeError> {
    if block == 0 {
        let limit = "a block has at least 1 value";
        return Err(QuantizeError::unsupported("block", 0, limit));
    }
    let flat = transposed(weight.values, weight.k, weight.n);
    let mut codes = Vec::with_capacity(flat.len());
    let mut absmax = Vec::with_capacity(flat.len().div_ceil(block));
    for values in flat.chunks(block) {
        let largest = values.iter().fold(0.0f32, |max, w| max.max(w.abs()));
        let scale = if largest > 0.0 { largest } else { 1.0 };
        codes.extend(values.iter().map(|&w| nearest(w / scale)));
        absmax.push(largest);
    }
    Ok(Nf4Weights {
        k: weight.k,
        n: weight.n,
        block,
        codes,
        absmax,
    })
}

fn nearest(x: f32) -> u8 {
    let above = |pair: &[f32]| x >= (pair[0] + pair[1]) / 2.0;
    NF4.windows(2).take_while(|pair| above(pair)).count() as u8
}

impl Nf4Weights {
    /// The form that checkpoints and kernels take: scales become f16 over a power of two, off by at
    /// most 2^-11 of themselves.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] where blocks do not end with outputs: the block must divide k.
    pub fn to_floats(&self) -> Result<FloatWeights, FormatError> {
        if !self.k.is_multiple_of(self.block) {
            return Err(FormatError::Unsupported {
                format: "nf4".to_owned(),
                what: "k",
                value: self.k.to_string(),
                limit: "a multiple of the group",
            });
        }
        let codes = transposed(&self.codes, self.n, self.k);
        let absmax = transposed(&self.absmax, self.n, self.k / self.block);
        FloatWeights::nf4(self.k, self.n, codes, self.block, &absmax)
    }

    /// W [k, n].
    pub fn dequantize(&self) -> Vec<f32> {
        let value =
            |(at, &code): (usize, &u8)| NF4[usize::from(code & 15)] * self.absmax[at / self.block];
        let flat: Vec<f32> = self.codes.iter().enumerate().map(value).collect();
        transposed(&flat, self.n, self.k)
    }
}

/// An MXFP4 weight: blocks of 32 along k share a power of two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mxfp4Weights {
    /// Input features.
    pub k: usize,
    /// The k values of each output: E2M1 codes and E8M0 scales.
    pub outputs: Vec<MxRow>,
}

/// Rounds to MXFP4: scales by `rule`, elements to nearest, ties to even, saturating.
pub fn round_mxfp4(weight: Weight<'_>, rule: ScaleRule) -> Mxfp4Weights {
    let outputs = (0..weight.n).into_par_iter();
    let outputs = outputs.map(|n| MxRow::quantize(&output(weight, n), MxElement::E2M1, rule));
    Mxfp4Weights {
        k: weight.k,
        outputs: outputs.collect(),
    }
}

impl Mxfp4Weights {
    /// The form that checkpoints and kernels take, exact.
    ///
    /// # Errors
    /// Those of [`FloatWeights::mxfp4`].
    pub fn to_floats(&self) -> Result<FloatWeights, FormatError> {
        let n = self.outputs.len();
        let join = |part: fn(&MxRow) -> &[u8]| -> Vec<u8> {
            self.outputs.iter().flat_map(part).copied().collect()
        };
        let codes = transposed(&join(|row| &row.codes), n, self.k);
        let scales = transposed(&join(|row| &row.scales), n, self.k.div_ceil(32));
        FloatWeights::mxfp4(self.k, n, codes, scales)
    }

    /// W [k, n].
    ///
    /// # Errors
    /// [`QuantizeError::WrongLength`] when an output has another number of scales or of codes.
    pub fn dequantize(&self) -> Result<Vec<f32>, QuantizeError> {
        let n = self.outputs.len();
        let mut flat = Vec::with_capacity(n * self.k);
        for row in &self.outputs {
            crate::error::check_len("codes", row.codes.len(), &[self.k])?;
            crate::error::check_len("scales", row.scales.len(), &[self.k.div_ceil(32)])?;
            let values = row.dequantize().unwrap_or_default();
            flat.extend(values.into_iter().map(|w| w as f32));
        }
        Ok(transposed(&flat, n, self.k))
    }
}

/// Rounds to NVFP4: blocks of 16 along k share an E4M3 scale, rounded by `scale_rounding`; elements
/// to nearest, ties to even, saturating.
///
/// `amax` is the largest magnitude that the tensor's factor is made for, None for its own: linears
/// that a kernel fuses (q, k, v) should share one.
///
/// # Errors
/// [`QuantizeError::Format`] for an odd k, [`QuantizeError::Unsupported`] for an `amax` that is
/// negative or not finite.
pub fn round_nvfp4(
    weight: Weight<'_>,
    amax: Option<f32>,
    scale_rounding: Round,
) -> Result<Nvfp4Weights, QuantizeError> {
    let own = || weight.values.iter().fold(0.0f32, |max, w| max.max(w.abs()));
    let amax = amax.unwrap_or_else(own);
    if !(amax.is_finite() && amax >= 0.0) {
        return Err(QuantizeError::unsupported(
            "amax",
            amax,
            "finite, at least 0",
        ));
    }
    let encode_factor = nvfp4_encode_factor(f64::from(amax));
    let rows: Vec<Nvfp4Row> = (0..weight.n)
        .into_par_iter()
        .map(|n| Nvfp4Row::quantize(&output(weight, n), encode_factor, scale_rounding))
        .collect::<Result<_, _>>()
        // The factor above is positive and finite, the one thing that can be refused.
        .map_err(|error| QuantizeError::unsupported("encode factor", error, "positive"))?;
    let join =
        |part: fn(&Nvfp4Row) -> &[u8]| -> Vec<u8> { rows.iter().flat_map(part).copied().collect() };
    let flip = |flat: Vec<u8>| -> Vec<u8> {
        let columns = flat.len().checked_div(weight.n).unwrap_or(0);
        (0..columns)
            .flat_map(|c| flat.iter().skip(c).step_by(columns.max(1)))
            .copied()
            .collect()
    };
    let weights = Nvfp4Weights {
        k: weight.k,
        n: weight.n,
        codes: flip(join(|row| &row.codes)),
        scales: flip(join(|row| &row.scales)),
        encode_factor,
    };
    weights.validate()?;
    Ok(weights)
}

/// The k weights of one output, in f64.
fn output(weight: Weight<'_>, n: usize) -> Vec<f64> {
    let own = weight.values.iter().skip(n).step_by(weight.n.max(1));
    own.map(|&w| f64::from(w)).collect()
}
