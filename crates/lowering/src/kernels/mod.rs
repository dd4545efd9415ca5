//! The library's kernels, as something to lower: problems with names, chosen for a target as a launch would choose.

mod arguments;
mod build;
mod data;
mod instruction;
mod list;
mod problem;
mod target;

use std::fmt;

use flashcube_kernels::attention::{Side, WeightFormat};
use flashcube_kernels::{
    AttendBlueprint, DequantizeBlueprint, HadamardBlueprint, InstructionBlueprint, MatmulBlueprint,
    MergeBlueprint, OperandFormat, TierName,
};

pub use data::DataKernel;
pub use list::kernels;
pub use problem::{AttendProblem, MatmulProblem, Problem};
pub use target::cuda_caps;
#[cfg(feature = "wgsl")]
pub use target::wgsl_caps;

use crate::{Arch, CudaSource, Expect, LoweringError, cubecl, error::Result};

/// A representative problem of one of the library's kernels, under a name.
#[derive(Clone, Debug)]
pub struct ListedKernel {
    /// Short name, e.g. `attend_forward_bf16_d128_causal`.
    pub name: String,
    /// What the kernel must do.
    pub problem: Problem,
}

/// Every comptime choice of one of the library's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blueprint {
    /// `attend_forward`.
    AttendForward(AttendBlueprint),
    /// `attend_decode`.
    AttendDecode(AttendBlueprint),
    /// The pass of `attend_backward` over one side.
    AttendBackward(AttendBlueprint, Side),
    /// rowsum(d_out * out), the first launch of `attend_backward`.
    AttendDelta {
        /// Of the passes that follow.
        blueprint: AttendBlueprint,
        /// Units of a cube.
        units: usize,
    },
    /// `merge_partials`.
    Merge(MergeBlueprint),
    /// `dequantize_int4`.
    Dequantize(DequantizeBlueprint),
    /// `matmul_quantized`.
    Matmul(MatmulBlueprint),
    /// `hadamard_transform`.
    Hadamard(HadamardBlueprint),
    /// What moves, packs and converts tensors.
    Data(DataKernel),
    /// `run_instruction`.
    Instruction(InstructionBlueprint),
}

/// Finds a listed kernel by its name, or by the blueprint it gets on the GPUs of `arch`.
///
/// ```
/// use flashcube_lowering::{Arch, find_kernel};
///
/// let kernel = find_kernel("attend_forward_f16_d64_causal", Arch::Sm90a)?;
/// let source = kernel.blueprint(Arch::Sm90a)?.cuda(Arch::Sm90a)?;
/// assert!(source.text.contains("__global__"));
/// # Ok::<(), flashcube_lowering::LoweringError>(())
/// ```
///
/// # Errors
/// [`LoweringError::UnknownKernel`], which lists the names that come close.
pub fn find_kernel(name: &str, arch: Arch) -> Result<ListedKernel> {
    let all = kernels();
    let wanted = |kernel: &ListedKernel| {
        let is_blueprint = |b: Blueprint| b.to_string() == name;
        kernel.name == name || kernel.blueprint(arch).is_ok_and(is_blueprint)
    };
    if let Some(kernel) = all.iter().find(|kernel| wanted(kernel)) {
        return Ok(kernel.clone());
    }
    let close: Vec<String> = all
        .into_iter()
        .map(|kernel| kernel.name)
        .filter(|listed| listed.contains(name))
        .collect();
    Err(LoweringError::UnknownKernel {
        given: name.to_owned(),
        close,
    })
}

impl ListedKernel {
    /// The blueprint that a launch on a GPU of `arch` would choose.
    ///
    /// # Errors
    /// [`LoweringError::NotAvailable`] naming the limit that selection ran into.
    pub fn blueprint(&self, arch: Arch) -> Result<Blueprint> {
        self.select(&cuda_caps(arch))
    }

