//! Operands of block-scaled products, and attention over them: check, bind, launch.

use core::fmt;

use cubecl::prelude::{BufferArg, Client, CubeDim, CubeElement};
use cubecl::server::Handle;

use super::block_scaled::attend_block_scaled;
use super::operand_layout::{Span, row_spans, spans};
use super::*;
use crate::attention::WeightFormat;
use crate::error::{Error, InvalidProblem};
use crate::quant::{
    OperandFormat, OperandSizesLaunch, SCALE_ROWS, dequantize_operand_fma, quantize_operand_fma,
};

/// Which axis of a [b, h, s, d] tensor groups run along: the one that the product contracts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupAxis {
    /// d: Q and K. A row of the operand is a row of the tensor.
    D,
    /// s: V, which is stored with a row for each column of the tensor. Every sequence starts a group.
    S,
}

/// How [`quantize_operand`] cuts a tensor into groups.
#[derive(Debug, Clone, Copy)]
pub struct OperandOptions<'a> {
    /// Element and scale.
    pub format: OperandFormat,
    /// Q and K, or V.
    pub axis: GroupAxis,
    /// Keys of every batch entry, at most s; later rows are not looked at. Of V alone.
    pub lengths: Option<&'a [usize]>,
    /// Cumulative lengths of sequences packed into the rows of the only batch entry: every one starts a group of V, or a
    /// tile of scales of Q and K.
    pub cu_seqlens: Option<&'a [usize]>,
    /// Query heads whose rows alternate in tiles of scales, as they do in tiles of packed heads: the h_q / h_kv of a
    /// group, or 1. Of Q alone.
    pub pack: usize,
}

impl OperandOptions<'_> {
    /// Whole rows of Q or K.
    pub fn rows(format: OperandFormat) -> Self {
        Self {
            format,
            axis: GroupAxis::D,
            lengths: None,
            cu_seqlens: None,
            pack: 1,
        }
    }

    /// V with one sequence for every batch entry.
    pub fn columns(format: OperandFormat) -> Self {
        Self {
            axis: GroupAxis::S,
            ..Self::rows(format)
        }
    }
}

/// A tensor as an operand of block-scaled products: packed codes and their scales in one buffer.
///
/// With R the rows of the operand (s along [`GroupAxis::D`], d along [`GroupAxis::S`]) and C its columns (d, or the
/// keys of all sequences), each piece of which is padded to four groups by zeros:
///
/// - codes [b, h, R, C], the first element in the lowest bits;
/// - from word [`scales_at`](Self::scales_at) on, scales [b, h / pack, T, C / (4 groups), 32, 4, 4]: tiles of 128
///   rows by 4 groups, row r of which is place [r mod 32, r / 32], as tcgen05 reads its scale factors. Every packed
///   sequence of rows starts a tile, and is followed by what fills its last one. Rows of packed heads alternate.
#[derive(Debug, Clone)]
pub struct Operand {
    /// The buffer.
    pub words: Handle,
    /// Element and scale.
    pub format: OperandFormat,
    /// Direction of groups.
    pub axis: GroupAxis,
    /// [b, h, s, d] of the tensor it was made of.
    pub shape: [usize; 4],
    /// Heads whose rows alternate in tiles of scales.
    pub pack: usize,
    /// What quantized it; `None` when it is empty.
    pub blueprint: Option<OperandBlueprint>,
    /// First column and number of columns of the pieces of a row, for each batch entry; one list for all along d.
    pub(super) spans: Vec<Vec<Span>>,
    /// First row and number of rows of what starts a tile of scales.
    pub(super) row_spans: Vec<Span>,
}

/// Comptime choices of the kernels between tensors and operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OperandBlueprint {
    /// Dtype of the tensor.
    pub dtype: DType,
    /// Element and scale.
    pub format: OperandFormat,
    /// Tensor to operand, or back.
    pub inverse: bool,
    /// 64-bit addressing.
    pub wide: bool,
}

