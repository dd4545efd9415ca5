//! A blueprint to the struct that the launch macro makes of a kernel, with placeholders for the arguments: which tensors
//! are bound is compiled in, their sizes and strides are not.

use std::sync::Arc;

use cubecl::ir::{DeviceProperties, TargetProperties};
use cubecl::prelude::CubeKernel;
use flashcube_kernels::arch::fma::{
    BackwardLayoutsCompilationArg, attend_backward_fma, attend_delta_fma, attend_forward_fma,
    matmul_quantized_fma,
};
use flashcube_kernels::arch::hopper::{attend_forward_hopper, matmul_quantized_hopper};
use flashcube_kernels::arch::plane::{
    MergedLayoutsCompilationArg, ScaleLayoutsCompilationArg, attend_forward_plane,
    attend_operands_plane, attend_parts_plane, matmul_quantized_plane,
};
use flashcube_kernels::arch::tcgen05::{attend_forward_blackwell, attend_operands_blackwell};
use flashcube_kernels::attention::{
    MergeLayoutsCompilationArg, MergeShape, RowLayoutCompilationArg, Side, merge_partials_fma,
};
use flashcube_kernels::quant::{dequantize_int4_fma, hadamard_transform_fma};
use flashcube_kernels::{
    AttendBlueprint, DequantizeBlueprint, HadamardBlueprint, MatmulBlueprint, MergeBlueprint,
    TierName,
};

use super::arguments::{
    buffer, forward_layouts, forward_sizes, hopper_layouts, launch_settings, layout, logit_scalars,
    logit_tensors, matmul_sizes, optional, pack_sizes, table_offsets, tile_order,
};
use super::{Blueprint, instruction, target::elem};

/// The device a kernel is built for.
pub(super) type Device = (Arc<DeviceProperties>, Arc<TargetProperties>);

impl Blueprint {
    pub(super) fn build(
        &self,
        properties: Arc<DeviceProperties>,
        target: Arc<TargetProperties>,
    ) -> Box<dyn CubeKernel> {
        let device = (properties, target);
        match *self {
            Blueprint::AttendForward(blueprint) | Blueprint::AttendDecode(blueprint) => {
                match blueprint.tier {
                    TierName::Unit => forward_unit(blueprint, device),
                    TierName::Plane => forward_plane(blueprint, device),
                    TierName::Hopper => forward_hopper(blueprint, device),
                    TierName::Blackwell if blueprint.features.operands.is_some() => {
                        operands_blackwell(blueprint, device)
                    }
                    TierName::Blackwell => forward_blackwell(blueprint, device),
                }
            }
            Blueprint::AttendBackward(blueprint, side) => attend_backward(blueprint, side, device),
            Blueprint::AttendDelta { blueprint, units } => attend_delta(blueprint, units, device),
            Blueprint::Merge(blueprint) => merge(blueprint, device),
            Blueprint::Dequantize(blueprint) => dequantize(blueprint, device),
            Blueprint::Matmul(blueprint) => match blueprint.tier {
                TierName::Unit => matmul_unit(blueprint, device),
                TierName::Plane => matmul_plane(blueprint, device),
                // Selection gives Blackwell no kernel of its own.
                TierName::Hopper | TierName::Blackwell => matmul_hopper(blueprint, device),
            },
            Blueprint::Hadamard(blueprint) => hadamard(blueprint, device),
            Blueprint::Data(kernel) => kernel.build(device),
            Blueprint::Instruction(blueprint) => instruction::build(blueprint.0, device),
        }
    }
}

fn forward_unit(blueprint: AttendBlueprint, (properties, target): Device) -> Box<dyn CubeKernel> {
    Box::new(attend_forward_fma::AttendForwardFma::new(
        launch_settings(blueprint.units(), blueprint.wide),
        properties,
        target,
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        optional(blueprint.features.split),
        buffer(),
        optional(blueprint.features.codes.is_some()),
        optional(blueprint.features.codes.is_some()),
        logit_tensors(blueprint.features),
        forward_layouts(),
        forward_sizes(),
        logit_scalars(),
        table_offsets(),
        blueprint.vector,
        blueprint,
        elem(blueprint.dtype),
    ))
}