    /// The blueprint that a launch on the strictest WebGPU device would choose.
    ///
    /// # Errors
    /// [`LoweringError::NotAvailable`] naming the limit that selection ran into.
    #[cfg(feature = "wgsl")]
    pub fn wgsl_blueprint(&self) -> Result<Blueprint> {
        self.select(&wgsl_caps())
    }

    fn select(&self, caps: &flashcube_kernels::Caps) -> Result<Blueprint> {
        self.problem
            .select(caps)
            .map_err(|source| LoweringError::NotAvailable {
                kernel: self.name.clone(),
                source: Box::new(source),
            })
    }
}

impl Blueprint {
    /// The tier, which decides what a report must fulfil: the unit tier may spill, the others may not.
    pub fn tier(&self) -> TierName {
        match self {
            Blueprint::AttendForward(blueprint)
            | Blueprint::AttendDecode(blueprint)
            | Blueprint::AttendBackward(blueprint, _)
            | Blueprint::AttendDelta { blueprint, .. } => blueprint.tier,
            Blueprint::Matmul(blueprint) => blueprint.tier,
            Blueprint::Instruction(InstructionBlueprint(form)) => form.tier(),
            Blueprint::Merge(_)
            | Blueprint::Dequantize(_)
            | Blueprint::Hadamard(_)
            | Blueprint::Data(_) => TierName::Unit,
        }
    }

