//! Kernels that move, pack and convert tensors.

use flashcube_kernels::attention::{AppendShape, RopePairs};
use flashcube_kernels::quant::{PackFormat, Packing};
use flashcube_kernels::{DType, OperandFormat, ScaleRule};

use crate::kernels::{DataKernel, ListedKernel, Problem};

pub(super) fn data(all: &mut Vec<ListedKernel>) {
    let mut add = |name: &str, kernel| {
        all.push(ListedKernel {
            name: name.to_owned(),
            problem: Problem::Data(kernel),
        });
    };
    caches(&mut add);
    weights(&mut add);
    for (name, format) in [
        ("nvfp4", OperandFormat::Nvfp4 { exponent: 0 }),
        ("mxfp4", OperandFormat::Mxfp4(ScaleRule::Ceil)),
        ("mxfp8", OperandFormat::Mxfp8(ScaleRule::Ceil)),
        ("fp8", OperandFormat::Fp8 { exponent: 0 }),
    ] {
        let quantize = DataKernel::QuantizeOperand(format, DType::F16);
        add(&format!("quantize_operand_f16_{name}"), quantize);
        let dequantize = DataKernel::DequantizeOperand(format, DType::F32);
        add(&format!("dequantize_operand_f32_{name}"), dequantize);
    }
}

fn caches(add: &mut impl FnMut(&str, DataKernel)) {
    let rows = AppendShape {
        d: 128,
        page: None,
        rope: None,
        ragged: false,
    };
    let paged = AppendShape {
        page: Some(64),
        ragged: true,
        ..rows
    };
    let rotated = |pairs| AppendShape {
        rope: Some((pairs, 128)),
        ..paged
    };
    for (name, shape) in [
        ("append_f16_d128", rows),
        ("append_f16_d128_paged", paged),
        ("append_f16_d128_rope", rotated(RopePairs::HalfSplit)),
        (
            "append_f16_d128_rope_interleaved",
            rotated(RopePairs::Interleaved),
        ),
    ] {
        add(name, DataKernel::Append(shape, DType::F16));
    }
    add("append_lengths", DataKernel::AdvanceLengths);
    add(
        "copy_pages_f16_d128",
        DataKernel::CopyPages(128, DType::F16),
    );
}

fn weights(add: &mut impl FnMut(&str, DataKernel)) {
    for (name, format, bits, indexed) in [
        ("gptq_v1", PackFormat::GptqV1, 4, true),
        ("gptq_v2_b3", PackFormat::GptqV2, 3, false),
        ("awq_gemm", PackFormat::AwqGemm, 4, false),
        ("awq_gemv", PackFormat::AwqGemv, 4, false),
    ] {
        let packing = Packing {
            format,
            bits,
            indexed,
        };
        let codes = DataKernel::RepackCodes(packing, indexed);
        add(&format!("repack_codes_{name}"), codes);
        let scales = DataKernel::RepackScales(packing, true);
        add(&format!("repack_scales_{name}"), scales);
    }
    add("w4a16_arrange_x", DataKernel::ArrangeX);
}
