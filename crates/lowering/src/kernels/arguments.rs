//! Placeholders for the arguments that kernels take in common.

use cubecl::ir::AddressType;
use cubecl::prelude::{
    BufferCompilationArg, ComptimeOptionCompilationArg, KernelSettings, LaunchArg,
};
use flashcube_kernels::arch::fma::{ForwardLayoutsCompilationArg, ForwardSizesCompilationArg};
use flashcube_kernels::arch::hopper::HopperLayoutsCompilationArg;
use flashcube_kernels::attention::{
    LogitFeatures, LogitScalarsCompilationArg, LogitTensorsCompilationArg,
    TableOffsetsCompilationArg, TileOrderCompilationArg,
};
use flashcube_kernels::quant::{MatmulSizesCompilationArg, PackSizesCompilationArg};
use flashcube_kernels::tile::LayoutCompilationArg;

use crate::cubecl::settings;

pub(super) fn launch_settings(units: usize, wide: bool) -> KernelSettings {
    KernelSettings {
        address_type: if wide {
            AddressType::U64
        } else {
            AddressType::U32
        },
        ..settings(units as u32)
    }
}

pub(super) fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

/// An optional tensor, bound or not.
pub(super) fn optional<T>(bound: bool) -> ComptimeOptionCompilationArg<T>
where
    T: LaunchArg<CompilationArg = BufferCompilationArg>,
{
    if bound {
        ComptimeOptionCompilationArg::Some(buffer())
    } else {
        ComptimeOptionCompilationArg::None
    }
}

pub(super) fn forward_sizes() -> ForwardSizesCompilationArg {
    ForwardSizesCompilationArg {
        h_q: (),
        group: (),
        s_q: (),
        s_kv: (),
        tiles: (),
        total: (),
    }
}

pub(super) fn forward_layouts() -> ForwardLayoutsCompilationArg {
    ForwardLayoutsCompilationArg {
        q: layout(),
        k: layout(),
        v: layout(),
        out: layout(),
        lse: layout(),
    }
}

pub(super) fn tile_order() -> TileOrderCompilationArg {
    TileOrderCompilationArg {
        lanes: (),
        all_lanes: (),
    }
}

pub(super) fn hopper_layouts() -> HopperLayoutsCompilationArg {
    HopperLayoutsCompilationArg {
        out: layout(),
        lse: layout(),
        order: tile_order(),
    }
}

pub(super) fn layout() -> LayoutCompilationArg {
    LayoutCompilationArg {
        offset: (),
        batch: (),
        head: (),
        row: (),
    }
}

pub(super) fn logit_tensors(features: LogitFeatures) -> LogitTensorsCompilationArg {
    LogitTensorsCompilationArg {
        mask: optional(features.mask.is_some()),
        bias: optional(features.bias),
        table: optional(features.table()),
        lengths: optional(features.device_lengths),
        pages: optional(features.device_pages),
        k_scales: optional(features.codes.is_some()),
        v_scales: optional(features.codes.is_some()),
    }
}

pub(super) fn logit_scalars() -> LogitScalarsCompilationArg {
    LogitScalarsCompilationArg {
        neg_inf: (),
        scale: (),
        softcap: (),
        left: (),
        right: (),
        anchor: (),
        mask: layout(),
        mask_key: (),
        bias: layout(),
        bias_key: (),
        splits: (),
        part: (),
    }
}

pub(super) fn table_offsets() -> TableOffsetsCompilationArg {
    TableOffsetsCompilationArg {
        len_q: (),
        len_kv: (),
        first_q: (),
        first_kv: (),
        doc_q: (),
        doc_kv: (),
        slopes: (),
        tiles: (),
        sinks: (),
        pages: (),
        page_row: (),
        k_scales: (),
        k_scale_page: (),
        k_scale_head: (),
        v_scales: (),
        v_scale_page: (),
        v_scale_head: (),
    }
}

pub(super) fn matmul_sizes() -> MatmulSizesCompilationArg {
    MatmulSizesCompilationArg {
        m: (),
        n: (),
        k: (),
        k_tiles: (),
        n_tiles: (),
        group: (),
        m_blocks: (),
        n_blocks: (),
        whole: (),
        splits: (),
        x_offset: (),
        x_row: (),
        y_offset: (),
        y_row: (),
        bias_offset: (),
        factor: (),
        lift: (),
    }
}

pub(super) fn pack_sizes() -> PackSizesCompilationArg {
    PackSizesCompilationArg {
        k: (),
        n: (),
        group: (),
        code_words: (),
        zero_words: (),
    }
}
