//! The kernels that `flashcube lower --list` shows and the tests compile.

use flashcube_kernels::attention::{IssueOrder, LogitFeatures, MaskWidth, ScaledBy, Side};
use flashcube_kernels::quant::{PackFormat, Packing};
use flashcube_kernels::{DType, Policy, RoleSplit, TierName};

use super::problem::LONG;
use super::{AttendProblem, ListedKernel, Problem};

mod data;
mod instruction;
mod matmul;
mod operands;

/// Every listed kernel: each entry point of the library with each dtype, format and kind of mask.
pub fn kernels() -> Vec<ListedKernel> {
    let mut all = Vec::new();
    attend_forward(&mut all);
    operands::attend_operands(&mut all);
    attend_decode(&mut all);
    attend_backward(&mut all);
    merge(&mut all);
    dequantize(&mut all);
    matmul::matmul(&mut all);
    hadamard(&mut all);
    data::data(&mut all);
    instruction::instructions(&mut all);
    all
}

/// No hook, the usual decoder, everything at once.
fn feature_sets() -> [(&'static str, LogitFeatures); 3] {
    let plain = LogitFeatures::default();
    let causal = LogitFeatures {
        band_right: true,
        ..plain
    };
    let hooks = LogitFeatures {
        softcap: true,
        alibi: true,
        bias: true,
        band_left: true,
        band_right: true,
        documents: true,
        mask: Some(MaskWidth::U8),
        lengths: true,
        ..plain
    };
    [("", plain), ("_causal", causal), ("_hooks", hooks)]
}

fn attend_forward(all: &mut Vec<ListedKernel>) {
    let mut add = |suffix: &str, problem: AttendProblem| {
        all.push(ListedKernel {
            name: format!("attend_forward_{}{suffix}", width(&problem)),
            problem: Problem::AttendForward(problem),
        });
    };
    for dtype in DType::ALL {
        for d in [64, 128] {
            for (suffix, features) in feature_sets() {
                let problem = attention(dtype, d, d, features);
                add(suffix, problem);
                if dtype != DType::F32 {
                    // Where the best tier is another one.
                    for tier in [TierName::Unit, TierName::Plane] {
                        add(&format!("{suffix}_{tier}"), on(tier, problem));
                    }
                }
            }
        }
    }
    for (d, d_v) in [(40, 40), (96, 96), (192, 128), (256, 256)] {
        for (suffix, features) in feature_sets() {
            let problem = attention(DType::BF16, d, d_v, features);
            add(&format!("{suffix}_plane"), on(TierName::Plane, problem));
        }
    }
    let [_, (_, causal), _] = feature_sets();
    add("_causal", attention(DType::BF16, 192, 128, causal));
    add("_causal", attention(DType::BF16, 256, 256, causal));
    for (suffix, features) in [
        (
            "_softcap_window",
            LogitFeatures {
                softcap: true,
                band_left: true,
                ..causal
            },
        ),
        (
            "_alibi_lengths",
            LogitFeatures {
                alibi: true,
                lengths: true,
                ..causal
            },
        ),
    ] {
        add(suffix, attention(DType::BF16, 128, 128, features));
    }
    // Every tile of the Hopper tier that is not above.
    let plain = LogitFeatures::default();
    let lengths = LogitFeatures {
        lengths: true,
        ..plain
    };
    for dtype in [DType::F16, DType::BF16] {
        for d in [96, 192, 256] {
            add("", attention(dtype, d, d, plain));
        }
        for d in [64, 128] {
            add("_lengths", attention(dtype, d, d, lengths));
        }
    }
    // Packed sequences.
    let varlen = LogitFeatures {
        varlen: true,
        ..lengths
    };
    let varlen_causal = LogitFeatures {
        band_right: true,
        ..varlen
    };
    for d in [64, 128] {
        add("_varlen", attention(DType::BF16, d, d, varlen));
        let causal = attention(DType::BF16, d, d, varlen_causal);
        add("_varlen_causal", causal);
        add("_varlen_causal_plane", on(TierName::Plane, causal));
    }
    // Two cubes that share loads.
    for (d, d_v) in [(128, 128), (192, 128), (256, 256)] {
        let policy = Policy {
            cluster: Some(2),
            ..Policy::default()
        };
        let problem = attention(DType::BF16, d, d_v, plain);
        add("_cluster", AttendProblem { policy, ..problem });
    }
    // Heads of a group in the rows of one tile.
    let packed = |group, problem| AttendProblem {
        group,
        policy: Policy {
            pack: Some(true),
            ..Policy::default()
        },
        ..problem
    };
    let hooks = LogitFeatures {
        alibi: true,
        mask: Some(MaskWidth::U8),
        ..causal
    };
    for (suffix, group, d, features) in [
        ("_pack4", 4, 128, plain),
        ("_pack4_causal", 4, 128, causal),
        ("_pack3_varlen_causal", 3, 64, varlen_causal),
        ("_pack8_hooks", 8, 64, hooks),
    ] {
        let problem = packed(group, attention(DType::BF16, d, d, features));
        add(suffix, problem);
        if group != 3 {
            // 3 heads divide no tile of the plane tier.
            add(&format!("{suffix}_plane"), on(TierName::Plane, problem));
        }
    }
    add("_causal", attention(DType::F16, 192, 128, causal));
    // One hook that reads memory for every score.
    let bias = LogitFeatures {
        bias: true,
        ..plain
    };
    let mask = LogitFeatures {
        mask: Some(MaskWidth::U8),
        ..causal
    };
    let documents = LogitFeatures {
        documents: true,
        ..causal
    };
    let window = LogitFeatures {
        band_left: true,
        ..causal
    };
    let varlen_window = LogitFeatures {
        band_left: true,
        ..varlen_causal
    };
    for (suffix, features) in [("_window", window), ("_varlen_window", varlen_window)] {
        add(suffix, attention(DType::BF16, 64, 64, features));
        let problem = attention(DType::BF16, 64, 64, features);
        add(&format!("{suffix}_pack2"), packed(2, problem));
    }
    let mask_alone = LogitFeatures {
        band_right: false,
        ..mask
    };
    add("_mask", attention(DType::BF16, 64, 64, mask_alone));
    // Queries that one tile takes.
    let lengths_causal = LogitFeatures {
        lengths: true,
        ..causal
    };
    for (suffix, d, features) in [
        ("_q128", 128, plain),
        ("_lengths_causal_q128", 64, lengths_causal),
        ("_mask_q128", 64, mask_alone),
    ] {
        let problem = attention(DType::BF16, d, d, features);
        add(
            suffix,
            AttendProblem {
                s_q: 128,
                ..problem
            },
        );
    }
    for d in [64, 128, 256] {
        add("_bias", attention(DType::BF16, d, d, bias));
        add("_causal_mask", attention(DType::BF16, d, d, mask));
        add("_causal_documents", attention(DType::BF16, d, d, documents));
    }
    for (suffix, policy) in schedules() {
        for (dtype, d) in [(DType::F32, 64), (DType::BF16, 128)] {
            let problem = attention(dtype, d, d, causal);
            add(suffix, AttendProblem { policy, ..problem });
        }
    }
}

/// One query against a cache, of groups of one and of four heads.
fn attend_decode(all: &mut Vec<ListedKernel>) {
    let mut add = |suffix: &str, problem: AttendProblem| {
        all.push(ListedKernel {
            name: format!("attend_decode_{}{suffix}", width(&problem)),
            problem: Problem::AttendDecode(problem),
        });
    };
    let whole = LogitFeatures {
        unlisted: true,
        ..LogitFeatures::default()
    };
    let split = LogitFeatures {
        split: true,
        ..whole
    };
    let paged = |page| LogitFeatures {
        page: Some(page),
        lengths: true,
        device_lengths: true,
        device_pages: true,
        ..split
    };
    let codes = |features, scaled| LogitFeatures {
        codes: Some(scaled),
        ..features
    };
    let window = LogitFeatures {
        sinks: true,
        band_left: true,
        band_right: true,
        ..paged(64)
    };
    for (suffix, features) in [
        ("_whole", whole),
        ("_split", split),
        ("_page64", paged(64)),
        ("_page16", paged(16)),
        ("_page1", paged(1)),
        ("_page64_window_sinks", window),
        ("_e4m3", codes(split, ScaledBy::Head)),
        ("_page64_e4m3", codes(paged(64), ScaledBy::Head)),
        ("_page16_e4m3_pages", codes(paged(16), ScaledBy::Page)),
    ] {
        for (dtype, d) in [(DType::BF16, 64), (DType::BF16, 128), (DType::F16, 256)] {
            let problem = AttendProblem {
                group: 4,
                ..attention(dtype, d, d, features)
            };
            match features.codes {
                None => add(&format!("{suffix}_plane"), on(TierName::Plane, problem)),
                // Below sm_89 the unit tier decodes them.
                Some(_) => add(suffix, problem),
            }
        }
        add(suffix, attention(DType::F32, 64, 64, features));
    }
}

/// The problem on that tier.
fn on(tier: TierName, problem: AttendProblem) -> AttendProblem {
    let policy = Policy {
        tier: Some(tier),
        ..problem.policy
    };
    AttendProblem { policy, ..problem }
}

fn attend_backward(all: &mut Vec<ListedKernel>) {
    for (dtype, d) in [(DType::F32, 64), (DType::F16, 64), (DType::BF16, 128)] {
        for (suffix, features) in feature_sets() {
            let problem = attention(dtype, d, d, features);
            for (side, which) in [(Side::Keys, "keys"), (Side::Queries, "queries")] {
                all.push(ListedKernel {
                    name: format!("attend_backward_{which}_{}{suffix}", width(&problem)),
                    problem: Problem::AttendBackward(problem, side),
                });
            }
        }
        let problem = attention(dtype, d, d, LogitFeatures::default());
        all.push(ListedKernel {
            name: format!("attend_delta_{}", width(&problem)),
            problem: Problem::AttendDelta(problem),
        });
    }
}

fn attention(dtype: DType, d: usize, d_v: usize, features: LogitFeatures) -> AttendProblem {
    AttendProblem {
        dtype,
        d,
        d_v,
        group: 1,
        s_q: LONG,
        features,
        policy: Policy::default(),
    }
}

/// `bf16_d128`, or `bf16_d192v128`.
fn width(problem: &AttendProblem) -> String {
    let AttendProblem { dtype, d, d_v, .. } = problem;
    if d == d_v {
        format!("{dtype}_d{d}")
    } else {
        format!("{dtype}_d{d}v{d_v}")
    }
}

/// The other ways to deal out roles, to order products and to address.
fn schedules() -> [(&'static str, Policy); 3] {
    let split = Policy {
        roles: Some(RoleSplit::Softmax),
        ..Policy::default()
    };
    let ahead = Policy {
        tier: Some(TierName::Unit),
        order: Some(IssueOrder::ScoresAhead),
        ..Policy::default()
    };
    let wide = Policy {
        wide: true,
        ..Policy::default()
    };
    [
        ("_causal_split_softmax", split),
        ("_causal_scores_ahead", ahead),
        ("_causal_wide", wide),
    ]
}

fn merge(all: &mut Vec<ListedKernel>) {
    for dtype in DType::ALL {
        all.push(ListedKernel {
            name: format!("merge_partials_{dtype}_d128"),
            problem: Problem::Merge { dtype, d_v: 128 },
        });
    }
}

fn dequantize(all: &mut Vec<ListedKernel>) {
    let mut add = |label: &str, format, bits: u32, indexed: bool, dtype| {
        let order = if indexed { "_g_idx" } else { "" };
        all.push(ListedKernel {
            name: format!("dequantize_{label}_b{bits}_{dtype}{order}"),
            problem: Problem::Dequantize {
                packing: Packing {
                    format,
                    bits,
                    indexed,
                },
                dtype,
            },
        });
    };
    for (label, format) in [
        ("gptq_v1", PackFormat::GptqV1),
        ("gptq_v2", PackFormat::GptqV2),
    ] {
        for bits in [2, 3, 4, 8] {
            add(label, format, bits, false, DType::F16);
        }
        add(label, format, 4, true, DType::F16);
    }
    for (label, format) in [
        ("awq_gemm", PackFormat::AwqGemm),
        ("awq_gemv", PackFormat::AwqGemv),
        ("gguf_q4_1", PackFormat::GgufQ4_1),
    ] {
        add(label, format, 4, false, DType::F16);
    }
    for dtype in [DType::F32, DType::BF16] {
        add("gptq_v1", PackFormat::GptqV1, 4, false, dtype);
        add("awq_gemm", PackFormat::AwqGemm, 4, false, dtype);
    }
}

fn hadamard(all: &mut Vec<ListedKernel>) {
    let mut add = |dtype, n: usize, inverse: bool| {
        let direction = if inverse { "_inverse" } else { "" };
        all.push(ListedKernel {
            name: format!("hadamard_transform_{dtype}_n{n}{direction}"),
            problem: Problem::Hadamard {
                dtype,
                n,
                signs: true,
                inverse,
            },
        });
    };
    for dtype in DType::ALL {
        add(dtype, 128, false);
    }
    add(DType::F16, 128, true);
    add(DType::F32, 2048, false);
}