impl fmt::Display for OperandBlueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.inverse {
            "dequantize"
        } else {
            "quantize"
        };
        let format = match self.format {
            OperandFormat::Nvfp4 { .. } => "nvfp4",
            OperandFormat::Mxfp4(_) => "mxfp4",
            OperandFormat::Mxfp8(_) => "mxfp8",
            OperandFormat::Fp8 { .. } => "fp8",
        };
        write!(f, "{verb}_operand/unit/{}/{format}", self.dtype)?;
        match self.wide {
            true => write!(f, "/wide"),
            false => Ok(()),
        }
    }
}

impl Operand {
    /// Rows of a head of the operand.
    pub fn rows(&self) -> usize {
        match self.axis {
            GroupAxis::D => self.shape[2],
            GroupAxis::S => self.shape[3],
        }
    }

    /// Columns of a row, a multiple of four groups.
    pub fn columns(&self) -> usize {
        self.quads() * self.format.quad()
    }

    /// First word of the scales.
    pub fn scales_at(&self) -> usize {
        let [b, h, ..] = self.shape;
        let words = b * h * self.rows() * self.columns() * self.format.bits() / 32;
        // Tiles of scales start at multiples of their size.
        words.next_multiple_of(SCALE_ROWS)
    }

    /// Words of the buffer that are used.
    pub fn len(&self) -> usize {
        self.scales_at() + self.units()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.units() == 0
    }

    /// One unit for each word of scales.
    fn units(&self) -> usize {
        let [b, h, ..] = self.shape;
        b * (h / self.pack) * self.scale_tiles() * SCALE_ROWS * self.quads()
    }

    fn sizes(&self, x: &Tensor<4>) -> OperandSizesLaunch {
        let [batch, head, s, d] = x.strides;
        let (row, column) = match self.axis {
            GroupAxis::D => (s, d),
            GroupAxis::S => (d, s),
        };
        let spans = match self.spans.len() {
            1 => 0,
            _ => 2 * self.quads(),
        };
        OperandSizesLaunch::new(
            x.offset,
            batch,
            head,
            row,
            column,
            self.shape[1] as u32,
            self.pack as u32,
            self.rows() as u32,
            (self.scale_tiles() * SCALE_ROWS) as u32,
            self.quads() as u32,
            self.scales_at(),
            spans,
            2 * self.quads() * self.spans.len(),
            self.units(),
            (self.format.exponent() as f32).exp2(),
            (-self.format.exponent() as f32).exp2(),
        )
    }

    /// Launches one of the two kernels between the tensor and the operand.
    fn launch(
        &self,
        client: &Client,
        x: &Tensor<4>,
        inverse: bool,
    ) -> Result<OperandBlueprint, Error> {
        let caps = Caps::of(client);
        let blueprint = OperandBlueprint {
            dtype: x.dtype,
            format: self.format,
            inverse,
            wide: check_reach("quantize_operand", x.reach().max(self.len()), &caps)?,
        };
        check_dtype("quantize_operand", x.dtype, &caps)?;
        let units = cube_units(&caps);
        let cubes = spread("quantize_operand", self.units().div_ceil(units), &caps)?;
        let dim = CubeDim::new_1d(units as u32);
        let table = self.table();
        let spans = client.create_from_slice(u32::as_bytes(&table));
        let (wide, elem) = (address(blueprint.wide), x.dtype.elem());
        // SAFETY: the view was checked against its buffer, the operand's buffer against `len`, and kernels
        // read and write the columns of spans only, which lie in the tensor.
        unsafe {
            let spans = BufferArg::from_raw_parts(spans, table.len());
            let words = BufferArg::from_raw_parts(self.words.clone(), self.len());
            let (x, sizes, format) = (buffer(x, 1), self.sizes(x), self.format.compiled());
            match inverse {
                false => quantize_operand_fma::launch_unchecked(
                    client, cubes, dim, wide, x, words, spans, sizes, format, elem,
                ),
                true => dequantize_operand_fma::launch_unchecked(
                    client, cubes, dim, wide, words, x, spans, sizes, format, elem,
                ),
            }
        }
        let written = if inverse { &x.handle } else { &self.words };
        check_launch(client, &caps, &blueprint, [written])?;
        Ok(blueprint)
    }
}

