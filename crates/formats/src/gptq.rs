//! GPTQ, versions 1 (AutoGPTQ) and 2 (GPTQModel).
//!
//! Weights [ceil(k*bits/32), n] packed down k; zeros [groups, ceil(n*bits/32)] packed along n;
//! scales [groups, n]. Version 1 stores z - 1, version 2 stores z. Source: GPTQModel's
//! `nn_modules/qlinear` and `utils/model.py`.

use crate::error::FormatError;
use crate::int_weights::{IntWeights, QuantShape};
use crate::packed::{Format, Layout, PackedLinear};
use crate::words::{Order, Runs, plain, words_for};

/// What a version 1 checkpoint means where a zero point is 0, so that z - 1 leaves its field.
///
/// GPTQModel subtracts and adds whole words for 2, 4 and 8 bits, so that the borrow runs into the
/// next field: zero points 0, 5 are stored as 15, 3. For 3 bits, whose fields cross words, it works
/// field by field modulo 2^bits, as other readers do for every width. The two agree where no zero
/// point is 0. Asymmetric weights are therefore best written as version 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum V1Zeros {
    /// One addition or subtraction per 32-bit word; 2, 4 and 8 bits.
    Word,
    /// Per field, modulo 2^bits.
    Field,
    /// Refuse a zero point of 0, in reading and in writing.
    Strict,
}

impl V1Zeros {
    /// What GPTQModel does for this width: [`V1Zeros::Word`], for 3 bits [`V1Zeros::Field`].
    pub fn of_gptqmodel(bits: u32) -> Self {
        if bits == 3 { Self::Field } else { Self::Word }
    }
}

/// A version of the format, told from the stored zero points of symmetric weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GptqVersion {
    /// Every field holds 2^(bits-1) - 1.
    V1,
    /// Every field holds 2^(bits-1).
    V2,
}

impl GptqVersion {
    fn name(self) -> &'static str {
        match self {
            Self::V1 => "gptq (v1)",
            Self::V2 => "gptq_v2",
        }
    }
}

/// Tells the version of symmetric zero points [groups, n]: every field 2^(bits-1) - 1 is v1, every
/// field 2^(bits-1) is v2, anything else (asymmetric, or no field at all) is None.
///
/// # Errors
/// [`FormatError::WrongShape`] when `qzeros` has another length than [groups, ceil(n*bits/32)].
pub fn sniff_version(
    qzeros: &[u32],
    shape: &QuantShape,
) -> Result<Option<GptqVersion>, FormatError> {
    let words = [shape.groups, words_for(shape.n, shape.bits)];
    crate::error::check_len("qzeros", qzeros.len(), &words)?;
    let fields = stored_zeros(shape, qzeros);
    let mid = shape.mid_code();
    let all = |value: u8| !fields.is_empty() && fields.iter().all(|&field| field == value);
    Ok(if all(mid) {
        Some(GptqVersion::V2)
    } else if all(mid - 1) {
        Some(GptqVersion::V1)
    } else {
        None
    })
}

/// Compares the declared version with what symmetric zero points show.
///
/// # Errors
/// [`FormatError::ZeroPointVersion`] when they contradict each other: reading on would shift every
/// weight by one scale.
pub fn check_version(
    tensor: &str,
    qzeros: &[u32],
    shape: &QuantShape,
    declared: GptqVersion,
) -> Result<(), FormatError> {
    match sniff_version(qzeros, shape)? {
        Some(sniffed) if sniffed != declared => Err(FormatError::ZeroPointVersion {
            tensor: tensor.to_owned(),
            found: shape.mid_code() - u8::from(sniffed == GptqVersion::V1),
            bits: shape.bits,
            sniffed: sniffed.name(),
            declared: declared.name(),
        }),
        _ => Ok(()),
    }
}

pub(crate) fn layout(shape: &QuantShape, v1: Option<V1Zeros>) -> Result<Layout, FormatError> {
    if shape.bits == 3 && v1 == Some(V1Zeros::Word) {
        let limit = "3-bit fields cross words: read them field by field";
        return Err(FormatError::unsupported(
            "gptq",
            "word-wise zero points at bits",
            3,
            limit,
        ));
    }
    Ok(Layout {
        weights: [words_for(shape.k, shape.bits), shape.n],
        zeros: Some([shape.groups, words_for(shape.n, shape.bits)]),
        scales: [shape.groups, shape.n],
    })
}

