//! Kernels that move, pack and convert tensors. Nothing of them is selected: their arguments are their blueprints.

use std::fmt;

use cubecl::prelude::CubeKernel;
use flashcube_kernels::arch::hopper::arrange_x;
use flashcube_kernels::attention::{
    AppendShape, AppendSizesCompilationArg, LogitFeatures, advance_lengths, append_rows_fma,
    copy_pages_fma,
};
use flashcube_kernels::quant::{
    OperandFormat, OperandSizesCompilationArg, Packing, TileSizesCompilationArg,
    dequantize_operand_fma, quantize_operand_fma, repack_codes_fma, repack_scales_fma,
};
use flashcube_kernels::{Caps, DType, Family, NotAvailable};

use super::arguments::{
    buffer, launch_settings, layout, logit_tensors, matmul_sizes, optional, pack_sizes,
    table_offsets,
};
use super::build::Device;
use super::target::elem;

/// Units of a cube.
const UNITS: usize = 256;

/// A kernel with its comptime arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataKernel {
    /// `append`.
    Append(AppendShape, DType),
    /// What `append` leaves in the lengths of the device.
    AdvanceLengths,
    /// `copy_pages` of rows of so many columns.
    CopyPages(usize, DType),
    /// Codes to our tiles, act-order or not.
    RepackCodes(Packing, bool),
    /// Scales to our tiles, with zero points or without.
    RepackScales(Packing, bool),
    /// Rows of x in the order of the stored rows of W, for the Hopper tier.
    ArrangeX,
    /// `quantize_operand`.
    QuantizeOperand(OperandFormat, DType),
    /// `dequantize_operand`.
    DequantizeOperand(OperandFormat, DType),
}

impl DataKernel {
    /// Itself where a launch would be let through.
    pub(super) fn select(self, caps: &Caps) -> Result<Self, NotAvailable> {
        // It reads elements of 16 bits as integers, which WGSL has not.
        let has_u16 = matches!(caps.family, Family::Cpu | Family::Cuda);
        if self == DataKernel::ArrangeX && !has_u16 {
            return Err(NotAvailable {
                what: "matmul_quantized".into(),
                device: caps.device.clone(),
                limit: "dtypes",
                needed: "u16".into(),
                available: "u32".into(),
            });
        }
        Ok(self)
    }

    pub(super) fn build(self, (properties, target): Device) -> Box<dyn CubeKernel> {
        let settings = launch_settings(UNITS, false);
        match self {
            DataKernel::Append(shape, dtype) => Box::new(append_rows_fma::AppendRowsFma::new(
                settings,
                properties,
                target,
                buffer(),
                buffer(),
                optional(shape.rope.is_some()),
                optional(shape.rope.is_some()),
                logit_tensors(cache_features(shape)),
                table_offsets(),
                layout(),
                layout(),
                AppendSizesCompilationArg {
                    count: (),
                    first: (),
                    h: (),
                    s: (),
                    capacity: (),
                    total: (),
                    cos: (),
                    cos_row: (),
                    sin: (),
                    sin_row: (),
                },
                shape,
                elem(dtype),
            )),
            DataKernel::AdvanceLengths => Box::new(advance_lengths::AdvanceLengths::new(
                settings,
                properties,
                target,
                buffer(),
                optional(true),
                (),
                (),
                (),
                (),
                (),
            )),
            DataKernel::CopyPages(d, dtype) => Box::new(copy_pages_fma::CopyPagesFma::new(
                settings,
                properties,
                target,
                buffer(),
                buffer(),
                layout(),
                (),
                (),
                (),
                d,
                elem(dtype),
            )),
            DataKernel::RepackCodes(packing, gathered) => {
                Box::new(repack_codes_fma::RepackCodesFma::new(
                    settings,
                    properties,
                    target,
                    buffer(),
                    optional(gathered),
                    buffer(),
                    pack_sizes(),
                    tile_sizes(),
                    packing,
                ))
            }
            DataKernel::RepackScales(packing, zeros) => {
                Box::new(repack_scales_fma::RepackScalesFma::new(
                    settings,
                    properties,
                    target,
                    buffer(),
                    buffer(),
                    buffer(),
                    buffer(),
                    buffer(),
                    pack_sizes(),
                    tile_sizes(),
                    packing,
                    zeros,
                ))
            }
            DataKernel::ArrangeX => Box::new(arrange_x::ArrangeX::new(
                settings,
                properties,
                target,
                buffer(),
                optional(true),
                buffer(),
                matmul_sizes(),
            )),
            DataKernel::QuantizeOperand(format, dtype) => {
                Box::new(quantize_operand_fma::QuantizeOperandFma::new(
                    settings,
                    properties,
                    target,
                    buffer(),
                    buffer(),
                    buffer(),
                    operand_sizes(),
                    format,
                    elem(dtype),
                ))
            }
            DataKernel::DequantizeOperand(format, dtype) => {
                Box::new(dequantize_operand_fma::DequantizeOperandFma::new(
                    settings,
                    properties,
                    target,
                    buffer(),
                    buffer(),
                    buffer(),
                    operand_sizes(),
                    format,
                    elem(dtype),
                ))
            }
        }
    }
}

