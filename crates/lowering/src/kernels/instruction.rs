//! Single instructions: what they are built with, and what must be left of them in SASS.

use cubecl::prelude::CubeKernel;
use flashcube_kernels::Instruction;
use flashcube_kernels::arch::instructions::{
    decode_codes, encode_values, load_matrices, multiply_plane, multiply_warpgroup,
};

use super::arguments::{buffer, launch_settings};
use super::build::Device;

pub(super) fn build(form: Instruction, (properties, target): Device) -> Box<dyn CubeKernel> {
    let settings = launch_settings(form.units() as usize, false);
    match form {
        Instruction::Mma { element, k } => Box::new(multiply_plane::MultiplyPlane::new(
            settings,
            properties,
            target,
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            element,
            k,
        )),
        Instruction::Wgmma {
            element,
            n,
            operands,
        } => Box::new(multiply_warpgroup::MultiplyWarpgroup::new(
            settings,
            properties,
            target,
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            element,
            n,
            operands,
        )),
        Instruction::LoadMatrix { count, transposed } => {
            Box::new(load_matrices::LoadMatrices::new(
                settings,
                properties,
                target,
                buffer(),
                buffer(),
                count,
                transposed,
            ))
        }
        Instruction::Encode(format) => Box::new(encode_values::EncodeValues::new(
            settings,
            properties,
            target,
            buffer(),
            buffer(),
            format,
        )),
        Instruction::Decode(format) => Box::new(decode_codes::DecodeCodes::new(
            settings,
            properties,
            target,
            buffer(),
            buffer(),
            format,
        )),
    }
}

/// Opcodes that do the work.
pub(super) fn required(form: Instruction) -> &'static [&'static str] {
    match form {
        // Hopper multiplies FP8 of a single warp as f16.
        Instruction::Mma { .. } => &["HMMA|QMMA"],
        Instruction::Wgmma { element, .. } if element.bits() == 8 => &["QGMMA"],
        Instruction::Wgmma { .. } => &["HGMMA"],
        Instruction::LoadMatrix { .. } => &["LDSM"],
        Instruction::Encode(_) | Instruction::Decode(_) => &["F2FP|F2F|HADD2"],
    }
}