/// Codes packed down k: n runs of k fields.
fn weight_runs(shape: &QuantShape) -> Runs {
    Runs {
        runs: shape.n,
        fields: shape.k,
        bits: shape.bits,
        order: Order::Down,
    }
}

/// Zero points packed along n: one run of n fields per group.
fn zero_runs(shape: &QuantShape) -> Runs {
    Runs {
        runs: shape.groups,
        fields: shape.n,
        bits: shape.bits,
        order: Order::Along,
    }
}

pub(crate) fn pack(weights: &IntWeights, v1: Option<V1Zeros>) -> Result<PackedLinear, FormatError> {
    let shape = weights.shape;
    let n = shape.n;
    let zero = |group: usize, column: usize| weights.zeros[group * n + column];
    let pack_zeros = |code: &dyn Fn(usize, usize) -> u8| zero_runs(&shape).pack(plain, code);
    let zeros = match v1 {
        None => pack_zeros(&zero),
        Some(V1Zeros::Word) => {
            let one = ones(shape.bits);
            pack_zeros(&zero)
                .into_iter()
                .map(|word| word.wrapping_sub(one))
                .collect()
        }
        Some(rule) => {
            if let (V1Zeros::Strict, Some(index)) =
                (rule, weights.zeros.iter().position(|&z| z == 0))
            {
                return Err(FormatError::AmbiguousZero {
                    tensor: "zeros".to_owned(),
                    index,
                });
            }
            pack_zeros(&|group, column| zero(group, column).wrapping_sub(1) & shape.max_code())
        }
    };
    Ok(PackedLinear {
        format: v1.map_or(Format::GptqV2, Format::GptqV1),
        shape,
        weights: weight_runs(&shape).pack(plain, |column, row| weights.codes[row * n + column]),
        zeros: Some(zeros),
        scales: weights.scales.clone(),
        g_idx: weights.g_idx.clone(),
    })
}

pub(crate) fn unpack(
    packed: &PackedLinear,
    v1: Option<V1Zeros>,
) -> Result<IntWeights, FormatError> {
    let shape = packed.shape;
    let n = shape.n;
    let mut codes = vec![0; shape.k * n];
    weight_runs(&shape).unpack(&packed.weights, plain, |column, row, code| {
        codes[row * n + column] = code
    });

    let words = packed.zero_words();
    let zeros = match v1 {
        None => stored_zeros(&shape, words),
        Some(V1Zeros::Word) => {
            let one = ones(shape.bits);
            let words: Vec<u32> = words.iter().map(|word| word.wrapping_add(one)).collect();
            stored_zeros(&shape, &words)
        }
        Some(rule) => {
            let fields = stored_zeros(&shape, words);
            let wrapped = fields.iter().position(|&field| field == shape.max_code());
            if let (V1Zeros::Strict, Some(index)) = (rule, wrapped) {
                return Err(FormatError::AmbiguousZero {
                    tensor: "qzeros".to_owned(),
                    index,
                });
            }
            fields
                .iter()
                .map(|field| field.wrapping_add(1) & shape.max_code())
                .collect()
        }
    };
    Ok(IntWeights {
        shape,
        codes,
        zeros,
        scales: packed.scales.clone(),
        g_idx: packed.g_idx.clone(),
        minima: None,
    })
}

/// The fields of `words` [groups, ceil(n*bits/32)] as they are, [groups, n].
fn stored_zeros(shape: &QuantShape, words: &[u32]) -> Vec<u8> {
    let mut zeros = vec![0; shape.groups * shape.n];
    zero_runs(shape).unpack(words, plain, |group, column, code| {
        zeros[group * shape.n + column] = code
    });
    zeros
}

/// A 1 in every field of a word: 0x11111111 for 4 bits.
fn ones(bits: u32) -> u32 {
    (0..32 / bits).fold(0, |word, field| word | 1 << (field * bits))
}