fn forward_plane(blueprint: AttendBlueprint, device: Device) -> Box<dyn CubeKernel> {
    if blueprint.features.split {
        return parts_plane(blueprint, device);
    }
    if blueprint.features.operands.is_some() {
        return operands_plane(blueprint, device);
    }
    let (properties, target) = device;
    Box::new(attend_forward_plane::AttendForwardPlane::new(
        launch_settings(blueprint.units(), blueprint.wide),
        properties,
        target,
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        logit_tensors(blueprint.features),
        forward_layouts(),
        forward_sizes(),
        tile_order(),
        logit_scalars(),
        table_offsets(),
        blueprint,
    ))
}

fn parts_plane(blueprint: AttendBlueprint, (properties, target): Device) -> Box<dyn CubeKernel> {
    Box::new(attend_parts_plane::AttendPartsPlane::new(
        launch_settings(blueprint.units(), blueprint.wide),
        properties,
        target,
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        logit_tensors(blueprint.features),
        forward_layouts(),
        MergedLayoutsCompilationArg {
            out: layout(),
            lse: layout(),
        },
        forward_sizes(),
        tile_order(),
        logit_scalars(),
        table_offsets(),
        blueprint,
        elem(blueprint.dtype),
    ))
}

fn forward_hopper(blueprint: AttendBlueprint, (properties, target): Device) -> Box<dyn CubeKernel> {
    Box::new(attend_forward_hopper::AttendForwardHopper::new(
        launch_settings(blueprint.units(), blueprint.wide),
        properties,
        target,
        (),
        (),
        (),
        buffer(),
        buffer(),
        buffer(),
        logit_tensors(blueprint.features),
        hopper_layouts(),
        forward_sizes(),
        logit_scalars(),
        table_offsets(),
        blueprint,
        elem(blueprint.dtype),
    ))
}

fn forward_blackwell(
    blueprint: AttendBlueprint,
    (properties, target): Device,
) -> Box<dyn CubeKernel> {
    Box::new(attend_forward_blackwell::AttendForwardBlackwell::new(
        launch_settings(blueprint.units(), blueprint.wide),
        properties,
        target,
        (),
        (),
        (),
        buffer(),
        buffer(),
        logit_tensors(blueprint.features),
        hopper_layouts(),
        forward_sizes(),
        logit_scalars(),
        table_offsets(),
        blueprint,
        elem(blueprint.dtype),
    ))
}

fn operands_plane(blueprint: AttendBlueprint, (properties, target): Device) -> Box<dyn CubeKernel> {
    Box::new(attend_operands_plane::AttendOperandsPlane::new(
        launch_settings(blueprint.units(), blueprint.wide),
        properties,
        target,
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        logit_tensors(blueprint.features),
        forward_layouts(),
        ScaleLayoutsCompilationArg {
            q: layout(),
            k: layout(),
            v: layout(),
            factor: (),
        },
        forward_sizes(),
        tile_order(),
        logit_scalars(),
        table_offsets(),
        blueprint,
    ))
}

fn operands_blackwell(
    blueprint: AttendBlueprint,
    (properties, target): Device,
) -> Box<dyn CubeKernel> {
    Box::new(attend_operands_blackwell::AttendOperandsBlackwell::new(
        launch_settings(blueprint.units(), blueprint.wide),
        properties,
        target,
        (),
        (),
        (),
        (),
        (),
        (),
        buffer(),
        buffer(),
        logit_tensors(blueprint.features),
        hopper_layouts(),
        forward_sizes(),
        logit_scalars(),
        table_offsets(),
        (),
        (),
        blueprint,
        elem(blueprint.dtype),
    ))
}

fn attend_backward(
    blueprint: AttendBlueprint,
    side: Side,
    (properties, target): Device,
) -> Box<dyn CubeKernel> {
    Box::new(attend_backward_fma::AttendBackwardFma::new(
        launch_settings(blueprint.units(), blueprint.wide),
        properties,
        target,
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        optional(side == Side::Keys),
        logit_tensors(blueprint.features),
        BackwardLayoutsCompilationArg {
            q: layout(),
            k: layout(),
            v: layout(),
            d_out: layout(),
            lse: layout(),
            first: layout(),
            second: layout(),
        },
        forward_sizes(),
        logit_scalars(),
        table_offsets(),
        blueprint.vector,
        side,
        blueprint,
        elem(blueprint.dtype),
    ))
}

