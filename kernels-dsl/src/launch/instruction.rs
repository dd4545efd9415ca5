//! `run_instruction`: check, upload, launch.

use core::fmt;

use cubecl::prelude::{BufferArg, Client, CubeCount, CubeDim, CubeElement};

use super::{Caps, DType, Tensor, check_launch, expect_entries};
use crate::arch::instructions::{
    Instruction, WgmmaOperands, decode_codes, encode_values, load_matrices, multiply_plane,
    multiply_warpgroup,
};
use crate::error::{Error, InvalidProblem, NotAvailable};

/// Operands of [`run_instruction`], trial after trial; see [`Instruction::sizes`].
#[derive(Debug, Clone, Copy, Default)]
pub struct InstructionOperands<'a> {
    /// A, matrices, f32 by their bits, or codes.
    pub a: &'a [u32],
    /// B.
    pub b: &'a [u32],
    /// C; not read where both operands of a wgmma lie in shared memory.
    pub c: &'a [f32],
}

/// What ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InstructionBlueprint(pub Instruction);

impl fmt::Display for InstructionBlueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(instruction) = self;
        let (tier, dtype) = (instruction.tier(), instruction.dtype());
        write!(f, "matrix_instruction/{tier}/{instruction}/{dtype}")
    }
}

/// Result of [`run_instruction`].
#[derive(Debug, Clone)]
pub struct Executed {
    /// `[trials, out]`: see [`Instruction::sizes`].
    pub out: Tensor<2>,
    /// What ran; `None` without trials.
    pub blueprint: Option<InstructionBlueprint>,
}

/// Runs one instruction of a matrix unit, or one conversion, `trials` times, each in a cube of its own: D = A B^T + C
/// accumulated in f32, the registers that ldmatrix fills, or converted numbers. It measures what a
/// device's, or a simulated device's, instructions do to numbers; nothing is selected.
///
/// # Errors
/// [`InvalidProblem`] when an operand has another length than `trials` times [`Instruction::sizes`] or the
/// instruction does not exist; [`NotAvailable`] when the device lacks it.
pub fn run_instruction(
    client: &Client,
    instruction: Instruction,
    operands: InstructionOperands<'_>,
    trials: usize,
) -> Result<Executed, Error> {
    check_form(instruction)?;
    let caps = Caps::of(client);
    let (x_max, _, _) = caps.cube_count;
    if trials > x_max as usize {
        return Err(InvalidProblem::OutOfRange {
            name: "trials",
            value: trials as i128,
            limit: i128::from(x_max),
        }
        .into());
    }
    let sizes = instruction.sizes();
    for (name, found, each) in [
        ("a", operands.a.len(), sizes.a),
        ("b", operands.b.len(), sizes.b),
        ("c", operands.c.len(), sizes.c),
    ] {
        expect_entries(name, found, trials * each)?;
    }
    let blueprint = select_instruction(instruction, &caps)?;
    let out = Tensor::empty(client, [trials, sizes.out], DType::F32);
    if trials == 0 {
        return Ok(Executed {
            out,
            blueprint: None,
        });
    }
    launch(client, instruction, operands, &out);
    check_launch(client, &caps, &blueprint, [&out.handle])?;
    Ok(Executed {
        out,
        blueprint: Some(blueprint),
    })
}

/// The blueprint, where the device has the instruction.
///
/// # Errors
/// [`NotAvailable`] naming the compute capability.
pub fn select_instruction(
    instruction: Instruction,
    caps: &Caps,
) -> Result<InstructionBlueprint, NotAvailable> {
    let blueprint = InstructionBlueprint(instruction);
    if caps.sm.is_some_and(|sm| instruction.on(sm)) {
        return Ok(blueprint);
    }
    Err(NotAvailable {
        what: blueprint.to_string(),
        device: caps.device.clone(),
        limit: "compute capability",
        needed: match instruction.tier() {
            _ if instruction.on(80) => "80 and up",
            _ if instruction.on(89) => "89 and up",
            _ if instruction.on(90) => "90",
            _ => "100, 103 or 120",
        }
        .into(),
        available: caps.sm.map_or("none".into(), |sm| sm.to_string()),
    })
}

/// The instruction set has such a form.
fn check_form(instruction: Instruction) -> Result<(), InvalidProblem> {
    let out_of_range = |name, value: u32, limit: u32| {
        Err(InvalidProblem::OutOfRange {
            name,
            value: value.into(),
            limit: limit.into(),
        })
    };
    match instruction {
        Instruction::Mma { element, k } => {
            let whole = 256 / element.bits();
            let half = element.bits() == 16 && k == whole / 2;
            if k != whole && !half {
                return out_of_range("k", k, whole);
            }
        }
        Instruction::Wgmma {
            element,
            n,
            operands,
        } => {
            if n == 0 || n > 256 || !n.is_multiple_of(8) {
                return out_of_range("n", n, 256);
            }
            if operands == WgmmaOperands::RegistersMn && element.bits() != 16 {
                return out_of_range("bits of an MN-major operand", element.bits(), 16);
            }
        }
        Instruction::LoadMatrix { count, .. } if !matches!(count, 1 | 2 | 4) => {
            return out_of_range("count", count, 4);
        }
        Instruction::Decode(format) if format.bits() == 16 => {
            return out_of_range("bits of a code", 16, 8);
        }
        _ => {}
    }
    Ok(())
}

fn launch(
    client: &Client,
    instruction: Instruction,
    operands: InstructionOperands<'_>,
    out: &Tensor<2>,
) {
    let upload = |bytes: &[u8], len: usize| {
        let handle = match bytes {
            // Nothing reads it, but a binding must hold something.
            [] => client.create_from_slice(&[0; 16]),
            bytes => client.create_from_slice(bytes),
        };
        // SAFETY: the length is that of the slice just uploaded.
        unsafe { BufferArg::from_raw_parts(handle, len) }
    };
    let a = upload(u32::as_bytes(operands.a), operands.a.len());
    let b = upload(u32::as_bytes(operands.b), operands.b.len());
    let c = upload(f32::as_bytes(operands.c), operands.c.len());
    // SAFETY: `out` was allocated with this many elements.
    let to = unsafe { BufferArg::from_raw_parts(out.handle.clone(), out.elements()) };
    let cubes = CubeCount::Static(out.shape[0] as u32, 1, 1);
    let units = CubeDim::new_1d(instruction.units());
    // SAFETY: a cube reads and writes its own trial, which the operands were checked to hold; the device has the
    // instruction.
    unsafe {
        match instruction {
            Instruction::Mma { element, k } => {
                multiply_plane::launch_unchecked(client, cubes, units, a, b, c, to, element, k);
            }
            Instruction::Wgmma {
                element,
                n,
                operands,
            } => multiply_warpgroup::launch_unchecked(
                client, cubes, units, a, b, c, to, element, n, operands,
            ),
            Instruction::LoadMatrix { count, transposed } => {
                load_matrices::launch_unchecked(client, cubes, units, a, to, count, transposed);
            }
            Instruction::Encode(format) => {
                encode_values::launch_unchecked(client, cubes, units, a, to, format);
            }
            Instruction::Decode(format) => {
                decode_codes::launch_unchecked(client, cubes, units, a, to, format);
            }
        }
    }
}
