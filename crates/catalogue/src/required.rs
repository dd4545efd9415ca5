//! The rows that must execute: a conformance run in which one of them did not has failed.

use core::fmt;

use flashcube::{Caps, DType, Family, OperandFormat, TierName};
use serde::Serialize;

use crate::problem::{Attend, Kernel, Problem, Task};

/// A kernel, backend, dtype and feature that must have been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Required {
    /// The kernel.
    pub kernel: Kernel,
    /// The backend.
    pub backend: BackendName,
    /// Element type.
    pub dtype: DType,
    /// The feature; problems carry the same name.
    pub feature: &'static str,
}

impl fmt::Display for Required {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kernel,
            backend,
            dtype,
            feature,
        } = self;
        write!(f, "{kernel}/{feature}/{dtype} on {backend}")
    }
}

/// Backends that the list distinguishes: what a driver offers differs more than its API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendName {
    /// CubeCL's LLVM JIT.
    Cpu,
    /// Mesa's software Vulkan driver.
    Lavapipe,
    /// Google's software Vulkan driver, as strict as WebGPU's limits.
    Swiftshader,
    /// Any other wgpu adapter.
    Wgpu,
    /// NVIDIA through CUDA C++.
    Cuda,
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            BackendName::Cpu => "cpu",
            BackendName::Lavapipe => "lavapipe",
            BackendName::Swiftshader => "swiftshader",
            BackendName::Wgpu => "wgpu",
            BackendName::Cuda => "cuda",
        })
    }
}

impl BackendName {
    /// All of them.
    pub const ALL: [BackendName; 5] = [
        BackendName::Cpu,
        BackendName::Lavapipe,
        BackendName::Swiftshader,
        BackendName::Wgpu,
        BackendName::Cuda,
    ];

    /// Which backend a device is.
    pub fn of(caps: &Caps) -> Self {
        let device = caps.device.to_lowercase();
        match caps.family {
            Family::Cpu => BackendName::Cpu,
            Family::Cuda => BackendName::Cuda,
            _ if device.contains("llvmpipe") => BackendName::Lavapipe,
            _ if device.contains("swiftshader") => BackendName::Swiftshader,
            _ => BackendName::Wgpu,
        }
    }

    /// Dtypes that the backend must offer.
    pub fn dtypes(self) -> &'static [DType] {
        match self {
            BackendName::Cpu | BackendName::Cuda => &[DType::F32, DType::F16, DType::BF16],
            BackendName::Lavapipe => &[DType::F32, DType::F16],
            BackendName::Swiftshader | BackendName::Wgpu => &[DType::F32],
        }
    }
}

impl BackendName {
    /// Why a problem is not run on the backend although the backend offers all it needs.
    pub(crate) fn spared(self, problem: &Problem) -> Option<&'static str> {
        let Task::Operands(operands) = &problem.task else {
            return None;
        };
        let groups_of_32 = matches!(operands.values, OperandFormat::Mxfp4(_));
        let Attend {
            mask, window_left, ..
        } = &operands.attend;
        let masked = mask.is_some() || window_left.is_some();
        let spared = self == BackendName::Swiftshader && groups_of_32 && masked;
        spared.then_some("SwiftShader's compiler takes more than 20 GB for such a kernel")
    }

    /// Storage buffers that a kernel may bind at the least: what SwiftShader has, what WebGPU
    /// promises.
    fn bindings(self) -> usize {
        match self {
            BackendName::Swiftshader => 9,
            BackendName::Wgpu => 8,
            _ => usize::MAX,
        }
    }
}

/// Storage buffers that a feature's largest problem binds.
fn bindings(kernel: Kernel, feature: &str) -> usize {
    let plain = match kernel {
        Kernel::AttendForward | Kernel::AttendOperands => 6,
        // Parts and one table, or none and two.
        Kernel::AttendDecode => 8,
        // Rotation's tables, those of the host and two of the device.
        Kernel::Append => 6,
        Kernel::AttendBackward => 9,
        Kernel::W4a16 => 8,
        _ => 5,
    };
    let hooks = match feature {
        "combined" => 3,
        "device_tables" => 2,
        "e4m3" => 4,
        "lengths" | "varlen" | "documents" | "mask" | "bias" | "alibi" | "hidden" | "models"
        | "packed_heads" | "masks" => 1,
        _ => 0,
    };
    plain + hooks
}

/// Features of a kernel: those checked in f32, and those checked in every dtype.
pub struct Features {
    /// The kernel.
    pub kernel: Kernel,
    /// Checked in f32.
    pub single: &'static [&'static str],
    /// Checked in every dtype that the backend must offer.
    pub every: &'static [&'static str],
    /// Checked in f16 and bf16 (instructions in what they have) on the CUDA devices that have the tier of the
    /// feature's name.
    pub tiers: &'static [(&'static str, TierName)],
}

