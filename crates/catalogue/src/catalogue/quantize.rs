//! Operands of block-scaled products.

use flashcube::{GroupAxis, OperandFormat, ScaleRule};

use super::Entry;
use super::operands::{FP8, MXFP4, MXFP8, NVFP4};
use crate::problem::{Memory, QuantizeSizes, Task, Values};

pub(super) fn entries() -> Vec<Entry> {
    let sizes = |shape, format, axis| QuantizeSizes {
        shape,
        format,
        axis,
        lengths: None,
        cu_seqlens: None,
        pack: 1,
    };
    let of = |feature, detail: String, sizes| Entry::new(feature, detail, Task::Quantize(sizes));
    let mut entries = Vec::new();
    for (feature, formats) in [
        (
            "nvfp4",
            vec![
                ("", NVFP4),
                ("_exponent", OperandFormat::Nvfp4 { exponent: -3 }),
            ],
        ),
        (
            "mxfp4",
            vec![
                ("", MXFP4),
                ("_floor", OperandFormat::Mxfp4(ScaleRule::Floor)),
                ("_even", OperandFormat::Mxfp4(ScaleRule::RoundEven)),
            ],
        ),
        (
            "mxfp8",
            vec![
                ("", MXFP8),
                ("_floor", OperandFormat::Mxfp8(ScaleRule::Floor)),
                ("_even", OperandFormat::Mxfp8(ScaleRule::RoundEven)),
            ],
        ),
        (
            "fp8",
            vec![("", FP8), ("_exponent", OperandFormat::Fp8 { exponent: 7 })],
        ),
    ] {
        for (name, format) in formats {
            for (detail, axis, shape) in [
                ("rows", GroupAxis::D, [2, 3, 150, 72]),
                ("columns", GroupAxis::S, [2, 3, 150, 40]),
            ] {
                let one = of(
                    feature,
                    format!("{detail}{name}"),
                    sizes(shape, format, axis),
                );
                entries.push(one.all_dtypes());
                let ties = of(
                    feature,
                    format!("{detail}{name}_ties"),
                    sizes(shape, format, axis),
                );
                let ties = ties.values(Values::Ties);
                entries.push(if name.is_empty() { ties } else { ties.long() });
                let nan = of(
                    feature,
                    format!("{detail}{name}_nan"),
                    sizes(shape, format, axis),
                );
                let nan = nan.values(Values::HiddenNan);
                entries.push(if name.is_empty() { nan } else { nan.long() });
            }
        }
    }
    for (name, format) in [
        ("nvfp4", NVFP4),
        ("mxfp4", MXFP4),
        ("mxfp8", MXFP8),
        ("fp8", FP8),
    ] {
        let columns = sizes([1, 2, 200, 24], format, GroupAxis::S);
        let packed = QuantizeSizes {
            cu_seqlens: Some(vec![0, 33, 33, 40, 197]),
            ..columns.clone()
        };
        entries.push(of("sequences", format!("{name}_packed"), packed));
        // Rows of sequences, some of them empty, and behind them, start tiles; those of two heads or three alternate.
        let rows = sizes([1, 6, 300, 72], format, GroupAxis::D);
        let packed = QuantizeSizes {
            cu_seqlens: Some(vec![0, 33, 33, 161, 290]),
            ..rows.clone()
        };
        entries.push(of(
            "sequences",
            format!("{name}_rows_packed"),
            packed.clone(),
        ));
        let packed = QuantizeSizes { pack: 3, ..packed };
        entries.push(of("sequences", format!("{name}_rows_packed_heads"), packed));
        let heads = QuantizeSizes {
            shape: [2, 6, 150, 72],
            pack: 2,
            ..rows
        };
        entries.push(of("sequences", format!("{name}_heads"), heads));
        let lengths = QuantizeSizes {
            shape: [3, 2, 200, 24],
            lengths: Some(vec![200, 0, 17]),
            ..columns
        };
        entries.push(of("sequences", format!("{name}_lengths"), lengths));
        for (detail, memory) in [
            ("bshd", Memory::HeadsInside),
            ("offset3", Memory::Offset(3)),
            ("pad5", Memory::PaddedRows(5)),
        ] {
            let rows = sizes([2, 2, 37, 40], format, GroupAxis::D);
            entries.push(of("strides", format!("{name}_{detail}"), rows).memory(memory));
        }
    }
    for (detail, shape) in [
        ("b0", [0, 2, 5, 8]),
        ("s0", [1, 2, 0, 8]),
        ("d0", [1, 2, 5, 0]),
    ] {
        entries.push(of(
            "empty",
            detail.into(),
            sizes(shape, NVFP4, GroupAxis::D),
        ));
        entries.push(of(
            "empty",
            format!("{detail}_columns"),
            sizes(shape, NVFP4, GroupAxis::S),
        ));
    }
    entries
}
