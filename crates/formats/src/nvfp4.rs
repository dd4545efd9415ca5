//! compressed-tensors `nvfp4-pack-quantized`: e2m1 codes two to a byte, an e4m3 scale per 16 values
//! along k, one f32 factor per tensor. Source: compressed-tensors, `compressors/nvfp4`; code
//! tables: OCP MX specification 1.0, 5.3.

use crate::error::{FormatError, check_len, product};
use crate::int_weights::check_range;
use crate::packed::transpose;

/// Values along k that share a scale.
const BLOCK: usize = 16;

/// An NVFP4 weight W [k, n], unpacked: W[k, n] = e2m1(codes[k, n]) * (e4m3(scales[k/16, n]) /
/// encode_factor).
#[derive(Debug, Clone, PartialEq)]
pub struct Nvfp4Weights {
    /// Input features, even.
    pub k: usize,
    /// Output features.
    pub n: usize,
    /// [k, n] e2m1 codes: sign in bit 3, magnitudes 0 .5 1 1.5 2 3 4 6.
    pub codes: Vec<u8>,
    /// [ceil(k/16), n] e4m3 codes.
    pub scales: Vec<u8>,
    /// What values were multiplied by before encoding (`weight_global_scale`): decoding divides by
    /// it.
    pub encode_factor: f32,
}

/// The tensors of a checkpoint, as kernels load them.
#[derive(Debug, Clone, PartialEq)]
pub struct Nvfp4Linear {
    /// Input features, even.
    pub k: usize,
    /// Output features.
    pub n: usize,
    /// `weight_packed` [n, k/2]: the even value in the low half.
    pub packed: Vec<u8>,
    /// `weight_scale` [n, ceil(k/16)] e4m3.
    pub scales: Vec<u8>,
    /// `weight_global_scale`.
    pub encode_factor: f32,
}

impl Nvfp4Weights {
    /// Checks lengths and ranges.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] for an odd k or a factor that is not positive,
    /// [`FormatError::WrongShape`], [`FormatError::OutOfRange`] for a code past 15,
    /// [`FormatError::NotFinite`] for an e4m3 NaN or the factor.
    pub fn validate(&self) -> Result<(), FormatError> {
        check_sizes(self.k, self.n)?;
        check_len("codes", self.codes.len(), &[self.k, self.n])?;
        check_range("codes", &self.codes, 16)?;
        check_len(
            "scales",
            self.scales.len(),
            &[self.k.div_ceil(BLOCK), self.n],
        )?;
        check_scales(&self.scales, self.encode_factor)
    }

    /// Packs two codes to a byte; the errors are those of [`Nvfp4Weights::validate`].
    pub fn pack(&self) -> Result<Nvfp4Linear, FormatError> {
        self.validate()?;
        let rows = transpose(&self.codes, self.k, self.n);
        Ok(Nvfp4Linear {
            k: self.k,
            n: self.n,
            packed: rows
                .chunks_exact(2)
                .map(|pair| pair[0] | pair[1] << 4)
                .collect(),
            scales: transpose(&self.scales, self.k.div_ceil(BLOCK), self.n),
            encode_factor: self.encode_factor,
        })
    }

    /// W [k, n] in f32: the block scale divided by the factor is rounded once, the product once.
    ///
    /// The weights must be valid ([`Nvfp4Weights::validate`]).
    pub fn dequantize(&self) -> Vec<f32> {
        let value = |(at, &code): (usize, &u8)| {
            let (row, column) = (at / self.n, at % self.n);
            let scale =
                decode_e4m3(self.scales[row / BLOCK * self.n + column]) / self.encode_factor;
            decode_e2m1(code) * scale
        };
        self.codes.iter().enumerate().map(value).collect()
    }
}

impl Nvfp4Linear {
    pub(crate) fn check(&self) -> Result<(), FormatError> {
        check_sizes(self.k, self.n)?;
        check_len("weight_packed", self.packed.len(), &[self.n, self.k / 2])?;
        check_len(
            "weight_scale",
            self.scales.len(),
            &[self.n, self.k.div_ceil(BLOCK)],
        )?;
        check_scales(&self.scales, self.encode_factor)
    }

    /// Unpacks to the logical form; the errors are those of [`Nvfp4Weights::validate`].
    pub fn unpack(&self) -> Result<Nvfp4Weights, FormatError> {
        self.check()?;
        let rows: Vec<u8> = self
            .packed
            .iter()
            .flat_map(|byte| [byte & 15, byte >> 4])
            .collect();
        Ok(Nvfp4Weights {
            k: self.k,
            n: self.n,
            codes: transpose(&rows, self.n, self.k),
            scales: transpose(&self.scales, self.n, self.k.div_ceil(BLOCK)),
            encode_factor: self.encode_factor,
        })
    }
}

fn check_sizes(k: usize, n: usize) -> Result<(), FormatError> {
    product("weight", &[k, n, 4])?;
    if k.is_multiple_of(2) {
        return Ok(());
    }
    Err(FormatError::unsupported(
        "nvfp4",
        "k",
        k,
        "an even number: two codes share a byte",
    ))
}

fn check_scales(scales: &[u8], encode_factor: f32) -> Result<(), FormatError> {
    if !encode_factor.is_finite() {
        let tensor = "weight_global_scale".to_owned();
        return Err(FormatError::NotFinite {
            tensor,
            index: 0,
            value: encode_factor,
        });
    }
    if encode_factor <= 0.0 {
        return Err(FormatError::unsupported(
            "nvfp4",
            "global scale",
            encode_factor,
            "a positive number",
        ));
    }
    match scales.iter().position(|code| code & 0x7f == 0x7f) {
        None => Ok(()),
        Some(index) => Err(FormatError::NotFinite {
            tensor: "weight_scale".to_owned(),
            index,
            value: f32::NAN,
        }),
    }
}

/// The value of an e2m1 code.
pub(crate) fn decode_e2m1(code: u8) -> f32 {
    const MAGNITUDE: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let magnitude = MAGNITUDE[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// The value of an e4m3 code (bias 7, no infinity); NaN for 0x7f and 0xff.
pub(crate) fn decode_e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}
