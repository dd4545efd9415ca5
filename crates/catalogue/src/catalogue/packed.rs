//! Packed weights.

use flashcube::PackFormat;

use super::Entry;
use crate::problem::{Memory, PackedSizes, Task, Values};

fn packed(feature: &'static str, detail: impl Into<String>, sizes: PackedSizes) -> Entry {
    Entry::new(feature, detail, Task::Dequantize(sizes))
}

fn sizes(format: PackFormat, bits: u32, k: usize, n: usize, group: usize) -> PackedSizes {
    PackedSizes {
        format,
        bits,
        k,
        n,
        group,
        act_order: false,
    }
}

pub(super) fn entries() -> Vec<Entry> {
    use PackFormat::{AwqGemm, AwqGemv, GptqV1, GptqV2};
    let mut entries = Vec::new();
    for (feature, format) in [
        ("gptq_v1", GptqV1),
        ("gptq_v2", GptqV2),
        ("awq_gemm", AwqGemm),
        ("awq_gemv", AwqGemv),
    ] {
        let main = sizes(format, 4, 256, 96, 64);
        entries.push(packed(feature, "k256n96g64", main).all_dtypes());
        let zeros = packed(feature, "zero_points_0", sizes(format, 4, 64, 16, 32));
        entries.push(zeros.values(Values::ZeroPoints));
        for k in [32, 96] {
            entries.push(packed(
                feature,
                format!("k{k}n32g32"),
                sizes(format, 4, k, 32, 32),
            ));
        }
        // The group does not divide k, and n is off every tile.
        let last = sizes(format, 4, 200, 208, 128);
        entries.push(packed("short_group", format!("{feature}_k200g128"), last));
        let empty = packed(
            "empty",
            format!("{feature}_n0"),
            sizes(format, 4, 64, 0, 32),
        );
        entries.push(empty);
    }
    for (k, n) in [(32, 1), (64, 33), (320, 96)] {
        let blocks = sizes(PackFormat::GgufQ4_1, 4, k, n, 32);
        entries.push(packed("gguf_q4_1", format!("k{k}n{n}"), blocks).all_dtypes());
    }
    let blocks = sizes(PackFormat::GgufQ4_1, 4, 96, 40, 32);
    let padded = packed("gguf_q4_1", "pad5", blocks).memory(Memory::PaddedRows(5));
    entries.push(padded.all_dtypes());
    let empty = sizes(PackFormat::GgufQ4_1, 4, 64, 0, 32);
    entries.push(packed("empty", "gguf_q4_1_n0", empty));
    // More groups than one word of zero points holds, the last of them short.
    let many = sizes(AwqGemv, 4, 1032, 16, 128);
    entries.push(packed("short_group", "awq_gemv_k1032g128", many));
    for format in [GptqV1, GptqV2] {
        let name = if format == GptqV1 { "v1" } else { "v2" };
        for bits in [2, 3, 8] {
            let main = sizes(format, bits, 96, 32, 32);
            entries.push(packed("gptq_bits", format!("{name}_b{bits}n32"), main).all_dtypes());
            let odd = sizes(format, bits, 96, 20, 32);
            entries.push(packed("gptq_bits", format!("{name}_b{bits}n20"), odd));
        }
        let act_order = PackedSizes {
            act_order: true,
            ..sizes(format, 4, 256, 40, 32)
        };
        entries.push(packed("act_order", format!("{name}_k256g32"), act_order).all_dtypes());
    }
    for (detail, memory) in [
        ("poisoned", Memory::Poisoned),
        ("offset3", Memory::Offset(3)),
        ("pad5", Memory::PaddedRows(5)),
    ] {
        let main = sizes(GptqV2, 4, 200, 40, 64);
        entries.push(packed("strides", detail, main).memory(memory).all_dtypes());
    }
    entries
}