/// The tables that an append into such a cache reads.
fn cache_features(shape: AppendShape) -> LogitFeatures {
    LogitFeatures {
        lengths: true,
        page: shape.page,
        ..LogitFeatures::default()
    }
}

fn tile_sizes() -> TileSizesCompilationArg {
    TileSizesCompilationArg {
        k_tiles: (),
        n_tiles: (),
        groups: (),
    }
}

fn operand_sizes() -> OperandSizesCompilationArg {
    OperandSizesCompilationArg {
        offset: (),
        batch: (),
        head: (),
        row: (),
        column: (),
        h: (),
        pack: (),
        rows: (),
        scale_rows: (),
        quads: (),
        scales: (),
        spans: (),
        tiles: (),
        total: (),
        factor: (),
        inverse: (),
    }
}

impl fmt::Display for DataKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataKernel::Append(shape, dtype) => {
                write!(f, "append/unit/{dtype}/d{}", shape.d)?;
                if let Some(page) = shape.page {
                    write!(f, "/page{page}")?;
                }
                if let Some((pairs, columns)) = shape.rope {
                    write!(f, "/rope-{}{columns}", lower(pairs))?;
                }
                f.write_str(tag(shape.ragged, "/ragged"))
            }
            DataKernel::AdvanceLengths => f.write_str("append/unit/lengths"),
            DataKernel::CopyPages(d, dtype) => write!(f, "copy_pages/unit/{dtype}/d{d}"),
            DataKernel::RepackCodes(packing, gathered) => {
                let (format, tag) = (lower(packing.format), tag(*gathered, "/gathered"));
                write!(f, "repack/unit/codes/{format}-b{}{tag}", packing.bits)
            }
            DataKernel::RepackScales(packing, zeros) => {
                let (format, tag) = (lower(packing.format), tag(*zeros, "/zeros"));
                write!(f, "repack/unit/scales/{format}-b{}{tag}", packing.bits)
            }
            DataKernel::ArrangeX => f.write_str("w4a16/unit/arrange-x"),
            DataKernel::QuantizeOperand(format, dtype) => {
                write!(f, "quantize_operand/unit/{dtype}/{}", lower(format))
            }
            DataKernel::DequantizeOperand(format, dtype) => {
                write!(f, "dequantize_operand/unit/{dtype}/{}", lower(format))
            }
        }
    }
}

/// The name of a variant in lower case, without its fields' punctuation.
fn lower(variant: impl fmt::Debug) -> String {
    let name = format!("{variant:?}").to_lowercase();
    name.replace(|c: char| !c.is_ascii_alphanumeric(), "")
}

fn tag(on: bool, tag: &'static str) -> &'static str {
    if on { tag } else { "" }
}