/// Q, K or V [b, h, s, d] (f32, f16, bf16; any strides) as codes and scales; see [`Operand`].
///
/// Codes and scales are those of exact arithmetic on every backend: ties go to even codes, what is too large
/// saturates, a group with a NaN or an infinity gets the NaN scale.
///
/// # Errors
/// [`InvalidProblem`] for an exponent beyond +-64, lengths past s, lengths of Q or K, heads of V that alternate or do
/// not divide h;
/// [`NotAvailable`](crate::error::NotAvailable) where the device lacks the dtype or address width.
pub fn quantize_operand(
    client: &Client,
    x: &Tensor<4>,
    options: &OperandOptions<'_>,
) -> Result<Operand, Error> {
    x.check_bounds("x")?;
    let exponent = options.format.exponent();
    if exponent.unsigned_abs() > 64 {
        return Err(out_of_range("exponent", exponent.into(), 64).into());
    }
    let mut operand = Operand {
        words: client.empty(16),
        format: options.format,
        axis: options.axis,
        shape: x.shape,
        pack: options.pack,
        blueprint: None,
        spans: spans(x.shape, options)?,
        row_spans: row_spans(x.shape, options)?,
    };
    if operand.is_empty() {
        return Ok(operand);
    }
    operand.words = client.empty(4 * operand.len());
    operand.blueprint = Some(operand.launch(client, x, false)?);
    Ok(operand)
}

/// The values that an operand stands for, into `out` [b, h, s, d] (f32 or bf16, which hold them exactly; f16 where its
/// range does). Rows of no sequence are left as they are.
///
/// # Errors
/// [`InvalidProblem`] for another shape; as [`quantize_operand`].
pub fn dequantize_operand(
    client: &Client,
    operand: &Operand,
    out: &Tensor<4>,
) -> Result<(), Error> {
    expect_axes("out", ["b", "h", "s", "d"], out.shape, operand.shape)?;
    out.check_rows("out")?;
    match operand.is_empty() {
        true => Ok(()),
        false => operand.launch(client, out, true).map(drop),
    }
}

/// out = softmax(logits(q k^T)) v with q, k and v in block-scaled formats, and P in that of v: matrix units
/// that scale blocks take both operands of a product in one format.
///
/// | v | P |
/// |---|---|
/// | NVFP4 | E2M1 in groups of 16 keys with E4M3 scales |
/// | MXFP4 | E2M1 in groups of 32 keys with powers of two |
/// | MXFP8, FP8 | E4M3: what causal masks and training want |
///
/// q and k share a format, any of the four, with groups along d; v has groups along s. P is encoded
/// straight from its logits ([`WeightFormat`]) and the row sum taken over what is multiplied; lse is that of this sum.
/// Codes are decoded once, exactly, into a workspace of `dtype` and multiplied in f32 (f32: unit tier) or by matrix units in
/// bf16 with f32 sums (bf16: plane tier where there is one): every backend computes what block-scaled matrix
/// units would, but for the order of f32 sums. On the Blackwell tier, and on the plane tier of sm_120, they are multiplied as
/// they are: bf16 out; packed sequences and packed heads on the Blackwell tier alone, where q and k were quantized by them
/// ([`OperandOptions`]). A NaN in a visible key weighs 0, since E2M1 has no NaN.
///
/// # Errors
/// As [`attend_forward`]; [`InvalidProblem::Format`] for operands that no instruction multiplies,
/// [`InvalidProblem::Conflict`] with sinks, [`InvalidProblem::Entry`] where a sequence of the options is not one of v's.
///
/// ```no_run
/// use flashcube_kernels::*;
///
/// # fn demo(client: &cubecl::prelude::Client) -> Result<(), Error> {
/// let x = Tensor::empty(client, [1, 8, 256, 64], DType::BF16);
/// let format = OperandFormat::Nvfp4 { exponent: 0 };
/// let q = quantize_operand(client, &x, &OperandOptions::rows(format))?;
/// let v = quantize_operand(client, &x, &OperandOptions::columns(format))?;
/// let attended = attend_operands(client, [&q, &q, &v], DType::BF16, &AttendOptions::default())?;
/// assert_eq!(attended.out.shape, [1, 8, 256, 64]);
/// # Ok(())
/// # }
/// ```
pub fn attend_operands(
    client: &Client,
    [q, k, v]: [&Operand; 3],
    dtype: DType,
    options: &AttendOptions<'_>,
) -> Result<Attended, Error> {
    let weights = check_formats([q, k, v])?;
    if !matches!(dtype, DType::F32 | DType::BF16) {
        return Err(InvalidProblem::Dtype {
            tensor: "out",
            found: dtype,
            expected: "f32 or bf16, which hold every value of an operand".into(),
        }
        .into());
    }
    if options.sinks.is_some() {
        return Err(InvalidProblem::Conflict {
            option: "sinks",
            with: "encoded weights",
        }
        .into());
    }
    check_sequences(v, options)?;
    match options.policy.tier {
        Some(TierName::Blackwell) => {
            return attend_block_scaled(client, [q, k, v], dtype, weights, options);
        }
        // The fastest tier, if it takes them.
        None | Some(TierName::Plane) => {
            match attend_block_scaled(client, [q, k, v], dtype, weights, options) {
                Err(Error::NotAvailable(_)) => {}
                done => return done,
            }
        }
        Some(_) => {}
    }
    let [q, k, v] = [q, k, v].map(|operand| -> Result<Tensor<4>, Error> {
        let values = Tensor::empty(client, operand.shape, dtype);
        dequantize_operand(client, operand, &values)?;
        Ok(values)
    });
    attend(client, [&q?, &k?, &v?], options, weights)
}