fn attend_delta(
    blueprint: AttendBlueprint,
    units: usize,
    (properties, target): Device,
) -> Box<dyn CubeKernel> {
    Box::new(attend_delta_fma::AttendDeltaFma::new(
        launch_settings(units, blueprint.wide),
        properties,
        target,
        buffer(),
        buffer(),
        buffer(),
        layout(),
        layout(),
        forward_sizes(),
        blueprint.vector,
        blueprint.d_v / blueprint.vector,
        elem(blueprint.dtype),
    ))
}

fn merge(blueprint: MergeBlueprint, (properties, target): Device) -> Box<dyn CubeKernel> {
    let row = || RowLayoutCompilationArg {
        offset: (),
        partial: (),
        batch: (),
        head: (),
        row: (),
    };
    Box::new(merge_partials_fma::MergePartialsFma::new(
        launch_settings(blueprint.units, blueprint.wide),
        properties,
        target,
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        MergeLayoutsCompilationArg {
            outs: row(),
            lses: row(),
            out: row(),
            lse: row(),
            h: (),
            s: (),
            n: (),
            total: (),
            neg_inf: (),
        },
        blueprint.vector,
        MergeShape {
            len: blueprint.d_v / blueprint.vector,
            units: blueprint.units,
            teams: blueprint.teams,
        },
        elem(blueprint.dtype),
    ))
}

fn dequantize(blueprint: DequantizeBlueprint, (properties, target): Device) -> Box<dyn CubeKernel> {
    Box::new(dequantize_int4_fma::DequantizeInt4Fma::new(
        launch_settings(blueprint.units, blueprint.wide),
        properties,
        target,
        buffer(),
        buffer(),
        buffer(),
        optional(blueprint.packing.indexed),
        buffer(),
        pack_sizes(),
        (),
        (),
        (),
        blueprint.packing,
        elem(blueprint.dtype),
    ))
}

fn matmul_unit(blueprint: MatmulBlueprint, (properties, target): Device) -> Box<dyn CubeKernel> {
    Box::new(matmul_quantized_fma::MatmulQuantizedFma::new(
        launch_settings(blueprint.units(), blueprint.wide),
        properties,
        target,
        buffer(),
        buffer(),
        buffer(),
        optional(blueprint.tiles.zeros.is_some()),
        optional(blueprint.tiles.gathered),
        optional(true),
        buffer(),
        matmul_sizes(),
        blueprint,
        elem(blueprint.dtype),
    ))
}

fn matmul_plane(blueprint: MatmulBlueprint, (properties, target): Device) -> Box<dyn CubeKernel> {
    Box::new(matmul_quantized_plane::MatmulQuantizedPlane::new(
        launch_settings(blueprint.units(), blueprint.wide),
        properties,
        target,
        buffer(),
        buffer(),
        buffer(),
        optional(blueprint.tiles.zeros.is_some()),
        optional(blueprint.tiles.gathered),
        optional(true),
        buffer(),
        buffer(),
        buffer(),
        matmul_sizes(),
        blueprint,
        elem(blueprint.dtype),
    ))
}

fn matmul_hopper(blueprint: MatmulBlueprint, (properties, target): Device) -> Box<dyn CubeKernel> {
    Box::new(matmul_quantized_hopper::MatmulQuantizedHopper::new(
        launch_settings(blueprint.units(), blueprint.wide),
        properties,
        target,
        (),
        buffer(),
        buffer(),
        optional(blueprint.tiles.zeros.is_some()),
        optional(true),
        buffer(),
        buffer(),
        buffer(),
        matmul_sizes(),
        blueprint,
        elem(blueprint.dtype),
    ))
}

fn hadamard(blueprint: HadamardBlueprint, (properties, target): Device) -> Box<dyn CubeKernel> {
    Box::new(hadamard_transform_fma::HadamardTransformFma::new(
        launch_settings(blueprint.units, blueprint.wide),
        properties,
        target,
        buffer(),
        buffer(),
        optional(blueprint.signs),
        (),
        (),
        (),
        (),
        (),
        (),
        blueprint.n as u32,
        blueprint.inverse,
        elem(blueprint.dtype),
    ))
}