/// What each kernel must show.
pub const FEATURES: [Features; 11] = [
    Features {
        kernel: Kernel::AttendForward,
        single: &[
            "empty",
            "heads",
            "window",
            "lengths",
            "varlen",
            "documents",
            "mask",
            "bias",
            "scale",
            "softcap",
            "alibi",
            "combined",
            "hidden",
            "packed_heads",
            "split_roles",
            "scores_ahead",
        ],
        every: &[
            "sizes",
            "head_dims",
            "strides",
            "causal",
            "values",
            "models",
        ],
        tiers: &[
            ("plane", TierName::Plane),
            ("plane_varlen", TierName::Plane),
            ("plane_packed_heads", TierName::Plane),
            ("hopper", TierName::Hopper),
            ("hopper_varlen", TierName::Hopper),
            ("hopper_packed_heads", TierName::Hopper),
            ("blackwell", TierName::Blackwell),
            ("blackwell_pairs", TierName::Blackwell),
            ("blackwell_varlen", TierName::Blackwell),
            ("blackwell_packed_heads", TierName::Blackwell),
        ],
    },
    Features {
        kernel: Kernel::AttendBackward,
        single: &[
            "empty",
            "heads",
            "head_dims",
            "strides",
            "window",
            "lengths",
            "documents",
            "mask",
            "bias",
            "scale",
            "softcap",
            "alibi",
            "hidden",
            "models",
        ],
        every: &["sizes", "causal", "values"],
        tiers: &[],
    },
    Features {
        kernel: Kernel::AttendDecode,
        single: &[
            "lengths",
            "pages",
            "hooks",
            "cascade",
            "empty",
            "device_tables",
        ],
        every: &["splits", "e4m3"],
        tiers: &[
            ("plane", TierName::Plane),
            ("plane_pages", TierName::Plane),
            ("plane_e4m3", TierName::Plane),
            ("hopper", TierName::Hopper),
            ("hopper_pages", TierName::Hopper),
        ],
    },
    Features {
        kernel: Kernel::AttendOperands,
        single: &[
            "empty", "heads", "lengths", "varlen", "masks", "combined", "hidden",
        ],
        every: &["nvfp4", "mxfp4", "mxfp8", "fp8"],
        tiers: &[
            ("plane", TierName::Plane),
            ("blackwell", TierName::Blackwell),
        ],
    },
    Features {
        kernel: Kernel::QuantizeOperand,
        single: &["empty", "sequences", "strides"],
        every: &["nvfp4", "mxfp4", "mxfp8", "fp8"],
        tiers: &[],
    },
    Features {
        kernel: Kernel::Append,
        single: &["strides", "ragged", "device_tables", "empty"],
        every: &["pages", "rope"],
        tiers: &[],
    },
    Features {
        kernel: Kernel::MergePartials,
        single: &["empty", "strides", "head_dims", "values", "models"],
        every: &["partials", "empty_partials"],
        tiers: &[],
    },
    Features {
        kernel: Kernel::DequantizeInt4,
        single: &["empty", "short_group", "models"],
        every: &[
            "gptq_v1",
            "gptq_v2",
            "awq_gemm",
            "awq_gemv",
            "gguf_q4_1",
            "gptq_bits",
            "act_order",
            "strides",
        ],
        tiers: &[],
    },
    Features {
        kernel: Kernel::W4a16,
        single: &["empty"],
        every: &["sizes", "bits", "floats", "minima", "gathered", "bias"],
        tiers: &[
            ("plane", TierName::Plane),
            ("hopper", TierName::Hopper),
            ("hopper_sums", TierName::Hopper),
        ],
    },
    Features {
        kernel: Kernel::HadamardTransform,
        single: &["empty", "strides"],
        every: &["sizes", "signs"],
        tiers: &[],
    },
    Features {
        kernel: Kernel::MatrixInstruction,
        single: &[],
        every: &[],
        tiers: &[
            ("mma_sync", TierName::Plane),
            ("ldmatrix", TierName::Plane),
            ("conversions", TierName::Plane),
            ("wgmma", TierName::Hopper),
            ("fp4_conversions", TierName::Blackwell),
        ],
    },
];

/// Dtypes that a feature of [`Kernel::MatrixInstruction`] has; f32 where operands or results are not of 16 bits.
fn instruction_dtypes(feature: &str) -> &'static [DType] {
    match feature {
        "ldmatrix" => &[DType::F16],
        "fp4_conversions" => &[DType::F32, DType::F16],
        _ => &DType::ALL,
    }
}

impl Required {
    /// Whether a device of the backend has what the row is about.
    pub fn applies_to(&self, caps: &Caps) -> bool {
        let of_kernel = FEATURES.iter().filter(|f| f.kernel == self.kernel);
        let tier = of_kernel
            .flat_map(|f| f.tiers)
            .find(|(feature, _)| *feature == self.feature);
        match tier {
            None | Some((_, TierName::Unit)) => true,
            Some(("plane_e4m3" | "conversions", _)) => caps.sm >= Some(89),
            Some(("mma_sync", _)) if self.dtype == DType::F32 => caps.sm >= Some(89),
            Some((_, TierName::Plane)) => caps.sm >= Some(80),
            Some((_, TierName::Hopper)) => caps.sm == Some(90),
            Some((_, TierName::Blackwell)) => matches!(caps.sm, Some(100 | 103)),
        }
    }
}

/// The rows required of a backend: every feature that its dtypes and bindings allow. Those of a
/// tier are required of the backend's devices that have it, see [`Required::applies_to`].
pub fn required(backend: BackendName) -> Vec<Required> {
    let row = |kernel, dtype, feature| Required {
        kernel,
        backend,
        dtype,
        feature,
    };
    let mut rows = Vec::new();
    for Features {
        kernel,
        single,
        every,
        tiers,
    } in FEATURES
    {
        rows.extend(single.iter().map(|&f| row(kernel, DType::F32, f)));
        for &dtype in backend.dtypes() {
            rows.extend(every.iter().map(|&f| row(kernel, dtype, f)));
        }
        if backend == BackendName::Cuda {
            for &(feature, _) in tiers {
                let dtypes = match kernel {
                    Kernel::MatrixInstruction => instruction_dtypes(feature),
                    _ => &[DType::F16, DType::BF16],
                };
                rows.extend(dtypes.iter().map(|&dtype| row(kernel, dtype, feature)));
            }
        }
    }
    // Operands are decoded to f32 or bf16, which hold all their values.
    rows.retain(|r| r.kernel != Kernel::AttendOperands || r.dtype != DType::F16);
    rows.retain(|r| bindings(r.kernel, r.feature) <= backend.bindings());
    rows
}
