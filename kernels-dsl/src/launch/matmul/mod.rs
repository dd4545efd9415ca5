//! `matmul_quantized`: check, select, launch.

mod blueprint;
mod repack;
mod run;
mod select;
mod weights;

pub use blueprint::*;
pub use repack::*;
pub use select::*;
pub use weights::*;

use cubecl::prelude::Client;

use super::{Caps, DType, Tensor, expect_axes, expect_dtype};
use crate::error::{Error, InvalidProblem};
use run::MatmulCall;

/// Options of [`matmul_quantized`].
#[derive(Debug, Clone, Default)]
pub struct MatmulOptions {
    /// Added to every row of y: `[n]`, of the dtype of x.
    pub bias: Option<Tensor<1>>,
    /// Where to write y [m, n]; allocated dense when absent.
    pub out: Option<Tensor<2>>,
    /// Where sums of parts and rows of x in another order go: f32, at least [`MatmulPlan::workspace`] elements;
    /// allocated when absent.
    pub workspace: Option<Tensor<1>>,
    /// What selection may choose.
    pub policy: MatmulPolicy,
}

/// What a product runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulPlan {
    /// Comptime choices.
    pub blueprint: MatmulBlueprint,
    /// Parts that the rows of W are summed in.
    pub splits: usize,
    /// f32 elements of [`MatmulOptions::workspace`].
    pub workspace: usize,
}

/// Result of [`matmul_quantized`].
#[derive(Debug, Clone)]
pub struct Multiplied {
    /// y [m, n].
    pub out: Tensor<2>,
    /// What ran; `None` when y is empty.
    pub blueprint: Option<MatmulBlueprint>,
}

/// `y[m, n] = factor * sum over k of x[m, k] * (scale[g, n] * number(code[k, n]) + minimum[g, n]) (+ bias[n])`, where an
/// integer's number is code - zero[g, n], a float's its value ([`WeightCodes`](crate::WeightCodes)), and only integers
/// have minima, then without zero points ([`ZeroType`](crate::ZeroType)).
///
/// x, bias and y in one dtype: f16 or bf16 on every tier, f32 on the unit tier. x has any row
/// stride. Numbers are multiplied exactly (NF4's rounded to 16 bits on matrix units) and summed in f32, a
/// group's sum is scaled in f32 and y is rounded once; or scales go into the weights first, which rounds those to 16
/// bits ([`Scaling`](crate::Scaling)). m, n and k are any, 0 included. Nothing is allocated when y and the workspace
/// are supplied, and nothing is copied from the host: such a call can be captured in a graph.
///
/// # Errors
/// [`InvalidProblem`] for shapes that disagree, buffers too short and y that names an element
/// twice; [`NotAvailable`](crate::NotAvailable) naming what the device or the tier that the policy asks for lacks.
///
/// ```no_run
/// # use flashcube_kernels::{LinearWeights, MatmulOptions, Tensor, matmul_quantized};
/// # fn demo(client: &cubecl::prelude::Client, x: Tensor<2>, weights: LinearWeights) -> Result<(), flashcube_kernels::Error> {
/// let y = matmul_quantized(client, &x, &weights, &MatmulOptions::default())?;
/// assert_eq!(y.out.shape, [x.shape[0], weights.n]);
/// # Ok(())
/// # }
/// ```
pub fn matmul_quantized(
    client: &Client,
    x: &Tensor<2>,
    weights: &LinearWeights,
    options: &MatmulOptions,
) -> Result<Multiplied, Error> {
    let shape = check(x, weights)?;
    let out = match &options.out {
        Some(out) => {
            expect_axes("out", ["m", "n"], out.shape, shape)?;
            expect_dtype("out", out.dtype, x.dtype)?;
            out.check_output("out")?;
            out.clone()
        }
        None => Tensor::empty(client, shape, x.dtype),
    };
    if let Some(bias) = &options.bias {
        expect_axes("bias", ["n"], bias.shape, [weights.n])?;
        expect_dtype("bias", bias.dtype, x.dtype)?;
        bias.check("bias")?;
    }
    if out.elements() == 0 {
        return Ok(Multiplied {
            out,
            blueprint: None,
        });
    }
    let caps = Caps::of(client);
    let plan = plan(x, &out, weights, &options.policy, &caps)?;
    let call = MatmulCall {
        client,
        caps: &caps,
        weights,
        bias: options.bias.as_ref(),
        workspace: workspace(client, options.workspace.as_ref(), plan.workspace)?,
        blueprint: plan.blueprint,
        splits: plan.splits,
    };
    call.launch(x, &out)?;
    Ok(Multiplied {
        out,
        blueprint: Some(plan.blueprint),
    })
}

/// What [`matmul_quantized`] would run on such a device; `None` where y is empty.
///
/// # Errors
/// As [`matmul_quantized`].
pub fn plan_matmul(
    x: &Tensor<2>,
    weights: &LinearWeights,
    options: &MatmulOptions,
    caps: &Caps,
) -> Result<Option<MatmulPlan>, Error> {
    let shape = check(x, weights)?;
    if shape.contains(&0) {
        return Ok(None);
    }
    let dense = Tensor::contiguous(x.handle.clone(), shape, x.dtype);
    let out = options.out.as_ref().unwrap_or(&dense);
    plan(x, out, weights, &options.policy, caps).map(Some)
}

/// The shape of y.
fn check(x: &Tensor<2>, weights: &LinearWeights) -> Result<[usize; 2], InvalidProblem> {
    weights.check()?;
    let [m, _] = x.shape;
    expect_axes("x", ["m", "k"], x.shape, [m, weights.k])?;
    x.check("x")?;
    check_rows(m)?;
    Ok([m, weights.n])
}

fn plan(
    x: &Tensor<2>,
    out: &Tensor<2>,
    weights: &LinearWeights,
    policy: &MatmulPolicy,
    caps: &Caps,
) -> Result<MatmulPlan, Error> {
    let key = MatmulKey::of(x, out, weights);
    let (blueprint, splits) = select_matmul(&key, caps, policy)?;
    let (m, n) = (x.shape[0], weights.n);
    Ok(MatmulPlan {
        blueprint,
        splits,
        workspace: blueprint.sums((m, n), splits, caps) + blueprint.arranged(m, weights.rows),
    })
}

/// The caller's workspace, or one of `needed` elements.
fn workspace(
    client: &Client,
    given: Option<&Tensor<1>>,
    needed: usize,
) -> Result<Tensor<1>, Error> {
    let Some(given) = given else {
        return Ok(Tensor::empty(client, [needed], DType::F32));
    };
    expect_dtype("workspace", given.dtype, DType::F32)?;
    given.check_output("workspace")?;
    let available = given.shape[0];
    if available < needed || given.offset > 0 || given.strides[0] > 1 {
        return Err(InvalidProblem::OutOfBounds {
            tensor: "workspace",
            needed,
            available,
        }
        .into());
    }
    Ok(given.clone())
}

/// Kernels count rows in 32 bits and add a block to them.
fn check_rows(m: usize) -> Result<(), InvalidProblem> {
    const LIMIT: usize = 1 << 30;
    if m > LIMIT {
        return Err(super::out_of_range("m", m as i128, LIMIT as i128));
    }
    Ok(())
}