    /// What the kernel's report must fulfil: the arithmetic it lives on and no performance warning. The unit tier may use
    /// the stack, since its arrays are as long as a row; its report says how much.
    pub fn expect(&self) -> Expect<'static> {
        let required: &[&str] = match self {
            Blueprint::AttendForward(blueprint) | Blueprint::AttendDecode(blueprint)
                if blueprint.tier == TierName::Hopper =>
            {
                &["HGMMA", "UTMALDG", "MUFU.EX2", "SYNCS"]
            }
            Blueprint::AttendForward(blueprint) if blueprint.tier == TierName::Blackwell => {
                // A product in FP8 is UTCQMMA, one in FP4 UTCOMMA; scale factors are copied by UTCCP.
                let operands = blueprint.features.operands;
                let bits = operands.map(OperandFormat::bits);
                match (bits, blueprint.features.weights) {
                    _ if operands.is_some_and(OperandFormat::unscaled) => {
                        &["UTCQMMA", "UTMALDG", "LDTM", "STTM", "MUFU.EX2", "SYNCS"]
                    }
                    (None, _) if blueprint.cubes_of_tile() > 1 => &[
                        "UTCHMMA.2CTA",
                        "UTMALDG.4D.2CTA",
                        "UTCBAR.2CTA.MULTICAST",
                        "LDTM",
                        "STTM",
                        "MUFU.EX2",
                        "SYNCS",
                    ],
                    (None, _) => &["UTCHMMA", "UTMALDG", "LDTM", "STTM", "MUFU.EX2", "SYNCS"],
                    (Some(8), WeightFormat::Wide | WeightFormat::E4m3) => &[
                        "UTCQMMA", "UTCCP", "UTMALDG", "LDTM", "STTM", "MUFU.EX2", "SYNCS",
                    ],
                    (Some(4), WeightFormat::Nvfp4 | WeightFormat::Mxfp4(_)) => &[
                        "UTCOMMA", "UTCCP", "UTMALDG", "LDTM", "STTM", "MUFU.EX2", "SYNCS",
                    ],
                    (Some(_), _) => &[
                        "UTCOMMA", "UTCQMMA", "UTCCP", "UTMALDG", "LDTM", "STTM", "MUFU.EX2",
                        "SYNCS",
                    ],
                }
            }
            Blueprint::AttendForward(blueprint)
                if blueprint.tier == TierName::Plane && blueprint.features.operands.is_some() =>
            {
                // A product in FP8 is QMMA, one in FP4 OMMA.
                let bits = blueprint.features.operands.map(OperandFormat::bits);
                match (bits, blueprint.features.weights) {
                    (Some(8), WeightFormat::Wide | WeightFormat::E4m3) => {
                        &["QMMA", "LDSM", "LDGSTS", "MUFU.EX2"]
                    }
                    (Some(4), WeightFormat::Nvfp4 | WeightFormat::Mxfp4(_)) => {
                        &["OMMA", "LDSM", "LDGSTS", "MUFU.EX2"]
                    }
                    _ => &["OMMA", "QMMA", "LDSM", "LDGSTS", "MUFU.EX2"],
                }
            }
            Blueprint::AttendForward(blueprint) | Blueprint::AttendDecode(blueprint)
                if blueprint.tier == TierName::Plane =>
            {
                &["HMMA", "LDSM", "LDGSTS", "MUFU.EX2"]
            }
            Blueprint::AttendForward(_)
            | Blueprint::AttendDecode(_)
            | Blueprint::AttendBackward(..)
            | Blueprint::AttendDelta { .. }
            | Blueprint::Merge(_) => &["FFMA|FFMA2"],
            Blueprint::Matmul(blueprint) => match blueprint.tier {
                TierName::Hopper | TierName::Blackwell => &["HGMMA", "UTMALDG", "UBLKCP", "SYNCS"],
                TierName::Plane => &["HMMA", "LDSM", "LDGSTS", "LOP3"],
                TierName::Unit => &["FFMA|FFMA2"],
            },
            Blueprint::Dequantize(_) => &["FMUL|FMUL2"],
            Blueprint::Hadamard(_) => &["FADD|FADD2", "BAR"],
            Blueprint::Data(_) => &["LDG|LD", "STG|ST"],
            Blueprint::Instruction(InstructionBlueprint(form)) => instruction::required(*form),
        };
        if self.tier() == TierName::Unit {
            Expect {
                no_performance_warning: true,
                required,
                ..Expect::default()
            }
        } else {
            Expect {
                required,
                ..Expect::CLEAN
            }
        }
    }

    /// The CUDA C++ that the CUDA runtime would compile on a GPU of `arch`.
    ///
    /// # Errors
    /// [`LoweringError::Kernel`] when the kernel's own checks or CubeCL refuse it.
    pub fn cuda(&self, arch: Arch) -> Result<CudaSource> {
        let kernel = self.build(cubecl::properties(arch), cubecl::target_properties());
        cubecl::cuda_source(&*kernel, arch)
    }

    /// The WGSL that the wgpu runtime would compile on the strictest WebGPU device.
    ///
    /// # Errors
    /// [`LoweringError::Kernel`] when the kernel's own checks or CubeCL refuse it.
    #[cfg(feature = "wgsl")]
    pub fn wgsl(&self) -> Result<String> {
        let kernel = self.build(crate::wgsl_properties(), Default::default());
        crate::wgsl_source(&*kernel)
    }
}

impl fmt::Display for Blueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blueprint::AttendForward(blueprint) | Blueprint::AttendDecode(blueprint) => {
                blueprint.fmt(f)
            }
            Blueprint::AttendBackward(blueprint, Side::Keys) => write!(f, "{blueprint}/keys"),
            Blueprint::AttendBackward(blueprint, Side::Queries) => {
                write!(f, "{blueprint}/queries")
            }
            Blueprint::AttendDelta { blueprint, units } => {
                let AttendBlueprint {
                    tier,
                    dtype,
                    d_v,
                    vector,
                    ..
                } = blueprint;
                write!(f, "attn_delta/{tier}/{dtype}/d{d_v}/u{units}/vec{vector}")
            }
            Blueprint::Merge(blueprint) => blueprint.fmt(f),
            Blueprint::Dequantize(blueprint) => blueprint.fmt(f),
            Blueprint::Matmul(blueprint) => blueprint.fmt(f),
            Blueprint::Hadamard(blueprint) => blueprint.fmt(f),
            Blueprint::Data(kernel) => kernel.fmt(f),
            Blueprint::Instruction(blueprint) => blueprint.fmt(f),
        }
    }
}