/// The format of P, if q, k and v go together.
fn check_formats([q, k, v]: [&Operand; 3]) -> Result<WeightFormat, InvalidProblem> {
    for (tensor, operand, axis) in [
        ("q", q, GroupAxis::D),
        ("k", k, GroupAxis::D),
        ("v", v, GroupAxis::S),
    ] {
        if operand.axis != axis {
            return Err(InvalidProblem::Format {
                tensor,
                found: format!("groups along {:?}", operand.axis),
                expected: format!("groups along {axis:?}"),
            });
        }
    }
    let kind = |operand: &Operand| core::mem::discriminant(&operand.format);
    if kind(k) != kind(q) {
        return Err(InvalidProblem::Format {
            tensor: "k",
            found: format!("{:?}", k.format),
            expected: format!("that of q, {:?}", q.format),
        });
    }
    Ok(match v.format {
        OperandFormat::Nvfp4 { .. } => WeightFormat::Nvfp4,
        OperandFormat::Mxfp4(rule) => WeightFormat::Mxfp4(rule),
        OperandFormat::Mxfp8(_) | OperandFormat::Fp8 { .. } => WeightFormat::E4m3,
    })
}

/// Groups of P start where those of v do: every sequence of the options is one of v's, or the start of it.
fn check_sequences(v: &Operand, options: &AttendOptions<'_>) -> Result<(), InvalidProblem> {
    let [b, _, s, _] = v.shape;
    let asked = OperandOptions {
        lengths: options.lengths_kv,
        cu_seqlens: options.cu_seqlens.map(|(_, kv)| kv),
        ..OperandOptions::columns(v.format)
    };
    let asked = spans([b, 1, s, 1], &asked)?;
    for batch in 0..b {
        let of = |all: &Vec<Vec<(usize, usize)>>| all[batch.min(all.len() - 1)].clone();
        let (asked, have) = (of(&asked), of(&v.spans));
        let apart = |&(first, count): &(usize, usize)| {
            let fits = |&(start, rows): &(usize, usize)| start == first && count <= rows;
            count > 0 && !have.iter().any(fits)
        };
        if let Some(index) = asked.iter().position(apart) {
            return Err(InvalidProblem::Entry {
                name: "sequences that v was quantized by",
                index,
                value: asked[index].0 + asked[index].1,
                limit: have.get(index).map_or(0, |(first, rows)| first + rows),
            });
        }
    }
    Ok(())
}
