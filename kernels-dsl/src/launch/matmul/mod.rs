//! `matmul_quantized`: check, select, launch.

mod blueprint;
mod run;
mod select;
mod weights;

pub use blueprint::*;
pub use select::*;
pub use weights::*;

use cubecl::prelude::Client;

use super::{Caps, Tensor, expect_axes, expect_dtype};
use crate::error::{Error, InvalidProblem};
use run::MatmulCall;

/// Options of [`matmul_quantized`].
#[derive(Debug, Clone, Default)]
pub struct MatmulOptions {
    /// Added to every row of y: `[n]`, of the dtype of x.
    pub bias: Option<Tensor<1>>,
    /// Where to write y [m, n]; allocated dense when absent.
    pub out: Option<Tensor<2>>,
    /// What selection may choose.
    pub policy: MatmulPolicy,
}

/// Result of [`matmul_quantized`].
#[derive(Debug, Clone)]
pub struct Multiplied {
    /// y [m, n].
    pub out: Tensor<2>,
    /// What ran; `None` when y is empty.
    pub blueprint: Option<MatmulBlueprint>,
}

/// `y[m, n] = factor * sum over k of x[m, k] * scale[g, n] * number(code[k, n]) (+ bias[n])`, where an
/// integer's number is code - zero[g, n], a float's its value ([`WeightCodes`](crate::WeightCodes)).
///
/// x, bias and y in one dtype: f16 or bf16 on every tier, f32 on the unit tier. x has any row
/// stride. Numbers are multiplied exactly (NF4's rounded to 16 bits on matrix units) and summed in f32, a
/// group's sum is scaled in f32 and y is rounded once; m, n and k are any, 0 included.
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
    weights.check()?;
    let [m, _] = x.shape;
    expect_axes("x", ["m", "k"], x.shape, [m, weights.k])?;
    x.check("x")?;
    check_rows(m)?;
    let shape = [m, weights.n];
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
    let key = MatmulKey::of(x, &out, weights);
    let (blueprint, splits) = select_matmul(&key, &caps, &options.policy)?;
    let call = MatmulCall {
        client,
        caps: &caps,
        weights,
        bias: options.bias.as_ref(),
        blueprint,
        splits,
    };
    call.launch(x, &out)?;
    Ok(Multiplied {
        out,
        blueprint: Some(blueprint),
    })
}

/// Kernels count rows in 32 bits and add a block to them.
fn check_rows(m: usize) -> Result<(), InvalidProblem> {
    const LIMIT: usize = 1 << 30;
    if m > LIMIT {
        return Err(super::out_of_range("m", m as i128, LIMIT as i128));
    }
    Ok(())
}
